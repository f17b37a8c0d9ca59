"""Single calls of a tape's Chat, for tests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from orchestra.money import Purse
from runtime.chat import Chat
from runtime.tape import Tape
from tests.conftest import Price, pool_at

PAID = Price(1.0, 1.0)  # USD per million tokens


def answering(*answers: Any) -> Any:
    """A `respond` that gives these answers in turn; the last one again and again."""
    left = list(answers)
    return lambda request: left.pop(0) if len(left) > 1 else left[0]


def ask(tape: Tape, url: str, purse: Purse | None = None, call: str = "a", **how: Any) -> str:
    with tape.call(call):
        chat = Chat(tape, timeout_s=how.pop("timeout_s", 5.0))
        backend = replace(pool_at(url, price=PAID)["small"], name=how.pop("name", "small"))
        return chat(backend, [{"role": "user", "content": "x"}], purse or Purse(), **how).text
