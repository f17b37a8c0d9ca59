"""Completions to learn from, and how they go through the model: in micro-batches of one prompt."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

from orchestra.training.logprobs import padded
from orchestra.training.policy import Ids, Policy
from orchestra.training.rollouts import Group


@dataclass(frozen=True)
class Sample:
    """A completion to learn from, with the log-probabilities of its tokens where it was sampled."""

    prompt: Ids
    ids: Ids
    sampler_logprobs: Sequence[float] = ()
    advantage: float = 0.0


@dataclass(frozen=True)
class MicroBatch:
    """N completions of one prompt, which go through the model together; the longest has T tokens.

    advantages        (N,)
    sampler_logprobs  (N, T), NaN where they are not known: the sampler was the policy
    counts            False for a stand-in, which adds nothing to the loss
    """

    prompt: Ids
    completions: list[Ids]
    advantages: Tensor
    sampler_logprobs: Tensor
    counts: bool = True


def to_learn(
    groups: Sequence[Group], advantages: Tensor, informative: Tensor, rewards: Tensor
) -> list[Sample]:
    """The completions of the informative groups (P,), with their advantages (P, G). Those whose
    reward, of rewards (P, G), is NaN were dropped.
    """
    samples: list[Sample] = []
    for i, group in enumerate(groups):
        for j, ids in enumerate(group.ids):
            if informative[i] and not rewards[i, j].isnan():
                advantage = float(advantages[i, j])
                samples.append(Sample(group.prompt, ids, group.logprobs[j], advantage))
    return samples


def in_micro_batches(
    samples: Sequence[Sample], size: int, policy: Policy
) -> list[MicroBatch]:
    """At most `size` completions of one prompt each, in the order of the samples; one, if the
    policy cannot pack.

    Every process gets as many, since a sharded model runs in all of them at once: stand-ins fill
    up.
    """
    parts = [
        _micro_batch(part) for part in _parts(samples, size if policy.packs else 1)
    ]
    most = max(policy.processes.gathered(len(parts)))
    nothing = torch.zeros(1)
    stand_in = MicroBatch(
        [policy.pad], [[policy.pad]], nothing, nothing[None], counts=False
    )
    return parts + [stand_in] * (most - len(parts))


def _parts(samples: Sequence[Sample], size: int) -> Iterator[list[Sample]]:
    for _, group in groupby(samples, key=lambda sample: sample.prompt):
        of_prompt = list(group)
        for first in range(0, len(of_prompt), size):
            yield of_prompt[first : first + size]


def _micro_batch(part: Sequence[Sample]) -> MicroBatch:
    completions = [sample.ids for sample in part]
    _, mask = padded(completions, pad=0)
    sampler = torch.full(mask.shape, torch.nan, dtype=torch.float64)  # (N, T)
    for row, sample in enumerate(part):
        known = torch.tensor(sample.sampler_logprobs, dtype=torch.float64)
        sampler[row, : len(known)] = known
    advantages = torch.tensor([sample.advantage for sample in part])  # (N,)
    return MicroBatch(part[0].prompt, completions, advantages, sampler)
