"""The attempts of one exchange.

`answer_or_problem` reads a response. `Patience` says how long to wait after a problem:

    patience = Patience(patience_s=120)
    pause_s = patience.pause_s(problem)  # None: give up
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from orchestra.runtime import http
from orchestra.runtime.completion import NoChoice

ATTEMPTS = 3  # of one call, besides those that meet a rate limit
BUSY = {408, 409, 429, *range(500, 600)}  # worth another attempt
RATE_LIMIT = 429
TIMED_OUT = 408  # HTTP's status for it, also where the endpoint sent nothing at all
PAUSE_S = 0.25  # before the second attempt; doubled each time
MAX_PAUSE_S = 16.0
# A refusal that no further attempt changes; llama.cpp and others send it with status 500.
REFUSED_MEDIA = re.compile(
    r"(image|audio|vision)\w* .*(not|only) supported|support (image|audio|vision)"
    r"|for (image|audio) input|not a multi-?modal|unsupported content part|mmproj",
    re.IGNORECASE,
)


class Kind(NamedTuple):
    """A kind of exchange. `read` raises ValueError for what is not an answer."""

    name: str
    read: Callable[[http.Response], Any]
    shape: Any


@dataclass(frozen=True)
class Problem:
    """Why one attempt gave no answer. `billed`: it may be on the bill all the same."""

    status: int
    why: str
    billed: bool
    retry: bool
    retry_after: str = ""
    cause: str = ""

    @classmethod
    def of_no_answer(cls, error: http.NoAnswer) -> Problem:
        cause = "timeout" if error.timed_out else ""
        return cls(
            status=0, why=error.reason, billed=error.sent, retry=True, cause=cause
        )

    @property
    def told_status(self) -> int:
        """The status for those who watch: that of the response, or TIMED_OUT."""
        return TIMED_OUT if self.cause == "timeout" else self.status

    @property
    def is_rate_limit(self) -> bool:
        is_overload = self.status == 503 and self.retry_after != ""
        return self.status == RATE_LIMIT or is_overload


def answer_or_problem(kind: Kind, response: http.Response) -> Any:
    """What `kind.read` returns, or the Problem of a response: an error, HTML, half an answer."""
    unusable = ""
    cause = ""
    if 200 <= response.status < 300:
        try:
            return kind.read(response)
        except ValueError as error:
            unusable = str(error)
            cause = "no_choice" if isinstance(error, NoChoice) else ""
    status, why = http.error_of(response)
    is_final = b"insufficient_quota" in response.content or REFUSED_MEDIA.search(why)
    retry = status in BUSY and not is_final
    if status == 0:
        return Problem(status=0, why=unusable, billed=True, retry=retry, cause=cause)
    return Problem(
        status=status,
        why=why,
        billed=False,
        retry=retry,
        retry_after=response.headers.get("retry-after", ""),
    )


class Patience:
    """How long a call waits before its next attempt. At most ATTEMPTS fail. Those that meet a rate
    limit do not count; together they wait for at most `patience_s`.
    """

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._waited_s = 0.0
        self._failures = 0
        self._pauses = _doubling()
        self._text = ""

    def __str__(self) -> str:
        """What comes next, for people."""
        return self._text

    def pause_s(self, problem: Problem) -> float | None:
        """Seconds to wait after a problem; None: make no further attempt."""
        pause_s = next(self._pauses)
        if problem.is_rate_limit:
            pause_s = http.retry_after_s(problem.retry_after) or pause_s
            self._waited_s += pause_s
            left_s = self._patience_s - self._waited_s
            self._text = f"rate limit, for {left_s:.0f} s at most"
        else:
            self._failures += 1
            self._text = f"attempt {self._failures + 1} of {ATTEMPTS}"
        is_patient = self._waited_s <= self._patience_s and self._failures < ATTEMPTS
        return pause_s if problem.retry and is_patient else None


def _doubling() -> Iterator[float]:
    pause_s = PAUSE_S
    while True:
        yield pause_s
        pause_s = min(2 * pause_s, MAX_PAUSE_S)
