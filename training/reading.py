"""A completion read as the program would read it."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from orchestra.schedule import Graph, refine
from orchestra.vocabulary import ConfigError, Decision, Delegate, ModelMistake, State, SubTask
from orchestrators.orchestra_o1 import parse_decision
from runtime.parsing import MAX_CHARS
from training.examples import Example, state_of

_AROUND = re.compile(  # thinking before the object, and a fence around it
    r"(?:<think(?:ing)?>.*?</think(?:ing)?>)?\s*(?:```(?:json)?\s*\n(.*)```|(.*))", re.S
)


@dataclass(frozen=True)
class Reading:
    """`format`: one JSON object with an action and its params, and nothing else but thinking before
    it and a fence around it. `decision` None: the program could not carry it out.
    """

    format: bool
    decision: Decision | None


def state_at(example: Example) -> State:
    """s_t of an example. Raises ConfigError where it has none."""
    try:
        return state_of(example.meta["state"])
    except (KeyError, TypeError, ValueError) as error:
        problem = str(error).splitlines()[0]
        raise ConfigError(
            f"example {example.id}: has no usable state ({problem}); make the file again"
        ) from None


def read_decision(text: str, state: State, cut: bool = False) -> Reading:
    """`cut`: the text stopped at its length limit; only a whole decision in it counts. No text
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
    """Raises ModelMistake for sub-tasks that the graph G_t does not take, or that come too late."""
    if state.round > state.rounds:
        raise ModelMistake("last_chance", "delegation")
    nodes = {h.id: SubTask(h.id, h.instruction) for h in state.history}
    nodes |= {id: SubTask(id, "", needs=needs) for id, needs in state.waiting.items()}
    ended: Any = {h.id: h for h in state.history if h.id not in state.waiting}  # with a status
    refine(Graph(nodes, ended), decision)


def _is_plain(text: str) -> bool:
    body = _AROUND.fullmatch(text[:MAX_CHARS].strip())
    try:
        value = json.loads(body[1] or body[2]) if body else None
    except (ValueError, RecursionError):
        return False
    fields = value if isinstance(value, dict) else {}
    return isinstance(fields.get("action"), str) and isinstance(fields.get("params"), dict)
