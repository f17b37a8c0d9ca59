"""Groups of completions from the policy itself, in this process: `--rollouts local`.

Groups grow in parallel, as many as `at_once` allows. A prompt is read once, its cache repeated for
the group (`batch_repeat_interleave`), and a row leaves the batch when it ends. Each prompt has a
seed of its own, so what is sampled depends neither on the other prompts of the batch nor on how
many processes share them; in bfloat16 but for the rounding, which goes by the shape of the batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from training import ranks
from training.examples import Example
from training.policy import Ids, Policy


@dataclass(frozen=True)
class Group:
    """G completions of one prompt. `ids[j]` has its end token, if it came to one; `logps[j]` is
    what the sampler gave each of its tokens.
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


def likeliest(policy: Policy, examples: Sequence[Example], rollouts: Rollouts) -> list[Group]:
    """The likeliest decision in each state: a group of one. No dice are thrown."""
    prompts = [policy.encode(e.messages) for e in examples]
    return rollouts.sample(prompts, [0] * len(prompts), 1, 0.0)


class _Growing:
    """P groups of n completions while they grow. Row r of the batch is completion `live[r]`, which
    belongs to prompt `live[r] // n`.
    """

    def __init__(self, prompts: Sequence[Ids], seeds: Sequence[int], n: int, device: Any) -> None:
        count = len(prompts) * n
        self.prompts, self.n = prompts, n
        self.dice = [torch.Generator(device).manual_seed(seed) for seed in seeds]
        self.ids: list[Ids] = [[] for _ in range(count)]
        self.logps: list[list[float]] = [[] for _ in range(count)]
        self.live = list(range(count))

    def draw(self, logits: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        """One token of each row, with the dice of its prompt."""
        counts = Counter(j // self.n for j in self.live)  # in the order of the rows
        parts = zip(counts, torch.split(logits, list(counts.values())), strict=True)
        drawn = [draw(part, temperature, self.dice[p]) for p, part in parts]
        return torch.cat([d[0] for d in drawn]), torch.cat([d[1] for d in drawn])

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

    def groups(self, policy: Policy) -> list[Group]:
        texts = [policy.decode(c) for c in self.ids]
        cuts = [slice(k * self.n, (k + 1) * self.n) for k in range(len(self.prompts))]
        return [
            Group(prompt, self.ids[cut], self.logps[cut], texts[cut])
            for prompt, cut in zip(self.prompts, cuts, strict=True)
        ]


class LocalRollouts:
    """The policy's own weights, always the newest. `at_once`: completions that grow in parallel;
    never less than a group.
    """

    def __init__(self, policy: Policy, max_tokens: int, at_once: int = 64) -> None:
        self.policy, self.max_tokens, self.at_once = policy, max_tokens, at_once

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
        size = max(1, self.at_once // n)
        self.policy.model.eval()  # a model that recomputes activations has no cache
        groups = [
            group
            for k in range(0, most, size)
            for group in self._groups(asked[k : k + size], n, temperature)
        ]
        self.policy.model.train()
        return groups[: len(prompts)]

    @torch.no_grad()
    def _groups(self, asked: Sequence[tuple[Ids, int]], n: int, temperature: float) -> list[Group]:
        from transformers import DynamicCache

        policy, device = self.policy, self.policy.device
        growing = _Growing([p for p, _ in asked], [s for _, s in asked], n, device)
        cache = DynamicCache(config=policy.model.config)
        ids, sees = left_padded(growing.prompts, policy.pad, device)  # (P, width)
        with policy.computing():
            logits = self._step(ids, sees, cache).repeat_interleave(n, 0)  # (P * G, V)
            cache.batch_repeat_interleave(n)
            sees = sees.repeat_interleave(n, 0)
            while True:
                chosen, logps = growing.draw(logits, temperature)  # (rows,), (rows,)
                going = growing.take(chosen, logps, policy.eos, self.max_tokens)
                if not going:
                    break
                ranks.most(1)
                rows = torch.tensor(going, device=device)
                if len(going) < len(chosen):
                    cache.batch_select_indices(rows)
                sees = torch.nn.functional.pad(sees[rows], (0, 1), value=1)
                logits = self._step(chosen[rows][:, None], sees, cache)
            while ranks.most(0):  # other ranks go on, and a sharded model runs on all or none
                self._step(*left_padded([[policy.pad]], policy.pad, device), DynamicCache())
        return growing.groups(policy)

    def _step(self, ids: Tensor, sees: Tensor, cache: Any) -> Tensor:
        """Logits (rows, V) after ids (rows, tokens); the cache grows."""
        place = (sees.cumsum(1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        out = self.policy.model(
            input_ids=ids,
            attention_mask=sees,
            position_ids=place,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        last: Tensor = out.logits[:, -1].float()
        return last


def left_padded(prompts: Sequence[Ids], pad: int, device: Any) -> tuple[Tensor, Tensor]:
    """ids (P, width) that end together, and where they are (P, width)."""
    width = max(len(p) for p in prompts)
    ids = [[pad] * (width - len(p)) + p for p in prompts]
    there = [[0] * (width - len(p)) + [1] * len(p) for p in prompts]
    return torch.tensor(ids, device=device), torch.tensor(there, device=device)


def draw(logits: Tensor, temperature: float, dice: torch.Generator) -> tuple[Tensor, Tensor]:
    """One token of each row of logits (rows, V), and its log-probability: (rows,), (rows,)."""
    log_p = (logits / (temperature or 1.0)).log_softmax(-1)
    if temperature:
        chosen = torch.multinomial(log_p.exp(), 1, generator=dice)
    else:
        chosen = log_p.argmax(-1, keepdim=True)
    return chosen.squeeze(1), log_p.gather(1, chosen).squeeze(1)
