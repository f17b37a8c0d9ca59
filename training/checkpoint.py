"""All that a run needs to continue as if nothing had happened, on the disk whole or not at all.

A checkpoint is written to a file of another name and renamed: a run that is killed at any moment
leaves the last whole one. It has the trained weights, the optimizer, the random numbers
of every rank, the version of the weights, and the next step, from which the place in the data and
the learning rate follow.
"""

from __future__ import annotations

from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict

from orchestra.vocabulary import ConfigError
from training import ranks


def save(out: Path, model: Any, optimizer: Any, step: int, version: int) -> None:
    """`step` is the next one to do. Every rank calls it. Raises ConfigError: no room."""
    options = StateDictOptions(full_state_dict=True, cpu_offload=True, ignore_frozen_params=True)
    weights, moments = get_state_dict(model, optimizer, options=options)
    state = {"weights": weights, "optimizer": moments, "step": step, "version": version}
    state["randoms"] = ranks.gathered(torch.get_rng_state())
    if ranks.rank() == 0:
        home = out / "checkpoints"
        part, old = home / "part", list(home.glob("step-*"))
        try:
            home.mkdir(parents=True, exist_ok=True)
            torch.save(state, part)
        except (OSError, RuntimeError) as error:  # torch makes the one into the other
            why = str(error).splitlines()[0]
            raise ConfigError(f"{part}: cannot be written ({why}); then --resume") from None
        part.rename(home / f"step-{step:06}.pt")
        for file in old:
            file.unlink()
    ranks.gathered(0)


def load(out: Path, model: Any, optimizer: Any) -> tuple[int, int]:
    """Put everything back as the newest checkpoint has it, if there is one. Returns the next step
    and the version. Raises ConfigError.
    """
    file = max((out / "checkpoints").glob("step-*"), default=None)
    if file is None:
        return 0, 0
    try:
        state = torch.load(file, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, UnpicklingError) as error:
        why = str(error).splitlines()[0]
        raise ConfigError(f"{file}: is damaged ({why}); start again in another --out") from None
    if len(state["randoms"]) != ranks.world():
        made = len(state["randoms"])
        raise ConfigError(f"{file}: was made by {made} processes, not {ranks.world()}")
    options = StateDictOptions(full_state_dict=True, cpu_offload=True, strict=False)
    weights = {"model_state_dict": state["weights"], "optim_state_dict": state["optimizer"]}
    set_state_dict(model, optimizer, **weights, options=options)
    torch.set_rng_state(state["randoms"][ranks.rank()])
    return state["step"], state["version"]
