"""What a training may use: CPU seconds, or steps where a run must repeat bit for bit.

CPU seconds of this process do not depend on what else the machine does. An arm that is measured
against another gets as many of them. How many steps fit into them differs from machine to machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

MILLION = 1_000_000  # the schedule counts in millionths of a budget


@dataclass(frozen=True)
class Budget:
    """`seconds` of CPU time. With `steps`, so many steps instead. `executed`: so many carried out
    decisions, if that comes first.
    """

    seconds: float
    steps: int | None = None
    executed: int | None = None


class Meter:
    """How much of a budget is used, from the first step on. What is done in `paused` is free."""

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.step = 0
        self.sampled = 0  # decisions
        self.executed = 0  # decisions that were carried out
        self.calls = 0  # of sub-agents in them
        self._began: float | None = None
        self._paused_at: float | None = None
        self._free = 0.0

    def seconds(self) -> float:
        """CPU seconds used."""
        if self._began is None:
            return 0.0
        now = self._paused_at or time.process_time()
        return now - self._began - self._free

    def row(self) -> dict[str, float]:
        """What was used so far."""
        return {
            "cpu_s": self.seconds(),
            "decisions": self.sampled,
            "executed": self.executed,
            "calls": self.calls,
            "steps": self.step,
        }

    def used(self) -> float:
        """The share of the budget that is used: 1 or more ends the training."""
        budget = self.budget
        if budget.steps is not None:
            share = self.step / budget.steps
        else:
            share = self.seconds() / budget.seconds
        if budget.executed is not None:
            share = max(share, self.executed / budget.executed)
        return share

    def places(self) -> Iterator[int]:
        """The place of each step in the budget, in millionths, for the schedule."""
        self._began = time.process_time()
        while (share := self.used()) < 1:
            self.step += 1
            yield int(share * MILLION)

    def paused(self, work: Callable[[], None]) -> None:
        """Do something that is not counted, such as a validation."""
        self._paused_at = time.process_time()
        work()
        self._free += time.process_time() - self._paused_at
        self._paused_at = None
