"""A query answered from a text that may be longer than a prompt: in parts, side by side."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from orchestra.call import current_call
from orchestra.money import Purse
from orchestra.prompts import fenced, render, say
from tools import Environment

PART_CHARS = 24_000
MAX_PARTS = 8
SIDE_BY_SIDE = 4


def answer_from(env: Environment, query: str, text: str, source: str) -> str:
    """What the sub-agent's backend finds in `text`; where it is long, part by part.

    Raises EndpointError and BudgetExceeded, the first of any part; what the parts cost is paid from
    the purse all the same.
    """
    pieces = parts(text)
    if env.purse.limit_usd is not None or len(pieces) == 1:  # money is spent in order
        answers = [_ask(env, env.purse, query, source, n, pieces) for n in range(len(pieces))]
    else:
        purses = [Purse() for _ in pieces]
        with ThreadPoolExecutor(SIDE_BY_SIDE, thread_name_prefix="reader") as executor:
            futures = [
                executor.submit(_ask_named, call_name(), env, purses[n], query, source, n, pieces)
                for n in range(len(pieces))
            ]
        for purse in purses:
            env.purse.absorb(purse)
        answers = [future.result() for future in futures]
    if len(answers) == 1:
        return fenced(answers[0])
    cut = say("notes", "part_cut") if sum(map(len, pieces)) < len(text) else ""
    rows = [
        say("notes", "part", part=n, parts=len(answers), answer=answer)
        for n, answer in enumerate(answers, 1)
    ]
    return fenced("\n".join(rows)) + cut


def parts(text: str) -> list[str]:
    """The text in pieces of at most PART_CHARS, cut between lines where there are any."""
    pieces: list[str] = []
    while text and len(pieces) < MAX_PARTS:
        end = (
            len(text) if len(text) <= PART_CHARS else text.rfind("\n", PART_CHARS // 2, PART_CHARS)
        )
        end = end if end > 0 else PART_CHARS
        pieces.append(text[:end])
        text = text[end:]
    return pieces


def call_name() -> str:
    """The logical call that this thread is in: a worker names its own after it."""
    call = current_call()
    assert call is not None, "a tool runs inside a logical call"
    return call.name


def _ask_named(
    name: str, env: Environment, purse: Purse, query: str, source: str, n: int, pieces: list[str]
) -> str:
    with env.tape.logical_call(name, f"part{n + 1}"):
        return _ask(env, purse, query, source, n, pieces)


def _ask(env: Environment, purse: Purse, query: str, source: str, n: int, pieces: list[str]) -> str:
    content = render(
        "tools/reading.md", query=query, source=source, part=n + 1, parts=len(pieces),
        text=fenced(pieces[n], PART_CHARS),
    )  # fmt: skip
    return env.chat(env.backend, [{"role": "user", "content": content}], purse).text
