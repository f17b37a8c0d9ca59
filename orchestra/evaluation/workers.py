"""How many questions may be in flight: --workers.

With `auto` it is found by additive increase and multiplicative decrease, as TCP finds the speed of
a network. It doubles with each round of questions until the endpoint refuses a call or slows down.
From then on, each round of questions adds one, and each refusal halves it.

    >>> workers = Workers("auto")
    >>> workers.allowed
    4
"""

from __future__ import annotations

import statistics
from collections import deque

from orchestra.evaluation.executors import MOST
from orchestra.evaluation.questions import QuestionRow
from orchestra.kernel.vocabulary import ConfigError

FIRST_ALLOWED = 4  # questions in flight, with `auto`
MEASURED = 8  # questions that show how fast calls are at the start
SLOWER = 1.5  # times as long as at the start: too slow for more questions


class Workers:
    """The number of questions that may be in flight. Threads only call `refused`."""

    def __init__(self, workers: str) -> None:
        self.auto = workers == "auto"
        if not self.auto and not (workers.isdecimal() and 0 < int(workers) <= MOST):
            raise ConfigError(
                f"--workers {workers}: needs auto, or a number from 1 to {MOST}"
            )
        self.window = float(FIRST_ALLOWED if self.auto else int(workers))
        self.started = 0  # questions so far
        self.cut_at = 0  # how many had started at the last cut
        self.paces_s: list[float] = []  # seconds a call, of the first questions
        self._refused: deque[int] = deque()  # questions, until they are counted

    @property
    def allowed(self) -> int:
        self._count_refusals()
        return int(self.window)

    def start(self) -> int:
        """A question starts. Returns its number."""
        self.started += 1
        return self.started

    def refused(self, number: int) -> None:
        """The endpoint refused a call of the question that was the `number`-th to start."""
        self._refused.append(number)

    def _count_refusals(self) -> None:
        """Halve the number, but once only: for a question that started before the last cut, that
        cut was for the same overload.
        """
        while self._refused:
            number = self._refused.popleft()
            if self.auto and number > self.cut_at:
                self.window = max(1.0, self.window / 2)
                self.cut_at = self.started

    def ended(self, row: QuestionRow, number: int) -> None:
        """A question has ended."""
        if row["status"] == "failed" and row.get("cause") == "rate limit":
            self.refused(number)
        if not self.auto or row["status"] != "done" or row["resumed"]:
            return
        pace_s = row["latency_s"] / max(row["calls"], 1)
        if len(self.paces_s) < MEASURED:
            self.paces_s.append(pace_s)
        self._count_refusals()
        if pace_s <= SLOWER * statistics.median(self.paces_s):
            was_refused = self.cut_at > 0
            more = 1 / self.window if was_refused else 1.0
            self.window = min(float(MOST), self.window + more)
