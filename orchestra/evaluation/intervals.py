"""What figures of a sample say of all questions: intervals and tests.

Repeats of a question are not independent, so questions are what is resampled (a clustered
bootstrap). Each question has one value, the mean of its repeats.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import accumulate

import numpy as np

Interval = tuple[float, float]
RESAMPLES = 2000
MOST_EXACT = (
    100_000_000  # of a sign-flip test: differences times the sum of their sizes
)
CHUNK = 1 << 20  # values that are resampled at once
Statistic = Callable[..., "np.ndarray"]  # np.mean or np.median


def wilson(right: float, n: int, z: float = 1.96) -> Interval:
    """The 95 % interval of a proportion; n > 0."""
    p = right / n
    zz = z * z / n
    middle = p + zz / 2
    half = z * math.sqrt(p * (1 - p) / n + zz / n / 4)
    low = (middle - half) / (1 + zz)
    high = (middle + half) / (1 + zz)
    return max(0.0, low), min(1.0, high)  # rounding may pass them


def bootstrap(values: Sequence[float], statistic: Statistic = np.mean) -> Interval:
    """The 95 % percentile interval of a statistic, from resamples of the questions. It is the same
    each time, because the resamples are.
    """
    given = np.asarray(values, dtype=float)
    n = len(given)
    chance = np.random.default_rng(0)
    rows = max(1, CHUNK // n)
    found: list[np.ndarray] = []
    for start in range(0, RESAMPLES, rows):
        count = min(rows, RESAMPLES - start)
        drawn = given[chance.integers(0, n, (count, n))]  # (resamples, questions)
        found.append(statistic(drawn, axis=1))
    low, high = np.percentile(np.concatenate(found), (2.5, 97.5))
    return float(low), float(high)


def of_accuracy(shares: Sequence[float], repeats: int) -> Interval:
    """The 95 % interval of an accuracy, from the share of right answers to each question: Wilson's
    without repeats, and where all questions have the same share, as a resample shows no spread
    then; else the bootstrap's.
    """
    if repeats == 1 or len(set(shares)) == 1:
        return wilson(sum(shares), len(shares))
    return bootstrap(shares)


def of_difference(a: Sequence[float], b: Sequence[float]) -> Interval:
    """The 95 % interval of the difference of two accuracies on the same questions. Where all
    questions show the same difference: Newcombe's, of two independent proportions, which is wider.
    """
    differences = [x - y for x, y in zip(a, b, strict=True)]
    if len(set(differences)) > 1:
        return bootstrap(differences)
    n = len(differences)
    p_a, p_b = sum(a) / n, sum(b) / n
    low_a, high_a = wilson(sum(a), n)
    low_b, high_b = wilson(sum(b), n)
    below = math.hypot(p_a - low_a, high_b - p_b)
    above = math.hypot(high_a - p_a, p_b - low_b)
    return p_a - p_b - below, p_a - p_b + above


def pass_at(k: int, n: int, right: int) -> float:
    """The chance that one of k answers to a question is right, from n answers of which so many are:
    the unbiased estimator of Chen et al. (2107.03374), 1 - C(n - right, k) / C(n, k).

    >>> pass_at(1, n=4, right=1), pass_at(2, n=4, right=1), pass_at(4, n=4, right=1)
    (0.25, 0.5, 1.0)
    """
    return 1 - math.comb(n - right, k) / math.comb(n, k)


def mcnemar(only_a: int, only_b: int) -> float:
    """The exact two-sided p-value, from the numbers of questions that only one method got right."""
    n = only_a + only_b
    tail = ways = 1  # ways: n over k, from one k to the next
    for k in range(1, min(only_a, only_b) + 1):
        ways = ways * (n - k + 1) // k
        tail += ways
    return float(min(1.0, 2 * tail / 2**n))


def sign_flip(differences: Sequence[int]) -> float:
    """The two-sided p-value of paired differences: how often a sum as large in size comes about if
    each difference has a sign by chance. If all have the same size, it is McNemar's test. It is
    exact up to MOST_EXACT, and beyond that by the normal distribution.

    >>> sign_flip([1] * 9 + [-1]), sign_flip([2, 2, 1])
    (0.021484375, 0.25)
    """
    sizes = [abs(d) for d in differences if d]
    total = sum(sizes)
    observed = abs(sum(differences))
    if len(set(sizes)) <= 1:
        positive = sum(d > 0 for d in differences)
        return mcnemar(positive, len(sizes) - positive)
    if len(sizes) * total > MOST_EXACT:
        spread = math.sqrt(sum(size * size for size in sizes))
        return math.erfc(observed / spread / math.sqrt(2))
    chances = np.zeros(2 * total + 1)  # of each sum, from -total to total
    chances[total] = 1.0
    for size in sizes:
        chances = (np.roll(chances, size) + np.roll(chances, -size)) / 2
    below = chances[: total - observed + 1].sum()
    above = chances[total + observed :].sum()
    return float(min(1.0, below + above))


def holm(ps: Sequence[float]) -> list[float]:
    """Holm's correction: the p-values of several tests, each so enlarged that the chance of any
    false alarm among them stays the level.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    m = len(ps)
    order = sorted(range(m), key=lambda i: ps[i])
    enlarged = [min(1.0, (m - rank) * ps[i]) for rank, i in enumerate(order)]
    corrected = [0.0] * m
    for i, p in zip(order, accumulate(enlarged, max), strict=True):
        corrected[i] = p
    return corrected
