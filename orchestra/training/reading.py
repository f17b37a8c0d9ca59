"""What a completion says: the decision that the program would carry out, if there is one.

Differences of format and action from App. B.4: here they say what the program would do
1. A missing "params" costs `format` alone: the program reads the fields next to "action".
2. An unknown tool or backend costs `action`: the program would refuse the decision.
3. Completing before anything was seen of a task with files costs `action`, as in small_models.py.
4. An incomplete reply, cut at its limit, costs `action`: the program would ask again.
5. A tool that cannot open the file of its sub-task costs nothing here: a state does not say what
   the tools can do. The program would refuse the decision.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from orchestra.kernel.placing import Graph, refine
from orchestra.kernel.vocabulary import (
    Decision,
    Delegate,
    ModelMistake,
    Reply,
    State,
    SubTask,
)
from orchestra.methods.main_agent import nothing_seen
from orchestra.methods.main_agent import read_decision as read_reply
from orchestra.methods.orchestra_o1 import read_delegation
from orchestra.methods.replies import MAX_CHARS
from orchestra.training.examples import Example, state_of
from orchestra.training.rewards import Completion

AROUND = re.compile(  # thinking before the object, and a fence around it
    r"(?:<think(?:ing)?>.*?</think(?:ing)?>)?\s*(?:```(?:json)?\s*\n(.*)```|(.*))", re.S
)


@dataclass(frozen=True)
class Reading:
    """`format`: the text is one JSON object with an action and its params, and nothing else but
    thinking before it and a fence around it. `decision` None: the program could not carry it out.
    """

    format: bool
    decision: Decision | None


def readings(example: Example, completions: Sequence[Completion]) -> list[Reading]:
    """Completions as they would be read in the state of an example. Raises KeyError, TypeError or
    ValueError for an example that has no state.
    """
    state = state_of(example.meta["state"])
    return [read_decision(c.text, state, c.cut) for c in completions]


def parse_decision(
    text: str, state: State, cut: bool = False, last_chance: bool = False
) -> Decision:
    """y_t as Orchestra-o1 reads a reply, but a task with files cannot be completed before anything
    was seen of it. Raises ModelMistake.
    """
    may_complete = not nothing_seen(state)
    reply = Reply(text, cut=cut)
    return read_reply(read_delegation, reply, state, last_chance, may_complete)


def read_decision(text: str, state: State, cut: bool = False) -> Reading:
    """`cut`: the text stopped at its length limit; only a complete decision in it counts. No text
    makes this raise.
    """
    is_plain = _is_plain(text)
    try:
        decision = parse_decision(text, state, cut)
        if isinstance(decision, Delegate):
            _check(decision, state)
    except ModelMistake:
        return Reading(is_plain, None)
    return Reading(is_plain, decision)


def _check(decision: Delegate, state: State) -> None:
    """Raises ModelMistake for sub-tasks that do not fit the graph G_t, or that come too late."""
    if state.round > state.rounds:
        raise ModelMistake("last_chance", "delegation")
    subtasks = {h.id: SubTask(h.id, h.instruction) for h in state.history}
    for id, needs in state.waiting.items():
        subtasks[id] = SubTask(id, instruction="", needs=needs)
    ended: Any = {}  # evidence in place of results: their status is all that counts
    for h in state.history:
        if h.id not in state.waiting:
            ended[h.id] = h
    refine(Graph(subtasks, ended), decision)


def _is_plain(text: str) -> bool:
    """The `format` of a Reading."""
    found = AROUND.fullmatch(text[:MAX_CHARS].strip())
    if found is None:
        return False
    fenced, bare = found.groups()
    try:
        value = json.loads(bare if fenced is None else fenced)
    except (ValueError, RecursionError):
        return False
    if not isinstance(value, dict):
        return False
    has_action = isinstance(value.get("action"), str)
    has_params = isinstance(value.get("params"), dict)
    return has_action and has_params
