#!/usr/bin/env python3
"""DA-GRPO (arXiv 2606.13707, section 3.3): trains the main agent on decision examples.

    python train_da_grpo.py --stage sft  --model MODEL --data train.jsonl --out runs/sft
    python train_da_grpo.py --stage grpo --model MODEL --adapter runs/sft/adapter \
        --data train.jsonl --out runs/grpo

The policy pi_theta is a language model. It reads a state s_t and writes a decision y_t. An example
is a state with a good decision y*_t. Read this file from top to bottom:

load         model, examples, reward, sampler                            `train`
sample       G decisions in each state: a group                          `Trainer.sample`
reward       a number for each decision                                  Eq. 29, training/rewards.py
advantage    how much better a decision is than its group                Eq. 30, `group_advantages`
loss         makes better decisions likelier and worse ones less, from   Eq. 31, `da_grpo_loss`
             the second iteration on within a clip, and near pi_ref
step         the gradients of all micro-batches, then AdamW              `Trainer.improve`
sync         the sampler gets the new weights                            `train`

--stage sft imitates y*_t instead (training/sft.py). The sampler is the policy itself or a server of
its weights. A logprob is the logarithm of the probability of a token, given all tokens before it,
at the sampling temperature. Shapes: P states, G decisions in each; N completions of one state, a
micro-batch; T tokens of the longest one.

Differences from the paper / the released code
1. The released code is flags for another program. Here the loop is visible, SFT included.
2. In Eq. 31 a whole decision has one ratio. Here each of its tokens has one, as in TRL and verl.
3. Eq. 31 averages over sequences (`grpo`). The released flags average over tokens (`dapo`): our
   default. `dr_grpo` (arXiv 2503.20783) divides by a fixed length, and no advantage by the Std.
4. The paper gives no estimator of Std, epsilon or clip. We use TRL's: divide by G - 1, 1e-4, 0.2.
5. Logprobs of a server differ a little from the policy's. A truncated weight corrects the gain.
6. A group of equal rewards adds nothing to the loss or its divisor; `zero_variance` counts it.
7. Section 3.3 has no SFT before DA-GRPO. Here --stage grpo may start from an SFT adapter, and
   pi_ref is the policy as the run began. LoRA is the default. --full is the paper's way.
"""

from __future__ import annotations

import math
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if __name__ == "__main__":
    # A missing package, --help and wrong flags are answered here, before the slow imports.
    try:
        from orchestra.training.options import parse

        OPTIONS = parse()
        import orchestra.training.policy  # noqa: F401  needs torch, transformers, peft
    except ModuleNotFoundError as error:
        from orchestra import install

        how = install("train")
        print(f"train_da_grpo.py: {error.name} is missing: {how}", file=sys.stderr)
        sys.exit(2)

import torch
from torch import Tensor

from orchestra.kernel.vocabulary import ConfigError
from orchestra.training.logprobs import importance, log_ratio, masked_sum
from orchestra.training.policy import Policy
from orchestra.training.processes import Processes
from orchestra.training.rollouts import Group, Rollouts
from orchestra.training.samples import (
    MicroBatch,
    Row,
    completion_rows,
    for_all,
    reward_metrics,
    to_learn,
    token_means,
)

if TYPE_CHECKING:  # what only a whole run needs is imported in `train`
    from orchestra.training.examples import Example
    from orchestra.training.options import TrainingOptions
    from orchestra.training.rewards import Scored, Scorer

# ---- load, and the loop --------------------------------------------------------------------------


def train(options: TrainingOptions) -> None:
    """One run. Raises ConfigError if it cannot start, EndpointError if a server fails."""
    from orchestra.training import run, sft

    processes = Processes()  # this one, or all that torchrun started
    examples, held_out, scorer = run.read(options)
    _lock = run.begin(options, processes)  # held until this function returns
    policy = run.make_policy(options, processes)
    rollouts = run.make_rollouts(options, policy)
    steps = options.number_of_steps(len(examples))
    trainer = Trainer(options, policy, rollouts, scorer, steps)
    step = run.load(options.out, policy.model, trainer.optimizer)  # steps taken so far
    metrics = run.Metrics(options, step, steps, processes)
    rollouts.update(step)
    if step == 0 and held_out:
        metrics.add(0, trainer.evaluate(held_out), trainer.completions)
    while step < steps:
        began = time.monotonic()
        trainer.completions = []
        batch = batch_of(examples, options.batch, step, options.seed)
        if options.stage == "sft":
            row = sft.imitate(policy, batch, trainer.backward)
            row["grad_norm"] = trainer.optimizer_step(step)
        else:
            row = trainer.grpo_step(step, batch)
        step += 1
        is_checkpoint = step == steps or step % options.save_every == 0
        is_evaluated = is_checkpoint and bool(held_out)
        if options.stage == "grpo" or is_evaluated:
            rollouts.update(step)  # sync: the next samples come from the new weights
        row["seconds"] = round(time.monotonic() - began, 2)
        if is_evaluated:
            row |= trainer.evaluate(held_out)
        metrics.add(step, row, trainer.completions)
        if is_checkpoint:
            run.save(options, policy, trainer.optimizer, step)
    policy.save(options.out / options.product)
    rollouts.close()


# ---- what a step trains on -----------------------------------------------------------------------
# It follows from the number of the step alone, so a resumed run takes the same steps.


def batch_of(
    examples: Sequence[Example], size: int, step: int, seed: int
) -> list[Example]:
    """The examples of a step: each epoch in an order of its own, without a break between them."""
    batch: list[Example] = []
    epoch, place = divmod(step * size, len(examples))
    while len(batch) < size:
        order = list(examples)
        random.Random(f"{seed} epoch {epoch}").shuffle(order)
        batch += order[place : place + size - len(batch)]
        epoch, place = epoch + 1, 0
    return batch


def seed_of(seed: int, step: int, k: int) -> int:
    """The seed for sampling completions of the k-th prompt of a step."""
    return random.Random(f"{seed} train {step} {k}").getrandbits(31)


def learning_rate(
    step: int, steps: int, peak: float, warmup: float, floor: float
) -> float:
    """Linear warm-up, then half a cosine down to the floor. `warmup` is a share of the steps,
    `floor` a share of the peak. It is never 0: the first step counts.

    >>> [round(learning_rate(s, 20, 1.0, 0.1, 0.1), 3) for s in (0, 1, 2, 11, 20)]
    [0.5, 1.0, 1.0, 0.55, 0.1]
    """
    rise = round(warmup * steps)  # steps
    if step < rise:
        return peak * (step + 1) / rise
    part = (step - rise) / max(1, steps - rise)  # of the descent, 0 to 1
    return peak * (floor + (1 - floor) * (1 + math.cos(math.pi * part)) / 2)


# ---- a step --------------------------------------------------------------------------------------


@dataclass
class Trainer:
    """A policy and the steps that improve it. `steps`: of the whole run, for the learning rate."""

    options: TrainingOptions
    policy: Policy
    rollouts: Rollouts
    scorer: Scorer | None  # None: the run samples nothing
    steps: int

    def __post_init__(self) -> None:
        o = self.options
        self.processes = self.policy.processes  # this one, or those of torchrun
        clips = o.clip, o.clip_high or o.clip
        self.objective = Objective(*clips, o.beta, o.aggregation, o.max_tokens)
        weights = self.policy.parameters()
        self.optimizer = torch.optim.AdamW(weights, lr=o.lr, weight_decay=0.0)
        self.completions: list[dict[str, Any]] = []  # of the newest step, for the log
        self.reference: list[
            Tensor
        ] = []  # pi_ref: as the run began, before a checkpoint
        if o.stage == "grpo" and o.beta > 0:
            self.reference = [weight.clone() for weight in self.policy.weights()]

    def grpo_step(self, step: int, batch: Sequence[Example]) -> Row:
        """Sample, score, compare, improve. Returns what was measured. Raises ConfigError if no
        sample was scored, and EndpointError if a server fails or has other weights.
        """
        options = self.options
        seeds = [seed_of(options.seed, step, k) for k in range(len(batch))]
        groups, scored = self.sample(batch, seeds, options.group, options.temperature)
        scale = options.aggregation != "dr_grpo"
        advantages, informative = group_advantages(  # Eq. 30: (P, G), (P,)
            scored.rewards, min_std=options.min_std, scale=scale
        )
        self.completions = completion_rows(groups, scored, advantages)
        row = reward_metrics(self.completions, self.processes)
        if row["dropped"] == 1:
            why = "every completion of a step was dropped; it must score some"
            raise ConfigError(f"--reward {options.reward}: {why}")
        equal = self.processes.total(int((~informative).sum()))
        row["zero_variance"] = equal / len(batch)
        # Without the groups of equal rewards, and without the samples that were dropped
        learned = informative[:, None] & ~scored.rewards.isnan()  # (P, G)
        size = options.micro_batch or options.group
        if not self.policy.packs:
            size = 1
        parts = to_learn(groups, advantages, learned, size)
        return row | self.improve(step, parts)  # Eq. 31

    def sample(
        self, batch: Sequence[Example], seeds: Sequence[int], n: int, temperature: float
    ) -> tuple[list[Group], Scored]:
        """n decisions y_t in each state s_t of this process's share, and their rewards."""
        examples = self.processes.mine(batch)  # P of them
        prompts = [self.policy.encode(example.messages) for example in examples]
        seeds = self.processes.mine(seeds)
        groups = self.rollouts.sample(prompts, seeds, n, temperature)
        assert self.scorer is not None
        return groups, self.scorer(examples, groups)  # Eq. 29

    def improve(self, step: int, parts: Sequence[MicroBatch]) -> Row:
        """--iterations optimizer steps on the completions. Returns the loss of the last one, the
        norm of its gradient, and means over its tokens.
        """
        lengths = [len(ids) for part in parts for ids in part.completions]
        total = self.processes.total
        totals = Totals(sequences=total(len(lengths)), tokens=total(sum(lengths)))
        if totals.tokens == 0:  # the rewards of every group were equal
            return {"loss": 0.0, "grad_norm": 0.0}
        parts = for_all(parts, self.policy)
        for _ in range(self.options.iterations):
            sums = [self.learn(part, totals) for part in parts]
            grad_norm = self.optimizer_step(step)
        means = token_means(sums, totals.tokens, self.processes)
        return {**means, "grad_norm": grad_norm}

    def learn(self, part: MicroBatch, totals: Totals) -> Row:
        """Add the gradient of a micro-batch. Returns its part of the loss, and sums over tokens.

        The first time, before any optimizer step, pi_theta is pi_old. With beta 0 there is no KL.
        """
        given = (part.prompt, part.completions, self.options.temperature)
        if part.reference is None and self.options.beta > 0:
            part.reference = self.policy.logprobs_under(self.reference, *given)
        now = self.policy.logprobs(*given)
        if part.old is None:
            part.old = (
                now.logprobs.detach()
            )  # (N, T): the ratio is 1, but it still has a gradient
        old = part.old
        sampler = part.sampler_logprobs.to(old)  # (N, T), NaN where not given
        weights = importance(old, sampler, self.options.importance_cap)  # (N, T)
        mask = now.mask * part.counts  # (N, T), all 0 of a stand-in
        loss, sums = da_grpo_loss(  # Eq. 31
            logprobs=now.logprobs,
            old_logprobs=old,
            reference_logprobs=part.reference,
            advantages=part.advantages.to(old),
            mask=mask,
            objective=self.objective,
            totals=totals,
            weights=weights,
        )
        self.backward(loss)
        sums["loss"] = loss.item()
        sums["entropy"] = masked_sum(-old, mask)  # its estimate by the sampled tokens
        sums["mismatch"] = masked_sum((old - sampler).abs().nan_to_num(0.0), mask)
        return sums

    def backward(self, loss: Tensor) -> None:
        """Add a gradient. The loss is a sum over processes, but FSDP2 takes the mean of theirs."""
        torch.autograd.backward(loss * self.processes.count)

    def optimizer_step(self, step: int) -> float:
        """AdamW. Returns the norm of the gradient before it was limited."""
        o = self.options
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(step, self.steps, o.lr, o.warmup, o.lr_floor)
        norm = torch.nn.utils.clip_grad_norm_(self.policy.parameters(), o.max_grad_norm)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return self.processes.norm(norm)

    def evaluate(self, held_out: Sequence[Example]) -> Row:
        """The rewards of the likeliest decision in each held-out state, which needs no seed."""
        seeds = [0] * len(held_out)
        groups, scored = self.sample(held_out, seeds, n=1, temperature=0.0)
        rows = completion_rows(groups, scored)
        self.completions += rows
        row = reward_metrics(rows, self.processes)
        return {f"eval/{name}": value for name, value in row.items()}


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
    """The divisors of a loss: counts over all micro-batches and processes of one optimizer step."""

    sequences: float
    tokens: float


def da_grpo_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    reference_logprobs: Tensor | None,
    advantages: Tensor,
    mask: Tensor,
    objective: Objective,
    totals: Totals,
    weights: Tensor | None = None,
) -> tuple[Tensor, Row]:
    """L of Eq. 31, a scalar, and two sums over tokens: "kl" and "clipped". For each token it is
    beta * KL - min(rho * A_hat, clip(rho) * A_hat), with the A_hat of the whole decision.

    logprobs (with gradient), old_logprobs, reference_logprobs (None if beta is 0), mask and weights
    (those of `importance`) are (N, T); advantages (N,).
    """
    a_hat = advantages[:, None]  # (N, 1)
    lowest = 1 - objective.clip_low
    highest = 1 + objective.clip_high
    ratio = log_ratio(logprobs, old_logprobs.detach()).exp()  # Eq. 31: rho, (N, T)
    clipped_ratio = ratio.clamp(lowest, highest)  # (N, T)
    gain = torch.minimum(ratio * a_hat, clipped_ratio * a_hat)  # Eq. 31: (N, T)
    if weights is not None:
        gain = gain * weights
    kl = torch.zeros_like(ratio)  # (N, T)
    if reference_logprobs is not None:
        r = log_ratio(reference_logprobs, logprobs)  # (N, T)
        kl = r.exp() - r - 1.0  # Eq. 31: the estimate of D_KL, never negative
    loss = aggregate(objective.beta * kl - gain, mask, objective, totals)  # Eq. 31

    too_high = (ratio > highest) & (a_hat > 0)  # (N, T)
    too_low = (ratio < lowest) & (a_hat < 0)
    clipped = masked_sum(too_high | too_low, mask)
    return loss, {"kl": masked_sum(kl.detach(), mask), "clipped": clipped}


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


# ---- the command ---------------------------------------------------------------------------------


def main(options: TrainingOptions) -> int:
    """Returns the exit code; what ends it early is one line on standard error, of each process."""
    from orchestra.command.programs import run_program

    return run_program("train_da_grpo.py", lambda: train(options))


if __name__ == "__main__":
    sys.exit(main(OPTIONS))
