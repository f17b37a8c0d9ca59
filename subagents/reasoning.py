"""The agents of MAS-Orchestra (arXiv 2601.14652, App. H): CoT, self-consistency, debate, Reflexion
and search, each over `Asking`.

Differences from the paper / the released code
1. Samples, and the roles of one round, run side by side; the released code asks one by one.
2. The majority is of normalised answers (case, spaces, a final full stop); a tie goes to the first.
3. A sample or a role that fails is left out; only when all of a round fail, the agent does.
4. A reply is plain text that ends in "Answer: ..."; without that line its last line is the answer.
"""

from __future__ import annotations

import re
from collections import Counter

from orchestra.prompts import say
from subagents.asking import Asking, agent
from subagents.executor import SEARCH

SAMPLES = 5
DEBATE_ROUNDS = 5
REFLECTIONS = 5
SEARCHES = 5


@agent
def cot(it: Asking) -> str:
    """Chain of thought: one call."""
    return answer_of(it.ask("think", prompt("think", it)))


@agent
def self_consistency(it: Asking) -> str:
    """The majority of SAMPLES answers to the same prompt."""
    replies = it.ask_all([(f"sample {n}", prompt("think", it)) for n in range(1, SAMPLES + 1)])
    return majority([answer_of(reply) for reply in replies if reply])


@agent
def debate(it: Asking) -> str:
    """DEBATE_ROUNDS rounds, each role seeing what the others last said; then one final decision."""
    roles, said = it.u.roles, [""] * len(it.u.roles)
    for n in range(1, DEBATE_ROUNDS + 1):
        prompts = []
        for role in roles:
            others = _statements([r for r in zip(roles, said, strict=True) if r[0] != role])
            prompts.append((f"{role}, round {n}", prompt("debate", it, role=role, others=others)))
        said = it.ask_all(prompts, later=(DEBATE_ROUNDS - n) * len(roles) + 1)
    statements = _statements(list(zip(roles, said, strict=True)))
    return answer_of(it.ask("decide", prompt("decide", it, statements=statements)))


@agent
def reflexion(it: Asking) -> str:
    """Attempt; a critic; again with its feedback, until the critic says that it is correct."""
    later = 2 * REFLECTIONS
    attempt = it.ask("attempt", prompt("think", it), later)
    for n in range(1, REFLECTIONS + 1):
        verdict = it.ask(f"critic {n}", prompt("criticise", it, attempt=attempt), later - 2 * n + 1)
        if answer_of(verdict).lower().strip(" .*") == "correct":
            break
        again = prompt("again", it, attempt=attempt, feedback=verdict)
        attempt = it.ask(f"attempt {n + 1}", again, later - 2 * n)
    return answer_of(attempt)


@agent
def search(it: Asking) -> str:
    """Up to SEARCHES searches, each chosen after the last; then the answer from what was found."""
    found = ""
    for n in range(1, SEARCHES + 1):
        wanted = it.ask(f"query {n}", prompt("query", it, found=found or "-"), SEARCHES - n + 1)
        query = re.search(r"^\W*query\W*[:=]\s*(.+)$", wanted, flags=re.I | re.M)
        if not query:
            break
        said = query[1].strip(" \"'*`")
        found += say(
            "reasoning/messages", "found", query=said, observation=it.use(SEARCH, query=said)
        )
        found += "\n\n"
    return answer_of(it.ask("answer", prompt("from_search", it, found=found or "-")))


# ---- the words around ----------------------------------------------------------------------------


def prompt(name: str, it: Asking, **values: str) -> str:
    return say("reasoning/messages", name, task=it.u.instruction, **values)


def _statements(said: list[tuple[str, str]]) -> str:
    rows = [
        say("reasoning/messages", "statement", role=role, text=text) for role, text in said if text
    ]
    return "\n\n".join(rows) or say("reasoning/messages", "nobody_yet")


def answer_of(reply: str) -> str:
    """What stands behind the last "Answer:"; without one, the last line."""
    text = re.split(r"</think(?:ing)?>", reply)[-1]
    parts = re.split(
        r"^[^\w\n]*_*(?:final[ \t]+)?answer\b[^\w\n]*?:[ \t*_]*", text, flags=re.I | re.M
    )
    if len(parts) > 1 and parts[-1].strip():
        return parts[-1].strip().strip("*").strip()
    return next((row.strip() for row in reversed(text.splitlines()) if row.strip()), "")


def majority(answers: list[str]) -> str:
    """The answer given most often, as it was first spelled."""
    spelled: dict[str, str] = {}
    counts: Counter[str] = Counter()
    for answer in answers:
        key = " ".join(answer.lower().split()).rstrip(" .")
        spelled.setdefault(key, answer)
        counts[key] += 1
    return spelled[max(counts, key=lambda key: counts[key])] if counts else ""
