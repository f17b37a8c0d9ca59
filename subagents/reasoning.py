"""The agents of MAS-Orchestra (arXiv 2601.14652, App. H): CoT, self-consistency, debate, Reflexion
and search, each over `Job`.

Differences from the paper / the released code
1. Samples, and the roles of one round, run in parallel; the released code asks one by one.
2. The majority is of normalised answers (case, spaces, a final full stop); a tie goes to the first.
   An empty answer and a reply that was cut off at its length limit are no vote.
3. A failed sample or role is left out; the agent fails only if all of a round fail. Reflexion then
   returns its last attempt, a debate the majority of its last round, as partial.
4. A reply is plain text that ends in "Answer: ..."; without that line its last line is the answer.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from orchestra.vocabulary import Reply
from runtime.parsing import after_thinking
from runtime.prompts import say
from subagents.fan_out import SEARCH, STOPPED, Job, agent

SAMPLES = 5
DEBATE_ROUNDS = 5
REFLECTIONS = 5
SEARCHES = 5
ANSWER = re.compile(r"^[^\w\n]*_*(?:final[ \t]+)?answer\b[^\w\n]*?:[ \t*_]*", flags=re.I | re.M)
QUERY = re.compile(
    r"^[^\w\n]*(?:\d+[^\w\n]+)?query[^\w\n]*(?:\d+[^\w\n]*)?[:=]\s*(.+)$", flags=re.I | re.M
)


@agent
def cot(job: Job) -> str:
    """Chain of thought: one call."""
    return answer_of(job.ask("think", prompt("think", job)))


@agent
def self_consistency(job: Job) -> str:
    """The majority of SAMPLES answers to the same prompt."""
    replies = job.ask_all([(f"sample {n}", prompt("think", job)) for n in range(1, SAMPLES + 1)])
    return vote(replies)


@agent
def debate(job: Job) -> str:
    """DEBATE_ROUNDS rounds, each role seeing what the others last said; then one final decision."""
    roles, said = job.u.roles, list[Reply | None]([None] * len(job.u.roles))
    try:
        for n in range(1, DEBATE_ROUNDS + 1):
            prompts = []
            for role in roles:
                others = _statements([r for r in zip(roles, said, strict=True) if r[0] != role])
                text = prompt("debate", job, role=role, others=others)
                prompts.append((f"{role}, round {n}", text))
            said = job.ask_all(prompts, later=(DEBATE_ROUNDS - n) * len(roles) + 1)
        statements = _statements(list(zip(roles, said, strict=True)))
        return answer_of(job.ask("decide", prompt("decide", job, statements=statements)))
    except STOPPED as failure:
        if not (answer := vote(said)):
            raise
        job.stopped = str(failure)
        return answer


@agent
def reflexion(job: Job) -> str:
    """Attempt; a critic; again with its feedback, until the critic says that it is correct."""
    later = 2 * REFLECTIONS
    attempt = job.ask("attempt", prompt("think", job), later)
    try:
        for n in range(1, REFLECTIONS + 1):
            criticise = prompt("criticise", job, attempt=attempt)
            verdict = job.ask(f"critic {n}", criticise, later - 2 * n + 1)
            if answer_of(verdict).lower().strip(" .*") == "correct":
                break
            again = prompt("again", job, attempt=attempt, feedback=verdict)
            newer = job.ask(f"attempt {n + 1}", again, later - 2 * n)
            attempt = newer if answer_of(newer) else attempt
    except STOPPED as failure:
        job.stopped = str(failure)
    return answer_of(attempt)


@agent
def search(job: Job) -> str:
    """Up to SEARCHES searches, each chosen after the last; then the answer from what was found."""
    found = ""
    for n in range(1, SEARCHES + 1):
        wanted = job.ask(f"query {n}", prompt("query", job, found=found or "-"), SEARCHES - n + 1)
        if not (queries := queries_in(wanted)):
            break
        observation = job.use(SEARCH, query=queries[0])
        found += say("reasoning/messages", "found", query=queries[0], observation=observation)
        found += "\n\n"
    return answer_of(job.ask("answer", prompt("from_search", job, found=found or "-")))


# ---- the words around ----------------------------------------------------------------------------


def prompt(name: str, job: Job, **values: str) -> str:
    return say("reasoning/messages", name, task=job.u.instruction, **values)


def _statements(said: list[tuple[str, Reply | None]]) -> str:
    rows = [
        say("reasoning/messages", "statement", role=role, text=reply.text)
        for role, reply in said
        if reply and reply.text
    ]
    return "\n\n".join(rows) or say("reasoning/messages", "nobody_yet")


def answer_of(reply: str) -> str:
    """What stands behind the last "Answer:" that has any; without one, the last line."""
    before, *parts = ANSWER.split(after_thinking(reply))
    said = [text for part in parts if (text := part.strip().strip("*").strip())]
    lines = [row.strip() for row in before.splitlines() if row.strip()]
    return (said or lines or [""])[-1]


def queries_in(reply: str) -> list[str]:
    """What stands behind each "Query:", numbered or not."""
    rows = QUERY.findall(after_thinking(reply))
    return [query for row in rows if (query := row.strip(" \"'*`"))]


def vote(replies: Sequence[Reply | None]) -> str:
    """The majority of the answers; "" where no reply is whole and has one."""
    answers = [answer_of(reply.text) for reply in replies if reply and not reply.cut]
    return majority([answer for answer in answers if answer])


def majority(answers: list[str]) -> str:
    """The answer given most often, as it was first spelled."""
    spelled: dict[str, str] = {}
    counts: Counter[str] = Counter()
    for answer in answers:
        key = " ".join(answer.lower().split()).rstrip(" .")
        spelled.setdefault(key, answer)
        counts[key] += 1
    return spelled[max(counts, key=lambda key: counts[key])] if counts else ""
