"""How far two agree: on points, and on an order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]  # (N,)


def points(parts: Sequence[float], most: int) -> Values:
    """Parts in [0, 1] as whole points, halves up.

    >>> points([0.0, 0.16, 0.17, 0.5, 0.84, 1.0], most=3).tolist()
    [0.0, 0.0, 1.0, 2.0, 3.0, 3.0]
    """
    tiny = 1e-9  # a half may be a little less as a float
    return np.floor(np.array(parts) * most + 0.5 + tiny)


def kappa(a: Values, b: Values) -> float:
    """Cohen's kappa with quadratic weights: 1 is full agreement, and 0 what chance would give. NaN,
    not defined, if all points are equal.

    >>> round(kappa(np.array([0.0, 1, 2, 3]), np.array([0.0, 1, 2, 2])), 3)
    0.875
    """
    by_chance = a.var() + b.var() + (a.mean() - b.mean()) ** 2
    if by_chance == 0:
        return float("nan")
    return float(1 - np.mean((a - b) ** 2) / by_chance)


def spearman(a: Values, b: Values) -> float:
    """The correlation of ranks; equal values share the mean of theirs. NaN, not defined, if all
    values are equal.

    >>> round(spearman(np.array([1.0, 2, 2, 9]), np.array([0.0, 5, 5, 7])), 3)
    1.0
    """
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        return float("nan")
    return float(np.corrcoef(ranks(a), ranks(b))[0, 1])


def ranks(values: Values) -> Values:
    """The rank of each value.

    >>> ranks(np.array([3.0, 1, 3])).tolist()
    [1.5, 0.0, 1.5]
    """
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    last = count.cumsum() - 1
    return np.asarray(last - (count - 1) / 2)[place]
