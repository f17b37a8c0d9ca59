"""metrics.jsonl, a line a step: `seconds` is how long it took, all else follows from the seed.
Every rank may call these, and rank 0 writes.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from orchestra.vocabulary import ConfigError
from runtime.run_folder import write_whole
from runtime.tape import read
from training import ranks
from training.rewards import Scores
from training.rollouts import Group

Row = dict[str, float]
SHOWN = ("loss", "reward", "eval/reward", "kl", "zero_variance", "grad_norm")


class Metrics:
    """The metrics of a run; at a resume, those of the steps before `step`. Raises ConfigError where
    one of them is missing.
    """

    def __init__(self, out: Path, step: int) -> None:
        self.path = out / "metrics.jsonl"
        if ranks.rank() == 0:
            rows = list(read(self.path))[:step]
            if [row.get("step") for row in rows] != list(range(step)):
                raise ConfigError(
                    f"{self.path}: lacks some of the {step} steps before the checkpoint; put it "
                    "back, or start again in another --out"
                )
            write_whole(self.path, "".join(json.dumps(row) + "\n" for row in rows))

    def add(self, row: Row, steps: int) -> None:
        """One step, on the disk before the next begins, and a line on standard error. Raises
        ConfigError for a value that is not finite: a bug, or a learning rate far too high.
        """
        wrong = [name for name, value in row.items() if not math.isfinite(value)]
        if wrong:
            raise ConfigError(f"step {row['step']}: {', '.join(wrong)} is not finite")
        if ranks.rank():
            return
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
            file.flush()
            os.fsync(file.fileno())
        shown = "  ".join(f"{name} {row[name]:.4g}" for name in SHOWN if name in row)
        print(f"step {row['step'] + 1}/{steps}  {shown}", file=sys.stderr, flush=True)


def outcomes(scores: Sequence[Sequence[Scores | None]], groups: Sequence[Group]) -> Row:
    """Means over the completions that were scored, of all ranks: the reward, its parts, and the
    share that is `valid`. And over all completions: the share that was dropped, the share that was
    cut at its limit, and the length in tokens.
    """
    kept = [s for group in scores for s in group if s is not None]
    rows = [{"reward": s.total, "valid": float(s.valid)} for s in kept]
    parts = [{f"reward/{k}": v for k, v in s.parts.items()} for s in kept]
    names = dict.fromkeys(k for row in (*rows, *parts) for k in row)
    sums = {k: sum(row.get(k, 0.0) for row in (*rows, *parts)) for k in names}
    lengths = [len(ids) for group in groups for ids in group.ids]
    of_all = {"dropped": len(lengths) - len(kept), "length": sum(lengths)}
    of_all["cut"] = sum(flag for group in groups for flag in group.cut)
    counts = ranks.summed({"scored": len(kept), "all": len(lengths)})
    row = {k: v / counts["all"] for k, v in ranks.summed(of_all).items()}
    return {k: v / counts["scored"] for k, v in ranks.summed(sums).items()} | row
