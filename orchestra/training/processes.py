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


class Processes:
    """This process, with those of the same torchrun, if there are others: making this joins them.
    All of them must call `gathered` and what builds on it in the same order.

    rank    the number of this process; the first one, 0, writes files and talks to servers
    count   how many there are
    """

    def __init__(self) -> None:
        self.rank = int(os.environ.get("RANK", "0"))
        self.count = int(os.environ.get("WORLD_SIZE", "1"))
        if self.count > 1 and not dist.is_initialized():
            has_gpu = torch.cuda.is_available()
            dist.init_process_group("cpu:gloo,cuda:nccl" if has_gpu else "gloo")

    def gathered(self, value: T) -> list[T]:
        """`value` of every process, in order."""
        values = [value] * self.count
        if self.count > 1:
            dist.all_gather_object(values, value)
        return values

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
        """Move the model to where it is trained, and computed in `dtype`, or shard it. The weights
        of a layer are then gathered only while it runs.
        """
        if self.count == 1:
            model.to(device)
            return
        reduced = torch.promote_types(dtype, torch.float32)
        policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=reduced)
        has_adapter = hasattr(model, "get_base_model")
        base = model.get_base_model() if has_adapter else model
        for part in (*base.get_decoder().layers, model):
            fully_shard(part, mp_policy=policy, reshard_after_forward=True)

    def norm(self, norm: Any) -> float:
        """The norm of a gradient, from what torch returns for it."""
        return float(norm if self.count == 1 else norm.full_tensor())
