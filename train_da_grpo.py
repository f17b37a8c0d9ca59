#!/usr/bin/env python3
"""DA-GRPO (arXiv 2606.13707, section 3.3): trains the main agent on decision examples.

    python train_da_grpo.py --stage sft  --model MODEL --data train.jsonl --out runs/sft
    python train_da_grpo.py --stage grpo --model MODEL --adapter runs/sft/adapter \
        --data train.jsonl --out runs/grpo

`train` is the loop. Each step takes a batch of examples (s_t, y*_t) and improves the policy on it.
The loop then hands the new weights to the sampler, writes the metrics and keeps checkpoints.
A step of `--stage grpo`, in `Trainer.grpo_step`:

1. Sample a group of G decisions in each state s_t.             training/rollouts.py, or vLLM
2. Score each decision.                                         Eq. 29, training/rewards.py
3. Compare each with its group, which gives its advantage.      Eq. 30, training/da_grpo.py
   A group of equal rewards teaches nothing and is left out.
4. Take an optimizer step on the clipped objective and its KL.  Eq. 31, training/da_grpo.py

A step of `--stage sft` imitates y*_t (training/sft.py).

Differences from the paper / the released code
1. The released code is flags for another program. Here the loop is visible, SFT included.
2. A group of equal rewards adds nothing to the loss or its divisor; `zero_variance` counts it.
3. Section 3.3 has no SFT before DA-GRPO. Here `--stage grpo` may start from an SFT adapter, and
   pi_ref is the policy as the run began.
4. LoRA is the default. --full is the paper's way.
"""

from __future__ import annotations

import sys

from orchestra.training.installed import exit_unless_installed

if __name__ == "__main__":
    # A missing package, --help and wrong flags are answered here, before the slow imports.
    exit_unless_installed("train_da_grpo.py", "pydantic", "requests")
    from orchestra.training.options import parse

    OPTIONS = parse()
    exit_unless_installed("train_da_grpo.py", "torch", "transformers", "peft")

import time
from collections.abc import Sequence

import torch
from torch import Tensor

from orchestra.runtime.command_line import run_program
from orchestra.seams import Completion, Reward, Scores
from orchestra.training import ranks, rewards, run
from orchestra.training.da_grpo import (
    Objective,
    Totals,
    da_grpo_loss,
    importance,
    masked_sum,
)
from orchestra.training.descent import Descent, backward
from orchestra.training.examples import Example, read
from orchestra.training.metrics import Metrics, Row, means, reward_metrics
from orchestra.training.options import TrainingOptions
from orchestra.training.policy import Policy
from orchestra.training.rollouts import Group, Rollouts
from orchestra.training.samples import (
    Sample,
    advantages_of,
    compare,
    count_tokens,
    logprobs_of,
    micro_batches,
    model_input,
    sampler_logprobs,
)
from orchestra.training.setup import (
    check_examples,
    make_policy,
    make_reward,
    make_rollouts,
    number_of_steps,
    read_eval_examples,
)
from orchestra.training.sft import sft_step
from orchestra.training.steps import batch_of, seed_of
from orchestra.training.vllm_rollouts import served
from orchestra.vocabulary import EndpointError

# In nats a token. With the same weights, a server differs by less than 0.1.
MAX_MISMATCH = 1.0


# ---- the loop ------------------------------------------------------------------------------------


def train(options: TrainingOptions) -> None:
    """One run. Raises ConfigError if it cannot start, EndpointError if a server fails."""
    device = ranks.start()
    torch.manual_seed(options.seed)  # decides the weights of a new adapter
    torch.use_deterministic_algorithms(device.type == "cpu")
    examples = read(options.data)
    eval_examples = read_eval_examples(options)
    reward = make_reward(options)
    check_examples(options, [*examples, *eval_examples], reward)
    if options.stage == "grpo" and options.rollouts == "vllm":
        served(options.vllm_url)  # raises ConfigError
    _lock = run.begin(options)  # held until this function returns

    steps = number_of_steps(options, len(examples))
    policy = make_policy(options, device)
    rollouts = make_rollouts(options, policy)
    trainer = Trainer(options, policy, rollouts, reward, steps)
    first_step = run.load(options.out, policy.model, trainer.descent.optimizer)
    metrics = Metrics(options.out, first_step)
    rollouts.update(first_step)
    for step in range(first_step, steps):
        began = time.monotonic()
        batch = batch_of(examples, options.batch, step, options.seed)
        if options.stage == "sft":
            row = sft_step(trainer.descent, step, batch, options.micro_batch)
        else:
            row = trainer.grpo_step(step, batch)
            rollouts.update(step + 1)
        is_last = step + 1 == steps
        is_checkpoint = is_last or (step + 1) % options.save_every == 0
        if eval_examples and is_checkpoint:
            row |= trainer.evaluate(eval_examples)
        seconds = round(time.monotonic() - began, 2)
        metrics.add({"step": step, **row, "seconds": seconds}, steps)
        if is_checkpoint:
            run.save(options.out, policy.model, trainer.descent.optimizer, step + 1)
    policy.save(options.out / ("model" if options.full else "adapter"))
    rollouts.close()


# ---- a step --------------------------------------------------------------------------------------


class Trainer:
    """A policy, and a step of DA-GRPO on it. `steps` is the number of steps of the run, from which
    the learning rate follows.
    """

    def __init__(
        self,
        options: TrainingOptions,
        policy: Policy,
        rollouts: Rollouts,
        reward: Reward,
        steps: int,
    ) -> None:
        self.options = options
        self.policy = policy
        self.rollouts = rollouts
        self.reward = reward
        self.descent = Descent(options, policy, steps)
        clip_high = options.clip if options.clip_high is None else options.clip_high
        self.objective = Objective(
            clip_low=options.clip,
            clip_high=clip_high,
            beta=options.beta,
            aggregation=options.aggregation,
            max_tokens=options.max_tokens,
        )

    def grpo_step(self, step: int, examples: Sequence[Example]) -> Row:
        """Sample, score, compare, improve. Raises EndpointError if no sample was scored, or if the
        server has other weights than the policy.
        """
        options = self.options
        seeds = [seed_of(options.seed, step, k) for k in range(len(examples))]
        groups = self.sample(examples, seeds, options.group, options.temperature)
        scores = self.score(examples, groups)  # Eq. 29
        row = reward_metrics(groups, scores)
        check_some_are_scored(step, row)
        samples, informative = compare(groups, scores, options)  # Eq. 30
        equal_groups = ranks.total(informative.count(False))
        row["zero_variance"] = equal_groups / len(examples)
        row |= self.improve(step, samples)  # Eq. 31
        check_same_weights(options, row)
        return row

    def sample(
        self,
        examples: Sequence[Example],
        seeds: Sequence[int],
        n: int,
        temperature: float,
    ) -> list[Group]:
        """n decisions in each state of this rank's share."""
        prompts = [self.policy.encode(e.messages) for e in ranks.mine(examples)]
        return self.rollouts.sample(prompts, ranks.mine(seeds), n, temperature)

    def score(
        self, examples: Sequence[Example], groups: Sequence[Group]
    ) -> list[Sequence[Scores | None]]:
        """The rewards of this rank's share of decisions, a group at a time."""
        scores: list[Sequence[Scores | None]] = []
        for example, group in zip(ranks.mine(examples), groups, strict=True):
            completions = list(map(Completion, group.texts, group.cut))
            name = self.options.reward
            scores.append(rewards.scored(name, self.reward, example, completions))
        return scores

    def improve(self, step: int, samples: Sequence[Sample]) -> Row:
        """--iterations optimizer steps on the samples. Returns the loss of the last one, the norm
        of its gradient, and means over its tokens.
        """
        tokens = count_tokens(samples)
        if tokens == 0:  # the rewards of every group were equal
            return {"loss": 0.0, "grad_norm": 0.0}
        totals = Totals(sequences=ranks.total(len(samples)), tokens=tokens)
        parts = micro_batches(self.policy, samples, self.options.micro_batch)
        before = [self.old_and_reference(part) for part in parts]
        for _ in range(self.options.iterations):
            losses: list[float] = []
            sums: list[Row] = []
            for part, (old, ref) in zip(parts, before, strict=True):
                loss, of_part = self.learn(part, old, ref, totals)
                losses.append(loss)
                sums.append(of_part)
            grad_norm = self.descent.step(step)
        return {
            "loss": ranks.total(sum(losses)),
            **means(sums, tokens),
            "grad_norm": grad_norm,
        }

    @torch.no_grad()
    def old_and_reference(
        self, part: Sequence[Sample]
    ) -> tuple[Tensor | None, Tensor | None]:
        """log pi_old and log pi_ref (N, T) of a micro-batch, before the first optimizer step.

        With one iteration log pi_old is None: pi_old is then pi_theta itself. With beta 0 log
        pi_ref is None.
        """
        temperature = self.options.temperature
        old = None
        if self.options.iterations > 1:
            old = logprobs_of(self.policy, part, temperature).logps
        ref = None
        if self.options.beta > 0:
            prompt, completions = model_input(part, self.policy.pad)
            ref = self.policy.reference(prompt, completions, temperature)
        return old, ref

    def learn(
        self,
        part: Sequence[Sample],
        old: Tensor | None,
        ref: Tensor | None,
        totals: Totals,
    ) -> tuple[float, Row]:
        """Add the gradient of a micro-batch of N sequences. Returns its part of the loss, and sums
        over its tokens.
        """
        cap = self.options.importance_cap
        scored = logprobs_of(self.policy, part, self.options.temperature)
        if old is None:
            old = scored.logps.detach()  # (N, T)
        sampler = sampler_logprobs(part, like=old)  # (N, T)
        weights = importance(old, sampler, cap)  # (N, T); 1 where sampler is NaN
        advantages = advantages_of(part, like=old)  # (N,)
        loss, sums = da_grpo_loss(  # Eq. 31
            logps=scored.logps,
            old_logps=old,
            ref_logps=ref,
            advantages=advantages,
            mask=scored.mask,
            objective=self.objective,
            totals=totals,
            weights=weights,
        )
        backward(loss)
        mismatch = (old - sampler).abs().nan_to_num(0.0)  # (N, T)
        capped = (weights >= cap).float()  # (N, T)
        sums["entropy"] = masked_sum(scored.entropy, scored.mask)
        sums["mismatch"] = masked_sum(mismatch, scored.mask)
        sums["capped"] = masked_sum(capped, scored.mask)
        return loss.item(), sums

    def evaluate(self, examples: Sequence[Example]) -> Row:
        """The rewards of the likeliest decision in each state."""
        seeds = [0] * len(examples)  # the likeliest decision does not depend on it
        groups = self.sample(examples, seeds, n=1, temperature=0.0)
        row = reward_metrics(groups, self.score(examples, groups))
        return {f"eval/{name}": value for name, value in row.items()}


def check_some_are_scored(step: int, row: Row) -> None:
    """Raises EndpointError if all completions were dropped."""
    if row["dropped"] == 1:
        timeout = "or timed out (--reward-setting timeout_s)"
        why = f"the judge refused all completions, {timeout}"
        raise EndpointError(f"step {step + 1}: {why}")


def check_same_weights(options: TrainingOptions, row: Row) -> None:
    """Raises EndpointError if the sampler finds its completions far more or less likely than the
    policy does.
    """
    mismatch = row.get("mismatch", 0.0)
    if mismatch > MAX_MISMATCH:
        found = f"the server's log-probabilities are {mismatch:.2f} nats a token"
        remedy = f"serve the folder of --model, {options.model}"
        raise EndpointError(f"{found} from the model's; {remedy}")


# ---- the command ---------------------------------------------------------------------------------


def main(options: TrainingOptions) -> int:
    """Returns the exit code; what ends it early is one line on standard error, of each process."""
    return run_program("train_da_grpo.py", lambda: train(options))


if __name__ == "__main__":
    sys.exit(main(OPTIONS))
