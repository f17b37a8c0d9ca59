"""DA-GRPO (arXiv 2606.13707, section 3.3.2): advantage and loss as pure functions of tensors.

The shapes are written in these letters: P prompts, G completions of each prompt, N completions of a
micro-batch, T tokens of its longest completion, V tokens of the vocabulary. Eq. 29, the reward, is
`training.rubric.weighted`.

Differences from the paper / the released code
1. In Eq. 31 a whole decision has one ratio. Here each of its tokens has one, as in TRL and verl.
2. Eq. 31 averages over sequences (`grpo`). The released flags average over tokens (`dapo`), which
   is the default here.
3. The paper does not give the Std of Eq. 30, its epsilon or the clip. We use TRL's: divide by
   G - 1, 1e-4, 0.2. With `dr_grpo` the advantage is not divided by the Std (arXiv 2503.20783).
4. Rollouts from another engine are corrected by a truncated importance weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

MAX_LOG_RATIO = 20.0  # larger ratios are clamped, so that no input gives NaN
PART = 512  # tokens whose logits are converted to float32 at a time


@dataclass(frozen=True)
class Objective:
    """What Eq. 31 leaves open."""

    clip_low: float = 0.2
    clip_high: float = 0.2  # DAPO has 0.28: "clip-higher"
    beta: float = 0.01  # weight of the KL
    aggregation: str = "dapo"
    max_tokens: int = 4096  # the length limit of a completion: the divisor of dr_grpo


@dataclass(frozen=True)
class Totals:
    """The divisors of a loss: counts over all micro-batches and ranks of one optimizer step."""

    sequences: float
    tokens: float


# ---- sequences -----------------------------------------------------------------------------------


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
    """log pi(id) of logits (N, T, V) at ids (N, T): (N, T), in at least float32.

    The logits in float32 would be the largest tensor of a step. So they are converted PART tokens
    at a time, and the backward pass converts them again instead of keeping them.
    """
    logits_parts = torch.split(logits, PART, dim=1)  # (N, PART, V) each
    ids_parts = torch.split(ids, PART, dim=1)  # (N, PART) each
    logps = [
        checkpoint(_part_logprobs, *part, temperature, use_reentrant=False)
        for part in zip(logits_parts, ids_parts, strict=True)
    ]
    return torch.cat(logps, dim=1)  # (N, T)


def _part_logprobs(logits: Tensor, ids: Tensor, temperature: float) -> Tensor:
    """As `token_logprobs`, of tokens that fit into memory at once."""
    exact = logits if logits.dtype == torch.float64 else logits.float()
    scaled = exact / temperature  # (N, T, V)
    chosen = scaled.gather(-1, ids[..., None]).squeeze(-1)  # (N, T)
    return chosen - scaled.logsumexp(-1)


def token_entropy(logits: Tensor) -> Tensor:
    """Entropy in nats at each position of logits (N, T, V): (N, T)."""
    entropies = []
    for part in torch.split(logits, PART, dim=1):
        probabilities = part.float().softmax(-1)  # (N, PART, V)
        entropies.append(torch.special.entr(probabilities).sum(-1))
    return torch.cat(entropies, dim=1)  # (N, T)


def masked_sum(values: Tensor, mask: Tensor) -> float:
    """The sum of values (N, T) over the tokens, where mask (N, T) is 1."""
    return float(torch.where(mask > 0, values, 0.0).sum())


# ---- Eq. 30 --------------------------------------------------------------------------------------


def group_advantages(
    rewards: Tensor, epsilon: float = 1e-4, min_std: float = 1e-6, scale: bool = True
) -> tuple[Tensor, Tensor]:
    """A_hat (P, G) of rewards (P, G), and which groups (P,) are informative.

    A reward of NaN marks a dropped sample: its advantage is 0, and the mean leaves it out. A group
    whose deviation is below `min_std` is not informative: its advantages are exactly 0. Without
    `scale`, A_hat is not divided by the standard deviation of its group.
    """
    scored = ~rewards.isnan()  # (P, G)
    count = scored.sum(1, keepdim=True)  # (P, 1)
    mean = rewards.nanmean(1, keepdim=True)  # (P, 1)
    centred = torch.where(scored, rewards - mean, 0.0)  # (P, G)
    variance = centred.square().sum(1, keepdim=True) / (count - 1).clamp(min=1)
    std = variance.sqrt()  # (P, 1)
    informative = std > min_std  # (P, 1)
    advantages = centred / (std + epsilon) if scale else centred  # Eq. 30: (P, G)
    return torch.where(informative, advantages, 0.0), informative.squeeze(1)


# ---- Eq. 31 --------------------------------------------------------------------------------------


def log_ratio(a: Tensor, b: Tensor) -> Tensor:
    """a - b, always finite: 0 where both are -inf or one is NaN, else within +-20."""
    return torch.nan_to_num(a - b, nan=0.0).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def k3(logps: Tensor, ref_logps: Tensor) -> Tensor:
    """Schulman's estimate of D_KL(pi_theta || pi_ref), never negative: (N, T)."""
    r = log_ratio(ref_logps, logps)  # (N, T)
    return r.exp() - r - 1.0


def importance(old_logps: Tensor, sampler_logps: Tensor, cap: float) -> Tensor:
    """min(pi_old / pi_sampler, cap), (N, T): corrects for the sampler's own numerics."""
    return log_ratio(old_logps, sampler_logps).exp().clamp(max=cap)


def aggregate(
    values: Tensor, mask: Tensor, objective: Objective, totals: Totals
) -> Tensor:
    """What this micro-batch, values (N, T), adds to the mean over the whole batch: a scalar."""
    sums = torch.where(mask > 0, values, 0.0).sum(1)  # (N,)
    sequences = max(totals.sequences, 1)
    if objective.aggregation == "dapo":  # every token counts the same
        return sums.sum() / max(totals.tokens, 1)
    if objective.aggregation == "grpo":  # every sequence counts the same
        lengths = mask.sum(1).clamp(min=1)  # (N,)
        return (sums / lengths).sum() / sequences
    return sums.sum() / (sequences * objective.max_tokens)  # dr_grpo


def da_grpo_loss(
    logps: Tensor,
    old_logps: Tensor,
    ref_logps: Tensor | None,
    advantages: Tensor,
    mask: Tensor,
    objective: Objective,
    totals: Totals,
    weights: Tensor | None = None,
) -> tuple[Tensor, dict[str, float]]:
    """L of Eq. 31, a scalar, and two sums over tokens: "kl" and "clipped".

    logps (with gradient), old_logps, ref_logps (None if beta is 0), mask and weights (those of
    `importance`) are (N, T); advantages (N,).
    """
    a_hat = advantages[:, None]  # (N, 1)
    lowest = 1 - objective.clip_low
    highest = 1 + objective.clip_high
    rho = log_ratio(logps, old_logps.detach()).exp()  # Eq. 31: the ratio, (N, T)
    clipped_rho = rho.clamp(lowest, highest)  # (N, T)
    gain = torch.minimum(rho * a_hat, clipped_rho * a_hat)  # Eq. 31: clipped, (N, T)
    if weights is not None:
        gain = gain * weights
    kl = torch.zeros_like(rho) if ref_logps is None else k3(logps, ref_logps)  # (N, T)
    loss = aggregate(objective.beta * kl - gain, mask, objective, totals)  # Eq. 31

    too_high = (rho > highest) & (a_hat > 0)  # (N, T)
    too_low = (rho < lowest) & (a_hat < 0)
    clipped = (too_high | too_low).float()
    sums = {
        "kl": masked_sum(kl.detach(), mask),
        "clipped": masked_sum(clipped, mask),
    }
    return loss, sums
