"""SFT, the first stage: the policy imitates the reference decision of each example.

Learning (a) of arXiv 2602.03786. Section 3.3 of arXiv 2606.13707 has no such stage.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from orchestra.training.examples import Example
from orchestra.training.policy import Policy
from orchestra.training.samples import MicroBatch, Row, for_all


def imitate(
    policy: Policy, batch: Sequence[Example], backward: Callable[[Tensor], None]
) -> Row:
    """Add the gradient of the cross-entropy of y*_t given s_t, the mean over the tokens of the
    batch. Returns the loss, in nats, and the number of tokens.
    """
    unused = torch.zeros(1)
    parts: list[MicroBatch] = []
    for example in policy.processes.mine(batch):
        prompt = policy.encode(example.messages)
        target = policy.target(example)
        part = MicroBatch(prompt, [target], unused, unused[None])
        parts.append(part)
    lengths = [len(part.completions[0]) for part in parts]
    tokens = policy.processes.total(sum(lengths))
    loss_sum = 0.0
    for part in for_all(parts, policy):
        now = policy.logprobs(part.prompt, part.completions, temperature=1.0)
        counted = now.mask * part.counts  # (N, T)
        loss = -(now.logprobs * counted).sum() / tokens
        backward(loss)
        loss_sum += loss.item()
    return {"loss": policy.processes.total(loss_sum), "tokens": tokens}
