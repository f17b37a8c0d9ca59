"""Training in several processes (ranks) that torchrun starts. Without torchrun there is one.

Every rank runs the same program on its own share of the examples. Functions that exchange values
(`gathered`, `total`, `mean`) must be called by all ranks in the same order.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

T = TypeVar("T")


def start() -> torch.device:
    """Join the other ranks, if torchrun started any. Returns this rank's device."""
    has_gpu = torch.cuda.is_available()
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    if has_gpu:
        torch.cuda.set_device(local_rank)
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    if processes > 1 and not dist.is_initialized():
        dist.init_process_group("cpu:gloo,cuda:nccl" if has_gpu else "gloo")
    return torch.device("cuda", local_rank) if has_gpu else torch.device("cpu")


def rank() -> int:
    """The number of this process, from 0."""
    return dist.get_rank() if dist.is_initialized() else 0


def count() -> int:
    """How many processes train together."""
    return dist.get_world_size() if dist.is_initialized() else 1


def gathered(value: T) -> list[T]:
    """`value` of every rank, in order."""
    values: list[Any] = [value] * count()
    if count() > 1:
        dist.all_gather_object(values, value)
    return values


def wait_for_all() -> None:
    """Return when every rank has called this."""
    gathered(None)


def mine(items: Sequence[T]) -> list[T]:
    """This rank's share: with N ranks, every N-th item."""
    return list(items[rank() :: count()])


def total(value: float) -> float:
    """The sum of `value` over all ranks."""
    return sum(gathered(value))


def mean(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Means over the rows of all ranks that have the key; {} of none."""
    values: dict[str, list[float]] = {}
    for part in gathered(rows):
        for row in part:
            for key, value in row.items():
                values.setdefault(key, []).append(value)
    return {key: sum(found) / len(found) for key, found in values.items()}


def shard(model: Any, dtype: torch.dtype) -> None:
    """FSDP2: the weights of a layer are gathered only while it runs."""
    policy = MixedPrecisionPolicy(
        param_dtype=dtype,
        reduce_dtype=torch.promote_types(dtype, torch.float32),
    )
    has_adapter = hasattr(model, "get_base_model")
    base = model.get_base_model() if has_adapter else model
    for layer in base.get_decoder().layers:
        fully_shard(layer, mp_policy=policy, reshard_after_forward=True)
    fully_shard(model, mp_policy=policy, reshard_after_forward=True)
