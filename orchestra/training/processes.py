"""The processes that train together: this one alone, or several (ranks), which torchrun starts.

Every rank runs the same program on its own share of the examples. FSDP2 shards the model over them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

T = TypeVar("T")


def join_processes() -> Processes:
    """This process alone, or all that torchrun started."""
    return Ranks() if int(os.environ.get("WORLD_SIZE", "1")) > 1 else Processes()


class Processes:
    """What the training asks of the processes around it. All of them must call `gathered` and what
    builds on it in the same order.

    rank    the number of this process; the first one, 0, writes files and talks to servers
    count   how many there are
    """

    rank = 0
    count = 1

    def gathered(self, value: T) -> list[T]:
        """`value` of every process, in order."""
        return [value]

    def total(self, value: float) -> float:
        """The sum of `value` over all processes."""
        return sum(self.gathered(value))

    def mine(self, items: Sequence[T]) -> list[T]:
        """This process's share: with N processes, every N-th item."""
        return list(items[self.rank :: self.count])

    def wait(self) -> None:
        """Return when every process has called this."""
        self.gathered(None)

    def place(self, model: Any, device: torch.device, dtype: torch.dtype) -> None:
        """Move the model to where it is trained, and computed in `dtype`."""
        model.to(device)

    def norm(self, norm: Any) -> float:
        """The norm of a gradient, from what torch returns for it."""
        return float(norm)


class Ranks(Processes):
    """The processes of one torchrun. Making this joins them."""

    def __init__(self) -> None:
        if not dist.is_initialized():
            has_gpu = torch.cuda.is_available()
            dist.init_process_group("cpu:gloo,cuda:nccl" if has_gpu else "gloo")
        self.rank = dist.get_rank()
        self.count = dist.get_world_size()

    def gathered(self, value: T) -> list[T]:
        values: list[Any] = [value] * self.count
        dist.all_gather_object(values, value)
        return values

    def place(self, model: Any, device: torch.device, dtype: torch.dtype) -> None:
        """Shard the model. The weights of a layer are gathered only while it runs."""
        reduced = torch.promote_types(dtype, torch.float32)
        policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=reduced)
        has_adapter = hasattr(model, "get_base_model")
        base = model.get_base_model() if has_adapter else model
        for part in (*base.get_decoder().layers, model):
            fully_shard(part, mp_policy=policy, reshard_after_forward=True)

    def norm(self, norm: Any) -> float:
        return float(norm.full_tensor())
