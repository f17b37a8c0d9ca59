"""A language model reads an answer.

judge      Correct or Incorrect, by our prompt: another form of the right answer is right, too
omnigaia   Correct or Incorrect, by OmniGAIA's own rule, as its released evaluation has it
bare       the answer alone, without a sentence around it. It does not see the right answer
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from orchestra.kernel.chat import Chat
from orchestra.kernel.folder import write_whole
from orchestra.kernel.money import Purse
from orchestra.kernel.prompts import after_thinking, fenced, render, say
from orchestra.kernel.tape import OVER_BUDGET, rows_of
from orchestra.kernel.vocabulary import Backend, ConfigError, Pool

AROUND_A_VERDICT = " \n\t.*`\"'"


def one_word(reply: str) -> bool | None:
    """The verdict of a reply that is Correct or Incorrect and nothing else.

    >>> one_word("Correct."), one_word("Incorrect"), one_word("It is Correct")
    (True, False, None)
    """
    word = reply.strip(AROUND_A_VERDICT)
    return word == "Correct" if word in ("Correct", "Incorrect") else None


def named(reply: str) -> bool | None:
    """The verdict that a reply names: a reply with Incorrect in it is that.

    >>> named("**Correct**: both are 5"), named("That is Incorrect"), named("Perhaps")
    (True, False, None)
    """
    if "Incorrect" in reply:
        return False
    return True if "Correct" in reply else None


@dataclass(frozen=True)
class Rule:
    """How a judge is asked. `tape`: the file of its calls, in the folder of the run."""

    prompt: str
    tape: str
    attempts: int
    read: Callable[[str], bool | str | None]
    temperature: float | None = None


# Differences of `omnigaia` from the released evaluation:
# 1. A reply without Correct and Incorrect is asked for again; there, it counts as right.
# 2. The answer is the one that the run gave; there, the last 20 words if it gave none.
RULES = {
    "judge": Rule("evaluation/judge.md", "judge.jsonl", 2, one_word),
    "omnigaia": Rule("evaluation/omnigaia.md", "omnigaia.jsonl", 3, named),
    "bare": Rule("evaluation/bare.md", "bare.jsonl", 1, str.strip, temperature=0.0),
}


def judge_of(name: str, pool: Pool, budget_usd: float | None) -> Backend:
    """A backend of the pool, or another model at the main endpoint. Raises ConfigError."""
    if name in pool.names:
        return pool[name]
    if budget_usd is not None:
        raise ConfigError(
            f"--judge {name}: --budget needs its price; add it to --backends FILE"
        )
    return replace(pool[pool.main], name=name, model=name, price_usd_per_mtok=None)


def verdict(
    rule: Rule,
    question: str,
    accepted: Sequence[str],
    given: str,
    judge: Backend,
    chat: Chat,
    purse: Purse,
) -> bool | str | None:
    """What a language model finds in an answer; None if no reply was usable. Raises EndpointError,
    and BudgetExceeded if the purse cannot pay for the call.
    """
    prompt = render(
        rule.prompt,
        question=fenced(question),
        answer=_right_answer(accepted),
        reply=fenced(given),
    )
    messages = [{"role": "user", "content": prompt}]
    for attempt in range(1, rule.attempts + 1):
        with chat.tape.call("judge", f"a{attempt}"):
            temperature = rule.temperature
            said = chat(judge, messages, purse, temperature=temperature)
        reply = said.text
        found = None if said.cut else rule.read(after_thinking(reply))
        if found is not None:
            return found
        messages.append({"role": "assistant", "content": reply})
        messages.append({"role": "user", "content": say("evaluation/notes", "again")})
    return None


def forget_budget(tape: Path) -> None:
    """Take calls off a tape that an earlier budget did not cover: this one may cover them."""
    rows = list(rows_of(tape))
    kept = [r for r in rows if r.get("failure", {}).get("cause") != OVER_BUDGET]
    if len(kept) < len(rows):
        write_whole(
            tape, "".join(f"{json.dumps(r, ensure_ascii=False)}\n" for r in kept)
        )


def _right_answer(accepted: Sequence[str]) -> str:
    """The right answer for the prompt, or each one that is accepted."""
    listed = fenced("\n".join(accepted))
    if len(accepted) == 1:
        return listed
    return say("evaluation/notes", "any_of", answers=listed)
