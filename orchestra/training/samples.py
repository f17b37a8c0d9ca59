"""Completions to learn from: those of informative groups, with their advantages, in micro-batches.

A micro-batch has N completions of one prompt, and the longest has T tokens.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import torch
from torch import Tensor

from orchestra.seams import Scores
from orchestra.training import ranks
from orchestra.training.da_grpo import group_advantages
from orchestra.training.options import TrainingOptions
from orchestra.training.policy import Ids, Logprobs, Policy
from orchestra.training.rollouts import Group


@dataclass(frozen=True)
class Sample:
    """A completion to learn from, with the log-probabilities of its tokens where it was sampled."""

    prompt: Ids
    ids: Ids
    sampler_logps: Sequence[float] = ()
    advantage: float = 0.0


def compare(
    groups: Sequence[Group],
    scores: Sequence[Sequence[Scores | None]],
    options: TrainingOptions,
) -> tuple[list[Sample], list[bool]]:
    """The samples of the informative groups, with their advantages, and which groups those are."""
    rewards = [
        [math.nan if score is None else score.total for score in group_scores]
        for group_scores in scores
    ]
    advantages, informative = group_advantages(  # Eq. 30: (P, G), (P,)
        torch.tensor(rewards),
        min_std=options.min_std,
        scale=options.aggregation != "dr_grpo",
    )
    samples: list[Sample] = []
    for i, group in enumerate(groups):
        if not informative[i]:
            continue
        for j, score in enumerate(scores[i]):
            if score is None:
                continue
            sample = Sample(
                prompt=group.prompt,
                ids=group.ids[j],
                sampler_logps=group.logps[j],
                advantage=float(advantages[i, j]),
            )
            samples.append(sample)
    return samples, informative.tolist()


def count_tokens(samples: Sequence[Sample]) -> float:
    """The tokens of the samples of all ranks."""
    return ranks.total(sum(len(sample.ids) for sample in samples))


# ---- micro-batches -------------------------------------------------------------------------------


def micro_batches(
    policy: Policy, samples: Sequence[Sample], size: int
) -> list[list[Sample]]:
    """At most `size` completions of one prompt each, in the order of the samples; one, if the
    policy cannot pack.

    Every rank gets as many micro-batches, since a sharded model runs on all ranks at once. The
    extra ones are empty.
    """
    parts = list(_parts(samples, size if policy.packs else 1))
    most = max(ranks.gathered(len(parts)))
    return parts + [[]] * (most - len(parts))


def _parts(samples: Sequence[Sample], size: int) -> Iterator[list[Sample]]:
    for _, group in groupby(samples, key=lambda sample: sample.prompt):
        of_prompt = list(group)
        for first in range(0, len(of_prompt), size):
            yield of_prompt[first : first + size]


def model_input(part: Sequence[Sample], pad: int) -> tuple[Ids, list[Ids]]:
    """Prompt and completions of a micro-batch. An empty one gets a stand-in, to be masked out."""
    filled = part or [Sample(prompt=[pad], ids=[pad])]
    return filled[0].prompt, [sample.ids for sample in filled]


def logprobs_of(policy: Policy, part: Sequence[Sample], temperature: float) -> Logprobs:
    """log pi_theta of a micro-batch. The mask of an empty one is 0, so it adds nothing."""
    prompt, completions = model_input(part, policy.pad)
    scored = policy.logprobs(prompt, completions, temperature)
    return replace(scored, mask=scored.mask * bool(part))  # (N, T)


def advantages_of(part: Sequence[Sample], like: Tensor) -> Tensor:
    """The advantages (N,) of a micro-batch, in dtype and on the device of `like`."""
    values = [sample.advantage for sample in part] or [0.0]
    return torch.tensor(values).to(like)


def sampler_logprobs(part: Sequence[Sample], like: Tensor) -> Tensor:
    """The sampler's log-probabilities (N, T) of a micro-batch, as `like` (N, T). NaN where they are
    not known.
    """
    logps = torch.full_like(like, torch.nan)  # (N, T)
    for row, sample in enumerate(part):
        known = torch.tensor(sample.sampler_logps).to(like)
        logps[row, : len(known)] = known
    return logps
