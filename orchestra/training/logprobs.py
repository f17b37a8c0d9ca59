"""Log-probabilities of tokens, from the logits of a model; and packs of completions.

The shapes are written in these letters: N completions, T tokens of the longest one, K tokens of
all of them, V tokens of the vocabulary. The logits (K, V) are the largest tensor of a step. The
backward pass that is written out here holds twice their size: the logits, their gradient and a few
times PART rows in float32. Autograd holds 7 times their size, or 3 in parts that are computed again
(benchmarks/logits_memory.py).

A pack is several completions of one prompt in one forward pass, which reads the prompt once. An
attention mask hides them from each other, and each starts at the position that follows the prompt:

    tokens      prompt: p p p    completion 0: a a    completion 1: b b b
    position            0 1 2                  3 4                  3 4 5

So each completion gets the same probabilities as behind a copy of the prompt of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

MAX_LOG_RATIO = 20.0  # larger ratios are clamped, so that no input gives NaN
PART = 512  # tokens whose logits are in float32 at a time
PROMPT = -1  # stands for the owner of the prompt's tokens, which all completions see


def padded(completions: Sequence[Sequence[int]], pad: int) -> tuple[Tensor, Tensor]:
    """ids (N, T) and mask (N, T) of N completions, each of at least one token.

    The mask follows the lengths. So a sampled end token counts, even if the same token pads.
    """
    rows = [torch.tensor(completion) for completion in completions]
    ids = pad_sequence(rows, True, pad)  # (N, T)
    ones = [torch.ones(len(completion)) for completion in completions]
    mask = pad_sequence(ones, True)  # (N, T)
    return ids, mask


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
            columns = ids[rows, None]  # (PART, 1)
            chosen = scaled.gather(1, columns)
            chosen = chosen.squeeze(1)  # (PART,)
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
            columns = ids[rows, None]  # (PART, 1)
            weight = weights[rows, None]  # (PART, 1)
            part = _exact(logits[rows])  # (PART, V)
            part = part / ctx.temperature
            part.sub_(normalizers[rows, None])
            part.exp_()  # pi
            part.mul_(-weight)
            part.scatter_add_(1, columns, weight)
            of_logits[rows] = part
        return of_logits, None, None


def masked_sum(values: Tensor, mask: Tensor) -> float:
    """The sum of values (N, T) over the tokens, where mask (N, T) is 1."""
    of_tokens = torch.where(mask > 0, values, 0.0)  # (N, T)
    return float(of_tokens.sum())


def log_ratio(a: Tensor, b: Tensor) -> Tensor:
    """a - b, always finite: 0 where both are -inf or one is NaN, else within +-20."""
    difference = torch.nan_to_num(a - b, nan=0.0)
    return difference.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def importance(old_logprobs: Tensor, sampler_logprobs: Tensor, cap: float) -> Tensor:
    """min(pi_old / pi_sampler, cap), (N, T): corrects for the sampler's own numerics. It is 1 where
    the sampler's logprobs are NaN, since the sampler was the policy.
    """
    ratio = log_ratio(old_logprobs, sampler_logprobs).exp()
    return ratio.clamp(max=cap)


def _exact(logits: Tensor) -> Tensor:
    """The logits in at least float32."""
    return logits if logits.dtype == torch.float64 else logits.float()


def _parts(count: int) -> Iterator[slice]:
    """Slices of PART rows; of no rows, one empty slice."""
    for first in range(0, max(1, count), PART):
        yield slice(first, first + PART)


# ---- packs ---------------------------------------------------------------------------------------


def can_pack(config: Any) -> bool:
    """Whether every layer of a model uses the attention mask that it is given."""
    layer_types = getattr(config, "layer_types", None) or ["full_attention"]
    window = getattr(config, "sliding_window", None)
    if window and getattr(config, "use_sliding_window", True):
        return False
    if set(layer_types) != {"full_attention"}:
        return False
    return bool(config._attn_implementation == "sdpa")


def packed(prompt_length: int, is_token: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Pack N completions behind one prompt. is_token (N, T) is True on their K tokens; the pack has
    L = prompt_length + K tokens.

    Returns position_ids (L,), attention_mask (L, L) in which completions cannot see each other, and
    logit_index (K,), the position that predicts each completion token.

    >>> position, attention, logit_index = packed(2, torch.tensor([[True, True], [True, False]]))
    >>> position.tolist(), logit_index.tolist()
    ([0, 1, 2, 3, 2], [1, 2, 1])
    >>> attention.int().tolist()[-1]  # the token of completion 1 sees the prompt and itself
    [1, 1, 0, 0, 1]
    """
    owner, offset = is_token.nonzero(as_tuple=True)  # (K,) each
    length = prompt_length + len(owner)  # L
    place = torch.arange(length, device=owner.device)  # (L,)
    prompt = place[:prompt_length]
    before = place[prompt_length - 1 : -1]  # (K,), of the token before each
    logit_index = torch.where(offset == 0, prompt_length - 1, before)  # (K,)
    position = torch.cat([prompt, prompt_length + offset])  # (L,)
    of_prompt = torch.full_like(prompt, PROMPT)
    owners = torch.cat([of_prompt, owner])  # (L,)
    is_own = owners == owners[:, None]  # (L, L)
    may_see = is_own | (owners == PROMPT)  # (L, L)
    return position, may_see.tril(), logit_index
