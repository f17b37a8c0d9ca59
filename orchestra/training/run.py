"""The folder of a run: options.json, metrics.jsonl and checkpoint.pt. Every rank calls these
functions, and rank 0 writes.

A checkpoint has all that a run needs to continue as if nothing had happened: the trained weights,
the optimizer and the next step, from which the place in the data, the seeds of the sampling and the
learning rate follow. It is written under another name and renamed, so a run that is killed at any
moment leaves a complete one.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_state_dict,
)

from orchestra.runtime.run_folder import sha256_of, write_whole
from orchestra.runtime.tape import Appender, read
from orchestra.training import ranks
from orchestra.training.options import Options
from orchestra.training.policy import usable
from orchestra.training.rewards import source_files
from orchestra.vocabulary import ConfigError

Row = dict[str, float]
SHOWN = ("loss", "reward", "eval/reward", "kl", "zero_variance", "grad_norm")
# Options that may differ at a resume; of the files, their paths may, and not their contents.
FREE = {"resume", "out", "vllm_url", "model", "adapter", "data", "eval_data"}
FREE_SETTINGS = "timeout_s=", "parallel=", "cache="  # of a reward


# ---- options -------------------------------------------------------------------------------------


def begin(o: Options) -> Appender | None:
    """Write the options to --out. Returns the lock that keeps other processes out of it. Raises
    ConfigError if --out has another run, or is in use.
    """
    if ranks.rank():
        return None
    path, now = o.out / "options.json", _recorded(o)
    before = next(read(path), None)
    if (before is not None) != o.resume:
        found = (
            "no run to --resume"
            if o.resume
            else "a run; add --resume, or give another --out"
        )
        raise ConfigError(f"{o.out}: has {found}")
    held = before or now
    if names := sorted(k for k in now.keys() | held if held.get(k) != now.get(k)):
        raise ConfigError(
            f"--resume: {o.out} was started with other values of {', '.join(names)}"
        )
    o.out.mkdir(parents=True, exist_ok=True)
    lock = Appender(o.out / "lock")
    write_whole(path, json.dumps(now) + "\n")
    return lock


def _recorded(o: Options) -> dict[str, Any]:
    """What the metrics of a run follow from: options, files, and the rule of the reward."""
    rule = source_files(o.reward)
    files = {"data": [o.data], "eval_data": [o.eval_data], "rule": rule}
    folders = {"model": o.model, "adapter": o.adapter}
    files |= {
        k: sorted(f for f in v.iterdir() if f.is_file())
        for k, v in folders.items()
        if v
    }
    kept = {k: v for k, v in o.model_dump(mode="json").items() if k not in FREE}
    kept["reward_setting"] = [
        s for s in o.reward_setting if not s.startswith(FREE_SETTINGS)
    ]
    return kept | {f"{name}_sha256": _hash(paths) for name, paths in files.items()}


def _hash(paths: Any) -> str:
    lines = [f"{sha256_of(path)}  {path.name}\n" for path in paths if path]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


# ---- metrics -------------------------------------------------------------------------------------


class Metrics:
    """metrics.jsonl, a line a step. A resume keeps the lines of the steps before `step`."""

    def __init__(self, out: Path, step: int) -> None:
        if ranks.rank() == 0:
            path = out / "metrics.jsonl"
            rows = list(read(path))[:step]
            write_whole(path, "".join(json.dumps(row) + "\n" for row in rows))
            self.file = Appender(path)

    def add(self, row: Row, steps: int) -> None:
        """Write a line, before the next step begins, and a short one to standard error. Raises
        ConfigError if a value is not finite: a bug, or a learning rate that is far too high.
        """
        if wrong := [name for name, value in row.items() if not math.isfinite(value)]:
            raise ConfigError(f"step {row['step']}: {', '.join(wrong)} is not finite")
        if ranks.rank() == 0:
            self.file.append(json.dumps(row))
            shown = "  ".join(
                f"{name} {row[name]:.4g}" for name in SHOWN if name in row
            )
            print(
                f"step {row['step'] + 1}/{steps}  {shown}", file=sys.stderr, flush=True
            )


# ---- checkpoints ---------------------------------------------------------------------------------


def save(out: Path, model: Any, optimizer: Any, step: int) -> None:
    """`step`: the next one. Raises ConfigError if it cannot be written: the disk is full."""
    options = StateDictOptions(
        full_state_dict=True, cpu_offload=True, ignore_frozen_params=True
    )
    weights, moments = get_state_dict(model, optimizer, options=options)
    state = {"weights": weights, "optimizer": moments, "step": step}
    if ranks.rank() == 0:
        part = out / "checkpoint.part"
        try:
            torch.save(state, part)
        except (
            OSError,
            RuntimeError,
        ) as error:  # torch turns the first into the second
            why = str(error).splitlines()[0]
            raise ConfigError(
                f"{part}: cannot be written ({why}); then --resume"
            ) from None
        part.replace(out / "checkpoint.pt")
    ranks.gathered(0)


def load(out: Path, model: Any, optimizer: Any) -> int:
    """Restore the checkpoint, if there is one. Returns the next step. Raises ConfigError."""
    file = out / "checkpoint.pt"
    if not file.exists():
        return 0
    state = usable(str(file), torch.load, file, map_location="cpu", weights_only=True)
    options = StateDictOptions(full_state_dict=True, cpu_offload=True, strict=False)
    weights = {
        "model_state_dict": state["weights"],
        "optim_state_dict": state["optimizer"],
    }
    set_state_dict(model, optimizer, **weights, options=options)
    return int(state["step"])
