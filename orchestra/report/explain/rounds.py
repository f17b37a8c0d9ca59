"""The rounds of a recorded run, each with the state that the program had in it.

The events of a trajectory do not repeat what follows from earlier ones. So s_t, G_t and B_t are put
together again from the decisions and results, by the functions that the run used. Nothing that a
run folder names is loaded or reached.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from orchestra.command.outside import damage_is_one_line
from orchestra.kernel.folder import Event, Manifest, Options, read_manifest
from orchestra.kernel.memory import compress, summarize
from orchestra.kernel.money import Purse, reserve_usd
from orchestra.kernel.placing import Capabilities, Graph, refine
from orchestra.kernel.vocabulary import (
    Complete,
    Decision,
    Delegate,
    Evidence,
    Media,
    Place,
    Pool,
    Result,
    State,
    SubTask,
    Task,
)
from orchestra.methods import METHOD, tools_for
from orchestra.report.totals import newest_events, settings_in

PAPER = METHOD  # its prompt has C_t of Eq. 20, and it stops by Eq. 22


@dataclass(frozen=True)
class Ran:
    """A sub-task as it was placed, and its result after so many steps; None if it did not end."""

    place: Place
    subtask: SubTask
    share_usd: float | None
    result: Result | None
    steps: int


@dataclass(frozen=True)
class Round:
    """Round t of a run, with its settings. `y_t` None: no attempt was usable. `before`: G_t,
    `graph`: G_t with y_t. `left_usd`: what the decision left of B_t. `end_usd`: what the sub-tasks
    left of it.
    """

    state: State
    pool: Pool
    options: Options
    before: Graph
    attempts: tuple[Event, ...]
    y_t: Decision | None
    graph: Graph
    ran: tuple[Ran, ...]  # in submission order
    left_usd: float | None
    end_usd: float | None

    @property
    def method(self) -> str:
        return self.options.method or METHOD

    @property
    def batch_usd(self) -> float | None:
        """What the sub-tasks could spend together: without the reserve, if a decision follows."""
        left_usd = self.left_usd
        is_last = self.state.round > self.state.rounds or getattr(
            self.y_t, "final", False
        )
        if left_usd is None or is_last:
            return left_usd
        return left_usd - reserve_usd(self.pool[self.pool.main], left_usd)


def rounds(folder: Path) -> list[Round]:
    """The rounds of a run that have a decision. Raises ConfigError."""
    manifest = read_manifest(folder)
    of_round: dict[int, list[Event]] = defaultdict(list)
    with damage_is_one_line(folder):
        for event in newest_events(folder):
            if event["event"] in ("decision", "subtask", "result"):
                of_round[event["at"][0]].append(event)
        past = _Past(manifest, _task(folder, manifest))
        return [past.round(t, events) for t, events in of_round.items()]


def _task(folder: Path, manifest: Manifest) -> Task:
    """The task. Its files may be missing, since their names are enough here."""
    media = [
        Media(kind, name, folder / "media" / name, sha)
        for kind, name, sha in manifest.media
    ]
    return Task(manifest.question, tuple(media))


class _Past:
    """What a run knew: G_t, H_t, and the purse of B_t."""

    def __init__(self, manifest: Manifest, task: Task) -> None:
        self.manifest = manifest
        self.task = task
        self.graph = Graph()
        self.history: tuple[Evidence, ...] = ()
        self.purse = Purse(settings_in(manifest, 1).options.budget_usd)

    def round(self, t: int, events: Sequence[Event]) -> Round:
        """The next round. Raises ModelMistake for a graph that is none."""
        attempts = tuple(e for e in events if e["event"] == "decision")
        settings = settings_in(self.manifest, t)
        state = self.state(t, attempts[0], settings)
        before = self.graph
        y_t = self.decide(attempts)
        left_usd = self.purse.left_usd
        graph = self.graph
        ran = _ran(events)
        for each in ran:
            self.remember(each)
        return Round(
            state=state,
            pool=settings.pool,
            options=settings.options,
            before=before,
            attempts=attempts,
            y_t=y_t,
            graph=graph,
            ran=ran,
            left_usd=left_usd,
            end_usd=self.purse.left_usd,
        )

    def state(self, t: int, attempt: Event, settings: Manifest) -> State:
        """s_t, Eq. 1 and 21. Attempts of calls that got no answer are not in the events: B_t is the
        recorded one.
        """
        budget_usd = attempt["budget_usd"]
        if budget_usd != self.purse.left_usd:
            self.purse = Purse(budget_usd)
        psi = capabilities(self.task, settings)
        limit = settings.options.context_tokens
        return State(
            task=self.task,
            context=compress(self.task.question, self.history, limit),
            history=self.history,
            backends=settings.pool.names,
            tools=tuple(psi),
            round=t,
            rounds=attempt["rounds"],
            budget_usd=budget_usd,
            waiting={id: tuple(needs) for id, needs in attempt["waiting"].items()},
            capabilities=psi,
        )

    def decide(self, attempts: Sequence[Event]) -> Decision | None:
        """y_t, paid from B_t and merged into G_t."""
        for attempt in attempts:
            self.purse.charge(attempt["cost_usd"])
        row = attempts[-1].get("decision")
        if row is None:
            return None
        y_t = decision_of(row)
        if isinstance(y_t, Delegate):
            self.graph = refine(Graph() if y_t.whole_graph else self.graph, y_t)
        return y_t

    def remember(self, ran: Ran) -> None:
        """Add a result to G_t and H_t, and take its cost from B_t."""
        z = ran.result
        if z is not None:
            self.graph = self.graph.with_result(ran.subtask.id, z)
            h = replace(summarize(ran.subtask, z), steps=ran.steps)
            self.history = (*self.history, h)
            self.purse.charge(z.cost_usd)


def capabilities(task: Task, settings: Manifest) -> Capabilities:
    """psi(g) of the tools that the program ships. What the user's own can do is not recorded."""
    tools = tools_for(task, bool(settings.more.get("code")))
    return {name: tool.capabilities for name, tool in tools.items()}


def decision_of(row: Mapping[str, Any]) -> Decision:
    """y_t from the row that folder.decision_row made. Raises KeyError or TypeError."""
    if row["action"] == "complete":
        complete: Complete = _made(Complete, row)
        return complete
    subtasks = tuple(_made(SubTask, u) for u in row["subtasks"])
    delegate: Delegate = _made(Delegate, row, subtasks=subtasks)
    return delegate


def _made(shape: type[Any], row: Mapping[str, Any], **more: Any) -> Any:
    """A dataclass from its fields in a row of JSON."""
    given = {f.name: row[f.name] for f in fields(shape) if f.name in row}
    lists = {
        name: tuple(value) for name, value in given.items() if isinstance(value, list)
    }
    return shape(**{**given, **lists, **more})


def _ran(events: Sequence[Event]) -> tuple[Ran, ...]:
    results = {event["at"][1]: event for event in events if event["event"] == "result"}
    found = []
    for event in events:
        if event["event"] == "subtask":
            t, number, _ = event["at"]
            u = _made(SubTask, event["subtask"])
            row = results.get(number)
            z = _made(Result, row, round=t) if row else None
            steps = row.get("steps", 0) if row else 0
            found.append(Ran(Place(t, number), u, event["share_usd"], z, steps))
    return tuple(sorted(found, key=lambda ran: ran.place))
