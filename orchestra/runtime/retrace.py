"""The rounds of a recorded run, each with the state that the program had in it.

The events of a trajectory do not repeat what follows from earlier ones. So s_t, G_t and B_t are put
together again from the decisions and results, by the functions that the run used. A run folder may
come from someone else: its events are checked first, and nothing that it names is loaded.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, NotRequired

from pydantic import Field, ValidationError
from typing_extensions import TypedDict

from orchestra.contracts import adapter
from orchestra.matching import Capabilities
from orchestra.memory import compress, summarize
from orchestra.money import Purse
from orchestra.runtime import trajectory
from orchestra.runtime.prompts import WORDING
from orchestra.runtime.run_folder import Manifest
from orchestra.schedule import Graph, refine
from orchestra.vocabulary import (
    Complete,
    ConfigError,
    Decision,
    Delegate,
    Evidence,
    ModelMistake,
    Place,
    Result,
    State,
    Status,
    SubTask,
    Task,
)

# ---- the events that are read --------------------------------------------------------------------

At = tuple[int, int, int]
Usd = Annotated[float, Field(allow_inf_nan=False)]


class DecisionEvent(TypedDict):
    """One attempt at y_t. It has a mistake or a decision."""

    event: Literal["decision"]
    at: At
    rounds: int
    budget_usd: Usd | None
    waiting: dict[str, tuple[str, ...]]
    reply: str
    cost_usd: Usd | None
    mistake: NotRequired[str]
    decision: NotRequired[dict[str, Any]]
    what_if: NotRequired[bool]  # the user's decision, not the main agent's


class SubTaskEvent(TypedDict):
    event: Literal["subtask"]
    at: At
    subtask: SubTask
    share_usd: Usd | None


class ResultEvent(TypedDict):
    event: Literal["result"]
    at: At
    status: Status
    answer: str
    summary: str
    cost_usd: Usd | None
    error: str
    media: tuple[str, ...]
    steps: NotRequired[int]


Event = Annotated[
    DecisionEvent | SubTaskEvent | ResultEvent, Field(discriminator="event")
]
WHY_CHARS = 120
READ = ("decision", "subtask", "result")  # a step changes no state


def decision_of(row: dict[str, Any]) -> Decision:
    """y_t from the row that trajectory.decision_row made. Raises ValidationError."""
    if row.get("action") == "complete":
        complete: Complete = adapter(Complete).validate_python(row)
        return complete
    whole_graph = row.get("whole_graph", row.get("drain", False))  # `drain`: version 2
    fields = {**row, "whole_graph": whole_graph}
    delegate: Delegate = adapter(Delegate).validate_python(fields)
    return delegate


# ---- rounds --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ran:
    """A sub-task as it was placed, and its result; None if it did not end."""

    place: Place
    subtask: SubTask
    share_usd: float | None
    result: Result | None


@dataclass(frozen=True)
class Round:
    """Round t of a run. `y_t` None: no attempt was usable. `before`: G_t, `graph`: G_t with y_t.
    `left_usd`: what the decision left of B_t. `end_usd`: what the sub-tasks left of it.
    """

    state: State
    before: Graph
    attempts: tuple[DecisionEvent, ...]
    y_t: Decision | None
    graph: Graph
    ran: tuple[Ran, ...]  # in submission order
    left_usd: float | None
    end_usd: float | None


def rounds(
    folder: Path, manifest: Manifest, task: Task, psi: Capabilities
) -> list[Round]:
    """The rounds of a run that have a decision. `psi`: its tools and what they can do. Raises
    ConfigError.
    """
    path = folder / "trajectory.jsonl"
    read = [event for event in trajectory.read(path) if event["event"] in READ]
    try:
        events: list[Any] = adapter(list[Event]).validate_python(read)
        of_round: dict[int, list[Any]] = defaultdict(list)
        for event in events:
            of_round[event["at"][0]].append(event)
        past = _Past(manifest, task, psi)
        return [past.round(t, events) for t, events in of_round.items()]
    except (ValueError, ModelMistake) as error:
        problem = f"has an event that does not fit ({_why(error)}); restore a copy"
        raise ConfigError(f"{path} {problem}") from None


def _why(error: ValueError | ModelMistake) -> str:
    """What is wrong with the events, in a few words."""
    if isinstance(error, ModelMistake):
        return error.rule
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        where = ".".join(str(key) for key in first["loc"])
        return f"{where}: {first['msg']}"[:WHY_CHARS]
    return str(error)[:WHY_CHARS]


class _Past:
    """What a run knew: G_t, H_t, and the purse of B_t."""

    def __init__(self, manifest: Manifest, task: Task, psi: Capabilities) -> None:
        self.manifest = manifest
        self.task = task
        self.psi = psi
        self.graph = Graph()
        self.history: tuple[Evidence, ...] = ()
        self.purse = Purse(manifest.in_round(1).options.budget_usd)

    def round(self, t: int, events: Sequence[Any]) -> Round:
        """The next round. Raises ValueError or ModelMistake for events that do not fit."""
        attempts = tuple(e for e in events if e["event"] == "decision")
        if not attempts:
            raise ValueError(f"round {t} has no decision")
        state = self.state(t, attempts[0])
        before = self.graph
        y_t = self.decide(attempts)
        left_usd = self.purse.left_usd
        ran = _ran(events)
        graph = self.graph
        for each in ran:
            self.remember(each)
        return Round(
            state=state,
            before=before,
            attempts=attempts,
            y_t=y_t,
            graph=graph,
            ran=ran,
            left_usd=left_usd,
            end_usd=self.purse.left_usd,
        )

    def state(self, t: int, attempt: DecisionEvent) -> State:
        """s_t, Eq. 1 and 21. Attempts of calls that got no answer are not in the events: B_t is the
        recorded one.
        """
        budget_usd = attempt["budget_usd"]
        if budget_usd != self.purse.left_usd:
            self.purse = Purse(budget_usd)
        settings = self.manifest.in_round(t)
        limit = settings.options.context_tokens
        return State(
            task=self.task,
            context=compress(self.task.question, self.history, WORDING, limit),
            history=self.history,
            backends=settings.pool.sub_models,
            tools=tuple(self.psi),
            round=t,
            rounds=attempt["rounds"],
            budget_usd=budget_usd,
            waiting=attempt["waiting"],
            capabilities=self.psi,
        )

    def decide(self, attempts: Sequence[DecisionEvent]) -> Decision | None:
        """y_t, paid from B_t and merged into G_t."""
        for attempt in attempts:
            self.purse.charge(attempt["cost_usd"])
        row = attempts[-1].get("decision")
        if row is None:
            return None
        y_t = decision_of(row)
        if isinstance(y_t, Delegate):
            graph = Graph() if y_t.whole_graph else self.graph
            self.graph = refine(graph, y_t)
        return y_t

    def remember(self, ran: Ran) -> None:
        """Add a result to G_t and H_t, and take its cost from B_t."""
        z = ran.result
        if z is not None:
            self.graph = self.graph.with_result(ran.subtask.id, z)
            self.history = (*self.history, summarize(ran.subtask, z))
            self.purse.charge(z.cost_usd)


def _ran(events: Sequence[Any]) -> tuple[Ran, ...]:
    results: dict[int, Result] = {}
    for event in events:
        if event["event"] == "result":
            round, number, _ = event["at"]
            results[number] = Result(
                status=event["status"],
                answer=event["answer"],
                summary=event["summary"],
                cost_usd=event["cost_usd"],
                error=event["error"],
                media=event["media"],
                round=round,
                steps=event.get("steps", 0),
            )
    found = []
    for event in events:
        if event["event"] == "subtask":
            round, number, _ = event["at"]
            ran = Ran(
                place=Place(round, number),
                subtask=event["subtask"],
                share_usd=event["share_usd"],
                result=results.get(number),
            )
            found.append(ran)
    return tuple(found)


# ---- decisions -----------------------------------------------------------------------------------


class Decided(NamedTuple):
    """A decision y_t of a run, with s_t, G_t without it, and the reply. `mistake` is that of the
    attempt before it, as the main agent was told; "" if it was the first attempt.
    """

    state: State
    graph: Graph
    y_t: Decision
    place: Place
    reply: str
    mistake: str


def decisions(
    folder: Path, manifest: Manifest, task: Task, psi: Capabilities
) -> list[Decided]:
    """The decisions of a run, each with its s_t (Eq. 1, 21). `psi`: the tools of the run and what
    they can do. Raises ConfigError.
    """
    found = []
    for round in rounds(folder, manifest, task, psi):
        if round.y_t is None:
            continue
        *before, last = round.attempts
        if "what_if" in last:
            continue
        decided = Decided(
            state=round.state,
            graph=round.before,
            y_t=round.y_t,
            place=Place(*last["at"]),
            reply=last["reply"],
            mistake=before[-1].get("mistake", "") if before else "",
        )
        found.append(decided)
    return found
