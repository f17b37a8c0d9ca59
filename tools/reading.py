"""A query answered from a text that may be longer than a prompt: in parts, side by side. And how
what tools found is quoted.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from orchestra.call import current_call
from orchestra.money import Purse
from orchestra.prompts import DATA_CHARS, fenced, render, say
from tools import Environment

PART_CHARS = 24_000
MAX_PARTS = 8
SIDE_BY_SIDE = 4
WORD = r"[\w.,:+*/%()'-]{0,39}[\w.,+*/%()'-]"
PLAIN = re.compile(f"{WORD}( {WORD}){{0,2}}")  # can pass for no instruction and for no mark
UNSEEN = re.compile(
    "[\0-\x08\x0b-\x1f\x7f-\x9f\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\U000e0000-\U000e007f]"
)


def answer_from(env: Environment, query: str, text: str, source: str) -> str:
    """What the sub-agent's backend finds in `text`; where it is long, part by part.

    Raises EndpointError and BudgetExceeded, the first of any part; what the parts cost is paid from
    the purse all the same.
    """
    pieces = parts(text)

    def ask(purse: Purse, n: int) -> str:
        content = render(
            "tools/reading.md", query=query, source=source, part=n + 1, parts=len(pieces),
            text=fenced(pieces[n], PART_CHARS),
        )  # fmt: skip
        return env.chat(env.backend, [{"role": "user", "content": content}], purse).text

    answers = side_by_side(env, len(pieces), ask)
    if len(answers) == 1:
        return fenced(answers[0])
    cut = "\n" + say("tools/notes", "part_cut") if sum(map(len, pieces)) < len(text) else ""
    rows = [
        say("tools/notes", "part", part=n, parts=len(answers), answer=answer)
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


def side_by_side(
    env: Environment, count: int, ask: Callable[[Purse, int], str], first: int = 0
) -> list[str]:
    """`ask(purse, n)` for each n, in threads of their own, each in a logical call of its own; one
    after another where the purse has a limit: what a call may say depends on those before it.
    """
    call = current_call()
    assert call is not None, "a tool runs inside a logical call"

    def one(purse: Purse, n: int) -> str:
        with env.tape.logical_call(call.name, f"part{first + n + 1}"):
            return ask(purse, n)

    if env.purse.limit_usd is not None or count == 1:
        return [one(env.purse, n) for n in range(count)]
    purses = [Purse() for _ in range(count)]
    with ThreadPoolExecutor(SIDE_BY_SIDE, thread_name_prefix="part") as executor:
        futures = [executor.submit(one, purse, n) for n, purse in enumerate(purses)]
    for purse in purses:
        env.purse.join(purse)
    return [future.result() for future in futures]


def quoted(text: str, limit: int = DATA_CHARS) -> str:
    """What a program printed or a model saw, as data: it may come from a file. What a terminal
    would obey and what nobody would see is spelled out.

    >>> quoted("2025-09-23 05:49:00 UTC")
    '2025-09-23 05:49:00 UTC'
    """
    shown = UNSEEN.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
    return shown if not shown or PLAIN.fullmatch(shown) else fenced(shown, limit)
