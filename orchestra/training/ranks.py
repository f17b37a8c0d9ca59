"""Training in several processes (ranks) that torchrun starts. Without torchrun there is one."""

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
    gpu, local = torch.cuda.is_available(), int(os.environ.get("LOCAL_RANK", "0"))
    if gpu:
        torch.cuda.set_device(local)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and not dist.is_initialized():
        dist.init_process_group("cpu:gloo,cuda:nccl" if gpu else "gloo")
    return torch.device("cuda", local) if gpu else torch.device("cpu")


def rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def count() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def gathered(value: T) -> list[T]:
    """`value` of every rank, in order."""
    values: list[Any] = [value] * count()
    if count() > 1:
        dist.all_gather_object(values, value)
    return values


def mine(items: Sequence[T]) -> list[T]:
    """This rank's share: every world-th item."""
    return list(items[rank() :: count()])


def total(value: float) -> float:
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
    """FSDP2: a layer's weights are together only while it runs."""
    wide = torch.promote_types(dtype, torch.float32)
    how: Any = {
        "mp_policy": MixedPrecisionPolicy(dtype, wide),
        "reshard_after_forward": True,
    }
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    for layer in (*inner.get_decoder().layers, model):
        fully_shard(layer, **how)
