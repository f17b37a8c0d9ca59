"""The arms: what is compared, and how each is trained; and the command.

    python -m benchmarks.lab.arms [--quick] [--seed N] [--out DIR]

Every seed has a start, which imitated y* for a while. From it the arms part. All of them
take the same number of optimizer steps, on Eq. 31 of train_da_grpo.py. They differ in whose states
they learn in and in what a decision is paid for:

    arm       states          paid for
    sft       the expert's    being y*, the expert's decision
    dagger    its own         being y*
    da        the expert's    Eq. 29: likeness to y*, compared within a group of samples (the paper)
    da_own    its own         the same
    outcome   its own         the answer: 1 for each decision of a solved game (vanilla GRPO)

The first four consult y* in equally many states, and the last three sample about equally many
decisions. A setting is a number of rounds, a share of trouble, and a share of wrong y*: random
decisions, drawn anew at each visit, for the start too. The expert's states stay right.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.utils.logging import disable_progress_bar

from benchmarks.lab import players
from benchmarks.lab.language import (
    CHECK,
    END,
    HELD_OUT,
    MAX_TOKENS,
    REPLY,
    SETTINGS,
    VALIDATION,
    VOCABULARY,
    Game,
    Setting,
    Task,
    Tasks,
    new_task,
    reward,
)
from benchmarks.lab.players import Player
from benchmarks.lab.report import GREEDY, SAMPLED, percent, report
from orchestra.command.flags import OneLineParser
from orchestra.command.programs import run_program
from orchestra.kernel.folder import write_whole
from orchestra.training.logprobs import token_logprobs
from orchestra.training.policy import Ids, Policy
from orchestra.training.rollouts import Group, LocalRollouts
from train_da_grpo import (
    Objective,
    Totals,
    da_grpo_loss,
    group_advantages,
    learning_rate,
)

PROGRAM = "benchmarks.lab.arms"
ID = {word: number for number, word in enumerate(VOCABULARY)}
STATES = 64  # in which a step consults y*
SAMPLES = 512  # decisions that a step samples
AT_ONCE = 1024  # completions in one batch of sampling
STEPS = 120  # of each arm
START_STEPS = 200
POINTS = 5  # checks along the way
OBJECTIVE = Objective(beta=0.0)
TEMPERATURES = {GREEDY: 0.0, SAMPLED: 1.0}


@dataclass(frozen=True)
class Sample:
    """A decision in a state, as tokens."""

    prompt: Ids
    ids: Ids
    advantage: float


@dataclass(frozen=True)
class Arm:
    """`learn`: the samples of a step. `after`: the arm that it continues. `group`: see Training."""

    learn: Learn
    after: str
    steps: int
    lr: float
    group: int = 1


Learn = Callable[["Training"], list[Sample]]


# ---- the policy ----------------------------------------------------------------------------------


def make_model(out: Path, seed: int, width: int = 64, layers: int = 2) -> None:
    """Write a random Llama of 0.1 million weights and its tokenizer."""
    disable_progress_bar()  # type: ignore[no-untyped-call]
    words = Tokenizer(models.WordLevel(ID, unk_token=END))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer: Any = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=words, eos_token=END, pad_token=END
    )
    config = LlamaConfig(
        vocab_size=len(VOCABULARY),
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=512,
        bos_token_id=None,
        eos_token_id=ID[END],
        pad_token_id=ID[END],
        tie_word_embeddings=True,
        initializer_range=0.1,  # at the default, 0.02, so narrow a model learns three times slower
    )
    torch.manual_seed(seed)
    LlamaForCausalLM(config).save_pretrained(out)
    tokenizer.save_pretrained(out)


def encode(prompt: str) -> Ids:
    return [ID[word] for word in [*prompt.split(), REPLY]]


def decision_ids(text: str) -> Ids:
    return [ID[word] for word in [*text.split(), END]]


class Learner:
    """A policy, its sampler and its optimizer. What it used is counted."""

    def __init__(self, folder: Path, lr: float, steps: int) -> None:
        self.policy = Policy(folder, torch.device("cpu"), "float32")
        self.rollouts = LocalRollouts(self.policy, MAX_TOKENS, AT_ONCE)
        self.optimizer = torch.optim.AdamW(
            self.policy.parameters(), lr=lr, betas=(0.9, 0.95), weight_decay=0.0
        )
        self.lr = lr
        self.steps = steps
        self.step = 0

    def sample(
        self,
        games: Sequence[Game],
        rng: random.Random,
        n: int = 1,
        temperature: float = 1.0,
    ) -> list[Group]:
        """n decisions in the state of each game."""
        prompts = [encode(game.prompt()) for game in games]
        seeds = [rng.getrandbits(31) for _ in games]
        return self.rollouts.sample(prompts, seeds, n, temperature)

    def learn(self, samples: Sequence[Sample]) -> None:
        """One optimizer step on Eq. 31. With advantage 1 it is that of imitation."""
        totals = Totals(len(samples), sum(len(sample.ids) for sample in samples))
        merged = list(_merged(samples))
        if merged:
            logprobs, mask = self._logprobs(merged)
            loss, _ = da_grpo_loss(  # Eq. 31
                logprobs=logprobs,
                old_logprobs=logprobs.detach(),
                reference_logprobs=None,
                advantages=torch.tensor(
                    [s.advantage for s in merged], dtype=torch.float32
                ),
                mask=mask,
                objective=OBJECTIVE,
                totals=totals,
            )
            torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(self.policy.parameters(), 1.0)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(
                self.step, self.steps, self.lr, warmup=0.05, floor=0.1
            )
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.step += 1

    def _logprobs(self, samples: Sequence[Sample]) -> tuple[Tensor, Tensor]:
        """log pi_theta (N, L) of the tokens of decisions, and the mask of these tokens. Sequences
        are padded on the right, so a causal model needs no other mask.
        """
        longest = max(len(s.prompt) + len(s.ids) for s in samples)
        ids = torch.zeros(len(samples), longest, dtype=torch.long)
        mask = torch.zeros(len(samples), longest - 1, dtype=torch.float32)
        for row, s in enumerate(samples):
            end = len(s.prompt) + len(s.ids)
            ids[row, :end] = torch.tensor([*s.prompt, *s.ids])
            mask[row, len(s.prompt) - 1 : end - 1] = 1
        logits = self.policy.model(input_ids=ids).logits[:, :-1]  # (N, L, V)
        chosen = mask.bool()
        logprobs = torch.zeros_like(mask)
        of_tokens = token_logprobs(logits[chosen], ids[:, 1:][chosen])
        return logprobs.masked_scatter(chosen, of_tokens), mask


def _merged(samples: Sequence[Sample]) -> Iterator[Sample]:
    """Equal decisions in equal states as one, with the sum of their advantages: the same loss where
    each batch makes one step.
    """
    sums: dict[tuple[tuple[int, ...], tuple[int, ...]], float] = {}
    for s in samples:
        key = tuple(s.prompt), tuple(s.ids)
        sums[key] = sums.get(key, 0.0) + s.advantage
    for (prompt, ids), advantage in sums.items():
        if advantage != 0:
            yield Sample(list(prompt), list(ids), advantage)


# ---- arms ----------------------------------------------------------------------------------------


class Training:
    """Running games, and counts of what was used. `group`: samples a state, or games a task."""

    def __init__(
        self, setting: Setting, learner: Learner, group: int, seed: str
    ) -> None:
        self.setting = setting
        self.learner = learner
        self.group = group
        self.rng = random.Random(seed)
        self.games = [Game(self.new_task()) for _ in range(STATES)]
        self.used = dict.fromkeys(("references", "sampled", "executed", "calls"), 0)
        self.decisions_a_game = float(setting.rounds)  # of the last step

    def new_task(self) -> Task:
        s = self.setting
        return new_task(self.rng, s.rounds, s.trouble, held_out=False)

    def reference(self, game: Game) -> str:
        """y*_t; in a share of the states a random decision instead."""
        self.used["references"] += 1
        is_wrong = self.rng.random() < self.setting.wrong
        return (players.babble if is_wrong else players.expert)(game, self.rng)

    def sample(self, games: Sequence[Game], n: int) -> list[Group]:
        self.used["sampled"] += n * len(games)
        return self.learner.sample(games, self.rng, n)

    def execute(self, game: Game, decision: str) -> None:
        before = game.calls
        game.carry_out(decision)
        self.used["executed"] += 1
        self.used["calls"] += game.calls - before

    def go_on(self, decisions: Sequence[str]) -> None:
        """Carry out a decision in each game, and begin another where one has ended."""
        for game, decision in zip(self.games, decisions, strict=True):
            self.execute(game, decision)
        self._begin_again()

    def demonstrate(self, decisions: Sequence[str] | None = None) -> None:
        """As go_on, with a demonstrator's recorded decisions (default: the expert's), which cost
        nothing.
        """
        best = [game.best() for game in self.games]
        for game, decision in zip(self.games, decisions or best, strict=True):
            game.carry_out(decision)
        self._begin_again()

    def _begin_again(self) -> None:
        self.games = [
            g if g.solved is None else Game(self.new_task()) for g in self.games
        ]


def imitate(t: Training, own: bool, player: Player | None = None) -> list[Sample]:
    """Decisions of `player` (default: y*), in the policy's states if `own`, else the player's."""
    prompts = [encode(game.prompt()) for game in t.games]
    if player is None:
        decisions = list(map(t.reference, t.games))
    else:
        decisions = [player(game, t.rng) for game in t.games]
    if own:
        t.go_on([group.texts[0] for group in t.sample(t.games, 1)])
    else:
        t.demonstrate(decisions if player else None)
    of_decisions = map(decision_ids, decisions)
    return [Sample(*of_one, 1.0) for of_one in zip(prompts, of_decisions, strict=True)]


def reward_decisions(t: Training, own: bool) -> list[Sample]:
    """A group in each state, and the likeness of its decisions to y*."""
    groups = t.sample(t.games, t.group)
    rewards = []
    for game, group in zip(t.games, groups, strict=True):
        y = t.reference(game)
        rewards.append([reward(text, y) for text in group.texts])  # Eq. 29
    if own:
        t.go_on([group.texts[0] for group in groups])
    else:
        t.demonstrate()
    samples = []
    for group, advantages in zip(groups, advantages_of(rewards), strict=True):
        for ids, advantage in zip(group.ids, advantages, strict=False):
            samples.append(Sample(group.prompt, ids, advantage))
    return samples


def reward_answers(t: Training) -> list[Sample]:
    """Whole games, as many of each task as a group has; about SAMPLES decisions."""
    tasks = max(1, round(SAMPLES / t.group / t.decisions_a_game))
    drawn = [t.new_task() for _ in range(tasks)]
    games = [Game(task) for task in drawn for _ in range(t.group)]
    decisions: list[list[tuple[Ids, Ids]]] = [[] for _ in games]
    while live := [k for k, game in enumerate(games) if game.solved is None]:
        groups = t.sample([games[k] for k in live], 1)
        for k, group in zip(live, groups, strict=True):
            decisions[k].append((group.prompt, group.ids[0]))
            t.execute(games[k], group.texts[0])
    t.decisions_a_game = sum(map(len, decisions)) / len(games)
    solved = [float(bool(game.solved)) for game in games]
    of_tasks = [solved[k : k + t.group] for k in range(0, len(games), t.group)]
    found = []
    for k, advantages in enumerate(advantages_of(of_tasks)):
        for n, advantage in enumerate(advantages):
            of_game = decisions[k * t.group + n]
            found += [Sample(prompt, ids, advantage) for prompt, ids in of_game]
    return found


def advantages_of(rewards: Sequence[Sequence[float]]) -> list[list[float]]:
    """A_hat of each group; [] for one whose rewards are equal, which teaches nothing."""
    advantages, informative = group_advantages(torch.tensor(rewards))  # Eq. 30
    return [
        row if is_informative else []
        for row, is_informative in zip(advantages.tolist(), informative, strict=True)
    ]


FROM_EXPERT = partial(imitate, own=False)
FROM_RANDOM = partial(imitate, own=False, player=players.babble)
FROM_FLAWED = partial(imitate, own=False, player=players.flawed)
COMPARED = {  # the arms that part at the start
    "sft": Arm(FROM_EXPERT, "start", STEPS, 6e-3),
    "dagger": Arm(partial(imitate, own=True), "start", STEPS, 3e-3),
    "da": Arm(partial(reward_decisions, own=False), "start", STEPS, 1e-3, 8),
    "da_own": Arm(partial(reward_decisions, own=True), "start", STEPS, 1e-3, 8),
    "outcome": Arm(reward_answers, "start", STEPS, 3e-4, 16),
}
ARMS = {"start": Arm(FROM_EXPERT, "", START_STEPS, 4e-3), **COMPARED}
ALSO = {  # from the language alone, and from a flawed demonstrator; one setting
    "base": Arm(FROM_RANDOM, "", 60, 4e-3),
    "da_base": replace(COMPARED["da_own"], after="base", steps=START_STEPS + STEPS),
    "flawed": Arm(FROM_FLAWED, "", START_STEPS, 4e-3),
    "flawed_more": replace(COMPARED["sft"], learn=FROM_FLAWED, after="flawed"),
    "flawed_da": replace(COMPARED["da_own"], after="flawed"),
    "flawed_outcome": replace(COMPARED["outcome"], after="flawed"),
}


# ---- one training --------------------------------------------------------------------------------


def train(
    out: Path, setting: Setting, name: str, arm: Arm, seed: int, tasks: Tasks
) -> None:
    """Train an arm, let it play the tasks, and write its row in OUT/rows, unless that file exists.
    Its weights are in OUT/models.
    """
    models = out / "models" / setting.name
    file = out / "rows" / f"{setting.name}, {name}, seed {seed}.json"
    if file.exists():
        return
    before = models / f"{arm.after or 'random'}-{seed}"
    if not arm.after:
        make_model(before, seed)
    learner = Learner(before, arm.lr, arm.steps)
    training = Training(setting, learner, arm.group, seed=f"lab {seed} {name}")
    row = {"arm": name, "seed": seed, "setting": asdict(setting), "lr": arm.lr}
    row |= {"group": arm.group, "steps": arm.steps, "tasks": tasks.name}
    row["curve"] = list(_take_steps(training, arm))
    learner.policy.save(models / f"{name}-{seed}")
    for kind, temperature in TEMPERATURES.items():
        games = played(learner, setting, tasks, temperature)
        row[kind] = "".join(str(int(bool(game.solved))) for game in games)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, json.dumps(row) + "\n")
    solved = f"{percent(row):.1f} % of {tasks.count} {tasks.name} tasks solved"
    print(f"{setting.name}: {name}, seed {seed}: {solved}", file=sys.stderr, flush=True)


def _take_steps(training: Training, arm: Arm) -> Iterator[dict[str, float]]:
    """Take all steps. Yields what was used and what validation tasks are solved: in the first
    setting, whose curve is drawn, at POINTS.
    """
    learner = training.learner
    points = POINTS if training.setting == SETTINGS[0] else 1
    seconds = 0.0  # of this process
    for step in range(arm.steps + 1):
        _end_without_parent()
        if step % (arm.steps // points) == 0:
            games = played(learner, training.setting, CHECK, 0.0)
            solved = fmean(bool(game.solved) for game in games)
            yield {
                "step": step,
                **training.used,
                "cpu_s": round(seconds, 1),
                "solved": solved,
            }
        if step < arm.steps:
            began = time.process_time()
            learner.learn(arm.learn(training))
            seconds += time.process_time() - began


def _end_without_parent() -> None:
    """End a process whose parent was killed."""
    parent = multiprocessing.parent_process()
    if parent is not None and not parent.is_alive():
        sys.exit(1)


def played(
    learner: Learner, setting: Setting, tasks: Tasks, temperature: float
) -> list[Game]:
    """Games of the tasks, played to their end."""
    rng = random.Random(f"{tasks.name} {temperature}")
    games = tasks.games(setting)
    while live := [game for game in games if game.solved is None]:
        groups = learner.sample(live, rng, 1, temperature)
        for game, group in zip(live, groups, strict=True):
            game.carry_out(group.texts[0])
    return games


# ---- the command ---------------------------------------------------------------------------------

SAME_NUMBERS = {  # on every x86 processor that has AVX2
    "MKL_CBWR": "AVX2",
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "OMP_NUM_THREADS": "1",
}
SEEDS = (0, 1, 2)
TUNING_SEED, TUNING = 100, Setting(rounds=6)
LRS = (1e-4, 3e-4, 1e-3, 2e-3, 3e-3, 6e-3, 1e-2)
GROUPS = (8, 16)  # of outcome, whose batch is free
# Arms of a setting, one after the other; the seed; and what they play at the end
Job = tuple[Setting, tuple[str, ...], int, Tasks]


def variants() -> dict[str, Arm]:
    """What --tune compares."""
    found = {}
    for name, arm in COMPARED.items():
        for lr in LRS:
            for group in GROUPS if name == "outcome" else (arm.group,):
                title = f"{name}, lr {lr}, group {group}"
                found[title] = replace(arm, lr=lr, group=group)
    return found


def jobs(flags: Namespace) -> list[Job]:
    if flags.tune:
        names = [("start", name) for name in variants()]
        return [(TUNING, pair, TUNING_SEED, VALIDATION) for pair in names]
    parts: list[tuple[Setting, tuple[str, ...]]] = [(SETTINGS[0], tuple(ARMS))]
    if not flags.quick:
        parts.append((SETTINGS[0], tuple(ALSO)))
        parts += [(setting, tuple(ARMS)) for setting in SETTINGS[1:]]
    seeds = flags.seed or SEEDS
    return [(*part, seed, HELD_OUT) for part in parts for seed in seeds]


def work(
    out: Path, setting: Setting, names: Sequence[str], seed: int, tasks: Tasks
) -> None:
    """A job, in a process of its own."""
    torch.set_num_threads(1)
    known = {**ARMS, **ALSO, **variants()}
    for name in names:
        train(out, setting, name, known[name], seed, tasks)


def parser() -> OneLineParser:
    p = OneLineParser(
        prog=PROGRAM, description="train what is missing; then the tables"
    )
    p.add_argument("--out", type=Path, default=Path("runs/lab"), metavar="DIR")
    p.add_argument("--quick", action="store_true", help="the first setting alone")
    p.add_argument("--tune", action="store_true", help="try learning rates and groups")
    p.add_argument("--seed", type=int, action="append", help="repeatable (0, 1, 2)")
    p.add_argument("--jobs", type=int, default=2, help="processes (%(default)s)")
    return p


def run(arguments: Sequence[str] | None) -> None:
    flags = parser().parse_args(arguments)
    os.environ.update(SAME_NUMBERS)  # for the processes that are started
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(flags.jobs, context) as pool:
        for done in [pool.submit(work, flags.out, *job) for job in jobs(flags)]:
            done.result()
    print(report(flags.out), end="")


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    return run_program(PROGRAM, lambda: run(arguments))


if __name__ == "__main__":
    sys.exit(main())
