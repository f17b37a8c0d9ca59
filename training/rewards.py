"""Rewards of decisions, one interface: `make(name)(example, completions, cut)`, a group at a time.

    rubric     Eq. 29 by rule: what the decision would find in the world of MiniGAIA (world.py)
    judge      Eq. 29 with the four scores of a language model (judge.py); for recorded runs too
    outcome    vanilla GRPO: 1 where the task's answer comes out right when the expert plays on from
               the decision, else 0 (world.py)

Differences of format and action from App. B.4: here they say what the program would do
1. A missing "params" costs `format` alone: the program reads the fields next to "action".
2. An unknown tool or backend costs `action`: the program would refuse the decision.
3. Completing before anything was seen of a task with files costs `action`: it is refused too.
4. A reply that was cut at its limit and is not whole costs `action`: the program would ask again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pydantic import ValidationError, validate_call

from orchestra.vocabulary import ConfigError
from training.examples import Example
from training.reading import Reading, read_decision, state_at
from training.world import World, plays_on, rubric_parts, world_of

WEIGHTS = {"format": 0.1, "action": 0.1, "tool": 0.2, "decision": 0.6}  # alpha of Eq. 29


@dataclass(frozen=True)
class Scores:
    """The reward of one completion, in [0, 1], and its parts. `valid`: the program could carry the
    decision out.
    """

    total: float
    parts: dict[str, float]
    valid: bool


class Reward(Protocol):
    """Of a group of completions; `cut`: which of them stopped at the length limit, () for none.
    None in the place of scores: a sample to drop. Raises ConfigError for an example that it cannot
    score.
    """

    def __call__(
        self, example: Example, completions: list[str], cut: Sequence[bool] = ()
    ) -> Sequence[Scores | None]: ...


def weighted(parts: Mapping[str, float]) -> float:
    """r of Eq. 29, in [0, 1]."""
    return min(1.0, sum(alpha * parts[name] for name, alpha in WEIGHTS.items()))  # Eq. 29


def readings(
    example: Example, completions: Sequence[str], cut: Sequence[bool] = ()
) -> list[Reading]:
    """Each completion as the program reads it. Raises ValueError for a `cut` of another length."""
    state, flags = state_at(example), cut or [False] * len(completions)
    pairs = zip(completions, flags, strict=True)
    return [read_decision(text, state, flag) for text, flag in pairs]


def world_at(example: Example) -> World:
    """Raises ConfigError for an example that is not of MiniGAIA."""
    try:
        return world_of(example.meta["world"], state_at(example))
    except (KeyError, TypeError, AttributeError, ValueError):
        raise ConfigError(
            f"example {example.id}: has no world to score it in, as those of training.world have; "
            "use --reward judge"
        ) from None


def rubric(example: Example, completions: list[str], cut: Sequence[bool] = ()) -> list[Scores]:
    """Eq. 29 by rule: no model is asked."""
    world, read = world_at(example), readings(example, completions, cut)
    rows = [rubric_parts(world, reading) for reading in read]
    return [Scores(weighted(row), row, bool(row["action"])) for row in rows]


def outcome(example: Example, completions: list[str], cut: Sequence[bool] = ()) -> list[Scores]:
    """1 where the answer comes out right, else 0."""
    world, read = world_at(example), [r.decision for r in readings(example, completions, cut)]
    rows = [(float(plays_on(world, y)) if y else 0.0, y is not None) for y in read]
    return [Scores(right, {"outcome": right}, valid) for right, valid in rows]


REWARDS: dict[str, Callable[..., Reward]] = {"rubric": lambda: rubric, "outcome": lambda: outcome}


def make(name: str, **settings: Any) -> Reward:
    """The reward of a --reward. Raises ConfigError for one that does not exist, or bad settings."""
    from training.judge import made  # imports this module

    rewards: dict[str, Callable[..., Reward]] = REWARDS | {"judge": made}
    if name not in rewards:
        raise ConfigError(f"--reward {name}: give one of {', '.join(rewards)}")
    try:
        return validate_call(rewards[name])(**settings)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ConfigError(f"--reward {name}: the setting {where}: {first['msg'].lower()}") from None
