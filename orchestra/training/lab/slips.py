"""A player that makes one mistake at a time: the expert's decision with a slip in it.

Random play is nearly always bad, and the expert always good. What is in between shows whether a
reward tells a small mistake from a large one.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from orchestra.minigaia.operations import OPERATIONS
from orchestra.training.lab.demonstrators import Planner, perfect
from orchestra.training.lab.language import TOOLS, Game

Slip = Callable[
    [Game, list[str], random.Random], list[str]
]  # the sub-tasks with a slip
P_SLIP = 0.6  # of the decisions have one


def slips(rng: random.Random) -> Planner:
    """The planner of one game."""

    def decide(game: Game) -> str:
        text = perfect(game)
        if rng.random() >= P_SLIP:
            return text
        kinds = OF_AN_END if text.startswith("done ") else OF_A_DELEGATION
        slip = rng.choice(kinds)
        return " ; ".join(slip(game, text.split(" ; "), rng))

    return decide


def leaves_out(_: Game, parts: list[str], rng: random.Random) -> list[str]:
    """One sub-task less, if there are several."""
    return rng.sample(parts, len(parts) - 1) if len(parts) > 1 else parts


def does_twice(_: Game, parts: list[str], rng: random.Random) -> list[str]:
    return [*parts, rng.choice(parts)]


def in_another_way(_: Game, parts: list[str], rng: random.Random) -> list[str]:
    """Another tool, or another operation on as many operands."""
    words = parts[-1].split()
    if words[1] in TOOLS:
        others = list(TOOLS)
    else:
        arity = len(words) - 2
        others = [o.name for o in OPERATIONS.values() if len(o.takes) == arity]
    words[1] = rng.choice([other for other in others if other != words[1]])
    return [*parts[:-1], " ".join(words)]


def operands_reversed(_: Game, parts: list[str], rng: random.Random) -> list[str]:
    slot, how, *operands = parts[-1].split()
    return [*parts[:-1], " ".join([slot, how, *reversed(operands)])]


def adds_any(game: Game, parts: list[str], rng: random.Random) -> list[str]:
    """Another sub-task: for what was found, is not needed, or cannot be found yet."""
    return [*parts, game.subtask_for(rng.choice(game.world.mini.facts))]


def goes_on(game: Game, _: list[str], rng: random.Random) -> list[str]:
    """Delegates although the answer was found."""
    return adds_any(game, [], rng)


def ends(game: Game, _: list[str], rng: random.Random) -> list[str]:
    """Answers with any slot, or with one that was found."""
    found = [game.slots[id] for id in game.world.found]
    any_slot = list(game.slots.values())
    return [f"done {rng.choice(found or any_slot)}"]


def breaks_the_language(_: Game, parts: list[str], rng: random.Random) -> list[str]:
    return [part.replace(":", "").replace("done", "done with") for part in parts]


OF_A_DELEGATION: tuple[Slip, ...] = (
    leaves_out,
    does_twice,
    in_another_way,
    operands_reversed,
    adds_any,
    ends,
    breaks_the_language,
)
OF_AN_END: tuple[Slip, ...] = (goes_on, goes_on, ends, breaks_the_language)
