"""DA-GRPO (arXiv 2606.13707, section 3.3.2): advantage and loss as pure functions of tensors.

Shapes: P prompts, G completions of each, N = P * G sequences, T tokens of the longest completion,
V size of the vocabulary. Eq. 29, the rubric reward, is `training.rewards.weighted`.

Differences from the paper / the released code
1. The ratio of Eq. 31 is of a whole decision; here, as in TRL and verl, of each of its tokens.
2. Eq. 31's expectation is over sequences (`grpo`); the released flags average over tokens (`dapo`).
3. The paper does not give the Std of Eq. 30, its epsilon or the clip. We use TRL's: divide by
   G - 1, 1e-4, 0.2. With `dr_grpo` the advantage is not divided by the Std (arXiv 2503.20783).
4. Rollouts from another engine are corrected by a truncated importance weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

MAX_LOG_RATIO = 20.0  # larger ratios are clamped, so that no input gives NaN
PART = 512  # tokens whose logits are converted to float32 at a time


@dataclass(frozen=True)
class Objective:
    """What Eq. 31 leaves open."""

    clip_low: float = 0.2
    clip_high: float = 0.2  # 0.28: clip-higher of DAPO
    beta: float = 0.01
    aggregation: str = "dapo"
    max_tokens: int = 4096  # of a completion: the divisor of dr_grpo


@dataclass(frozen=True)
class Totals:
    """The divisors of a loss: over all micro-batches and ranks of one optimizer step."""

    sequences: float
    tokens: float


# ---- sequences -----------------------------------------------------------------------------------


def padded(completions: Sequence[Sequence[int]], pad: int) -> tuple[Tensor, Tensor]:
    """ids (N, T) and mask (N, T), T at least 1. The mask follows the lengths: a sampled end
    token counts, even where the same token pads.
    """
    lengths = torch.tensor([len(c) for c in completions], dtype=torch.long)
    width = max([1, *lengths.tolist()])
    mask = torch.arange(width)[None] < lengths[:, None]
    ids = torch.full(mask.shape, pad)
    ids[mask] = torch.tensor([id for c in completions for id in c], dtype=torch.long)
    return ids, mask.float()


def token_logprobs(logits: Tensor, ids: Tensor, temperature: float = 1.0) -> Tensor:
    """log pi(id) of logits (N, T, V) at ids (N, T): (N, T), in at least float32."""

    def of_part(logits: Tensor, ids: Tensor) -> Tensor:
        scaled = (
            logits if logits.dtype == torch.float64 else logits.float()
        ) / temperature
        return scaled.gather(-1, ids[..., None]).squeeze(-1) - scaled.logsumexp(-1)

    parts = zip(torch.split(logits, PART, 1), torch.split(ids, PART, 1), strict=True)
    return torch.cat(
        [checkpoint(of_part, *part, use_reentrant=False) for part in parts], 1
    )


def token_entropy(logits: Tensor) -> Tensor:
    """Entropy in nats at each position of logits (N, T, V): (N, T)."""
    parts = torch.split(logits, PART, 1)
    return torch.cat(
        [torch.special.entr(p.float().softmax(-1)).sum(-1) for p in parts], 1
    )


# ---- Eq. 30 --------------------------------------------------------------------------------------


def group_advantages(
    rewards: Tensor, epsilon: float = 1e-4, min_std: float = 1e-6, scale: bool = True
) -> tuple[Tensor, Tensor]:
    """A_hat (P, G) of rewards (P, G), and which groups (P,) are informative. Without `scale`, A_hat
    is not divided by the standard deviation of its group.

    A reward of NaN marks a dropped sample: its advantage is 0, and the mean leaves it out. A group
    whose deviation is below `min_std` is not informative: its advantages are exactly 0.
    """
    scored = ~rewards.isnan()
    count = scored.sum(1, keepdim=True)
    centred = torch.where(scored, rewards - rewards.nanmean(1, keepdim=True), 0.0)
    std = (centred.square().sum(1, keepdim=True) / (count - 1).clamp(min=1)).sqrt()
    informative = std > min_std
    advantages = centred / (std + epsilon) if scale else centred  # Eq. 30
    return torch.where(informative, advantages, 0.0), informative.squeeze(1)


# ---- Eq. 31 --------------------------------------------------------------------------------------


def log_ratio(a: Tensor, b: Tensor) -> Tensor:
    """a - b, finite: 0 where both are -inf or one is NaN, else within +-20."""
    return torch.nan_to_num(a - b, nan=0.0).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def k3(logps: Tensor, ref_logps: Tensor) -> Tensor:
    """Schulman's estimate of D_KL(pi_theta || pi_ref), never negative: (N, T)."""
    r = log_ratio(ref_logps, logps)
    return r.exp() - r - 1.0


def importance(old_logps: Tensor, sampler_logps: Tensor, cap: float) -> Tensor:
    """min(pi_old / pi_sampler, cap), (N, T): corrects for the sampler's own numerics."""
    return log_ratio(old_logps, sampler_logps).exp().clamp(max=cap)


def aggregate(
    values: Tensor, mask: Tensor, objective: Objective, totals: Totals
) -> Tensor:
    """The share of this micro-batch, values (N, T), in the mean over the whole batch: a scalar."""
    summed = torch.where(mask > 0, values, 0.0).sum(1)
    if objective.aggregation == "grpo":
        return (summed / mask.sum(1).clamp(min=1)).sum() / max(totals.sequences, 1)
    if objective.aggregation == "dapo":
        return summed.sum() / max(totals.tokens, 1)
    return summed.sum() / (max(totals.sequences, 1) * objective.max_tokens)


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
    """L of Eq. 31, a scalar, and its sums over tokens: "kl", "clipped".

    logps (with gradient), old_logps, ref_logps (None where beta is 0), mask and weights (of
    `importance`) are (N, T); advantages (N,).
    """
    a_hat = advantages[:, None]
    rho = log_ratio(logps, old_logps.detach()).exp()
    clipped_rho = rho.clamp(1 - objective.clip_low, 1 + objective.clip_high)
    gain = torch.minimum(
        rho * a_hat, clipped_rho * a_hat
    )  # Eq. 31: the clipped objective
    gain = gain if weights is None else gain * weights
    kl = k3(logps, ref_logps) if ref_logps is not None else torch.zeros_like(rho)
    loss = aggregate(objective.beta * kl - gain, mask, objective, totals)  # Eq. 31
    too_high, too_low = rho > 1 + objective.clip_high, rho < 1 - objective.clip_low
    clipped = (too_high & (a_hat > 0)) | (too_low & (a_hat < 0))
    metrics = {"kl": kl.detach(), "clipped": clipped.float()}
    return loss, {
        k: float(torch.where(mask > 0, v, 0.0).sum()) for k, v in metrics.items()
    }
