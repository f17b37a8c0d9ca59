"""A query answered from a text that may be longer than a prompt: in parts, in parallel. And how
what tools found is quoted.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from orchestra.money import Purse
from orchestra.vocabulary import Backend
from runtime.parsing import after_thinking
from runtime.prompts import DATA_CHARS, fenced, render, say
from tools import Environment

PART_CHARS = 24_000
MAX_PARTS = 8
AT_ONCE = 4
WORD = r"['(\[b-]{0,2}[a-z0-9]{1,16}['.,:%)\]]{0,2}"
NUMBER = r"[-+.('\[]{0,2}\d[\dTZe.,:+*/%()'\]-]{0,39}"
PLAIN = re.compile(rf"(?:{WORD}|{NUMBER})(?: (?:{WORD}|{NUMBER})){{0,2}}", re.ASCII | re.IGNORECASE)
ODD = re.compile(r"[^\t\n -~]")
OBEYED = {"Cc", "Cf", "Cs", "Zl", "Zp"}  # controls, marks of direction and format, halves, breaks
BLANK = re.compile(  # letters and marks that nobody sees, though they are none of these
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2065\u2800\u3164\ufe00-\ufe0f\uffa0\ufff0-\ufff8"
    "\U000e0000-\U000e0fff]"
)
JOINERS = "\u200c\u200d"  # Persian, Indian and emoji are not written without


def answer_from(env: Environment, query: str, text: str, source: str) -> str:
    """What the sub-agent's backend finds in `text`; where it is long, part by part.

    Raises EndpointError and BudgetExceeded, the first of any part; what the parts cost is paid from
    the purse all the same.
    """
    pieces = parts(text)

    def ask(env: Environment, n: int) -> str:
        content = render(
            "tools/reading.md", query=query, source=source, part=n + 1, parts=len(pieces),
            text=fenced(pieces[n], PART_CHARS),
        )  # fmt: skip
        return said(env, env.backend, content)

    answers = in_parallel(env, len(pieces), ask)
    if len(answers) == 1:
        return fenced(answers[0])
    cut = "\n" + say("tools/notes", "part_cut") if sum(map(len, pieces)) < len(text) else ""
    rows = [
        say("tools/notes", "part", part=n, parts=len(answers), answer=answer)
        for n, answer in enumerate(answers, 1)
    ]
    return fenced("\n".join(rows)) + cut


def said(env: Environment, backend: Backend, content: Any) -> str:
    """What a model answers to one message, without its thoughts."""
    return after_thinking(env.chat(backend, [{"role": "user", "content": content}], env.purse).text)


def parts(text: str) -> list[str]:
    """The text in pieces of at most PART_CHARS, cut between lines where there are any."""
    pieces: list[str] = []
    while text and len(pieces) < MAX_PARTS:
        line = text.rfind("\n", PART_CHARS // 2, PART_CHARS)
        end = line if line > 0 and len(text) > PART_CHARS else PART_CHARS
        pieces.append(text[:end])
        text = text[end:]
    return pieces


def in_parallel(
    env: Environment, count: int, ask: Callable[[Environment, int], str], first: int = 0
) -> list[str]:
    """`ask(env, n)` for each n, in threads of their own, each in a logical call of its own. Under a
    budget one after another: the token limit of a call depends on what earlier calls spent.
    """
    call = env.tape.current_call

    def one(purse: Purse, n: int) -> str:
        with env.tape.call(call, f"part{first + n + 1}"):
            return ask(replace(env, chat=env.chat.copy(), purse=purse), n)

    if env.purse.limit_usd is not None or count == 1:
        return [one(env.purse, n) for n in range(count)]
    purses = [Purse() for _ in range(count)]
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="part") as executor:
        futures = [executor.submit(one, purse, n) for n, purse in enumerate(purses)]
    for purse in purses:
        env.purse.join(purse)
    return [future.result() for future in futures]


def quoted(text: str, limit: int = DATA_CHARS) -> str:
    """What a program printed or a model saw, as data: it may come from a file. What a terminal
    would obey and what nobody would see is spelled out. Up to three plain words or numbers stand
    bare: they can pass for no instruction and for no mark.

    >>> quoted("2025-09-23 05:49:00 UTC")
    '2025-09-23 05:49:00 UTC'
    """
    shown = ODD.sub(lambda found: _spelled(found[0]), text)
    return shown if not shown or PLAIN.fullmatch(shown) else fenced(shown, limit)


def _spelled(letter: str) -> str:
    unseen = unicodedata.category(letter) in OBEYED or BLANK.match(letter)
    return letter.encode("unicode_escape").decode() if unseen and letter not in JOINERS else letter
