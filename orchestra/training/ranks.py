"""Training in several processes (ranks), which torchrun starts. FSDP2 shards the model over them.

Every rank runs the same program on its own share of the examples.
"""

from __future__ import annotations

from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from orchestra.training.processes import Processes

T = TypeVar("T")


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
        policy = MixedPrecisionPolicy(
            param_dtype=dtype,
            reduce_dtype=torch.promote_types(dtype, torch.float32),
        )
        has_adapter = hasattr(model, "get_base_model")
        base = model.get_base_model() if has_adapter else model
        for layer in base.get_decoder().layers:
            fully_shard(layer, mp_policy=policy, reshard_after_forward=True)
        fully_shard(model, mp_policy=policy, reshard_after_forward=True)

    def norm(self, norm: Any) -> float:
        return float(norm.full_tensor())
