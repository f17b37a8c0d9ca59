"""The reinforcement-learning arms, with the trainer of train_da_grpo.py: its sampling, Eq. 30 and
Eq. 31. They differ in the states that a group is sampled in and in what is rewarded.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from orchestra.training.examples import Example
from orchestra.training.lab.budget import MILLION, Meter
from orchestra.training.lab.demonstrators import demonstrator
from orchestra.training.lab.language import MAX_TOKENS, Game
from orchestra.training.lab.model import encode, sampler
from orchestra.training.lab.play import Expanded, carry_out, example_of
from orchestra.training.lab.tasks import training_task
from orchestra.training.options import TrainingOptions
from orchestra.training.policy import Policy
from orchestra.training.rewards import Reward
from orchestra.training.rollouts import Rollouts
from orchestra.training.samples import Sample
from orchestra.training.scoring import Scorer
from train_da_grpo import Trainer, group_advantages

STATES = 64  # groups a step
GROUP = 8  # decisions in a state, or games of a task, G
GAMES = 16  # tasks a step of whole games
Row = dict[str, float]
AfterStep = Callable[[Row], None]


def trainer(
    policy: Policy, start: Path, reward: Reward, lr: float, seed: int
) -> Trainer:
    """The trainer, whose schedule counts in millionths of the budget."""
    options = TrainingOptions(
        stage="grpo",
        model=str(start),
        data=start,  # not read: the states come from games
        out=start,  # nothing is written
        full=True,
        dtype="float32",
        rollouts="local",
        batch=STATES,
        group=GROUP,
        max_tokens=MAX_TOKENS,
        checkpointing=False,
        lr=lr,
        beta=0.0,
        clip_high=0.28,
        seed=seed,
    )
    scorer = Scorer(options.reward, Expanded(reward))
    return Trainer(options, policy, sampler(policy), scorer, MILLION)


# ---- DA-GRPO -------------------------------------------------------------------------------------


def on_policy(
    learner: Trainer, tasks: int, meter: Meter, seed: int, after_step: AfterStep
) -> None:
    """A group in each state of the policy's own games. The games continue with the first decision
    of each group, so one decision in G is carried out.
    """
    rng = random.Random(f"lab on policy {seed}")
    games = [_training_game(rng, tasks) for _ in range(STATES)]
    for place in meter.places():
        row = learner.grpo_step(place, [example_of(game) for game in games])
        meter.sampled += STATES * GROUP
        for k, group in enumerate(learner.rollouts.groups):  # type: ignore[attr-defined]
            if _execute(games[k], group.texts[0], meter) is not None:
                games[k] = _training_game(rng, tasks)
        after_step(row)


def offline(
    learner: Trainer, tasks: int, meter: Meter, seed: int, after_step: AfterStep
) -> None:
    """A group in states of the demonstrations, the paper's setting: nothing is carried out."""
    rng = random.Random(f"lab offline {seed}")
    states = demonstrated_states(tasks)
    for place in meter.places():
        row = learner.grpo_step(place, rng.sample(states, STATES))
        meter.sampled += STATES * GROUP
        after_step(row)


def demonstrated_states(tasks: int) -> list[Example]:
    """The states that the imperfect demonstrator decides in."""
    states = []
    for n in range(tasks):
        planner = demonstrator(random.Random(f"lab demonstrator {n}"))
        game = Game(training_task(n))
        end = None
        while end is None:
            states.append(example_of(game))
            end = carry_out(game, planner(game))
    return states


def _training_game(rng: random.Random, tasks: int) -> Game:
    return Game(training_task(rng.randrange(tasks)))


# ---- GRPO by the final answer --------------------------------------------------------------------


def by_outcome(
    learner: Trainer, tasks: int, meter: Meter, seed: int, after_step: AfterStep
) -> None:
    """G whole games of each task, 1 for the right answer. All decisions of a game share its
    advantage, and all are carried out.
    """
    rng = random.Random(f"lab outcome {seed}")
    for place in meter.places():
        first = [_training_game(rng, tasks) for _ in range(GAMES)]
        games = [copy.deepcopy(game) for game in first for _ in range(GROUP)]
        ends, decisions = _play(games, learner.rollouts, rng, meter)
        rewards = torch.tensor(ends).view(GAMES, GROUP)
        advantages, informative = group_advantages(rewards)  # Eq. 30
        samples = []
        for advantage, of_game in zip(advantages.flatten(), decisions, strict=True):
            if advantage != 0:
                samples += [replace(s, advantage=float(advantage)) for s in of_game]
        row = {
            "reward": float(rewards.mean()),
            "zero_variance": 1 - float(informative.float().mean()),
        }
        after_step(row | learner.improve(place, samples))  # Eq. 31


def _play(
    games: Sequence[Game], rollouts: Rollouts, rng: random.Random, meter: Meter
) -> tuple[list[float], list[list[Sample]]]:
    """Play games to their end. Returns whether each was solved, and its decisions."""
    ends: list[bool | None] = [None] * len(games)
    decisions: list[list[Sample]] = [[] for _ in games]
    while live := [k for k, end in enumerate(ends) if end is None]:
        prompts = [encode(games[k].prompt(), "")[0] for k in live]
        seeds = [rng.getrandbits(31) for _ in live]
        groups = rollouts.sample(prompts, seeds, 1, 1.0)
        for k, group in zip(live, groups, strict=True):
            decisions[k].append(Sample(group.prompt, group.ids[0]))
            ends[k] = _execute(games[k], group.texts[0], meter)
        meter.sampled += len(live)
    return [float(bool(end)) for end in ends], decisions


def _execute(game: Game, text: str, meter: Meter) -> bool | None:
    """Carry a decision out, and count it and its sub-agents' calls."""
    before = len(game.world.history)
    end = carry_out(game, text)
    meter.executed += 1
    meter.calls += len(game.world.history) - before
    return end
