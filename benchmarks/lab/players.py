"""Who decides without a model. Each is a function of a game to a decision."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

from benchmarks.lab.language import TOOLS, Game, read, written

Player = Callable[[Game, random.Random], str]


def expert(game: Game, _: random.Random) -> str:
    """y*_t."""
    return game.best()


def flawed(game: Game, rng: random.Random) -> str:
    """A demonstrator with two habits: it opens one lead a round, and after a failure it draws a
    tool at random.
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
    """The best written rule known to us that reads the prompt alone, without knowledge of sources.
    It opens one lead a round: what is asked first, then what failed least, then the cheapest;
    each with one tool after another.
    """
    words = game.prompt().split()
    head = words[: words.index("found")]
    asked = head[1]
    if len(head) == 2:
        return f"done {asked}"
    end = head.index("failed") if "failed" in head else len(head)
    tries = Counter(head[end + 1 :: 3])
    leads = zip(head[3:end:3], head[4:end:3], head[5:end:3], strict=True)
    first = min(
        (tries[name] > 1, kind != asked, tries[name], int(price), name)
        for name, kind, price in leads
    )
    name = first[-1]
    return f"{name} {('read', 'watch', 'see', 'hear')[tries[name] % 4]}"


PLAYERS: tuple[Player, ...] = (expert, flawed, rule, babble)
