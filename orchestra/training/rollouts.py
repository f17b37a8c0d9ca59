"""Where completions come from, and `--rollouts local`: the policy itself, in this process.

Local rollouts are Hugging Face's `generate`. As many groups as `at_once` allows are sampled in
parallel, and each prompt is read once for all of its group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import DynamicCache

from orchestra.training.policy import Ids, Policy


@dataclass(frozen=True)
class Group:
    """G completions of one prompt. `ids[j]` includes the end token, if there is one; `logps[j]`:
    the sampler's log-probability of each token, or [] if the sampler is the policy; `cut[j]`: it
    stopped at the length limit.
    """

    prompt: Ids
    ids: list[Ids]
    logps: list[list[float]]
    texts: list[str]
    cut: list[bool]


class Rollouts:
    def sample(
        self, prompts: Sequence[Ids], seeds: Sequence[int], n: int, temperature: float
    ) -> list[Group]:
        """n completions of each prompt. Temperature 0 takes the likeliest token."""
        raise NotImplementedError

    def update(self, step: int) -> None:
        """Take the weights that the policy has before step `step`."""

    def close(self) -> None:
        """No more calls follow."""


def group_of(
    policy: Policy, prompt: Ids, ids: list[Ids], logps: list[list[float]]
) -> Group:
    cut = [completion[-1] not in policy.eos for completion in ids]
    return Group(prompt, ids, logps, [policy.decode(c) for c in ids], cut)


class LocalRollouts(Rollouts):
    """`at_once`: completions in a batch; at least one group. A batch uses its first seed."""

    def __init__(self, policy: Policy, max_tokens: int, at_once: int = 64) -> None:
        self.policy, self.max_tokens, self.at_once = policy, max_tokens, at_once

    def sample(
        self, prompts: Sequence[Ids], seeds: Sequence[int], n: int, temperature: float
    ) -> list[Group]:
        size = max(1, self.at_once // n)
        parts = [slice(k, k + size) for k in range(0, len(prompts), size)]
        self.policy.model.eval()  # a model that computes activations again has no cache
        groups = [
            self._sample_batch(prompts[p], seeds[p.start], n, temperature)
            for p in parts
        ]
        self.policy.model.train()
        return sum(groups, [])

    @torch.no_grad()
    def _sample_batch(
        self, prompts: Sequence[Ids], seed: int, n: int, temperature: float
    ) -> list[Group]:
        policy = self.policy
        left: Any = {"batch_first": True, "padding_side": "left"}
        rows = [torch.tensor(p, device=policy.device) for p in prompts]
        ids = pad_sequence(rows, padding_value=policy.pad, **left)  # (P, width)
        mask = pad_sequence([torch.ones_like(row) for row in rows], **left)
        position = (mask.cumsum(1) - 1).clamp(min=0)
        cache = DynamicCache(config=policy.model.config)
        torch.manual_seed(seed)
        with policy.autocast():
            begin: Any = {
                "attention_mask": mask[:, :-1],
                "position_ids": position[:, :-1],
            }
            policy.model(ids[:, :-1], **begin, past_key_values=cache, logits_to_keep=1)
            cache.batch_repeat_interleave(n)  # `generate` continues from it
            ids, mask = (t.repeat_interleave(n, 0) for t in (ids, mask))
            # top_k: none; 50 is the default, and `generate` warns of others without sampling
            out = policy.model.generate(
                ids, attention_mask=mask, past_key_values=cache, do_sample=temperature > 0,
                temperature=temperature or 1.0, top_k=0 if temperature else 50,
                max_new_tokens=self.max_tokens,
            )  # fmt: skip
        drawn = (up_to_end(row, policy.eos) for row in out[:, ids.shape[1] :].tolist())
        return [group_of(policy, p, list(islice(drawn, n)), [[]] * n) for p in prompts]


def up_to_end(ids: Ids, ends: Sequence[int]) -> Ids:
    """Without the padding after the end token."""
    return ids[: next((k + 1 for k, id in enumerate(ids) if id in ends), len(ids))]
