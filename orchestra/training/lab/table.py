"""The table: what each arm solved and used, and the comparisons with their intervals.

The primary comparisons were fixed before the first run:

1. DA-GRPO minus longer imitation: tasks solved, greedy, at equal CPU seconds.
2. DA-GRPO minus GRPO by the outcome: tasks solved, greedy, at equally many executed decisions.

A 95 % interval is a bootstrap over seeds and tasks together: both are drawn with replacement, a
task for all seeds at once. With one seed, it is over tasks alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orchestra.training.lab.arms import BY_NAME
from orchestra.training.lab.demonstrators import PLAYERS

Result = dict[str, Any]
BySeed = Mapping[int, Result]
PRIMARY = (
    ("da", "longer", "DA-GRPO minus longer imitation"),
    (
        "da",
        "outcome_few",
        "DA-GRPO minus GRPO by the outcome, equally many executed decisions",
    ),
)
SECONDARY = (
    ("da", "demonstrator", "DA-GRPO minus its demonstrator"),
    ("da", "start", "DA-GRPO minus its start"),
    ("da", "successful", "DA-GRPO minus imitation of the successful games"),
    ("da", "outcome", "DA-GRPO minus GRPO by the outcome, equal CPU seconds"),
    ("da", "offline", "DA-GRPO minus DA-GRPO offline"),
    ("offline", "longer", "DA-GRPO offline minus longer imitation"),
    ("da_base", "react", "DA-GRPO from the base minus the base as a ReAct agent"),
)  # fmt: skip
OTHERS = {
    "expert": "expert (wrote the tasks)",
    "demonstrator": "demonstrator (imperfect)",
    "random": "random play",
    "react": "base as a ReAct agent",
    "rule_reads_all": "rule: read all, answer with the newest value",
    "rule_last_step": "rule: the last step alone",
}
ORDER = (
    "expert", "perfect", "da", "offline", "outcome", "outcome_few", "successful", "longer", "start",
    "demonstrator", "da_base", "react", "base", "random",
)  # fmt: skip
COLUMNS = (
    "solved, %", "95 %", "at T=1, %", "rounds", "wasted",
    "decisions sampled", "executed", "sub-agent calls", "CPU s",
)  # fmt: skip
DRAWS = 4000


def by_arm(results: Sequence[Result]) -> dict[str, dict[int, Result]]:
    """arm -> seed -> result."""
    found: dict[str, dict[int, Result]] = {}
    for result in results:
        found.setdefault(result["arm"], {})[result["seed"]] = result
    return found


# ---- intervals -----------------------------------------------------------------------------------


def solved(of_arm: BySeed, kind: str = "greedy") -> dict[int, NDArray[np.float64]]:
    """seed -> 100 for each task that was solved, else 0."""
    return {
        seed: 100.0 * np.array([int(mark) for mark in result[kind]["tasks"]])
        for seed, result in of_arm.items()
        if kind in result
    }


def gaps(mine: BySeed, theirs: BySeed) -> NDArray[np.float64]:
    """(seeds, tasks): points by which an arm is better. A player that is not trained has one seed,
    which stands for all.
    """
    ours, others = solved(mine), solved(theirs)
    if next(iter(theirs.values()))["arm"] in PLAYERS:
        others = dict.fromkeys(ours, others[0])
    seeds = sorted(ours.keys() & others.keys())
    return np.stack([ours[seed] - others[seed] for seed in seeds])


def interval(values: NDArray[np.float64]) -> tuple[float, float]:
    """The 95 % interval of the mean of values (seeds, tasks)."""
    seeds, tasks = values.shape
    rng = np.random.default_rng(0)
    seed_counts = rng.multinomial(seeds, [1 / seeds] * seeds, DRAWS)  # (DRAWS, seeds)
    of_seeds = seed_counts @ values / seeds  # (DRAWS, tasks)
    drawn = rng.integers(0, tasks, (DRAWS, tasks))
    means = np.take_along_axis(of_seeds, drawn, 1).mean(1)  # (DRAWS,)
    low, high = np.percentile(means, [2.5, 97.5])
    return float(low), float(high)


# ---- Markdown ------------------------------------------------------------------------------------


def table(results: Sequence[Result]) -> str:
    """All arms, the best first, and the comparisons."""
    arms = by_arm(results)
    lines = [f"| | {' | '.join(COLUMNS)} |", "| --- |" + " ---: |" * len(COLUMNS)]
    others = [name for name in PLAYERS if name not in ORDER]
    for name in (*ORDER, *others):
        if name in arms:
            lines.append(f"| {title(name)} | {' | '.join(_cells(arms, name))} |")
    lines += ["", "| points | seeds | mean | 95 % |", "| --- | ---: | ---: | ---: |"]
    for kind, pairs in (("**primary:** ", PRIMARY), ("", SECONDARY)):
        for mine, theirs, what in pairs:
            if mine in arms and theirs in arms:
                lines.append(_comparison(kind + what, arms[mine], arms[theirs]))
    return "\n".join(lines) + "\n"


def title(name: str) -> str:
    return BY_NAME[name].title if name in BY_NAME else OTHERS.get(name, name)


def _cells(arms: Mapping[str, BySeed], name: str) -> list[str]:
    rows = list(arms[name].values())
    greedy = [row["greedy"] for row in rows]
    sampled = [row["sampled"]["solved"] for row in rows if "sampled" in row]
    low, high = interval(np.stack(list(solved(arms[name]).values())))
    cells = [
        f"{100 * fmean(row['solved'] for row in greedy):.1f}",
        f"{low:.1f} to {high:.1f}",
        f"{100 * fmean(sampled):.1f}" if sampled else "",
        f"{fmean(row['rounds'] for row in greedy):.2f}",
        f"{fmean(row['wasted'] for row in greedy):.2f}",
    ]
    return cells + _used(arms, name)


def _used(arms: Mapping[str, BySeed], name: str) -> list[str]:
    """What the trainings of an arm used, those that it continues from included."""
    at: str = "base" if name == "react" else name
    if at not in BY_NAME:
        return [""] * 4
    totals = dict.fromkeys(("decisions", "executed", "calls", "cpu_s"), 0.0)
    while at and at in arms:
        rows = list(arms[at].values())
        for column in totals:
            totals[column] += fmean(row["used"][column] for row in rows)
        at = BY_NAME[at].after
    return [f"{value:,.0f}" for value in totals.values()]


def _comparison(what: str, mine: BySeed, theirs: BySeed) -> str:
    values = gaps(mine, theirs)
    low, high = interval(values)
    return (
        f"| {what} | {len(values)} | {values.mean():+.1f} | {low:+.1f} to {high:+.1f} |"
    )
