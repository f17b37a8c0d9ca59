"""metrics.jsonl, a line a step, and metrics.png, drawn from it.

`seconds` is how long the step took; all else follows from the seed. Every rank may call these: rank
0 writes.
"""

from __future__ import annotations

import json
import math
import operator
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from orchestra.vocabulary import ConfigError
from training import ranks
from training.rewards import Scores

Row = dict[str, float]
SAID = ("loss", "reward", "eval/reward", "kl", "zero_variance", "grad_norm")
PANELS = {
    "loss": ("loss",),
    "reward by dimension": ("reward", "reward/"),
    "held-out reward": ("eval/reward", "eval/reward/"),
    "valid and exact decisions": ("valid", "exact", "eval/valid", "eval/exact"),
    "KL (k3) to the reference": ("kl",),
    "clip fraction": ("clipped",),
    "entropy, nats a token": ("entropy",),
    "mismatch of sampler and trainer": ("mismatch", "capped"),
    "zero-variance, dropped and cut share": ("zero_variance", "dropped", "cut"),
    "gradient norm": ("grad_norm",),
}


class Metrics:
    """The metrics of a run; at a resume, those of the steps before `step`. Raises ConfigError where
    they are not there.
    """

    def __init__(self, out: Path, step: int) -> None:
        self.path = out / "metrics.jsonl"
        if ranks.rank() == 0:
            rows = [row for row in read(self.path) if row["step"] < step]
            if [row["step"] for row in rows] != list(range(step)):
                raise ConfigError(
                    f"{self.path}: lacks some of the {step} steps before the checkpoint; put it "
                    "back, or start again in another --out"
                )
            part = self.path.with_suffix(".part")
            part.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
            part.rename(self.path)

    def add(self, row: Row, steps: int) -> None:
        """One step, on the disk before the next begins, and a line on standard error. Raises
        FloatingPointError for a value that is not finite: a bug, or a learning rate far too high.
        """
        wrong = [name for name, value in row.items() if not math.isfinite(value)]
        if wrong:
            raise FloatingPointError(f"step {row['step']}: {', '.join(wrong)} is not finite")
        if ranks.rank():
            return
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
            file.flush()
            os.fsync(file.fileno())
        said = "  ".join(f"{name} {row[name]:.4g}" for name in SAID if name in row)
        print(f"step {row['step'] + 1}/{steps}  {said}", file=sys.stderr, flush=True)


def cut_short(completions: Sequence[Sequence[int]], eos: Sequence[int]) -> list[bool]:
    """Which completions stopped at their limit: the last token is no end token."""
    return [ids[-1] not in eos for ids in completions]


def outcomes(
    scores: Sequence[Sequence[Scores | None]],
    completions: Sequence[Sequence[Sequence[int]]],
    eos: Sequence[int],
) -> Row:
    """What `graded` gives; and over all completions: the share that was dropped, that was cut at
    its limit, and the length in tokens. Means over all ranks.
    """
    short = [flag for group in completions for flag in cut_short(group, eos)]
    ids = [c for group in completions for c in group]
    of_all = ranks.summed(
        {
            "dropped": sum(s is None for group in scores for s in group),
            "cut": sum(short),
            "length": sum(len(c) for c in ids),
        }
    )
    count = ranks.summed({"all": len(ids)})["all"]
    return graded(scores) | {name: value / count for name, value in of_all.items()}


def graded(scores: Sequence[Sequence[Scores | None]]) -> Row:
    """The reward and its dimensions: means over the completions that were scored, of all ranks."""
    rows = [
        {"reward": s.total, "valid": s.valid, "exact": s.exact, **_named(s.parts)}
        for group in scores
        for s in group
        if s is not None
    ]
    names = dict.fromkeys(name for row in rows for name in row)
    sums = ranks.summed({name: sum(row.get(name, 0.0) for row in rows) for name in names})
    count = ranks.summed({"scored": len(rows)})["scored"]
    return {name: value / count for name, value in sums.items()}


def _named(parts: Mapping[str, float]) -> Row:
    return {f"reward/{name}": value for name, value in parts.items()}


def read(path: Path) -> list[Row]:
    """The whole lines of a metrics file: a kill may have cut the last one. Raises ConfigError."""
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n") if path.exists() else []
    rows = []
    for n, line in enumerate(lines[:-1], 1):
        try:
            rows.append(json.loads(line))
            operator.index(rows[-1]["step"])
        except (ValueError, TypeError, KeyError):
            raise ConfigError(
                f"{path}, line {n}: is damaged; repair it, or start again in another --out"
            ) from None
    return rows


def draw(out: Path) -> Path:
    """metrics.png beside metrics.jsonl."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = read(out / "metrics.jsonl")
    names = list(dict.fromkeys(key for row in rows for key in row))
    chosen = {title: _matching(names, wanted) for title, wanted in PANELS.items()}
    panels = {title: found for title, found in chosen.items() if found}
    figure, axes = pyplot.subplots(math.ceil(len(panels) / 2), 2, figsize=(12, 3 * len(panels) / 2))
    for axis, (title, found) in zip(axes.flat, panels.items(), strict=False):
        for name in found:
            points = [(row["step"], row[name]) for row in rows if name in row]
            axis.plot(
                *zip(*points, strict=True), label=name, marker="." if len(points) < 30 else ""
            )
        axis.set_title(title, fontsize=10)
        axis.set_xlabel("step")
        axis.legend(fontsize=7)
    for axis in axes.flat[len(panels) :]:
        axis.axis("off")
    figure.tight_layout()
    figure.savefig(out / "metrics.png", dpi=100)
    pyplot.close(figure)
    return out / "metrics.png"


def _matching(names: list[str], wanted: tuple[str, ...]) -> list[str]:
    """A wanted name that ends in / takes all that begin so."""
    return [n for n in names if any(n == w or (w[-1] == "/" and n.startswith(w)) for w in wanted)]
