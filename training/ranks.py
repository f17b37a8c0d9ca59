"""Several processes as one: torchrun starts them, these few calls keep them in step.

Without torchrun there is one rank, and every call is the identity.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TypeVar

import torch
import torch.distributed as dist

T = TypeVar("T")


def start() -> torch.device:
    """Join the other ranks, if torchrun started any. Returns this rank's device."""
    local = int(os.environ.get("LOCAL_RANK", "0"))
    gpu = torch.cuda.is_available()
    device = torch.device("cuda", local) if gpu else torch.device("cpu")
    if gpu:
        torch.cuda.set_device(device)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and not dist.is_initialized():
        dist.init_process_group("cpu:gloo,cuda:nccl" if gpu else "gloo")
    return device


def stop() -> None:
    """Leave the other ranks, as the last thing: nobody can come back."""
    if dist.is_initialized():
        dist.destroy_process_group()


def rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def world() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def mine(items: Sequence[T]) -> list[T]:
    """This rank's share: every world-th item."""
    return list(items[rank() :: world()])


def gathered(value: T) -> list[T]:
    """`value` of every rank, in order."""
    if world() == 1:
        return [value]
    values: list[T | None] = [None] * world()
    dist.all_gather_object(values, value)
    return [v for v in values if v is not None]


def summed(values: Mapping[str, float]) -> dict[str, float]:
    """Sums over the ranks, in the order of ranks; a rank may lack a key."""
    rows = gathered(dict(values))
    keys = list(dict.fromkeys(key for row in rows for key in row))
    return {key: sum(row.get(key, 0.0) for row in rows) for key in keys}


def most(value: int) -> int:
    return max(gathered(value))


def same(value: T) -> T:
    """What rank 0 has."""
    return gathered(value)[0]
