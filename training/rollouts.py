"""Groups of completions from the policy itself, in this process: `--rollouts local`.

The prompt is read once, its cache repeated for the group (`batch_repeat_interleave`), and a row
leaves the batch when it ends. Each prompt has a seed of its own, so what is sampled depends neither
on the other prompts of the batch nor on how many processes share them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from training import ranks
from training.policy import Ids, Policy


@dataclass(frozen=True)
class Group:
    """G completions of one prompt. `ids[j]` has its end token, if it came to one; `logps[j]` is
    what the sampler gave each of its tokens; None where the sampler does not tell.
    """

    prompt: Ids
    ids: list[Ids]
    logps: list[list[float]]
    texts: list[str]


class Rollouts(Protocol):
    """Where completions come from."""

    def sample(
        self, prompts: Sequence[Ids], seeds: Sequence[int], n: int, temperature: float
    ) -> list[Group]:
        """n completions of each prompt. Temperature 0 takes the likeliest token."""

    def update(self, version: int) -> None:
        """From now on, sample from the policy as it is now; `version` grows."""

    def close(self) -> None:
        """Nothing more will be sampled."""


@dataclass
class _Growing:
    """One prompt's completions while they grow: row r of the batch is completion `live[r]`."""

    ids: list[Ids]
    logps: list[list[float]]
    live: list[int] = field(default_factory=list)

    def take(self, chosen: Tensor, logps: Tensor, eos: Sequence[int], limit: int) -> list[int]:
        """One more token for each row. Returns the rows that go on."""
        going = []
        rows = zip(self.live, chosen.tolist(), logps.tolist(), strict=True)
        for row, (j, id, logp) in enumerate(rows):
            self.ids[j].append(id)
            self.logps[j].append(logp)
            if id not in eos and len(self.ids[j]) < limit:
                going.append(row)
        self.live = [self.live[row] for row in going]
        return going


class LocalRollouts:
    """The policy's own weights, always the newest."""

    def __init__(self, policy: Policy, max_tokens: int) -> None:
        self.policy, self.max_tokens = policy, max_tokens

    def update(self, version: int) -> None:
        """Nothing to do: it is the policy."""

    def close(self) -> None:
        """Nothing to do."""

    def sample(
        self, prompts: Sequence[Ids], seeds: Sequence[int], n: int, temperature: float
    ) -> list[Group]:
        most = ranks.most(len(prompts))
        spare = [([self.policy.eos[0]], 0)] * (most - len(prompts))  # ranks go in step
        asked = [*zip(prompts, seeds, strict=True), *spare]
        self.policy.model.eval()  # a model that recomputes activations has no cache
        groups = [self._group(p, s, n, temperature) for p, s in asked]
        self.policy.model.train()
        return groups[: len(prompts)]

    @torch.no_grad()
    def _group(self, prompt: Ids, seed: int, n: int, temperature: float) -> Group:
        from transformers import DynamicCache

        policy = self.policy
        dice = torch.Generator(policy.device).manual_seed(seed)
        growing = _Growing([[] for _ in range(n)], [[] for _ in range(n)], list(range(n)))
        cache = DynamicCache(config=policy.model.config)
        with policy.computing():
            logits = self._step(torch.tensor([prompt], device=policy.device), cache)
            cache.batch_repeat_interleave(n)
            logits = logits.expand(n, -1)  # (G, V)
            while True:
                chosen, logps = draw(logits, temperature, dice)  # (rows,), (rows,)
                going = growing.take(chosen, logps, policy.eos, self.max_tokens)
                if not going:
                    break
                ranks.most(1)
                if len(going) < len(chosen):
                    cache.batch_select_indices(torch.tensor(going, device=policy.device))
                logits = self._step(chosen[going][:, None], cache)
            while ranks.most(
                0
            ):  # other ranks are not done, and a sharded model runs on all or none
                self._step(torch.tensor([[policy.pad]], device=policy.device), DynamicCache())
        return Group(prompt, growing.ids, growing.logps, [policy.decode(c) for c in growing.ids])

    def _step(self, ids: Tensor, cache: Any) -> Tensor:
        """Logits (rows, V) after ids (rows, tokens); the cache grows."""
        out = self.policy.model(
            input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1
        )
        last: Tensor = out.logits[:, -1].float()
        return last


def draw(logits: Tensor, temperature: float, dice: torch.Generator) -> tuple[Tensor, Tensor]:
    """One token of each row of logits (rows, V), and its log-probability: (rows,), (rows,)."""
    log_p = (logits / (temperature or 1.0)).log_softmax(-1)
    if temperature:
        chosen = torch.multinomial(log_p.exp(), 1, generator=dice)
    else:
        chosen = log_p.argmax(-1, keepdim=True)
    return chosen.squeeze(1), log_p.gather(1, chosen).squeeze(1)
