"""Rewards of decisions, one interface: `make(name)(example, completions, cut)`, a group at a time.

    rubric          Eq. 29: format and action are computed, tool and decision come from the rule of
                    alignment.py, an offline stand-in for the judge
    judge           Eq. 29 with the four scores of a language model (judge.py)
    outcome         vanilla GRPO: 1 for the right decision, else 0. It sees whether the answer is
                    right, or whether the sub-tasks are the reference's one for one; not how near
                    they come, nor whether a wrong reply was at least well formed
    toolorchestra   arXiv 2511.21689: M_hat . P where correct, else 0

Differences from the papers
1. The reward of ToolOrchestra sees the end of a run. Offline a single decision is seen: correct is
   what `outcome` sees.
2. M_hat . P is divided by the sum of P, so that it stays in [0, 1]; advantages do not change.
3. Cost and latency of M are those that the decision commits to: a price for each sub-task, and the
   longest chain of needs. The group of M_hat is of the decisions that could be carried out.

Differences of format and action from App. B.4: here they say what the program would do
4. A missing "params" costs `format` alone: the program reads the fields that stand beside "action".
5. A tool or a backend that is unknown costs `action`: the program would refuse the decision.
6. Completing before anything was seen of a task with files costs `action`: it would be refused too.
7. A reply that was cut at its limit and is not whole costs `action`: the program would ask again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from orchestra.vocabulary import ConfigError, Decision, Delegate, SubTask
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


# ---- ToolOrchestra -------------------------------------------------------------------------------

PREFERENCE = {"outcome": 1.0, "cost": 0.2, "latency": 0.2}


def toolorchestra(
    preference: Mapping[str, float] = PREFERENCE, cost_usd: Mapping[str, float] | None = None
) -> Reward:
    """R = M_hat . P where the decision is right, else 0. M = [calls of each tool, outcome, -cost,
    -latency], each min-max normalised within the group, 0 where all are equal.

    `preference` is P by name: a tool's, "outcome", "cost", "latency". `cost_usd` prices a sub-task
    by its backend, 1 for any other. Raises ConfigError for a P outside of [0, 1].
    """
    if not preference or not all(0 <= p <= 1 for p in preference.values()):
        raise ConfigError(f"toolorchestra: the preference {dict(preference)} must lie in [0, 1]")
    if not sum(preference.values()):
        raise ConfigError("toolorchestra: the preference is 0 for everything")
    if not all(map(math.isfinite, (cost_usd or {}).values())):
        raise ConfigError(f"toolorchestra: cost_usd {dict(cost_usd or {})} must be finite")

    def reward(
        example: Example, completions: list[str], cut: Sequence[bool] = ()
    ) -> list[Scores | None]:
        seen = look(example, completions, cut)
        taken = [(r.decision, m) for r, m in seen if r.decision and m]
        rows = iter(_normalised([_measures(d, m, cost_usd or {}) for d, m in taken]))
        total: list[Scores | None] = []
        for _, match in seen:
            parts = {k: v for k, v in next(rows).items() if k in preference} if match else {}
            parts = {k: parts.get(k, 0.0) for k in preference}
            said = sum(p * parts[k] for k, p in preference.items()) / sum(preference.values())
            right = match is not None and match.right
            total.append(scores(min(1.0, said) if right else 0.0, parts, match))
        return total

    return reward


def _measures(decision: Decision, match: Match, cost_usd: Mapping[str, float]) -> dict[str, float]:
    """M of one decision."""
    subtasks = decision.subtasks if isinstance(decision, Delegate) else ()
    calls = [tool for u in subtasks for tool in u.tools or ()]
    cost = sum(cost_usd.get(u.backend or "auto", 1.0) for u in subtasks)
    ends = {"outcome": float(match.right), "cost": -cost, "latency": -float(_longest(subtasks))}
    return {**{tool: float(calls.count(tool)) for tool in calls}, **ends}


def _longest(subtasks: Sequence[SubTask]) -> int:
    """The length of the longest chain of needs: the graph was checked, so it ends."""
    depth: dict[str, int] = {}
    waiting = list(subtasks)
    own = {u.id for u in subtasks}
    while waiting:
        free = [u for u in waiting if own & set(u.needs) <= depth.keys()]
        depth |= {u.id: 1 + max((depth[n] for n in u.needs if n in own), default=0) for u in free}
        waiting = [u for u in waiting if u.id not in depth]
    return max(depth.values(), default=0)


def _normalised(rows: Sequence[Mapping[str, float]]) -> list[dict[str, float]]:
    """M_hat: (m - min) / (max - min) over the group, 0 where max = min."""
    names = dict.fromkeys(name for row in rows for name in row)
    low = {k: min(row.get(k, 0.0) for row in rows) for k in names}
    span = {k: max(row.get(k, 0.0) for row in rows) - low[k] for k in names}
    return [
        {k: (row.get(k, 0.0) - low[k]) / span[k] if span[k] else 0.0 for k in names} for row in rows
    ]


REWARDS: dict[str, Callable[..., Reward]] = {
    "rubric": rubric,
    "judge": judge,
    "outcome": outcome,
    "toolorchestra": toolorchestra,
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
