"""A completion as the program would read it, and its reward, a group at a time:
`make(name)(example, completions, cut)`.

    rubric     Eq. 29 by rule: what the decision would find in the world of MiniGAIA (world.py)
    judge      Eq. 29 with the four scores of a language model (judge.py); for recorded runs too
    outcome    vanilla GRPO: 1 if the task's answer comes out right when the expert continues after
               the decision, else 0 (world.py)

Differences of format and action from App. B.4: here they say what the program would do
1. A missing "params" costs `format` alone: the program reads the fields next to "action".
2. An unknown tool or backend costs `action`: the program would refuse the decision.
3. Completing before anything was seen of a task with files costs `action`: it is refused too.
4. An incomplete reply, cut at its limit, costs `action`: the program would ask again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestra.methods.orchestra_o1 import parse_decision
from orchestra.minigaia.world import World, world_of
from orchestra.runtime.parsing import MAX_CHARS
from orchestra.runtime.pool import Invalid
from orchestra.schedule import Graph, refine
from orchestra.training.examples import Example, state_of
from orchestra.training.world import rubric_parts, solved_from
from orchestra.vocabulary import (
    ConfigError,
    Decision,
    Delegate,
    ModelMistake,
    State,
    SubTask,
)

WEIGHTS = {
    "format": 0.1,
    "action": 0.1,
    "tool": 0.2,
    "decision": 0.6,
}  # alpha of Eq. 29
AROUND = re.compile(  # thinking before the object, and a fence around it
    r"(?:<think(?:ing)?>.*?</think(?:ing)?>)?\s*(?:```(?:json)?\s*\n(.*)```|(.*))", re.S
)


@dataclass(frozen=True)
class Scores:
    """The reward of one completion, in [0, 1], and its parts. `valid`: the program could carry the
    decision out.
    """

    total: float
    parts: dict[str, float]
    valid: bool


# Of a group of completions; `cut`: which of them stopped at the length limit, () for none. None
# stands for a sample to drop. Raises KeyError, TypeError or ValueError for an example that it
# cannot score.
Reward = Callable[..., Sequence[Scores | None]]

# ---- what a completion says ----------------------------------------------------------------------


@dataclass(frozen=True)
class Reading:
    """`format`: one JSON object with an action and its params, and nothing else but thinking before
    it and a fence around it. `decision` None: the program could not carry it out.
    """

    format: bool
    decision: Decision | None


def readings(
    example: Example, completions: Sequence[str], cut: Sequence[bool] = ()
) -> list[Reading]:
    """Raises ValueError for a `cut` of another length."""
    state, flags = state_of(example.meta["state"]), cut or [False] * len(completions)
    return [
        read_decision(text, state, c)
        for text, c in zip(completions, flags, strict=True)
    ]


def read_decision(text: str, state: State, cut: bool = False) -> Reading:
    """`cut`: the text stopped at its length limit; only a complete decision in it counts. No text
    makes this raise.
    """
    try:
        decision = parse_decision(text, state, cut=cut)
        if isinstance(decision, Delegate):
            _check(decision, state)
    except ModelMistake:
        return Reading(_is_plain(text), None)
    return Reading(_is_plain(text), decision)


def _check(decision: Delegate, state: State) -> None:
    """Raises ModelMistake for sub-tasks that do not fit the graph G_t, or that come too late."""
    if state.round > state.rounds:
        raise ModelMistake("last_chance", "delegation")
    nodes = {h.id: SubTask(h.id, h.instruction) for h in state.history}
    nodes |= {id: SubTask(id, "", needs=needs) for id, needs in state.waiting.items()}
    ended: Any = {
        h.id: h for h in state.history if h.id not in state.waiting
    }  # with a status
    refine(Graph(nodes, ended), decision)


def _is_plain(text: str) -> bool:
    body = AROUND.fullmatch(text[:MAX_CHARS].strip())
    try:
        value = json.loads(body[1] or body[2]) if body else None
    except (ValueError, RecursionError):
        return False
    fields = value if isinstance(value, dict) else {}
    return isinstance(fields.get("action"), str) and isinstance(
        fields.get("params"), dict
    )


# ---- what it is worth ----------------------------------------------------------------------------


def rubric_scores(world: World, reading: Reading) -> Scores:
    """Eq. 29 by rule."""
    parts = {
        "format": float(reading.format),
        "action": float(reading.decision is not None),
    }
    parts |= rubric_parts(world, reading.decision)
    return Scores(weighted(parts), parts, reading.decision is not None)


def weighted(parts: Mapping[str, float]) -> float:
    """r of Eq. 29, in [0, 1]."""
    return min(
        1.0, sum(alpha * parts[name] for name, alpha in WEIGHTS.items())
    )  # Eq. 29


def world_at(example: Example) -> World:
    return world_of(example.meta["world"], state_of(example.meta["state"]))


def rubric(
    example: Example, completions: list[str], cut: Sequence[bool] = ()
) -> list[Scores]:
    world = world_at(example)
    return [
        rubric_scores(world, reading) for reading in readings(example, completions, cut)
    ]


def outcome(
    example: Example, completions: list[str], cut: Sequence[bool] = ()
) -> list[Scores]:
    """1 if the answer comes out right, else 0."""
    world, read = (
        world_at(example),
        [r.decision for r in readings(example, completions, cut)],
    )
    right = [float(y is not None and solved_from(world, y)) for y in read]
    return [
        Scores(r, {"outcome": r}, y is not None)
        for r, y in zip(right, read, strict=True)
    ]


REWARDS: dict[str, Reward] = {"rubric": rubric, "outcome": outcome}


def make(name: str, **settings: Any) -> Reward:
    """The reward of a --reward. Raises ConfigError for one that does not exist, or bad settings."""
    if name == "judge":
        from orchestra.training.judge import Judge, Settings  # imports this module

        try:
            return Judge(Settings(**settings))
        except Invalid as error:
            raise ConfigError(f"--reward judge: the setting {error}") from None
    if name not in REWARDS or settings:
        given = f"{name} with {', '.join(settings)}" if settings else name
        raise ConfigError(
            f"--reward {given}: give {', '.join(REWARDS)}, or judge and its settings"
        )
    return REWARDS[name]
