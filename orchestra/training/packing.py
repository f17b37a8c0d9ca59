"""Several completions of one prompt in one forward pass, which reads the prompt once.

The completions follow the prompt in one line of tokens, a pack. An attention mask hides them from
each other, and each starts at the position that follows the prompt:

    tokens      prompt: p p p    completion 0: a a    completion 1: b b b
    position            0 1 2                  3 4                  3 4 5

So each completion gets the same probabilities as behind a copy of the prompt of its own.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

PROMPT = -1  # stands for the owner of the prompt's tokens, which all completions see


def can_pack(config: Any) -> bool:
    """Whether every layer of a model uses the attention mask that it is given."""
    layer_types = getattr(config, "layer_types", None) or ["full_attention"]
    window = getattr(config, "sliding_window", None)
    uses_window = bool(window) and getattr(config, "use_sliding_window", True)
    if uses_window or set(layer_types) != {"full_attention"}:
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
    device = is_token.device
    owner, offset = is_token.nonzero(as_tuple=True)  # (K,) each
    place = prompt_length + torch.arange(len(owner), device=device)  # (K,), in the pack
    is_first = offset == 0  # (K,)
    logit_index = torch.where(is_first, prompt_length - 1, place - 1)  # (K,)

    prompt_position = torch.arange(prompt_length, device=device)
    position = torch.cat([prompt_position, prompt_length + offset])  # (L,)

    prompt_owner = torch.full((prompt_length,), PROMPT, device=device)
    owners = torch.cat([prompt_owner, owner])  # (L,)
    may_see = (owners == PROMPT) | (owners == owners[:, None])  # (L, L)
    return position, may_see.tril(), logit_index
