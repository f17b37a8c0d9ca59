"""Does a reward rank policies as their success does? `--rank`.

The policies are the expert, the demonstrators, the rules, random play and every validated
checkpoint of every training. Each has the share of validation tasks that it solves and the mean
reward of its decisions there, under each shipped rule. Spearman's rank correlation compares the
two.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orchestra.training.lab.checkpoints import REWARDS
from orchestra.training.lab.demonstrators import PLAYERS

Result = dict[str, Any]


def policies(results: Sequence[Result]) -> list[dict[str, float]]:
    """What was measured of each policy. An arm begins with the policy that another ended with,
    which counts once.
    """
    found = []
    for result in results:
        is_first = result["arm"] in ("base", *PLAYERS)
        found += result.get("curve", [])[0 if is_first else 1 :]
    return found


def ranking(results: Sequence[Result]) -> str:
    """Spearman's correlation of each reward with the tasks solved, as Markdown."""
    rows = policies(results)
    solved = np.array([row["solved"] for row in rows])
    lines = [f"| reward | Spearman, {len(rows)} policies |", "| --- | ---: |"]
    for name in REWARDS:
        reward = np.array([row[f"reward/{name}"] for row in rows])
        lines.append(f"| {name} | {spearman(reward, solved):.3f} |")
    return "\n".join(lines) + "\n"


def spearman(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    """The correlation of ranks; equal values share the mean of theirs.

    >>> round(spearman(np.array([1.0, 2, 2, 9]), np.array([0.0, 5, 5, 7])), 3)
    1.0
    """
    return float(np.corrcoef(ranks(a), ranks(b))[0, 1])


def ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The rank of each value.

    >>> ranks(np.array([3.0, 1, 3])).tolist()
    [1.5, 0.0, 1.5]
    """
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    last = count.cumsum() - 1
    return np.asarray(last - (count - 1) / 2)[place]
