"""The metrics of a training: what a step measures, and metrics.jsonl, a line a step."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path

from orchestra.runtime.jsonl import Appender, read
from orchestra.runtime.run_folder import write_whole
from orchestra.seams import Scores
from orchestra.training import ranks
from orchestra.training.rollouts import Group
from orchestra.vocabulary import ConfigError

Row = dict[str, float]
SHOWN = ("loss", "reward", "eval/reward", "kl", "zero_variance", "grad_norm")


def reward_metrics(
    groups: Sequence[Group], scores: Sequence[Sequence[Scores | None]]
) -> Row:
    """Means over the completions of all ranks.

    Of those that were scored: the reward, its parts, and the share that is `valid`. Of all: the
    share that was dropped, the length in tokens, and the share that was cut at the length limit.
    """
    scored: list[Row] = []
    sampled: list[Row] = []
    for group, group_scores in zip(groups, scores, strict=True):
        for ids, cut, score in zip(group.ids, group.cut, group_scores, strict=True):
            sampled.append({"dropped": score is None, "length": len(ids), "cut": cut})
            if score is not None:
                scored.append(_score_row(score))
    return ranks.mean(scored) | ranks.mean(sampled)


def _score_row(score: Scores) -> Row:
    parts = {f"reward/{name}": value for name, value in score.parts.items()}
    return {"reward": score.total, "valid": score.valid, **parts}


def means(sums: Sequence[Row], tokens: float) -> Row:
    """Means over all tokens, of the sums over those of each micro-batch of this rank."""
    row: Row = {}
    for name in sums[0]:
        of_rank = sum(part[name] for part in sums)
        row[name] = ranks.total(of_rank) / tokens
    return row


class Metrics:
    """metrics.jsonl. A resume keeps the lines of the steps before `step`. Rank 0 writes."""

    def __init__(self, out: Path, step: int) -> None:
        if ranks.rank() == 0:
            path = out / "metrics.jsonl"
            rows = list(read(path))[:step]
            lines = [json.dumps(row) + "\n" for row in rows]
            write_whole(path, "".join(lines))
            self.file = Appender(path)

    def add(self, row: Row, steps: int) -> None:
        """Write a line, before the next step begins, and a short one to standard error. Raises
        ConfigError if a value is not finite: a bug, or a learning rate that is far too high.
        """
        wrong = [name for name, value in row.items() if not math.isfinite(value)]
        if wrong:
            raise ConfigError(f"step {row['step']}: {', '.join(wrong)} is not finite")
        if ranks.rank() == 0:
            self.file.append(json.dumps(row))
            shown = [f"{name} {row[name]:.4g}" for name in SHOWN if name in row]
            line = f"step {row['step'] + 1}/{steps}  {'  '.join(shown)}"
            print(line, file=sys.stderr, flush=True)
