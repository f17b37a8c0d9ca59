"""Rewards of decisions, one interface: `make(name)(example, completions, cut)`, a group at a time.

    rubric          Eq. 29: format and action are computed, tool and decision come from the rule of
                    alignment.py, an offline stand-in for the judge
    judge           Eq. 29 with the four scores of a language model (judge.py)
    outcome         vanilla GRPO: 1 for the right decision, else 0. It sees whether the answer is
                    right, or whether the sub-tasks are the reference's one for one; not how near
                    they come, nor whether a wrong reply was at least well formed

Differences of format and action from App. B.4: here they say what the program would do
1. A missing "params" costs `format` alone: the program reads the fields that stand beside "action".
2. A tool or a backend that is unknown costs `action`: the program would refuse the decision.
3. Completing before anything was seen of a task with files costs `action`: it would be refused too.
4. A reply that was cut at its limit and is not whole costs `action`: the program would ask again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from orchestra.vocabulary import ConfigError
from training.alignment import Match, compare
from training.examples import Example
from training.reading import Reading, read_decision, state_at

WEIGHTS = {"format": 0.1, "action": 0.1, "tool": 0.2, "decision": 0.6}  # alpha of Eq. 29


@dataclass(frozen=True)
class Scores:
    """The reward of one completion, in [0, 1], and its parts. `valid`: the program could carry the
    decision out. `exact`: it is the reference's in all that matters. Both mean the same for every
    reward.
    """

    total: float
    parts: dict[str, float]
    valid: bool
    exact: bool


class Reward(Protocol):
    """Of a group of completions; `cut`: which of them stopped at the length limit, () for none.
    None in the place of scores: a sample to drop.
    """

    def __call__(
        self, example: Example, completions: list[str], cut: Sequence[bool] = ()
    ) -> Sequence[Scores | None]: ...


def weighted(parts: Mapping[str, float]) -> float:
    """r of Eq. 29, in [0, 1]."""
    return min(1.0, sum(alpha * parts[name] for name, alpha in WEIGHTS.items()))  # Eq. 29


Seen = tuple[Reading, Match | None]  # a completion as the program reads it; None: no decision


def look(example: Example, completions: Sequence[str], cut: Sequence[bool] = ()) -> list[Seen]:
    """Each completion read, and how near it comes to the reference. Raises ValueError where `cut`
    is not as long as `completions`, nor empty.
    """
    state = state_at(example)
    flags = cut or [False] * len(completions)
    pairs = zip(completions, flags, strict=True)
    readings = [read_decision(text, state, flag) for text, flag in pairs]
    return [(r, compare(example, state, r.decision) if r.decision else None) for r in readings]


def scores(total: float, parts: dict[str, float], match: Match | None) -> Scores:
    return Scores(total, parts, match is not None, match is not None and match.exact)


# ---- Orchestra-o1 --------------------------------------------------------------------------------


def rubric() -> Reward:
    """Eq. 29 by rule: no model is asked."""

    def one(reading: Reading, match: Match | None) -> Scores:
        tool, decision = (match.tool, match.decision) if match else (0.0, 0.0)
        parts = {"format": float(reading.format), "action": float(match is not None)}
        parts |= {"tool": tool, "decision": decision}
        return scores(weighted(parts), parts, match)

    return lambda example, completions, cut=(): [
        one(*seen) for seen in look(example, completions, cut)
    ]


def judge(**settings: Any) -> Reward:
    """Eq. 29 by a language model; see judge.made for the settings."""
    from pydantic import validate_call

    from training.judge import made  # loads the client of the endpoints

    return validate_call(made)(**settings)


def outcome() -> Reward:
    """1 for the right decision, else 0."""

    def one(match: Match | None) -> Scores:
        right = float(match is not None and match.right)
        return scores(right, {"outcome": right}, match)

    return lambda example, completions, cut=(): [
        one(match) for _, match in look(example, completions, cut)
    ]


REWARDS: dict[str, Callable[..., Reward]] = {
    "rubric": rubric,
    "judge": judge,
    "outcome": outcome,
}


def make(name: str, **settings: Any) -> Reward:
    """The reward of a --reward. Raises ConfigError for one that there is not, or bad settings."""
    from pydantic import ValidationError, validate_call

    if name not in REWARDS:
        raise ConfigError(f"--reward {name}: is none of {', '.join(REWARDS)}")
    try:
        return validate_call(REWARDS[name])(**settings)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ConfigError(
            f"--reward {name}: the setting {where}: {first['msg'].lower()}; see training/"
            f"{'judge' if name == 'judge' else 'rewards'}.py"
        ) from None
