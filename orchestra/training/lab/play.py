"""Whole games: a policy decides in each state of a task until it completes or the rounds end."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from orchestra.evaluation.scores import matches
from orchestra.kernel.vocabulary import Complete
from orchestra.minigaia.world import ROUNDS
from orchestra.training.examples import Example, state_row
from orchestra.training.lab.demonstrators import NewPlanner, Planner
from orchestra.training.lab.language import Game
from orchestra.training.lab.tasks import held_out_task, validation_task
from orchestra.training.reading import read_decision
from orchestra.training.rewards import Completion, Reward
from orchestra.training.world import world_at

Decide = Callable[[Sequence[Game]], Sequence[str]]  # a decision in each game


@dataclass(frozen=True)
class Played:
    """One game. `wasted`: sub-tasks that found nothing new."""

    solved: bool
    rounds: int
    subtasks: int
    wasted: int


# ---- one decision --------------------------------------------------------------------------------


def carry_out(game: Game, text: str) -> bool | None:
    """Play a decision. None: the game goes on; else whether it ended with the right answer."""
    world = game.world
    decision = read_decision(game.expand(text), world.state()).decision
    if isinstance(decision, Complete):
        return matches(decision.answer, world.mini.answer, world.mini.task.question)
    if decision is None:
        world.round += 1
    else:
        before = len(world.history)
        world.carry_out(decision)
        game.note(game.meant(text), before)
    return False if world.round > ROUNDS else None


def example_of(game: Game) -> Example:
    """The state that a game is in, as the trainer and the rewards know states."""
    world = game.world
    meta = {
        "split": "lab",
        "answer": world.mini.answer,
        "state": state_row(world.state()),
        "world": {**world.row(), "found": dict(world.found)},
    }
    message = {"role": "user", "content": game.prompt()}
    return Example(id="lab", messages=(message,), reference={}, meta=meta)


class Expanded:
    """A reward of JSON decisions, for decisions in the compact language."""

    def __init__(self, reward: Reward) -> None:
        self.reward = reward

    def score(self, example: Example, completions: Sequence[Completion]) -> list[Any]:
        game = Game(world_at(example))
        whole = [Completion(game.expand(c.text), c.cut) for c in completions]
        return list(self.reward.score(example, whole))


# ---- whole games ---------------------------------------------------------------------------------


def play(games: Sequence[Game], decide: Decide) -> list[Played]:
    """Play all games to their end, one round of all at a time."""
    ends: list[bool | None] = [None] * len(games)
    rounds = [0] * len(games)
    while live := [k for k, end in enumerate(ends) if end is None]:
        texts = decide([games[k] for k in live])
        for k, text in zip(live, texts, strict=True):
            rounds[k] += 1
            ends[k] = carry_out(games[k], text)
    return list(map(_played, games, ends, rounds))


def _played(game: Game, end: bool | None, rounds: int) -> Played:
    world = game.world
    return Played(bool(end), rounds, len(world.history), world.wasted)


def means(played: Sequence[Played]) -> dict[str, float]:
    """Means over games."""
    names = ("solved", "rounds", "subtasks", "wasted")
    return {name: fmean(getattr(game, name) for game in played) for name in names}


# ---- policies ------------------------------------------------------------------------------------


def planned(new: NewPlanner, seed: str) -> Decide:
    """A policy without a model: each game has a planner of its own."""
    planners: dict[int, Planner] = {}

    def decide(games: Sequence[Game]) -> list[str]:
        texts = []
        for game in games:
            rng = random.Random(f"{seed} {len(planners)}")
            planner = planners.setdefault(id(game), new(rng))
            texts.append(planner(game))
        return texts

    return decide


def one_thing_a_round(decide: Decide) -> Decide:
    """A policy as a ReAct agent: of each decision, the first sub-task alone."""

    def first(games: Sequence[Game]) -> list[str]:
        return [text.split(" ; ")[0] for text in decide(games)]

    return first


# ---- games ---------------------------------------------------------------------------------------


def held_out(count: int) -> list[Game]:
    """The first held-out games, the same for all arms."""
    return [Game(held_out_task(n)) for n in range(count)]


def validation(count: int) -> list[Game]:
    """Games to choose the best checkpoint by."""
    return [Game(validation_task(n)) for n in range(count)]
