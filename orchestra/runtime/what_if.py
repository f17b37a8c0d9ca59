"""--what-if PLACE=VALUE: in a fork, what a run decided, found or saw is replaced. PLACE is one of

    r2         the decision of round 2: {"action": "complete", "answer": "7:49"}, or
               {"action": "delegate", "subtasks": [{"id": "t1", "instruction": "Read the clock."}]}
    r1/t2      the result of a sub-task: {"status": "failed", "error": "The page is gone."}
    r1/t2/s3   the observation of a tool: a text, or {"observation": "not found", "failed": true}

The values have the fields of these events in trajectory.jsonl. They are stored in run.json, which
may come from someone else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from json import JSONDecodeError
from pathlib import Path
from typing import Any, Literal, NotRequired

from pydantic import ConfigDict, StrictBool, ValidationError, with_config
from typing_extensions import TypedDict

from orchestra.contracts import adapter
from orchestra.runtime import outside
from orchestra.runtime.retrace import decision_of
from orchestra.runtime.spelling import did_you_mean
from orchestra.vocabulary import (
    ConfigError,
    Decision,
    Delegate,
    Place,
    Result,
    Status,
)

EXACT = ConfigDict(extra="forbid")
MOST_SHOWN = 20  # places
# What each place takes, for an error
DECISION = (
    '{"action": "complete", "answer": TEXT} or '
    '{"action": "delegate", "subtasks": [{"id": TEXT, "instruction": TEXT}]}'
)
RESULT = (
    '{"status": "done", "answer": TEXT, "summary": TEXT, "error": TEXT}, '
    "of which only status is needed"
)
OBSERVATION = '{"observation": TEXT, "failed": true}'


@with_config(EXACT)
class ResultRow(TypedDict):
    status: Status
    answer: NotRequired[str]
    summary: NotRequired[str]
    error: NotRequired[str]


@with_config(EXACT)
class Observed(TypedDict):
    """The observation of a tool, and whether it is an error."""

    observation: str
    failed: NotRequired[StrictBool]


class Acted(TypedDict):
    """A decision, as far as its other fields depend on it."""

    action: NotRequired[Literal["complete", "delegate"]]


class Replaced:
    """What is replaced in a run, by its place."""

    def __init__(self, rows: Mapping[str, Any]) -> None:
        """Raises ConfigError, which names the place."""
        self.decisions: dict[int, Decision] = {}
        self.results: dict[Place, Result] = {}
        self.observations: dict[Place, Observed] = {}
        for text, row in rows.items():
            try:
                self._add(place_of(text), row)
            except ValidationError as error:
                problem = f"{_wrong_in(error)}; {_accepted(place_of(text))}"
                raise ConfigError(f"--what-if {text}: {problem}") from None

    def _add(self, place: Place, row: Any) -> None:
        if place.step:
            row = {"observation": row} if isinstance(row, str) else row
            self.observations[place] = adapter(Observed).validate_python(row)
        elif place.subtask:
            fields = adapter(ResultRow).validate_python(row)
            fields = {"answer": "", "summary": "", **fields}
            self.results[place] = Result(**fields)
        else:
            adapter(Acted).validate_python(row)
            self.decisions[place.round] = decision_of(row)


def _wrong_in(error: ValidationError) -> str:
    """What is wrong with a value, and where in it."""
    first = error.errors()[0]
    where = ".".join(map(str, first["loc"])) or "the value"
    match first["type"]:
        case "missing":
            return f"{where} is missing"
        case "extra_forbidden" | "unexpected_keyword_argument":
            return f"{where} is not one of its fields"
        case "literal_error":
            return f"{where} is not {first['ctx']['expected']}"
        case _:
            return f"{where} does not fit"


def _accepted(place: Place) -> str:
    """What a place takes."""
    if place.step:
        return f"an observation is a text, or {OBSERVATION}"
    return f"a result is {RESULT}" if place.subtask else f"a decision is {DECISION}"


def check_decision(
    flag: str,
    y_t: Decision,
    backends: Sequence[str],
    tools: Sequence[str],
    agents: Sequence[str],
) -> None:
    """Raises ConfigError for a decision with a backend, a tool or a sub-agent that the run does not
    have. A run folder may come from someone else, so no file of a sub-agent is loaded for it.
    """
    subtasks = y_t.subtasks if isinstance(y_t, Delegate) else ()
    for u in subtasks:
        named = [("backend", u.backend, backends)] if u.backend else []
        named += [("sub-agent", u.agent, agents)] if u.agent else []
        named += [("tool", tool, tools) for tool in u.tools or ()]
        for kind, name, known in named:
            if name not in known:
                hint = did_you_mean(name, known) or f"; one of {', '.join(known)}"
                problem = f"{name!r} is not a {kind} of this run{hint}"
                raise ConfigError(f"{flag}, {u.id}: {problem}")


def place_of(text: str) -> Place:
    """The place of a decision, a result or an observation. Raises ConfigError."""
    place = Place.parse(text)
    if place is None or place.part or (place.step and not place.subtask):
        raise ConfigError(f"--what-if {text}: write r2, r1/t2 or r1/t2/s3")
    return place


def given(words: Sequence[str]) -> dict[str, Any]:
    """The values of --what-if PLACE=VALUE, by their places. A VALUE may be @FILE. Raises
    ConfigError.
    """
    rows: dict[str, Any] = {}
    for word in words:
        place, equals, text = word.partition("=")
        if not equals:
            raise ConfigError(f"--what-if {word}: needs PLACE=VALUE, or PLACE=@FILE")
        if text.startswith("@"):
            try:
                text = Path(text[1:]).read_text(encoding="utf-8-sig")
            except (OSError, UnicodeDecodeError) as error:
                raise ConfigError(
                    f"--what-if {word}: cannot be read ({error})"
                ) from None
        rows[place] = _value(place, text)
    return rows


def _value(place: str, text: str) -> Any:
    """JSON, or the text of an observation."""
    is_observation = place_of(place).step > 0
    try:
        data = text.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"--what-if {place}: the value is not UTF-8") from None
    try:
        value = outside.parsed(data)
    except ValueError as error:
        if is_observation:
            return text
        at = (
            f" (character {error.pos + 1})"
            if isinstance(error, JSONDecodeError)
            else ""
        )
        problem = f"the value is not JSON{at}; {_accepted(place_of(place))}"
        raise ConfigError(f"--what-if {place}: {problem}") from None
    return value if isinstance(value, dict) or not is_observation else text


def check_places(rows: Mapping[str, Any], events: Sequence[Mapping[str, Any]]) -> None:
    """Raises ConfigError for a place that a run did not have, or where no tool was called."""
    known = [str(Place(*at)) for at in _places(events)]
    known = [place.removesuffix("/main") for place in known]
    for text in rows:
        place = str(place_of(text)).removesuffix("/main")
        if place not in known:
            listed = ", ".join(known[:MOST_SHOWN]) or "none"
            hint = did_you_mean(place, known) or f"; it has {listed}"
            raise ConfigError(f"--what-if {text}: the run has no such place{hint}")


def _places(events: Sequence[Mapping[str, Any]]) -> list[tuple[int, int, int]]:
    """The decisions, sub-tasks and calls of assigned tools in the events of a run, in order."""
    found: dict[tuple[int, int, int], None] = {}
    tools: dict[tuple[int, int], Sequence[str]] = {}
    for event in events:
        if event["event"] not in ("decision", "subtask", "step"):
            continue
        t, j, step = event["at"]
        match event["event"]:
            case "decision":
                found[t, 0, 0] = None
            case "subtask":
                found[t, j, 0] = None
                tools[t, j] = event["subtask"]["tools"]
            case "step" if event["action"] in tools.get((t, j), ()):
                found[t, j, step] = None
    return list(found)
