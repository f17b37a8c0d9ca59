"""What a step trains on: its examples, its seeds and its learning rate.

All three follow from the number of the step and the options alone. So a run that was stopped and
resumed takes the same steps as one that was not.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orchestra.training.examples import Example


def batch_of(
    examples: Sequence[Example], size: int, step: int, seed: int
) -> list[Example]:
    """The examples of a step: each epoch in an order of its own, without a break between them."""
    orders: dict[int, list[int]] = {}
    batch = []
    for k in range(step * size, (step + 1) * size):
        epoch, place = divmod(k, len(examples))
        if epoch not in orders:
            orders[epoch] = _order_of_epoch(len(examples), epoch, seed)
        batch.append(examples[orders[epoch][place]])
    return batch


def _order_of_epoch(size: int, epoch: int, seed: int) -> list[int]:
    order = list(range(size))
    random.Random(f"{seed} epoch {epoch}").shuffle(order)
    return order


def seed_of(seed: int, step: int, k: int) -> int:
    """The seed for sampling completions of the k-th prompt of a step."""
    return random.Random(f"{seed} train {step} {k}").getrandbits(31)


def learning_rate(
    step: int, steps: int, peak: float, warmup: float, floor: float
) -> float:
    """Linear warm-up, then half a cosine down to the floor. `warmup` is a share of the steps,
    `floor` a share of the peak. It is never 0: the first step counts.

    >>> [round(learning_rate(s, 20, 1.0, 0.1, 0.1), 3) for s in (0, 1, 2, 11, 20)]
    [0.5, 1.0, 1.0, 0.55, 0.1]
    """
    rise = round(warmup * steps)  # steps
    if step < rise:
        return peak * (step + 1) / rise
    part = (step - rise) / max(1, steps - rise)  # of the descent, 0 to 1
    return peak * (floor + (1 - floor) * (1 + math.cos(math.pi * part)) / 2)
