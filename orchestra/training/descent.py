"""The optimizer of a policy, as both stages use it: backward passes, then one step."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from orchestra.training import ranks
from orchestra.training.options import TrainingOptions
from orchestra.training.policy import Policy
from orchestra.training.steps import learning_rate


def backward(loss: Tensor) -> None:
    """Add the gradient of this rank's part of a loss. The loss is the sum over ranks, but FSDP2
    takes the mean of their gradients: hence the factor.
    """
    torch.autograd.backward(loss * ranks.count())


class Descent:
    """AdamW on the trained weights of a policy. `steps` is the number of steps of the run, from
    which the learning rate follows.
    """

    def __init__(self, options: TrainingOptions, policy: Policy, steps: int) -> None:
        self.options = options
        self.policy = policy
        self.steps = steps
        self.optimizer = torch.optim.AdamW(
            policy.parameters(), lr=options.lr, weight_decay=0.0
        )

    def step(self, step: int) -> float:
        """One optimizer step. Returns the norm of the gradient before it was clipped."""
        options = self.options
        lr = learning_rate(
            step, self.steps, options.lr, options.warmup, options.lr_floor
        )
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        norm: Any = torch.nn.utils.clip_grad_norm_(
            self.policy.parameters(), options.max_grad_norm
        )
        self.optimizer.step()
        self.optimizer.zero_grad()
        if ranks.count() > 1:
            norm = norm.full_tensor()
        return float(norm)
