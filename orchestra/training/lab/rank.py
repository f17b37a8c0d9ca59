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

from orchestra.training.lab.checkpoints import REWARDS
from orchestra.training.lab.correlation import spearman
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
