"""--what-if PLACE=VALUE: in a fork, what a run decided, found or saw is replaced. PLACE is one of

    r2         the decision of round 2: {"action": "complete", "answer": "7:49"}, or
               {"action": "delegate", "subtasks": [{"id": "t1", "instruction": "Read the clock."}]}
    r1/t2      the result of a sub-task: {"status": "failed", "error": "The page is gone."}
    r1/t2/s3   the observation of a tool: a text, or {"observation": "not found", "failed": true}

The values have the fields of these events in trajectory.jsonl. They are stored in run.json, which
may come from someone else. What replaces something stands around it: a method around the method, a
sub-agent around each sub-agent, a tool around each tool.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import wraps
from pathlib import Path
from typing import Any, Literal, cast

from pydantic import BaseModel, ConfigDict, StrictBool, TypeAdapter, ValidationError

from orchestra.kernel.folder import Event
from orchestra.kernel.job import Agent, Job
from orchestra.kernel.method import Ask, Method
from orchestra.kernel.tool import Environment, Tool
from orchestra.kernel.vocabulary import (
    Complete,
    ConfigError,
    Decision,
    Delegate,
    Place,
    Result,
    State,
    Status,
    ToolError,
)
from orchestra_min import Parts

MOST_SHOWN = 20  # places
# What each place takes, for an error
DECISION = (
    'a decision is {"action": "complete", "answer": TEXT} or '
    '{"action": "delegate", "subtasks": [{"id": TEXT, "instruction": TEXT}]}'
)
RESULT = (
    'a result is {"status": "done", "answer": TEXT, "summary": TEXT, "error": TEXT}, '
    "of which only status is needed"
)
OBSERVATION = 'an observation is a text, or {"observation": TEXT, "failed": true}'


class ResultRow(BaseModel):
    model_config = ConfigDict(extra="forbid")
    status: Status
    answer: str = ""
    summary: str = ""
    error: str = ""


class Observed(BaseModel):
    """The observation of a tool, and whether it is an error."""

    model_config = ConfigDict(extra="forbid")
    observation: str
    failed: StrictBool = False


class Acted(BaseModel):
    """A decision, as far as its other fields depend on it."""

    action: Literal["complete", "delegate"] = "delegate"


@dataclass(frozen=True)
class Replaced:
    """What is replaced in a run, by its place."""

    decisions: dict[int, Decision] = field(default_factory=dict)
    results: dict[Place, Result] = field(default_factory=dict)
    observations: dict[str, Observed] = field(default_factory=dict)


# ---- what the user wrote -------------------------------------------------------------------------


def replaced(rows: Mapping[str, Any]) -> Replaced:
    """What the values of these places say. Raises ConfigError, which names the place."""
    found = Replaced()
    for text, row in rows.items():
        place = place_of(text)
        try:
            if place.step:
                row = {"observation": row} if isinstance(row, str) else row
                found.observations[str(place)] = Observed.model_validate(row)
            elif place.subtask:
                found.results[place] = Result(
                    **ResultRow.model_validate(row).model_dump()
                )
            else:
                found.decisions[place.round] = decision_of(row)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "the value"
            told, _, _ = first["msg"].partition(" or instance of")
            problem = f"{where}: {told}; {_accepted(place)}"
            raise ConfigError(f"--what-if {text}: {problem}") from None
    return found


def decision_of(row: Any) -> Decision:
    """y_t from JSON, as a trajectory has it. Raises ValidationError."""
    kind = Complete if Acted.model_validate(row).action == "complete" else Delegate
    return cast(Decision, TypeAdapter(kind).validate_python(row))


def place_of(text: str) -> Place:
    """The place of a decision, a result or an observation. Raises ConfigError."""
    place = Place.parse(text)
    if place is None or place.part or (place.step and not place.subtask):
        raise ConfigError(f"--what-if {text}: write r2, r1/t2 or r1/t2/s3")
    return place


def _accepted(place: Place) -> str:
    """What a place takes."""
    if place.step:
        return OBSERVATION
    return RESULT if place.subtask else DECISION


def given(words: Sequence[str]) -> dict[str, Any]:
    """The values of --what-if PLACE=VALUE, by their places. A VALUE may be @FILE. Raises
    ConfigError.
    """
    rows: dict[str, Any] = {}
    for word in words:
        place, equals, text = word.partition("=")
        if not equals:
            raise ConfigError(f"--what-if {word}: needs PLACE=VALUE, or PLACE=@FILE")
        try:
            if text.startswith("@"):
                text = Path(text[1:]).read_text(encoding="utf-8-sig")
            text.encode()
        except (OSError, UnicodeError) as error:
            raise ConfigError(f"--what-if {place}: cannot be read ({error})") from None
        rows[place] = _value(place, text)
    return rows


def _value(place: str, text: str) -> Any:
    """JSON, or the text of an observation."""
    is_observation = place_of(place).step > 0
    try:
        value = json.loads(text)
        json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        if is_observation:
            return text
        problem = f"the value is not JSON; {_accepted(place_of(place))}"
        raise ConfigError(f"--what-if {place}: {problem}") from None
    return value if isinstance(value, dict) or not is_observation else text


def check_places(rows: Mapping[str, Any], events: Sequence[Event]) -> None:
    """Raises ConfigError for a place that a run did not have, or where no tool was called."""
    known = [str(place).removesuffix("/main") for place in _places(events)]
    for text in rows:
        if str(place_of(text)).removesuffix("/main") not in known:
            listed = ", ".join(known[:MOST_SHOWN]) or "none"
            raise ConfigError(
                f"--what-if {text}: the run has no such place; it has {listed}"
            )


def _places(events: Sequence[Event]) -> dict[Place, None]:
    """The decisions, sub-tasks and calls of assigned tools in the events of a run, in order."""
    found: dict[Place, None] = {}
    tools: dict[Place, Sequence[str]] = {}
    for event in events:
        place = Place(*event["at"])
        match event["event"]:
            case "decision":
                found[Place(place.round)] = None
            case "subtask":
                found[place] = None
                tools[place] = event["subtask"]["tools"] or ()
            case "step" if event["action"] in tools.get(place._replace(step=0), ()):
                found[place] = None
    return found


# ---- what stands around the parts ----------------------------------------------------------------


def replace_in(parts: Parts, found: Replaced) -> Parts:
    """The parts of a run with something replaced. Raises ConfigError for a decision that they
    cannot carry out.
    """
    for t, y_t in found.decisions.items():
        _check(t, y_t, parts)
    method = cast(Method, UserDecides(parts.method, found.decisions))
    agents = parts.agents
    tools = parts.tools
    if found.results:
        agents = {name: _acting(agent, found.results) for name, agent in agents.items()}
    if found.observations:
        tools = {
            name: _observing(tool, found.observations) for name, tool in tools.items()
        }
    return replace(parts, method=method, agents=agents, tools=tools)


def _check(t: int, y_t: Decision, parts: Parts) -> None:
    """Raises ConfigError for a decision with a backend, a tool or a sub-agent that a run does not
    have. A run folder may come from someone else, so nothing is loaded for it.
    """
    for u in y_t.subtasks if isinstance(y_t, Delegate) else ():
        named = [("backend", name, parts.pool.names) for name in [u.backend] if name]
        named += [
            ("sub-agent", name, tuple(parts.agents)) for name in [u.agent] if name
        ]
        named += [("tool", name, tuple(parts.tools)) for name in u.tools or ()]
        for kind, name, known in named:
            if name not in known:
                problem = (
                    f"{name!r} is not a {kind} of this run; one of {', '.join(known)}"
                )
                raise ConfigError(f"--what-if r{t}, {u.id}: {problem}")


class UserDecides:
    """A method whose decisions in some rounds are the user's; all else is another method's."""

    def __init__(self, method: Method, decisions: Mapping[int, Decision]) -> None:
        self._method = method
        self._decisions = decisions

    def __getattr__(self, name: str) -> Any:
        return getattr(self._method, name)

    def decide(
        self, state: State, ask: Ask, mistake: str, last_chance: bool
    ) -> Decision:
        """Raises ConfigError if the run could not carry out the user's decision."""
        if state.round not in self._decisions:
            return self._method.decide(state, ask, mistake, last_chance)
        if mistake:
            raise ConfigError(f"--what-if r{state.round}: {mistake}")
        return self._decisions[state.round]


def _acting(agent: Agent, results: Mapping[Place, Result]) -> Agent:
    """A sub-agent whose results at some places are given."""

    @wraps(agent, updated=())
    def act(job: Job) -> Result:
        return results[job.place] if job.place in results else agent(job)

    return act


def _observing(tool: Tool, observations: Mapping[str, Observed]) -> Tool:
    """A tool whose observations in some steps, as r1/t2/s3, are given."""

    def function(env: Environment, **arguments: Any) -> str:
        step = env.tape.current_call.rpartition("/")[0]
        if step not in observations:
            return tool.function(env, **arguments)
        if observations[step].failed:
            raise ToolError(observations[step].observation)
        return observations[step].observation

    return replace(tool, function=function)
