"""Answers a query from a text that may be longer than a prompt, part by part."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

from orchestra.kernel.money import Purse
from orchestra.kernel.prompts import after_thinking, fenced, render, say
from orchestra.kernel.tool import Environment
from orchestra.kernel.vocabulary import Backend

PART_CHARS = 24_000
MAX_PARTS = 8
PARALLEL = 4  # parts


def answer_from(env: Environment, query: str, text: str, source: str) -> str:
    """What the sub-agent's backend finds in `text`; in a long one, part by part.

    Raises EndpointError or BudgetExceeded of the first part that fails. The purse is charged for
    all parts that were sent.
    """
    pieces = parts(text)
    read = partial(_read_part, query, source, len(pieces))
    answers = in_parallel(env, read, enumerate(pieces, 1))
    if len(answers) == 1:
        return fenced(answers[0])
    rows = [
        say("tools/notes", "part", part=n, parts=len(answers), answer=answer)
        for n, answer in enumerate(answers, 1)
    ]
    report = fenced("\n".join(rows))
    if sum(map(len, pieces)) < len(text):
        report += "\n" + say("tools/notes", "part_cut")
    return report


def _read_part(
    query: str, source: str, parts: int, env: Environment, part: tuple[int, str]
) -> str:
    """What the sub-agent's backend finds in one of `parts` parts. `part`: its number and text."""
    number, text = part
    content = render(
        "tools/reading.md",
        query=query,
        source=source,
        part=number,
        parts=parts,
        text=fenced(text, PART_CHARS),
    )
    return ask(env, env.backend, content)


def ask(env: Environment, backend: Backend, content: Any) -> str:
    """The answer of a model to one message, without its thoughts."""
    message = {"role": "user", "content": content}
    reply = env.chat(backend, [message], env.purse)
    return after_thinking(reply.text)


def parts(text: str) -> list[str]:
    """The text in pieces of at most PART_CHARS, cut between lines where there are any. What is
    after MAX_PARTS pieces is left out.
    """
    pieces: list[str] = []
    while text and len(pieces) < MAX_PARTS:
        end = _end_of_part(text)
        pieces.append(text[:end])
        text = text[end:]
    return pieces


def _end_of_part(text: str) -> int:
    if len(text) <= PART_CHARS:
        return PART_CHARS
    line_break = text.rfind("\n", PART_CHARS // 2, PART_CHARS)
    return line_break if line_break > 0 else PART_CHARS


def in_parallel(
    env: Environment, ask: Callable[[Environment, Any], Any], items: Iterable[Any]
) -> list[Any]:
    """`ask(env, item)` of each item, in a logical call and a thread of its own. No more than
    PARALLEL items are in memory at a time. Under a budget, one after another: the token limit of a
    call depends on what earlier calls spent.
    """
    call = env.tape.current_call

    def one(purse: Purse, part: tuple[int, Any]) -> Any:
        number, item = part
        with env.tape.call(call, f"part{number}"):
            return ask(replace(env, chat=env.chat.copy(), purse=purse), item)

    numbered = enumerate(items, 1)
    if env.purse.limit_usd is not None:
        return [one(env.purse, part) for part in numbered]
    answers: list[Any] = []
    while True:
        batch = list(islice(numbered, PARALLEL))
        if not batch:
            return answers
        purses = [Purse() for _ in batch]
        with ThreadPoolExecutor(PARALLEL, thread_name_prefix="part") as executor:
            results = executor.map(one, purses, batch)
        for purse in purses:
            env.purse.join(purse)
        answers += results  # raises what the first failed part raised
