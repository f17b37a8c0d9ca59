"""SFT, the first stage: the policy imitates the reference decision of each example.

Learning (a) of arXiv 2602.03786. Section 3.3 of arXiv 2606.13707 has no such stage.
"""

from __future__ import annotations

from collections.abc import Sequence

from orchestra.training import ranks
from orchestra.training.da_grpo import Objective, Totals, aggregate
from orchestra.training.descent import Descent, backward
from orchestra.training.examples import Example
from orchestra.training.metrics import Row
from orchestra.training.samples import Sample, count_tokens, logprobs_of, micro_batches


def sft_step(
    descent: Descent, step: int, examples: Sequence[Example], micro_batch: int
) -> Row:
    """One step on the cross-entropy of y*_t given s_t, the mean over the tokens of the batch."""
    policy = descent.policy
    samples = [
        Sample(prompt=policy.encode(example.messages), ids=policy.target(example))
        for example in ranks.mine(examples)
    ]
    tokens = count_tokens(samples)
    totals = Totals(sequences=len(examples), tokens=tokens)
    loss_sum = 0.0
    for part in micro_batches(policy, samples, micro_batch):
        scored = logprobs_of(policy, part, temperature=1.0)
        loss = aggregate(-scored.logps, scored.mask, Objective(), totals)
        backward(loss)
        loss_sum += loss.item()
    return {
        "loss": ranks.total(loss_sum),
        "tokens": tokens,
        "grad_norm": descent.step(step),
    }
