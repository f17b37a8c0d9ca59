"""Log-probabilities of tokens, from the logits of a model.

The shapes are written in these letters: N completions, T tokens of the longest one, K tokens of
all of them, V tokens of the vocabulary. The logits (K, V) are the largest tensor of a step. The
backward pass that is written out here holds twice their size: the logits, their gradient and a few
times PART rows in float32. Autograd holds 7 times their size, or 3 in parts that are computed again
(benchmarks/logits_memory.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor

MAX_LOG_RATIO = 20.0  # larger ratios are clamped, so that no input gives NaN
PART = 512  # tokens whose logits are in float32 at a time


def padded(completions: Sequence[Sequence[int]], pad: int) -> tuple[Tensor, Tensor]:
    """ids (N, T) and mask (N, T) of N completions; T is at least 1.

    The mask follows the lengths. So a sampled end token counts, even if the same token pads.
    """
    lengths = torch.tensor([len(c) for c in completions], dtype=torch.long)  # (N,)
    longest = max([1, *lengths.tolist()])
    mask = torch.arange(longest)[None] < lengths[:, None]  # (N, T)
    all_ids = list(chain.from_iterable(completions))
    ids = torch.full(mask.shape, pad)  # (N, T)
    ids[mask] = torch.tensor(all_ids, dtype=torch.long)
    return ids, mask.float()


def token_logprobs(logits: Tensor, ids: Tensor, temperature: float = 1.0) -> Tensor:
    """log pi(id) of logits (K, V) at ids (K,): (K,), in at least float32."""
    logprobs: Tensor = _TokenLogprobs.apply(logits, ids, temperature)  # type: ignore[no-untyped-call]
    return logprobs


class _TokenLogprobs(torch.autograd.Function):
    """log softmax(logits / temperature) at one id a row, and its gradient."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, ids: Tensor, temperature: float) -> Tensor:
        logprobs = []
        normalizers = []
        for rows in _parts(len(ids)):
            scaled = _exact(logits[rows]) / temperature  # (PART, V)
            normalizer = scaled.logsumexp(-1)  # (PART,)
            chosen = scaled.gather(1, ids[rows, None]).squeeze(1)
            logprobs.append(chosen - normalizer)
            normalizers.append(normalizer)
        ctx.save_for_backward(logits, ids, torch.cat(normalizers))
        ctx.temperature = temperature
        return torch.cat(logprobs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        """d log pi(id) / d logits = (1 at id - pi) / temperature."""
        logits, ids, normalizers = ctx.saved_tensors
        weights = gradients[0] / ctx.temperature  # (K,)
        of_logits = torch.empty_like(logits)  # (K, V)
        for rows in _parts(len(ids)):
            part = _exact(logits[rows]) / ctx.temperature  # (PART, V)
            part.sub_(normalizers[rows, None]).exp_()  # pi
            part.mul_(-weights[rows, None])
            part.scatter_add_(1, ids[rows, None], weights[rows, None])
            of_logits[rows] = part
        return of_logits, None, None


def token_entropy(logits: Tensor) -> Tensor:
    """Entropy in nats at each position of logits (K, V): (K,)."""
    entropies = []
    for rows in _parts(len(logits)):
        probabilities = logits[rows].float().softmax(-1)  # (PART, V)
        entropies.append(torch.special.entr(probabilities).sum(-1))
    return torch.cat(entropies)


def masked_sum(values: Tensor, mask: Tensor) -> float:
    """The sum of values (N, T) over the tokens, where mask (N, T) is 1."""
    return float(torch.where(mask > 0, values, 0.0).sum())


def log_ratio(a: Tensor, b: Tensor) -> Tensor:
    """a - b, always finite: 0 where both are -inf or one is NaN, else within +-20."""
    return torch.nan_to_num(a - b, nan=0.0).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def importance(old_logprobs: Tensor, sampler_logprobs: Tensor, cap: float) -> Tensor:
    """min(pi_old / pi_sampler, cap), (N, T): corrects for the sampler's own numerics. It is 1 where
    the sampler's logprobs are NaN, since the sampler was the policy.
    """
    return log_ratio(old_logprobs, sampler_logprobs).exp().clamp(max=cap)


def _exact(logits: Tensor) -> Tensor:
    """The logits in at least float32."""
    return logits if logits.dtype == torch.float64 else logits.float()


def _parts(count: int) -> Iterator[slice]:
    """Slices of PART rows; of no rows, one empty slice."""
    for first in range(0, max(1, count), PART):
        yield slice(first, first + PART)
