"""Where completions come from, and `--rollouts local`: the policy itself, in this process.

Local rollouts are Hugging Face's `generate`. As many groups as `at_once` allows are sampled in
parallel, and each prompt is read once for its whole group. Each prompt has a random generator of
its own. So its completions do not depend on the prompts that are sampled with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import DynamicCache, LogitsProcessor, LogitsProcessorList

from orchestra.training.policy import Ids, Policy

DRAWN = 1 << 14  # random numbers that a generator draws at once, if a step needs fewer


@dataclass(frozen=True)
class Group:
    """G completions of one prompt.

    ids[j]        the tokens of completion j, with the end token if there is one
    logprobs[j]   the sampler's log-probability of each token, or [] if the sampler is the policy
    texts[j]      the tokens as text, without special tokens
    cut[j]        whether the completion stopped at the length limit
    """

    prompt: Ids
    ids: list[Ids]
    logprobs: list[list[float]]
    texts: list[str]
    cut: list[bool]


def group_of(
    policy: Policy, prompt: Ids, ids: list[Ids], logprobs: list[list[float]]
) -> Group:
    """The group of these completions, each of which has at least one token."""
    return Group(
        prompt=prompt,
        ids=ids,
        logprobs=logprobs,
        texts=[policy.decode(completion) for completion in ids],
        cut=[completion[-1] not in policy.eos for completion in ids],
    )


class Rollouts(Protocol):
    """A sampler of completions."""

    def sample(
        self, prompts: Sequence[Ids], seeds: Sequence[int], n: int, temperature: float
    ) -> list[Group]:
        """n completions of each prompt. Temperature 0 takes the likeliest token."""

    def update(self, step: int) -> None:
        """Take the weights that the policy has before step `step`."""

    def close(self) -> None:
        """No more calls follow."""


@dataclass
class LocalRollouts:
    """Samples `at_once` completions in a batch, but at least one group."""

    policy: Policy
    max_tokens: int
    at_once: int = 64

    def sample(
        self, prompts: Sequence[Ids], seeds: Sequence[int], n: int, temperature: float
    ) -> list[Group]:
        size = max(1, self.at_once // n)  # prompts in a batch
        groups: list[Group] = []
        self.policy.model.eval()  # a model that computes activations again has no cache
        for first in range(0, len(prompts), size):
            part = slice(first, first + size)
            groups += self._sample_batch(prompts[part], seeds[part], n, temperature)
        self.policy.model.train()
        return groups

    def update(self, step: int) -> None:
        """Nothing to do: the policy itself is the sampler."""

    def close(self) -> None:
        """Nothing to do."""

    def _sample_batch(
        self, prompts: Sequence[Ids], seeds: Sequence[int], n: int, temperature: float
    ) -> list[Group]:
        device = self.policy.device
        rows = [torch.tensor(prompt, device=device) for prompt in prompts]
        ids = pad_sequence(rows, True, self.policy.pad, "left")  # (P, S), S the longest
        mask = pad_sequence(list(map(torch.ones_like, rows)), True, 0, "left")  # (P, S)
        draw = LogitsProcessorList()
        if temperature > 0:
            draw.append(Draw(seeds, n, temperature, device))
        drawn = self._generate(ids, mask, n, draw).view(len(prompts), n, -1).tolist()
        groups = []
        for prompt, of_prompt in zip(prompts, drawn, strict=True):
            completions = [up_to_end(row, self.policy.eos) for row in of_prompt]
            groups.append(group_of(self.policy, prompt, completions, [[]] * n))
        return groups

    @torch.no_grad()
    def _generate(
        self, ids: Tensor, mask: Tensor, n: int, draw: LogitsProcessorList
    ) -> Tensor:
        """The n completions of each of the prompts ids (P, S): (P * n, T)."""
        model = self.policy.model
        position = (mask.cumsum(1) - 1).clamp(min=0)  # (P, S)
        cache = DynamicCache(config=model.config)
        with self.policy.autocast():
            if ids.shape[1] > 1:
                model(  # reads each prompt once, all but its last token
                    ids[:, :-1],
                    attention_mask=mask[:, :-1],
                    position_ids=position[:, :-1],
                    past_key_values=cache,
                    logits_to_keep=1,
                )
                cache.batch_repeat_interleave(n)
            out: Tensor = model.generate(  # (P * n, S + T); continues from the cache
                ids.repeat_interleave(n, 0),
                attention_mask=mask.repeat_interleave(n, 0),
                past_key_values=cache,
                logits_processor=draw,
                do_sample=False,  # takes the largest logit, which `draw` has made random
                max_new_tokens=self.max_tokens,
            )
        return out[:, ids.shape[1] :]


class Draw(LogitsProcessor):
    """Turns the largest logit into a draw from softmax(logits / temperature): the Gumbel-max trick.
    With E from an exponential distribution, argmax(logits / temperature - log E) is such a draw.

    The n completions of a prompt take their random numbers from one generator with its seed.
    """

    def __init__(
        self, seeds: Sequence[int], n: int, temperature: float, device: torch.device
    ) -> None:
        self.n = n
        self.temperature = temperature
        self.generators = [torch.Generator(device).manual_seed(seed) for seed in seeds]
        self.drawn: list[Tensor] = []  # (P, n, V) for each of the next steps

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """scores (P * n, V)."""
        if not self.drawn:
            self.drawn = self._draw(scores)
        noise = self.drawn.pop(0).flatten(0, 1)  # (P * n, V)
        return scores / self.temperature - noise.log()

    def _draw(self, scores: Tensor) -> list[Tensor]:
        """Numbers for several steps at once, which is faster. For how many steps must not depend on
        the number of prompts.
        """
        shape = (self.n, scores.shape[1])  # (n, V)
        steps = max(1, DRAWN // (shape[0] * shape[1]))
        noise = [
            torch.empty((steps, *shape), device=scores.device).exponential_(generator=g)
            for g in self.generators
        ]
        return list(torch.stack(noise, dim=1))  # of (steps, P, n, V)


def up_to_end(ids: Ids, ends: Sequence[int]) -> Ids:
    """The tokens up to the first end token, without the padding after it.

    >>> up_to_end([5, 6, 2, 0, 0], [2])
    [5, 6, 2]
    """
    for k, id in enumerate(ids):
        if id in ends:
            return ids[: k + 1]
    return ids
