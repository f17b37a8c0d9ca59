"""Where completions come from, and `--rollouts local`: the policy itself, in this process.

As many groups as `at_once` allows are sampled in parallel. The common prefix of the prompts is read
once, then the rest of each. The cache is repeated for each completion of a group, and a completion
leaves the batch when it ends. Prompts of similar length share a batch, for less padding. Each
prompt has its own seed, so its completions do not depend on the rest of the batch; in bfloat16 they
may, since rounding depends on the shape of the batch.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from training.policy import Ids, Policy


@dataclass(frozen=True)
class Group:
    """G completions of one prompt. `ids[j]` includes the end token, if there is one; `logps[j]`:
    the sampler's log-probability of each token; `cut[j]`: it stopped at the length limit.
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
        """Sample from the policy as it is now, before step `step`."""

    def close(self) -> None:
        """No more calls follow."""


def group_of(policy: Policy, prompt: Ids, ids: list[Ids], logps: list[list[float]]) -> Group:
    cut = [completion[-1] not in policy.eos for completion in ids]
    return Group(prompt, ids, logps, [policy.decode(c) for c in ids], cut)


class LocalRollouts(Rollouts):
    """`at_once`: completions in a batch; at least one group."""

    def __init__(self, policy: Policy, max_tokens: int, at_once: int = 64) -> None:
        self.policy, self.max_tokens, self.at_once = policy, max_tokens, at_once

    def sample(
        self, prompts: Sequence[Ids], seeds: Sequence[int], n: int, temperature: float
    ) -> list[Group]:
        size = max(1, self.at_once // n)
        self.policy.model.eval()  # a model that computes activations again has no cache
        order = sorted(range(len(prompts)), key=lambda k: len(prompts[k]))
        groups: dict[int, Group] = {}
        for part in (order[k : k + size] for k in range(0, len(order), size)):
            chosen = [prompts[k] for k in part], [seeds[k] for k in part]
            groups |= zip(part, self._sample_batch(*chosen, n, temperature), strict=True)
        self.policy.model.train()
        return [groups[k] for k in range(len(prompts))]

    @torch.no_grad()
    def _sample_batch(
        self, prompts: Sequence[Ids], seeds: Sequence[int], n: int, temperature: float
    ) -> list[Group]:
        """Row r of the batch is completion live[r], which belongs to prompt live[r] // n."""
        from transformers import DynamicCache

        policy, device = self.policy, self.policy.device
        generators = [torch.Generator(device).manual_seed(seed) for seed in seeds]
        ids: list[Ids] = [[] for _ in range(len(prompts) * n)]
        logps: list[list[float]] = [[] for _ in ids]
        live = list(range(len(ids)))
        cache = DynamicCache(config=policy.model.config)
        with policy.autocast():
            logits, mask = (t.repeat_interleave(n, 0) for t in self._read_prompts(prompts, cache))
            cache.batch_repeat_interleave(n)
            while live:
                counts = Counter(j // n for j in live)  # rows of each prompt, in their order
                parts = zip(counts, torch.split(logits, list(counts.values())), strict=True)
                drawn = [draw(part, temperature, generators[p]) for p, part in parts]
                chosen, logp = (torch.cat(column) for column in zip(*drawn, strict=True))
                for j, id, p in zip(live, chosen.tolist(), logp.tolist(), strict=True):
                    ids[j].append(id)
                    logps[j].append(p)
                ended = [ids[j][-1] in policy.eos or len(ids[j]) == self.max_tokens for j in live]
                going = [r for r in range(len(live)) if not ended[r]]
                live = [live[r] for r in going]
                if live and len(live) < len(chosen):
                    rows = torch.tensor(going, device=device)
                    cache.batch_select_indices(rows)
                    mask, chosen = mask[rows], chosen[rows]
                if live:
                    mask = torch.nn.functional.pad(mask, (0, 1), value=1)
                    logits = self._step(chosen[:, None], mask, cache)
        cuts = [slice(k * n, (k + 1) * n) for k in range(len(prompts))]
        return [group_of(policy, p, ids[c], logps[c]) for p, c in zip(prompts, cuts, strict=True)]

    def _read_prompts(self, prompts: Sequence[Ids], cache: Any) -> tuple[Tensor, Tensor]:
        """Logits (P, V) after each prompt, and the attention mask (P, width) of the cache."""
        policy, device = self.policy, self.policy.device
        shared = min(len(os.path.commonprefix(prompts)), min(map(len, prompts)) - 1)  # tokens
        shared = shared if policy.packs else 0  # a sliding window would count the padding too
        tokens, mask = left_padded([p[shared:] for p in prompts], policy.pad, device)
        if shared:
            begin = torch.tensor([prompts[0][:shared]], device=device)
            self._step(begin, torch.ones_like(begin), cache)
            cache.batch_repeat_interleave(len(prompts))
            mask = torch.nn.functional.pad(mask, (shared, 0), value=1)
        return self._step(tokens, mask, cache), mask

    def _step(self, ids: Tensor, mask: Tensor, cache: Any) -> Tensor:
        """Logits (rows, V) after ids (rows, tokens); the cache grows."""
        position = (mask.cumsum(1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        out = self.policy.model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=position,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=torch.tensor([-1], device=ids.device),  # an int would copy the head
        )
        last: Tensor = out.logits[:, -1].float()
        return last


def left_padded(prompts: Sequence[Ids], pad: int, device: Any) -> tuple[Tensor, Tensor]:
    """ids (P, width), padded on the left, and their attention mask (P, width)."""
    width = max(len(p) for p in prompts)
    ids = [[pad] * (width - len(p)) + p for p in prompts]
    is_token = [[0] * (width - len(p)) + [1] * len(p) for p in prompts]
    return torch.tensor(ids, device=device), torch.tensor(is_token, device=device)


def draw(logits: Tensor, temperature: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """One token of each row of logits (rows, V), and its log-probability: (rows,), (rows,)."""
    log_p = (logits / (temperature or 1.0)).log_softmax(-1)
    if temperature:
        sums = log_p.double().exp().cumsum(-1)  # ten times as fast as torch.multinomial
        point = torch.rand(len(sums), 1, generator=generator, dtype=sums.dtype, device=sums.device)
        chosen = torch.searchsorted(sums, point * sums[:, -1:], right=True)
    else:
        chosen = log_p.argmax(-1, keepdim=True)
    return chosen.squeeze(1), log_p.gather(1, chosen).squeeze(1)
