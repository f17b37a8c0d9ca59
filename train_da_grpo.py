#!/usr/bin/env python3
"""DA-GRPO (arXiv 2606.13707, section 3.3): trains the main agent on decision examples.

    python train_da_grpo.py --stage sft  --model MODEL --data train.jsonl --out runs/sft
    python train_da_grpo.py --stage grpo --model MODEL --adapter runs/sft/adapter \
        --data train.jsonl --out runs/grpo

A step of `grpo`, in `Trainer.grpo_step`:

1. sample a group of G decisions for each state of the batch     training/rollouts.py, or vLLM
2. score each                                                    Eq. 29, training/rewards.py
3. compare it with its group; leave out groups of equal rewards         Eq. 30, da_grpo.py
4. step on the clipped objective with its KL                     Eq. 31, da_grpo.py

and `train` hands the new weights to the sampler, writes the metrics, and keeps checkpoints.

Differences from the paper / the released code
1. The released code is flags for another program; here the loop is visible, SFT included.
2. A group of equal rewards adds nothing to the loss or its divisor; `zero_variance` counts it.
3. Section 3.3 has no SFT before DA-GRPO: here `--stage grpo` may start from an SFT adapter, and
   pi_ref is the policy as the run began.
4. LoRA by default. --full is the paper's way.
"""

from __future__ import annotations

import sys

from orchestra.training.options import Options, parse

if __name__ == "__main__":
    ARGUMENTS = parse()  # --help and usage errors answer before the heavy imports

import math
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any

import torch
from torch import Tensor
from transformers import AutoTokenizer

from orchestra.runtime.command_line import ended
from orchestra.seams import Completion, Reward, Scores
from orchestra.training import ranks, rewards, run
from orchestra.training.da_grpo import (
    Objective,
    Totals,
    aggregate,
    da_grpo_loss,
    group_advantages,
    importance,
)
from orchestra.training.examples import Example, read
from orchestra.training.policy import Ids, Policy, usable
from orchestra.training.rollouts import Group, LocalRollouts, Rollouts
from orchestra.training.run import Row
from orchestra.training.vllm_rollouts import VllmRollouts, served
from orchestra.vocabulary import ConfigError, EndpointError

MAX_MISMATCH = (
    1.0  # nats a token; with the same weights a server differs by less than 0.1
)


@dataclass(frozen=True)
class Sample:
    """A completion to learn from. `sampler`: its log-probabilities where it was sampled."""

    prompt: Ids
    ids: Ids
    sampler: Sequence[float] = ()
    advantage: float = 0.0


class Trainer:
    """The policy, its optimizer, and one step of either stage. `steps`: of the whole run."""

    def __init__(
        self, o: Options, policy: Policy, rollouts: Rollouts, reward: Reward, steps: int
    ) -> None:
        self.o, self.policy, self.rollouts = o, policy, rollouts
        self.reward, self.steps = reward, steps
        self.optimizer = torch.optim.AdamW(
            policy.parameters(), lr=o.lr, weight_decay=0.0
        )
        clips = o.clip, o.clip_high or o.clip
        self.objective = Objective(*clips, o.beta, o.aggregation, o.max_tokens)

    # ---- SFT -------------------------------------------------------------------------------------

    def sft_step(self, step: int, examples: Sequence[Example]) -> Row:
        """Cross-entropy of y*_t given s_t, over the tokens of the batch."""
        policy, share = self.policy, ranks.mine(examples)
        samples = [Sample(policy.encode(e.messages), policy.target(e)) for e in share]
        tokens = ranks.total(sum(len(s.ids) for s in samples))
        loss_sum = 0.0
        for micro_batch in self.micro_batches(samples):
            scored = policy.logprobs(*model_input(micro_batch, policy), 1.0)
            mask = scored.mask * bool(micro_batch)  # 0 of an empty one
            loss = aggregate(
                -scored.logps, mask, Objective(), Totals(len(examples), tokens)
            )
            torch.autograd.backward(
                loss * ranks.count()
            )  # FSDP2 takes the mean over ranks
            loss_sum += loss.item()
        loss_sum = ranks.total(loss_sum)
        return {"loss": loss_sum, "tokens": tokens, "grad_norm": self.descend(step)}

    # ---- DA-GRPO ---------------------------------------------------------------------------------

    def grpo_step(self, step: int, examples: Sequence[Example]) -> Row:
        """Sample, score, compare, improve. Raises EndpointError if no sample was scored."""
        o = self.o
        seeds = [seed_of(o.seed, step, k) for k in range(len(examples))]
        groups, scores = self.sample(examples, seeds, o.group, o.temperature)  # Eq. 29
        samples, informative = compare(groups, scores, o)  # Eq. 30
        row = reward_metrics(groups, scores)
        if row["dropped"] == 1:
            why = "the judge refused all completions, or timed out (--reward-setting timeout_s)"
            raise EndpointError(f"step {step + 1}: {why}")
        flat = ranks.total(informative.count(False)) / len(examples)
        row |= {"zero_variance": flat, **self.improve(step, samples)}  # Eq. 31
        if row.get("mismatch", 0.0) > MAX_MISMATCH:
            apart = (
                f"the server's log-probabilities are {row['mismatch']:.2f} nats a token"
            )
            raise EndpointError(
                f"{apart} from the model's; serve the folder of --model, {o.model}"
            )
        return row

    def sample(
        self,
        examples: Sequence[Example],
        seeds: Sequence[int],
        n: int,
        temperature: float,
    ) -> tuple[list[Group], list[Sequence[Scores | None]]]:
        """n decisions in each state of this rank's share, and their rewards."""
        share = ranks.mine(examples)
        prompts = [self.policy.encode(e.messages) for e in share]
        groups = self.rollouts.sample(prompts, ranks.mine(seeds), n, temperature)
        scores = [self.score(e, g) for e, g in zip(share, groups, strict=True)]
        return groups, scores

    def score(self, example: Example, group: Group) -> Sequence[Scores | None]:
        """The rewards of a group, Eq. 29."""
        completions = list(map(Completion, group.texts, group.cut))
        return rewards.scored(self.o.reward, self.reward, example, completions)

    def improve(self, step: int, samples: list[Sample]) -> Row:
        """--iterations optimizer steps on the samples. The metrics are means over the tokens of the
        last step.
        """
        tokens = ranks.total(sum(len(s.ids) for s in samples))
        if not tokens:  # the rewards of every group were equal
            return {"loss": 0.0, "grad_norm": 0.0}
        totals, parts = (
            Totals(ranks.total(len(samples)), tokens),
            self.micro_batches(samples),
        )
        before = [self.old_and_reference(part) for part in parts]
        for _ in range(self.o.iterations):
            sums = [
                self.learn(part, *b, totals)
                for part, b in zip(parts, before, strict=True)
            ]
            grad_norm = self.descend(step)
        row = {key: ranks.total(sum(s[key] for s in sums)) for key in sums[0]}
        loss = row.pop("loss")
        return {
            "loss": loss,
            **{k: v / tokens for k, v in row.items()},
            "grad_norm": grad_norm,
        }

    @torch.no_grad()
    def old_and_reference(
        self, part: Sequence[Sample]
    ) -> tuple[Tensor | None, Tensor | None]:
        """log pi_old and log pi_ref (N, T) of a micro-batch. The first is None with one
        iteration, the second with beta 0.
        """
        given = (*model_input(part, self.policy), self.o.temperature)
        old = self.policy.logprobs(*given).logps if self.o.iterations > 1 else None
        return old, self.policy.reference(*given) if self.o.beta else None

    def learn(
        self,
        part: Sequence[Sample],
        old: Tensor | None,
        ref: Tensor | None,
        totals: Totals,
    ) -> Row:
        """Add the gradient of one micro-batch of N sequences. Returns sums over its tokens."""
        policy, cap = self.policy, self.o.importance_cap
        scored = policy.logprobs(*model_input(part, policy), self.o.temperature)
        mask = scored.mask * bool(part)  # (N, T)
        old = scored.logps.detach() if old is None else old
        sampler = torch.full_like(
            old, math.nan
        )  # (N, T); NaN is unknown: a weight of 1
        for row, sample in enumerate(part):
            sampler[row, : len(sample.sampler)] = torch.tensor(sample.sampler).to(old)
        weights = importance(old, sampler, cap)
        advantages = torch.tensor([s.advantage for s in part] or [0.0]).to(old)  # (N,)
        loss, sums = da_grpo_loss(  # Eq. 31
            scored.logps, old, ref, advantages, mask, self.objective, totals, weights
        )
        torch.autograd.backward(loss * ranks.count())  # FSDP2 takes the mean over ranks
        mismatch = (old - sampler).abs().nan_to_num(0.0)
        capped = (weights >= cap).float()
        more = {"entropy": scored.entropy, "mismatch": mismatch, "capped": capped}
        sums |= {key: float((value * mask).sum()) for key, value in more.items()}
        return {"loss": loss.item(), **sums}

    def descend(self, step: int) -> float:
        """One optimizer step. Returns the norm of the gradient before it was clipped."""
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(
                step, self.steps, self.o.lr, self.o.warmup, self.o.lr_floor
            )
        norm: Any = torch.nn.utils.clip_grad_norm_(
            self.policy.parameters(), self.o.max_grad_norm
        )
        self.optimizer.step()
        self.optimizer.zero_grad()
        return float(norm.full_tensor() if ranks.count() > 1 else norm)

    def evaluate(self, examples: Sequence[Example]) -> Row:
        """The outcomes of the likeliest decision in each state."""
        row = reward_metrics(*self.sample(examples, [0] * len(examples), 1, 0.0))
        return {f"eval/{name}": value for name, value in row.items()}

    def micro_batches(self, samples: Sequence[Sample]) -> list[list[Sample]]:
        """Completions of one prompt, at most --micro-batch of them. Every rank gets as many
        micro-batches, since a sharded model runs on all ranks at once; the extra ones are empty.
        """
        size = self.o.micro_batch if self.policy.packs else 1
        groups = [list(group) for _, group in groupby(samples, key=lambda s: s.prompt)]
        parts = [
            group[k : k + size] for group in groups for k in range(0, len(group), size)
        ]
        return parts + [[]] * (max(ranks.gathered(len(parts))) - len(parts))


# ---- parts of a step -----------------------------------------------------------------------------


def compare(
    groups: Sequence[Group], scores: Sequence[Sequence[Scores | None]], o: Options
) -> tuple[list[Sample], list[bool]]:
    """The samples of the informative groups, with their advantages, and which groups those are."""
    table = [[math.nan if s is None else s.total for s in group] for group in scores]
    advantages, informative = group_advantages(  # (P, G), (P,)
        torch.tensor(table), min_std=o.min_std, scale=o.aggregation != "dr_grpo"
    )
    kept = [
        Sample(group.prompt, group.ids[j], group.logps[j], float(advantages[i, j]))
        for i, group in enumerate(groups)
        for j, score in enumerate(scores[i])
        if informative[i] and score is not None
    ]
    return kept, informative.tolist()


def reward_metrics(
    groups: Sequence[Group], scores: Sequence[Sequence[Scores | None]]
) -> Row:
    """Means over the completions that were scored: the reward, its parts, and the share that is
    `valid`. And over all: the share that was dropped or cut at its limit, and the length in tokens.
    """
    scored, every = list[Row](), list[Row]()
    for group, of_group in zip(groups, scores, strict=True):
        for ids, cut, s in zip(group.ids, group.cut, of_group, strict=True):
            every.append({"dropped": s is None, "length": len(ids), "cut": cut})
            if s:
                parts = {f"reward/{name}": value for name, value in s.parts.items()}
                scored.append({"reward": s.total, "valid": s.valid, **parts})
    return ranks.mean(scored) | ranks.mean(every)


def model_input(part: Sequence[Sample], policy: Policy) -> tuple[Ids, list[Ids]]:
    """Prompt and completions of a micro-batch; of an empty one, a stand-in that is masked out."""
    filled = part or [Sample([policy.pad], [policy.pad])]
    return filled[0].prompt, [s.ids for s in filled]


# ---- what happens in which step, as functions of its number alone --------------------------------


def batch_of(
    examples: Sequence[Example], size: int, step: int, seed: int
) -> list[Example]:
    """The examples of a step: each epoch in an order of its own, without a break between them."""
    places = [divmod(step * size + k, len(examples)) for k in range(size)]
    orders = {epoch: list(range(len(examples))) for epoch, _ in places}
    for epoch, order in orders.items():
        random.Random(f"{seed} epoch {epoch}").shuffle(order)
    return [examples[orders[epoch][place]] for epoch, place in places]


def seed_of(seed: int, step: int, k: int) -> int:
    """Of the k-th prompt of a step."""
    return random.Random(f"{seed} train {step} {k}").getrandbits(31)


def learning_rate(
    step: int, steps: int, peak: float, warmup: float, floor: float
) -> float:
    """Linear warm-up, then half a cosine down to the floor. `warmup` is a share of the steps,
    `floor` one of the peak. Never 0: the first step counts.

    >>> [round(learning_rate(s, 20, 1.0, 0.1, 0.1), 3) for s in (0, 1, 2, 11, 20)]
    [0.5, 1.0, 1.0, 0.55, 0.1]
    """
    rise = round(warmup * steps)
    if step < rise:
        return peak * (step + 1) / rise
    part = (step - rise) / max(1, steps - rise)
    return peak * (floor + (1 - floor) * (1 + math.cos(math.pi * part)) / 2)


# ---- the run -------------------------------------------------------------------------------------


def train(o: Options) -> None:
    """Raises ConfigError if it cannot start, EndpointError if a server fails."""
    device = ranks.start()
    torch.manual_seed(o.seed)  # of a new adapter
    torch.use_deterministic_algorithms(device.type == "cpu")
    examples = read(o.data)
    eval_examples = read(o.eval_data) if o.eval_data and o.stage == "grpo" else []
    steps = o.steps or max(1, round(o.epochs * len(examples) / o.batch))
    reward = rewards.make(
        o.reward, **dict(pair.split("=", 1) for pair in o.reward_setting)
    )
    check(o, [*examples, *eval_examples], reward)
    _lock = run.begin(o)  # held until this function returns
    lora_rank = 0 if o.full else o.lora_rank
    policy = Policy(o.model, device, o.dtype, lora_rank, o.adapter, o.checkpointing)
    if o.stage == "grpo" and o.beta:
        policy.keep_reference()  # as the run began: a checkpoint is loaded later
    rollouts = make_rollouts(o, policy)
    trainer = Trainer(o, policy, rollouts, reward, steps)
    start = run.load(o.out, policy.model, trainer.optimizer)
    metrics = run.Metrics(o.out, start)
    rollouts.update(start)
    for step in range(start, steps):
        batch, began = batch_of(examples, o.batch, step, o.seed), time.monotonic()
        due = step + 1 == steps or (step + 1) % o.save_every == 0
        if o.stage == "sft":
            row = trainer.sft_step(step, batch)
        else:
            row = trainer.grpo_step(step, batch)
            rollouts.update(step + 1)
        if eval_examples and due:
            row |= trainer.evaluate(eval_examples)
        seconds = round(time.monotonic() - began, 2)
        metrics.add({"step": step, **row, "seconds": seconds}, steps)
        if due:
            run.save(o.out, policy.model, trainer.optimizer, step + 1)
    policy.save(o.out / ("model" if o.full else "adapter"))
    rollouts.close()


def check(o: Options, examples: Sequence[Example], reward: Reward) -> None:
    """Raises ConfigError for an example that is too long or that the reward cannot score, for a
    model without a chat template, and for a server that does not answer.
    """
    model = f"--model {o.model}"
    tokenizer = usable(model, AutoTokenizer.from_pretrained, o.model)
    template = partial(
        tokenizer.apply_chat_template, add_generation_prompt=True, return_dict=False
    )
    for example in examples:
        length = len(usable(model, template, list(example.messages)))
        if length > o.max_prompt:
            problem = (
                f"its prompt has {length} tokens, more than --max-prompt {o.max_prompt}"
            )
            raise ConfigError(f"example {example.id}: {problem}")
    if o.stage == "grpo":
        rewards.check(o.reward, reward, examples)
    if o.stage == "grpo" and o.rollouts == "vllm":
        served(o.vllm_url)


def make_rollouts(o: Options, policy: Policy) -> Rollouts:
    if o.stage == "sft" or o.rollouts == "local":
        return LocalRollouts(policy, o.max_tokens, o.sample_batch)
    return VllmRollouts(o.vllm_url, policy, o.out / "weights", o.max_tokens)


def main(o: Options) -> int:
    """Returns the exit code; what ends it early is one line on standard error, of each process."""
    return ended("train_da_grpo.py", lambda: train(o))


if __name__ == "__main__":
    sys.exit(main(ARGUMENTS))
