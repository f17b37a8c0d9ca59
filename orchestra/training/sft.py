"""SFT, the first stage: the policy imitates the reference decision of each example.

Learning (a) of arXiv 2602.03786. Section 3.3 of arXiv 2606.13707 has no such stage.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from torch import Tensor

from orchestra.training.examples import Example
from orchestra.training.objective import Totals
from orchestra.training.policy import Policy
from orchestra.training.samples import Sample, in_micro_batches

MICRO_BATCH = 1  # examples have different prompts


class Learner(Protocol):
    """What a step of SFT needs of the Trainer of train_da_grpo.py."""

    policy: Policy
    completions: list[dict[str, Any]]

    def backward(self, loss: Tensor) -> None: ...

    def optimizer_step(self, step: int) -> float: ...


def sft_step(trainer: Learner, step: int, batch: Sequence[Example]) -> dict[str, float]:
    """One step on the cross-entropy of y*_t given s_t, the mean over the tokens of the batch."""
    policy = trainer.policy
    samples = [
        Sample(prompt=policy.encode(example.messages), ids=policy.target(example))
        for example in policy.processes.mine(batch)
    ]
    tokens = Totals.of(samples, policy.processes).tokens
    loss_sum = 0.0
    for part in in_micro_batches(samples, MICRO_BATCH, policy):
        now = policy.logprobs(part.prompt, part.completions, temperature=1.0)
        counted = now.mask * part.counts  # (N, T)
        loss = -(now.logprobs * counted).sum() / tokens
        trainer.backward(loss)
        loss_sum += loss.item()
    trainer.completions = []
    return {
        "loss": policy.processes.total(loss_sum),
        "tokens": tokens,
        "grad_norm": trainer.optimizer_step(step),
    }
