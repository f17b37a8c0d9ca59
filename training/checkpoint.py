"""All that a run needs to go on as if nothing had happened, there whole or not at all.

A checkpoint is written to a folder of another name, flushed to the disk, and renamed: a run that is
killed at any moment leaves the last whole one. It holds the trained weights, the optimizer, the
random numbers of every rank, the version of the adapter, and the next step, from which the place in
the data and the learning rate follow (schedule.py). One that its checksum does not fit is passed
over for the one before it.
"""

from __future__ import annotations

import os
import random
import shutil
import sys
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict

from orchestra.vocabulary import ConfigError
from runtime.run_folder import sha256_of
from training import ranks

KEPT = 2


def save(out: Path, model: Any, optimizer: Any, step: int, version: int) -> None:
    """`step` is the next one to do. Every rank calls it."""
    options = StateDictOptions(full_state_dict=True, cpu_offload=True, ignore_frozen_params=True)
    weights, moments = get_state_dict(model, optimizer, options=options)
    randoms = ranks.gathered((torch.get_rng_state(), random.getstate()))
    if ranks.rank() == 0:
        state = {"weights": weights, "optimizer": moments, "randoms": randoms}
        _write(out / "checkpoints", f"step-{step:06}", {**state, "step": step, "version": version})
    ranks.gathered(0)


def load(out: Path, model: Any, optimizer: Any) -> tuple[int, int]:
    """Put everything back as the last whole checkpoint has it, if there is one. Returns the next
    step and the adapter's version. Raises ConfigError.
    """
    found = sorted((out / "checkpoints").glob("step-*"), reverse=True)
    folder = next(filter(_whole, found), None)
    if found and folder is None:
        raise ConfigError(f"{out / 'checkpoints'}: all are damaged; start again in another --out")
    if folder is None:
        return 0, 0
    if folder != found[0] and ranks.rank() == 0:
        print(f"{found[0]}: is damaged; going on from {folder.name}", file=sys.stderr)
    state = torch.load(folder / "state.pt", map_location="cpu", weights_only=True)
    if len(state["randoms"]) != ranks.world():
        raise ConfigError(
            f"{folder}: was made by {len(state['randoms'])} processes, and here are "
            f"{ranks.world()}; start as many"
        )
    options = StateDictOptions(full_state_dict=True, cpu_offload=True, strict=False)
    set_state_dict(
        model,
        optimizer,
        model_state_dict=state["weights"],
        optim_state_dict=state["optimizer"],
        options=options,
    )
    tensor, python = state["randoms"][ranks.rank()]
    torch.set_rng_state(tensor)
    random.setstate(python)
    return state["step"], state["version"]


def _write(home: Path, name: str, state: dict[str, Any]) -> None:
    """Raises ConfigError where there is no room, and leaves nothing half written."""
    part = home / f".{name}.part"
    shutil.rmtree(part, ignore_errors=True)  # of a run that was killed here
    try:
        part.mkdir(parents=True)
        with (part / "state.pt").open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        (part / "sha256").write_text(sha256_of(part / "state.pt"), encoding="utf-8")
        _flush(part)
    except (OSError, RuntimeError) as error:  # torch makes the one into the other
        shutil.rmtree(part, ignore_errors=True)
        why = str(error).splitlines()[0]
        raise ConfigError(
            f"{part}: cannot be written ({why}); free some space, then --resume"
        ) from None
    shutil.rmtree(home / name, ignore_errors=True)
    part.rename(home / name)
    _flush(home)
    for old in sorted(home.glob("step-*"))[:-KEPT]:
        shutil.rmtree(old)


def _whole(folder: Path) -> bool:
    try:
        return (folder / "sha256").read_text(encoding="utf-8") == sha256_of(folder / "state.pt")
    except (OSError, UnicodeDecodeError):
        return False


def _flush(folder: Path) -> None:
    """A rename is on the disk when its folder is."""
    handle = os.open(folder, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)
