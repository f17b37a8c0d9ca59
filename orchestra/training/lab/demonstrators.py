"""Who demonstrates: a perfect planner, an imperfect one, and players that cannot be imitated.

Each is a function of a game to a decision in the compact language. The imperfect planner has three
habits: it never tries again what failed; it delegates one sub-task a round; and when nothing is
left that it would do, it answers with the newest value (if it has none, it tries again after all).
"""

from __future__ import annotations

import random
from collections.abc import Callable

from orchestra.minigaia.operations import OPERATIONS
from orchestra.minigaia.tasks import Fact
from orchestra.training.lab.language import TOOLS, Game

Planner = Callable[[Game], str]
P_IMPERFECT = 0.7  # of the demonstrator's games have all three habits


def perfect(game: Game) -> str:
    """All that is missing and can be found now; then the answer."""
    world = game.world
    if world.answer_found():
        return f"done {game.slots[world.mini.facts[-1].id]}"
    return " ; ".join(game.subtask_for(fact) for fact in world.ready())


def imperfect(game: Game) -> str:
    """One sub-task that did not fail before; then an end with the newest value."""
    world = game.world
    if world.answer_found():
        return perfect(game)
    pairs = zip(game.seen[::2], game.seen[1::2], strict=True)
    failed = {slot for slot, status in pairs if status != "ok"}
    todo = [fact for fact in world.ready() if game.slots[fact.id] not in failed]
    if todo:
        return game.subtask_for(todo[0])
    known = [game.slots[id] for id in world.found]
    return f"done {known[-1]}" if known else perfect(game)


def demonstrator(rng: random.Random) -> Planner:
    """The planner of one game of the imperfect demonstrator."""
    return imperfect if rng.random() < P_IMPERFECT else perfect


# ---- players without a strategy ------------------------------------------------------------------


def babble(rng: random.Random) -> Planner:
    """Random decisions that can be carried out. They teach the language, but no strategy."""

    def decide(game: Game) -> str:
        world = game.world
        known = [game.slots[id] for id in world.found]
        if known and rng.random() < 0.2:
            return f"done {rng.choice(known)}"
        facts = world.mini.facts
        able = [fact for fact in facts if world.found.keys() >= set(fact.needs)]
        chosen = rng.sample(able, rng.randint(1, min(4, len(able))))
        return " ; ".join(_varied(game, fact, known, rng) for fact in chosen)

    return decide


def _varied(game: Game, fact: Fact, known: list[str], rng: random.Random) -> str:
    """The sub-task for a fact, or one with another operation or tool."""
    if fact.operation and rng.random() < 0.5:
        operation = rng.choice(list(OPERATIONS.values()))
        operands = " ".join(rng.choice(known) for _ in operation.takes)
        return f"{game.slots[fact.id]}: {operation.name} {operands}"
    words = game.subtask_for(fact).split()
    if not fact.operation and rng.random() < 0.15:
        words[1] = rng.choice(list(TOOLS))
    return " ".join(words)


def rule_reads_all(game: Game) -> str:
    """A fixed rule: everything that can be read or searched in round 1, then the newest value."""
    world = game.world
    known = [game.slots[id] for id in world.found]
    if world.round > 1 and known:
        return f"done {known[-1]}"
    facts = [fact for fact in world.mini.facts if not fact.operation and not fact.needs]
    return " ; ".join(game.subtask_for(fact) for fact in facts)


def rule_last_step(game: Game) -> str:
    """A fixed rule: only the last operation, with whatever is known, until the rounds end."""
    return game.subtask_for(game.world.mini.facts[-1])


NewPlanner = Callable[[random.Random], Planner]  # the planner of one game
PLAYERS: dict[str, NewPlanner] = {
    "expert": lambda _: perfect,
    "demonstrator": demonstrator,
    "random": babble,
    "rule_reads_all": lambda _: rule_reads_all,
    "rule_last_step": lambda _: rule_last_step,
}
