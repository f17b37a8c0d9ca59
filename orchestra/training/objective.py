"""What a loss needs besides tensors: the settings of Eq. 31, and its divisors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestra.training.processes import Processes
from orchestra.training.samples import Sample

if TYPE_CHECKING:
    from orchestra.training.options import TrainingOptions


@dataclass(frozen=True)
class Objective:
    """What Eq. 31 leaves open."""

    clip_low: float = 0.2
    clip_high: float = 0.2  # DAPO has 0.28: "clip-higher"
    beta: float = 0.01  # weight of the KL
    aggregation: str = "dapo"
    max_tokens: int = 4096  # the length limit of a completion: the divisor of dr_grpo

    @classmethod
    def of(cls, options: TrainingOptions) -> Objective:
        return cls(
            clip_low=options.clip,
            clip_high=options.clip_high or options.clip,
            beta=options.beta,
            aggregation=options.aggregation,
            max_tokens=options.max_tokens,
        )


@dataclass(frozen=True)
class Totals:
    """The divisors of a loss: counts over all micro-batches and processes of one optimizer step."""

    sequences: float
    tokens: float

    @classmethod
    def of(cls, samples: Sequence[Sample], processes: Processes) -> Totals:
        tokens = sum(len(sample.ids) for sample in samples)
        return cls(processes.total(len(samples)), processes.total(tokens))
