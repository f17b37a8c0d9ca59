"""Who decides without a model. Each is a function of a game to a decision."""

from __future__ import annotations

import random
from collections.abc import Callable

from orchestra.training.lab.language import TOOLS, Game, read, written

Player = Callable[[Game, random.Random], str]


def expert(game: Game, _: random.Random) -> str:
    """y*_t."""
    return game.best()


def flawed(game: Game, rng: random.Random) -> str:
    """A demonstrator with three habits: it opens one lead a round; it takes the first that is worth
    it, not the cheapest; and what failed it tries with another tool, drawn at random.
    """
    best = read(game.best())
    if isinstance(best, str):
        return game.best()
    name, tool = best[0]
    if (name, tool) in game.failed:
        tool = rng.choice(TOOLS)
    return f"{name} {tool}"


def babble(game: Game, rng: random.Random) -> str:
    """Random decisions that can be carried out: the language without a strategy."""
    if game.found and (not game.leads or rng.random() < 0.1):
        return f"done {rng.choice(game.found)}"
    left = [name for name in game.leads if name not in game.opened]
    chosen = sorted(rng.sample(left, rng.randint(1, len(left))))
    return written([(name, rng.choice(TOOLS)) for name in chosen])


def rule(game: Game, _: random.Random) -> str:
    """A written rule, which reads the prompt and knows nothing of the world. It opens every lead,
    or the cheapest if one is enough, with the first tool that has not failed; what failed with
    every tool is given up. After the last stage it answers with what is asked.
    """
    words = game.prompt().split()
    head = words[: words.index("found")]
    if len(head) == 2:
        return f"done {head[1]}"
    end = head.index("failed") if "failed" in head else len(head)
    failed = set(zip(head[end + 1 :: 3], head[end + 2 :: 3], strict=True))
    options = []
    for name, _kind, price in zip(
        head[3:end:3], head[4:end:3], head[5:end:3], strict=True
    ):
        tools = [tool for tool in TOOLS if (name, tool) not in failed]
        if tools:
            options.append((int(price), name, tools[0]))
    if head[2] == "any":
        options = [min(options)] if options else []
    return written(sorted((name, tool) for _, name, tool in options))


PLAYERS: tuple[Player, ...] = (expert, flawed, rule, babble)
