"""What happens in which step, as functions of its number alone: the order of the examples, the
learning rate, the seeds. So a resumed run needs to know nothing but the number.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def batch_of(examples: Sequence[T], size: int, step: int, seed: int) -> list[T]:
    """The examples of a step: each epoch in an order of its own, without a break between them."""
    orders: dict[int, list[int]] = {}

    def at(position: int) -> T:
        epoch, place = divmod(position, len(examples))
        if epoch not in orders:
            orders[epoch] = list(range(len(examples)))
            random.Random(f"{seed} epoch {epoch}").shuffle(orders[epoch])
        return examples[orders[epoch][place]]

    return [at(step * size + k) for k in range(size)]


def learning_rate(step: int, steps: int, height: float, warmup: float, floor: float) -> float:
    """Linear warm-up, then half a cosine down to the floor. `warmup` is a share of the steps,
    `floor` one of the height. Never 0: the first step counts.

    >>> [round(learning_rate(s, 20, 1.0, 0.1, 0.1), 3) for s in (0, 1, 2, 11, 20)]
    [0.5, 1.0, 1.0, 0.55, 0.1]
    """
    rise = round(warmup * steps)
    if step < rise:
        return height * (step + 1) / rise
    part = (step - rise) / max(1, steps - rise)
    return height * (floor + (1 - floor) * (1 + math.cos(math.pi * part)) / 2)


def seeds(seed: int, use: str, step: int, n: int) -> list[int]:
    """One for each prompt of a step."""
    return [random.Random(f"{seed} {use} {step} {k}").getrandbits(31) for k in range(n)]
