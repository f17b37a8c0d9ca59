"""What a run writes as it goes: metrics.jsonl, completions.jsonl, a tracker and the terminal."""

from __future__ import annotations

import atexit
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from orchestra.kernel.folder import write_whole
from orchestra.kernel.tape import Appender, rows_of
from orchestra.kernel.vocabulary import ConfigError
from orchestra.training.options import TrainingOptions
from orchestra.training.processes import Processes

Row = dict[str, float]
SHOWN = ("loss", "reward", "eval/reward", "kl", "zero_variance", "grad_norm")


class Metrics:
    """The files of a run. `step` in their lines is the number of steps taken: 0 is the evaluation
    before the first. A resume keeps the lines up to its checkpoint. The first process writes.
    """

    def __init__(
        self, options: TrainingOptions, step: int, steps: int, processes: Processes
    ) -> None:
        """`step` of `steps` were taken."""
        self.every = options.log_completions
        self.steps = steps
        self.processes = processes
        if processes.rank == 0:
            self.metrics = _continued(options.out / "metrics.jsonl", step)
            self.completions = _continued(options.out / "completions.jsonl", step)
            self.track = tracker(options, step)
            if step == steps:
                print(f"all {steps} steps are done", file=sys.stderr)

    def add(
        self, step: int, row: Row, completions: Sequence[Mapping[str, Any]] = ()
    ) -> None:
        """What was measured after `step` steps, written before the next one begins, and the
        completions of all processes. Raises ConfigError if a value is not finite: a bug, or a
        learning rate that is far too high.
        """
        wrong = [name for name, value in row.items() if not math.isfinite(value)]
        if wrong:
            problem = f"{', '.join(wrong)} is not finite"
            raise ConfigError(f"step {step}: {problem}; try a smaller --lr")
        sampled = self.processes.gathered(list(completions))
        if self.processes.rank > 0:
            return
        self.metrics.append(json.dumps({"step": step, **row}))
        self.track(row, step)
        is_shown = self.every > 0 and (step - 1) % self.every == 0
        for completion in (c for rows in sampled for c in rows):
            if is_shown or (completion["held_out"] and self.every > 0):
                line = json.dumps({"step": step, **completion}, ensure_ascii=False)
                self.completions.append(line)
        shown = [f"{name} {row[name]:.4g}" for name in SHOWN if name in row]
        line = f"step {step}/{self.steps}  {'  '.join(shown)}"
        print(line, file=sys.stderr, flush=True)


def tracker(options: TrainingOptions, step: int) -> Callable[[Row, int], None]:
    """--log: takes the metrics after a step to tensorboard, trackio or wandb, which end with the
    program. Each start of the program, a resume too, is a run of its own there.
    """
    if options.log is None:
        return lambda row, step: None
    if options.log == "tensorboard":
        from torch.utils.tensorboard import SummaryWriter

        writer = SummaryWriter(str(options.out / "tensorboard"), purge_step=step + 1)

        def log(row: Row, step: int) -> None:
            for name, value in row.items():
                writer.add_scalar(name, value, step)
            writer.flush()

        return log
    library = import_module(options.log)
    recorded = options.model_dump(mode="json")
    library.init(project="da-grpo", name=options.out.resolve().name, config=recorded)
    atexit.register(library.finish)
    return lambda row, step: library.log(row, step=step)


def _continued(path: Path, step: int) -> Appender:
    """A file with the lines of the first `step` steps; a run that begins again has none."""
    rows = [row for row in rows_of(path) if step > 0 and row["step"] <= step]
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
    write_whole(path, "".join(lines))
    return Appender(path)
