"""Rewards of decisions, one interface: `make(name)(example, completions)`, a group at a time.

rubric          Eq. 29 with format and action computed, tool and decision by rule (alignment.py):
                an offline stand-in for the judge, and labelled so
judge           Eq. 29 with the four scores of a language model (judge.py)
outcome         vanilla GRPO: 1 for the right decision, else 0. It sees whether the answer is
                right, or whether the sub-tasks are the reference's one for one; not how near
                they come, nor whether the reply was well formed but wrong
mas             arXiv 2601.14652: w_exec * executed + w_ans * correct
toolorchestra   arXiv 2511.21689: M_hat . P where correct, else 0
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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


Reward = Callable[[Example, list[str]], list[Scores | None]]  # None: a sample to drop


def weighted(parts: Mapping[str, float]) -> float:
    """r of Eq. 29, in [0, 1]."""
    return min(1.0, sum(alpha * parts[name] for name, alpha in WEIGHTS.items()))  # Eq. 29


def look(example: Example, completions: Sequence[str]) -> list[tuple[Reading, Match | None]]:
    """Each completion as the program reads it, and how near it comes; None: it is no decision."""
    state = state_at(example)
    readings = [read_decision(text, state) for text in completions]
    return [(r, compare(example, state, r.decision) if r.decision else None) for r in readings]


def rubric() -> Reward:
    """Eq. 29 by rule: no model is asked."""

    def reward(example: Example, completions: list[str]) -> list[Scores | None]:
        return [_rubric(*seen) for seen in look(example, completions)]

    return reward


def _rubric(reading: Reading, match: Match | None) -> Scores:
    parts = {"format": float(reading.format), "action": float(match is not None)}
    parts |= {"tool": match.tool if match else 0.0, "decision": match.decision if match else 0.0}
    return Scores(weighted(parts), parts, match is not None, match is not None and match.exact)


REWARDS: dict[str, Callable[..., Reward]] = {"rubric": rubric}


def make(name: str, **settings: Any) -> Reward:
    return REWARDS[name](**settings)
