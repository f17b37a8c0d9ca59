"""Single calls of a tape's Chat, for tests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from orchestra.backends import Chat
from orchestra.money import Purse
from orchestra.replay import Tape
from orchestra.vocabulary import Price
from tests.conftest import pool_at

PAID = Price(1.0, 1.0, 1.0)


def answering(*answers: Any) -> Any:
    left = list(answers)
    return lambda request: left.pop(0) if len(left) > 1 else left[0]


def ask(tape: Tape, url: str, purse: Purse | None = None, call: str = "a", **how: Any) -> str:
    with tape.logical_call(call):
        chat = Chat(tape, timeout_s=how.pop("timeout_s", 5.0))
        name = how.pop("name", "small")
        backend = replace(pool_at(url, price=PAID)["small"], name=name)
        return chat(backend, [{"role": "user", "content": "x"}], purse or Purse(), **how).text
