"""How many agents a method delegates to, and how they depend on each other.

MASBENCH asks whether an orchestrator answers depth with few agents and breadth with many
(arXiv 2601.14652, Figure C.2). So the figures of the runs of a sweep are shown by axis and value,
which are the category and the level of a question.

    >>> Shape.of({"a": (), "b": (), "c": ("a", "b")})
    Shape(agents=3, edges=2, depth=2, breadth=2, parallel=2, components=1)
"""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from orchestra.evaluation.questions import QuestionRow
from orchestra.evaluation.sweep_folder import newest, rows_of, settings_of
from orchestra.runtime import console, outside
from orchestra.runtime.trajectory import Event, read_if_sound
from orchestra.vocabulary import ConfigError

Needs = Mapping[str, Sequence[str]]  # sub-task -> those that it waits for
COLUMNS = "sweep axis value n right agents edges depth breadth parallel components"
ALL = "all"  # the row of an axis over its values


class Shape(NamedTuple):
    """The graph of a run's sub-tasks. Without a sub-task all of it is 0."""

    agents: int
    edges: int
    depth: int  # sub-tasks of the longest chain
    breadth: int  # the most that one sub-task waits for
    parallel: int  # the most that have the same depth
    components: int  # that share no edge

    @classmethod
    def of(cls, needs: Needs) -> Shape:
        """Needs that are not sub-tasks of the run do not count."""
        known = {id: [n for n in needs[id] if n in needs and n != id] for id in needs}
        depths = _depths(known)
        degrees = [len(set(found)) for found in known.values()]
        return cls(
            agents=len(known),
            edges=sum(degrees),
            depth=max(depths.values(), default=0),
            breadth=max(degrees, default=0),
            parallel=max(Counter(depths.values()).values(), default=0),
            components=_components(known),
        )


def _depths(needs: Needs) -> dict[str, int]:
    """How many sub-tasks the longest chain up to each one has. One that waits for a circle counts
    as if it did not wait: a folder from someone else may have any graph.
    """
    depths: dict[str, int] = {}
    left = dict(needs)
    while left:
        ready = [id for id, found in left.items() if not {*found} & left.keys()]
        for id in ready or [*left]:
            before = [depths[n] for n in needs[id] if n in depths]
            depths[id] = 1 + max(before, default=0)
        left = {id: found for id, found in left.items() if id not in depths}
    return depths


def _components(needs: Needs) -> int:
    """How many parts of the graph share no edge."""
    part = {id: id for id in needs}

    def top(id: str) -> str:
        while part[id] != id:
            id = part[id]
        return id

    for id, found in needs.items():
        for need in found:
            part[top(id)] = top(need)
    return len({top(id) for id in needs})


def needs_of(events: Iterable[Event]) -> dict[str, tuple[str, ...]]:
    """All sub-tasks that a run delegated, with their needs."""
    found: dict[str, tuple[str, ...]] = {}
    for event in events:
        if event["event"] != "decision":
            continue
        for u in event.get("decision", {}).get("subtasks", ()):
            needs = u.get("needs") or ()
            found[str(u.get("id"))] = tuple(str(need) for need in needs)
    return found


# ---- a sweep -------------------------------------------------------------------------------------


def by_value(folder: Path) -> list[dict[str, Any]]:
    """A row for each axis and value of a sweep, and one for each axis: the means over its runs.
    Raises ConfigError.
    """
    method = settings_of(folder)["method"]
    outside.check(folder / "runs")
    groups: dict[tuple[str, str], list[tuple[QuestionRow, Shape]]] = {}
    for row in newest(rows_of(folder)).values():
        if row["status"] != "done":
            continue
        run = outside.member(folder / "runs", row["run"])
        shape = Shape.of(needs_of(read_if_sound(run / "trajectory.jsonl")))
        for value in (row["level"], ALL):
            groups.setdefault((row["category"], value), []).append((row, shape))
    if not groups:
        raise ConfigError(f"{folder} has no question that was answered yet")
    keys = sorted(groups, key=lambda key: (key[0], key[1] == ALL, key[1].zfill(9)))
    sweep = "_".join(f"{folder.name}/{method}".split())
    return [_row(sweep, *key, groups[key]) for key in keys]


def _row(
    sweep: str, axis: str, value: str, runs: Sequence[tuple[QuestionRow, Shape]]
) -> dict[str, Any]:
    row: dict[str, Any] = {"sweep": sweep, "axis": axis or "-", "value": value or "-"}
    row["n"] = len(runs)
    rights = [bool(run.get("judge", run["match"])) for run, _ in runs]
    row["right"] = statistics.fmean(rights)
    for name in Shape._fields:
        row[name] = statistics.fmean(getattr(shape, name) for _, shape in runs)
    return row


def show(folders: Iterable[Path], as_json: bool) -> None:
    """Print the rows of sweeps, as a table or as one JSON object. Raises ConfigError."""
    rows = [row for folder in folders for row in by_value(folder)]
    if as_json:
        console.put(json.dumps(rows))
        return
    heading = (
        "agents and graphs: means over the runs; right: the share of right answers"
    )
    console.put(f"{heading}\n\n{console.table(COLUMNS, rows)}")
