"""The folder of a run: options.json, the lock, checkpoint.pt and the newest adapters. Every process
calls these functions, and the first one writes.

A checkpoint has all that a run needs to continue as if nothing had happened: the trained weights,
the optimizer and the next step. The place in the data, the seeds of the sampling and the learning
rate follow from the step (steps.py). It is written under another name and renamed, so a run that is
killed at any moment leaves a complete one.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_state_dict,
)

from orchestra.kernel.folder import sha256_of, write_whole
from orchestra.kernel.tape import Appender, rows_of
from orchestra.kernel.vocabulary import ConfigError
from orchestra.training.options import TrainingOptions
from orchestra.training.policy import Policy
from orchestra.training.pretrained import model_folder, usable
from orchestra.training.processes import Processes
from orchestra.training.rewards import source_files

# Options that may differ at a resume. The paths of files may, but not their contents.
FREE = {"resume", "out", "vllm_url", "model", "adapter", "data", "eval_data"}
FREE |= {"log", "log_completions", "keep"}
FREE_SETTINGS = "timeout_s=", "parallel=", "cache="  # of a reward


# ---- options -------------------------------------------------------------------------------------


def begin(options: TrainingOptions, processes: Processes) -> Appender | None:
    """Write the options to --out. Returns the lock that keeps other processes out of it. Raises
    ConfigError if --out has another run, or is in use. A run that ended before its model was loaded
    has no metrics, and leaves --out free.
    """
    if processes.rank > 0:
        return None
    path = options.out / "options.json"
    now = _recorded(options)
    before = next(rows_of(path), None)
    if options.resume:
        if before is None:
            raise ConfigError(f"{options.out}: has no run to --resume")
        _check_same(options.out, before, now)
    elif before is not None and (options.out / "metrics.jsonl").exists():
        raise ConfigError(
            f"{options.out}: has a run; add --resume, or give another --out"
        )
    options.out.mkdir(parents=True, exist_ok=True)
    lock = Appender(options.out / "lock")
    write_whole(path, json.dumps(now) + "\n")
    return lock


def _check_same(out: Path, before: dict[str, Any], now: dict[str, Any]) -> None:
    """Raises ConfigError, which names the options that differ."""
    names = before.keys() | now.keys()
    changed = sorted(name for name in names if before.get(name) != now.get(name))
    if changed:
        other = ", ".join(changed)
        raise ConfigError(f"--resume: {out} was started with other values of {other}")


def _recorded(options: TrainingOptions) -> dict[str, Any]:
    """All that the metrics of a run follow from: options, files, and the rule of the reward."""
    values = options.model_dump(mode="json")
    kept = {name: value for name, value in values.items() if name not in FREE}
    kept["reward_setting"] = [
        setting
        for setting in options.reward_setting
        if not setting.startswith(FREE_SETTINGS)
    ]
    hashes = {
        f"{name}_sha256": _hash(paths) for name, paths in _files_of(options).items()
    }
    return kept | hashes


def _files_of(options: TrainingOptions) -> dict[str, list[Path]]:
    """The files whose contents must stay the same, by the option that names them. "rule" has the
    modules that define the reward.
    """
    files = {
        "data": [options.data],
        "eval_data": [] if options.eval_data is None else [options.eval_data],
        "rule": source_files(options.reward),
        "model": _files_in(model_folder(options.model)),
    }
    if options.adapter is not None:
        files["adapter"] = _files_in(options.adapter)
    return files


def _files_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_file())


def _hash(paths: Sequence[Path]) -> str:
    """One hash of the names and contents of files."""
    lines = [f"{sha256_of(path)}  {path.name}\n" for path in paths]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


# ---- checkpoints ---------------------------------------------------------------------------------


def save(options: TrainingOptions, policy: Policy, optimizer: Any, step: int) -> None:
    """Keep the adapter after `step` steps, and write the checkpoint from which the next one can
    begin. Raises ConfigError if it cannot be written, as on a full disk.
    """
    _keep(options, policy, step)
    state_options = StateDictOptions(
        full_state_dict=True, cpu_offload=True, ignore_frozen_params=True
    )
    weights, moments = get_state_dict(policy.model, optimizer, options=state_options)
    if policy.processes.rank == 0:
        part = options.out / "checkpoint.part"
        _write(part, {"weights": weights, "optimizer": moments, "step": step})
        part.replace(options.out / "checkpoint.pt")
    policy.processes.wait()


def _keep(options: TrainingOptions, policy: Policy, step: int) -> None:
    """Save the adapter, or the model of --full, as adapter-STEP. Of those, --keep remain."""
    if options.keep == 0:
        return
    policy.save(options.out / f"{options.product}-{step}")
    if policy.processes.rank > 0:
        return
    kept: dict[int, Path] = {}
    for folder in options.out.iterdir():
        number = re.fullmatch(rf"{options.product}-(\d+)", folder.name)
        if number is not None:
            kept[int(number[1])] = folder
    for old in sorted(kept)[: -options.keep]:
        shutil.rmtree(kept[old])


def _write(path: Path, state: dict[str, Any]) -> None:
    try:
        torch.save(state, path)
    except (OSError, RuntimeError) as error:  # torch turns the first into the second
        why = str(error).splitlines()[0]
        message = f"{path}: cannot be written ({why}); then --resume"
        raise ConfigError(message) from None


def load(out: Path, model: Any, optimizer: Any) -> int:
    """Restore the checkpoint, if there is one. Returns the next step. Raises ConfigError if the
    checkpoint cannot be read.
    """
    file = out / "checkpoint.pt"
    if not file.exists():
        return 0
    state = usable(str(file), torch.load, file, map_location="cpu", weights_only=True)
    set_state_dict(
        model,
        optimizer,
        model_state_dict=state["weights"],
        optim_state_dict=state["optimizer"],
        options=StateDictOptions(full_state_dict=True, cpu_offload=True, strict=False),
    )
    return int(state["step"])
