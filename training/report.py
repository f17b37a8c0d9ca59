"""The tables of the result: means over the seeds, and what one arm is above the others."""

from __future__ import annotations

import random
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from training import constant
from training.examples import Example

Figures = dict[str, Any]  # of one arm and seed
RESAMPLED = 10_000  # sets of tasks and seeds that an interval comes from
REWARD = {"vanilla GRPO": "outcome", "DA-GRPO": "rubric"}
CONSTANT = {f"constant: {name}": policy for name, policy in constant.POLICIES.items()}
ARMS = (*CONSTANT, "untrained", "SFT", *REWARD)
KINDS = ("complete", "read", "compute", "search", "again")  # of a state: what its reference does
COLUMNS = {
    "reward": "reward (Eq. 29)",
    "reward/format": "format",
    "reward/action": "action",
    "reward/tool": "tool",
    "reward/decision": "decision",
    "exact": "exact",
    "invalid": "invalid",
}


def table(rows: Sequence[Figures], columns: Mapping[str, str] = COLUMNS) -> str:
    """Mean and standard deviation over the seeds, in percent, as Markdown."""
    lines = ["| | " + " | ".join(columns.values()) + " |", "| --- |" + " ---: |" * len(columns)]
    for arm in ARMS:
        of_arm = [row for row in rows if row["arm"] == arm]
        cells = [_spread([100 * float(row[column]) for row in of_arm]) for column in columns]
        lines.append(f"| {arm} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def by_kind(rows: Sequence[Figures]) -> str:
    """The reward by the kind of state, of the kinds that there are."""
    counts = {kind: rows[0][f"states/{kind}"] for kind in KINDS}
    found = {f"reward/in {k}": f"{k} ({n})" for k, n in counts.items() if n}
    return table(rows, found)


def differences(rows: Sequence[Figures], examples: Sequence[Example]) -> str:
    """What DA-GRPO's reward is above the other arms', in percent, as Markdown: in each seed, and
    the mean with its interval (see `interval`).
    """
    mine = _by_seed(rows, "DA-GRPO")
    lines = [_caption(examples, len(mine)), ""]
    lines += ["| DA-GRPO less | of each seed | mean | 95 % |", "| --- | ---: | ---: | ---: |"]
    for arm in ARMS[: ARMS.index("DA-GRPO")]:
        other = _by_seed(rows, arm)
        pairs = [(each, other.get(seed, other[0])) for seed, each in mine.items()]
        gaps = [[100 * (x - y) for x, y in zip(*pair, strict=True)] for pair in pairs]
        of_seed = ", ".join(f"{statistics.mean(gap):+.1f}" for gap in gaps)
        low, high = interval(gaps, examples)
        mean = statistics.mean(map(statistics.mean, gaps))
        lines.append(f"| {arm} | {of_seed} | {mean:+.1f} | {low:+.1f} to {high:+.1f} |")
    return "\n".join(lines) + "\n"


def _caption(examples: Sequence[Example], seeds: int) -> str:
    tasks = {_task(e) for e in examples}
    templates = {template for template, _ in tasks}
    return (
        f"95 %: the percentile bootstrap interval of the mean over {len(tasks)} tasks of "
        f"{len(templates)} templates and the {seeds} seeds. It says nothing of other templates."
    )


def _by_seed(rows: Sequence[Figures], arm: str) -> dict[int, list[float]]:
    return {row["seed"]: row["each"] for row in rows if row["arm"] == arm}


def interval(values: Sequence[Sequence[float]], examples: Sequence[Example]) -> tuple[float, float]:
    """The percentile bootstrap interval, of 95 %, of the mean over the tasks and the seeds:
    `values[seed][state]`. Tasks are drawn anew within each template, with all their states, and so
    are the seeds; it says nothing of other templates.
    """
    of_template: dict[str, dict[str, list[int]]] = {}  # -> task -> its states
    for n, example in enumerate(examples):
        template, task = _task(example)
        of_template.setdefault(template, {}).setdefault(task, []).append(n)
    strata = [list(tasks.values()) for tasks in of_template.values()]
    dice, means = random.Random(0), []
    for _ in range(RESAMPLED):
        drawn = [n for tasks in strata for of in dice.choices(tasks, k=len(tasks)) for n in of]
        seeds = dice.choices(values, k=len(values))
        means.append(sum(seed[n] for seed in seeds for n in drawn) / (len(seeds) * len(drawn)))
    means.sort()
    return means[round(0.025 * (RESAMPLED - 1))], means[round(0.975 * (RESAMPLED - 1))]


def _task(example: Example) -> tuple[str, str]:
    """Its template, and the task that it is a state of."""
    return str(example.meta["template"]), example.id.rpartition("-r")[0]


def _spread(values: Sequence[float]) -> str:
    several = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.1f}{several}"
