#!/usr/bin/env python3
"""DA-GRPO (arXiv 2606.13707, section 3.3): a better main agent out of decision examples.

    python train_da_grpo.py --stage sft  --model MODEL          --data train.jsonl --out runs/sft
    python train_da_grpo.py --stage grpo --model runs/sft/model --data train.jsonl --out runs/grpo

A step of `grpo`, in `Trainer.grpo_step`:

1. sample a group of G decisions for each state of the batch     local, or a vLLM server
2. score each                                                    Eq. 29, training/rewards.py
3. compare it with its group; leave out groups of equals         Eq. 30, da_grpo.py
4. step on the clipped objective with its KL                     Eq. 31, da_grpo.py

and `train` hands the new weights to the sampler, notes the metrics, and keeps checkpoints.

Differences from the paper / the released code
1. The released code is flags for another program; here the loop is visible, SFT included.
2. A group that teaches nothing is left out of the loss and of what it is divided by, and counted.
3. Section 3.3 knows no SFT before DA-GRPO: here `--stage grpo` may start from an SFT model.
4. LoRA by default: pi_ref is the model with its adapter off. --full is the paper's way.
"""

from __future__ import annotations

import sys

from training.options import parse

if __name__ == "__main__":
    ARGUMENTS = parse()  # --help and usage errors answer before the heavy imports

import argparse
import contextlib
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from da_grpo import Objective, Totals, aggregate, da_grpo_loss, group_advantages, importance
from orchestra.vocabulary import ConfigError, EndpointError
from runtime.run_folder import unwritable
from training import checkpoint, ranks
from training.examples import Example
from training.metrics import Metrics, Row, cut_short, draw, outcomes
from training.options import settled
from training.policy import Ids, Policy, merged, text_of
from training.preparation import make_reward, make_rollouts, prepared
from training.rewards import Reward, Scores
from training.rollouts import Group, Rollouts, likeliest
from training.schedule import batch_of, learning_rate, seeds


@dataclass(frozen=True)
class Sample:
    """A completion to learn from. `sampler`: its log-probabilities where it was sampled."""

    prompt: Ids
    ids: Ids
    sampler: Sequence[float] = ()
    advantage: float = 0.0


class Trainer:
    """The policy, its optimizer, and one step of either stage."""

    def __init__(self, o: argparse.Namespace, policy: Policy, reward: Reward) -> None:
        self.o, self.policy, self.reward = o, policy, reward
        self.optimizer = torch.optim.AdamW(policy.parameters(), lr=o.lr, weight_decay=0.0)
        self.at_once = o.micro_batch if policy.packs else 1  # completions in a forward pass
        self.objective = Objective(
            o.clip, o.clip_high, o.beta, o.aggregation, o.max_tokens, o.importance_cap
        )

    # ---- SFT -------------------------------------------------------------------------------------

    def sft_step(self, step: int, examples: Sequence[Example]) -> Row:
        """Cross-entropy of y*_t given s_t, over the tokens of the batch."""
        policy, share = self.policy, ranks.mine(examples)
        rows = [Sample(policy.encode(e.messages), policy.target(text_of(e))) for e in share]
        tokens = ranks.summed({"tokens": sum(len(r.ids) for r in rows)})["tokens"]
        loss_sum = 0.0
        for part in chunks(rows, self.at_once):
            scored = policy.score(*asked_of(part, policy), 1.0)
            mask = scored.mask * bool(part)
            loss = aggregate(-scored.logps, mask, Objective(), Totals(len(examples), tokens))
            torch.autograd.backward(loss * ranks.world())  # FSDP2 takes the mean over ranks
            loss_sum += loss.item()
        loss_sum = ranks.summed({"loss": loss_sum})["loss"]
        return {"loss": loss_sum, "tokens": tokens, "grad_norm": self.descend(step)}

    # ---- DA-GRPO ---------------------------------------------------------------------------------

    def grpo_step(self, step: int, examples: Sequence[Example], rollouts: Rollouts) -> Row:
        """Sample, score, compare, step. Raises EndpointError where not one sample was scored."""
        o, share = self.o, ranks.mine(examples)
        prompts = [self.policy.encode(e.messages) for e in share]
        dice = ranks.mine(seeds(o.seed, "train", step, len(examples)))
        groups = rollouts.sample(prompts, dice, o.group, o.temperature)
        scores = self.scores(share, groups)
        samples, informative = compare(groups, scores, o.min_std)  # Eq. 30
        row = outcomes(scores, [g.ids for g in groups], self.policy.eos)
        if row["dropped"] == 1:
            raise EndpointError(
                f"step {step + 1}: {o.reward} scored none of its completions; does the judge "
                "refuse them all, or need longer (--reward-setting timeout_s=SECONDS)?"
            )
        flat = ranks.summed({"flat": informative.count(False)})["flat"]
        return {**row, "zero_variance": flat / len(examples), **self.improve(step, samples)}

    def scores(
        self, examples: Sequence[Example], groups: Sequence[Group]
    ) -> list[Sequence[Scores | None]]:
        """Eq. 29 of each completion; one that was cut at --max-tokens is read as one."""
        eos = self.policy.eos
        pairs = zip(examples, groups, strict=True)
        return [self.reward(e, g.texts, cut_short(g.ids, eos)) for e, g in pairs]  # Eq. 29

    def improve(self, step: int, samples: list[Sample]) -> Row:
        """--iterations optimizer steps on what teaches. The metrics are means over its tokens, in
        the last of them.
        """
        counted = {"sequences": len(samples), "tokens": sum(len(s.ids) for s in samples)}
        totals = Totals(**ranks.summed(counted))
        if not totals.tokens:  # every group was of equals: there is nothing to step on
            return {"loss": 0.0, "grad_norm": 0.0}
        parts = chunks(samples, self.at_once)
        before = [self.before(part) for part in parts]
        for _ in range(self.o.iterations):
            sums = [self.learn(part, *b, totals) for part, b in zip(parts, before, strict=True)]
            grad_norm = self.descend(step)
        row = ranks.summed({key: sum(s[key] for s in sums) for key in ("loss", *MEANS)})
        means = {key: row[key] / totals.tokens for key in MEANS}
        return {"loss": row["loss"], **means, "grad_norm": grad_norm}

    @torch.no_grad()
    def before(self, part: Sequence[Sample]) -> tuple[Tensor | None, Tensor | None]:
        """log pi_old and log pi_ref (N, T) of a micro-batch. None: pi_old is pi_theta as it stands;
        there is no KL.
        """
        asked = (*asked_of(part, self.policy), self.o.temperature)
        old = self.policy.score(*asked).logps if self.o.iterations > 1 else None
        return old, self.policy.reference(*asked) if self.o.beta else None

    def learn(
        self, part: Sequence[Sample], old: Tensor | None, ref: Tensor | None, totals: Totals
    ) -> Row:
        """Add the gradient of one micro-batch of N sequences. Returns sums over its tokens."""
        policy, cap = self.policy, self.objective.importance_cap
        scored = policy.score(*asked_of(part, policy), self.o.temperature)
        mask = scored.mask * bool(part)  # (N, T)
        old = scored.logps.detach() if old is None else old
        sampler = torch.full_like(old, math.nan)  # (N, T); NaN: not known, a weight of 1
        for row, sample in enumerate(part):
            sampler[row, : len(sample.sampler)] = torch.tensor(sample.sampler).to(old)
        weights = importance(old, sampler, cap)
        advantages = torch.tensor([s.advantage for s in part] or [0.0]).to(old)  # (N,)
        loss, sums = da_grpo_loss(  # Eq. 31
            scored.logps, old, ref, advantages, mask, self.objective, totals, weights
        )
        torch.autograd.backward(loss * ranks.world())  # FSDP2 takes the mean over ranks
        drift = (old - sampler).abs().nan_to_num(0.0)
        noted = {"entropy": scored.entropy, "mismatch": drift, "capped": (weights >= cap).float()}
        sums |= {key: float((value * mask).sum()) for key, value in noted.items()}
        return {"loss": loss.item(), **sums}

    def descend(self, step: int) -> float:
        """One optimizer step. Returns the norm of the gradient before it was clipped."""
        o = self.o
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(step, o.steps, o.lr, o.warmup, o.lr_floor)
        norm: Any = torch.nn.utils.clip_grad_norm_(self.policy.parameters(), o.max_grad_norm)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return float(norm.full_tensor() if ranks.world() > 1 else norm)

    # ---- held-out examples -----------------------------------------------------------------------

    def evaluate(self, examples: Sequence[Example], rollouts: Rollouts) -> Row:
        """The outcomes of the likeliest decision in each state."""
        share = ranks.mine(examples)
        groups = likeliest(self.policy, share, rollouts)
        scores = self.scores(share, groups)
        row = outcomes(scores, [g.ids for g in groups], self.policy.eos)
        return {f"eval/{name}": value for name, value in row.items()}


MEANS = ("kl", "clipped", "entropy", "mismatch", "capped")  # over the tokens of a step


# ---- parts of a step -----------------------------------------------------------------------------


def compare(
    groups: Sequence[Group], scores: Sequence[Sequence[Scores | None]], min_std: float
) -> tuple[list[Sample], list[bool]]:
    """The samples of the groups that teach, with their advantages, and which groups those are."""
    table = [[math.nan if s is None else s.total for s in group] for group in scores]
    advantages, informative = group_advantages(torch.tensor(table), min_std=min_std)  # (P, G), (P,)
    kept = [
        Sample(group.prompt, group.ids[j], group.logps[j], float(advantages[i, j]))
        for i, group in enumerate(groups)
        for j, score in enumerate(scores[i])
        if informative[i] and score is not None
    ]
    return kept, informative.tolist()


def chunks(samples: Sequence[Sample], size: int) -> list[list[Sample]]:
    """Micro-batches: completions of one prompt, at most `size` of them. Equally many on every rank,
    since a sharded model runs on all ranks or on none: who has fewer gets empty ones.
    """
    groups = [list(group) for _, group in groupby(samples, key=lambda s: s.prompt)]
    parts = [group[k : k + size] for group in groups for k in range(0, len(group), size)]
    return parts + [[]] * (ranks.most(len(parts)) - len(parts))


def asked_of(part: Sequence[Sample], policy: Policy) -> tuple[Ids, list[Ids]]:
    """Prompt and completions of a micro-batch; of an empty one, a stand-in that is masked out."""
    filled = part or [Sample([policy.pad], [policy.pad])]
    return filled[0].prompt, [s.ids for s in filled]


# ---- the run -------------------------------------------------------------------------------------


def train(o: argparse.Namespace) -> None:
    """Raises ConfigError where it can not start, EndpointError where a server fails."""
    device = ranks.start()
    torch.manual_seed(o.seed)
    torch.use_deterministic_algorithms(device.type == "cpu")
    examples, held_out, server = prepared(o)
    reward = make_reward(o)
    with settled(o) if ranks.rank() == 0 else contextlib.nullcontext():
        policy = Policy(o.model, o.lora_rank, o.dtype, device, o.beta > 0, o.checkpointing)
        trainer = Trainer(o, policy, reward)
        resumed = checkpoint.load(o.out, policy.model, trainer.optimizer) if o.resume else (0, 0)
        start, version = resumed
        metrics = Metrics(o.out, start)
        rollouts = make_rollouts(o, policy, server, version, examples[0])
        for step in range(start, o.steps):
            batch = batch_of(examples, o.batch, step, o.seed)
            version += 1
            row = one_step(trainer, step, batch, held_out, rollouts, version)
            metrics.add({"step": step, "version": version, **row}, o.steps)
            if (step + 1) % o.save_every == 0 or step + 1 == o.steps:
                checkpoint.save(o.out, policy.model, trainer.optimizer, step + 1, version)
        finish(o, policy)
        rollouts.close()


def one_step(
    trainer: Trainer,
    step: int,
    batch: Sequence[Example],
    held_out: Sequence[Example],
    rollouts: Rollouts,
    version: int,
) -> Row:
    """A step of the stage, and the look at the held-out examples where it is time for that."""
    o, began = trainer.o, time.monotonic()
    if o.stage == "sft":
        row = trainer.sft_step(step, batch)
    else:
        row = trainer.grpo_step(step, batch, rollouts)
        rollouts.update(version)
    if held_out and ((step + 1) % o.eval_every == 0 or step + 1 == o.steps):
        row |= trainer.evaluate(held_out, rollouts)
    return {**row, "seconds": round(time.monotonic() - began, 2)}


def finish(o: argparse.Namespace, policy: Policy) -> None:
    """OUT/adapter, OUT/model (to serve, and for the next stage) and OUT/metrics.png."""
    policy.save(o.out / ("adapter" if o.lora_rank else "model"))
    if ranks.rank() == 0:
        if o.lora_rank:
            wide = torch.promote_types(policy.dtype, torch.float32)
            merged(o.model, o.out / "adapter", o.out / "model", wide)
        draw(o.out)


def main(o: argparse.Namespace) -> int:
    """Returns the exit code; a user's mistake is one line on standard error, from any process."""
    try:
        train(o)
    except OSError as error:
        said: object = unwritable(Path(error.filename or o.out), error) if error.errno else error
    except (ConfigError, EndpointError, FloatingPointError) as error:
        said = error
    else:
        return 0
    print(f"train_da_grpo.py: {str(said).strip().splitlines()[0]}", file=sys.stderr, flush=True)
    return 4 if isinstance(said, EndpointError) else 2


if __name__ == "__main__":
    status = main(ARGUMENTS)
    ranks.stop()
    sys.exit(status)
