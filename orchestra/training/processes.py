"""The processes that train together. Here it is this one alone; `ranks.Ranks` are several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import torch

T = TypeVar("T")


class Processes:
    """What the training asks of the processes around it. All of them must call `gathered` and what
    builds on it in the same order.

    rank    the number of this process; the first one, 0, writes files and talks to servers
    count   how many there are
    """

    rank = 0
    count = 1

    def gathered(self, value: T) -> list[T]:
        """`value` of every process, in order."""
        return [value]

    def total(self, value: float) -> float:
        """The sum of `value` over all processes."""
        return sum(self.gathered(value))

    def mine(self, items: Sequence[T]) -> list[T]:
        """This process's share: with N processes, every N-th item."""
        return list(items[self.rank :: self.count])

    def wait(self) -> None:
        """Return when every process has called this."""
        self.gathered(None)

    def place(self, model: Any, device: torch.device, dtype: torch.dtype) -> None:
        """Move the model to where it is trained, and computed in `dtype`."""
        model.to(device)

    def norm(self, norm: Any) -> float:
        """The norm of a gradient, from what torch returns for it."""
        return float(norm)
