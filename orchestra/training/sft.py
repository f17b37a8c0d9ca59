"""SFT, the first stage: the policy imitates the reference decision of each example.

Learning (a) of arXiv 2602.03786. Section 3.3 of arXiv 2606.13707 has no such stage.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from orchestra.training.examples import Example
from orchestra.training.policy import Policy
from orchestra.training.samples import Row, Sample, in_micro_batches

MICRO_BATCH = 1  # examples have different prompts


def imitate(
    policy: Policy, batch: Sequence[Example], backward: Callable[[Tensor], None]
) -> Row:
    """Add the gradient of the cross-entropy of y*_t given s_t, the mean over the tokens of the
    batch. Returns the loss, in nats, and the number of tokens.
    """
    samples = [
        Sample(prompt=policy.encode(example.messages), ids=policy.target(example))
        for example in policy.processes.mine(batch)
    ]
    tokens = policy.processes.total(sum(len(sample.ids) for sample in samples))
    loss_sum = 0.0
    for part in in_micro_batches(samples, MICRO_BATCH, policy):
        now = policy.logprobs(part.prompt, part.completions, temperature=1.0)
        counted = now.mask * part.counts  # (N, T)
        loss = -(now.logprobs * counted).sum() / tokens
        backward(loss)
        loss_sum += loss.item()
    return {"loss": policy.processes.total(loss_sum), "tokens": tokens}
