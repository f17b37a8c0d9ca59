"""The logical call a thread is in, such as r2/t1/s3: round 2, sub-task 1, step 3.

It lives in a ContextVar, which pool threads start without: so it is entered inside the worker.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol

from vcr.request import Request


class Cassette(Protocol):
    """What a transport asks of a tape."""

    def can_play_response_for(self, request: Request) -> bool: ...
    def play_response(self, request: Request) -> Any: ...
    def append(self, request: Request, response: Any) -> None: ...
    def append_failure(self, request: Request, failure: Exception) -> None: ...
    def refuse_socket(self, address: object) -> None: ...


@dataclass(frozen=True)
class Call:
    tape: Cassette
    name: str


def round_of(name: str) -> int:
    """The round of a call or of a work folder, r2/t1/s3 or r2-t1; 0, before all, for any other."""
    found = re.match(r"r(\d+)[/-]", name)
    return int(found[1]) if found else 0


_current: ContextVar[Call | None] = ContextVar("logical_call", default=None)


def current_call() -> Call | None:
    """None: the thread works for the host program, not for a run."""
    return _current.get()


@contextlib.contextmanager
def entered(call: Call) -> Iterator[None]:
    token = _current.set(call)
    try:
        yield
    finally:
        _current.reset(token)
