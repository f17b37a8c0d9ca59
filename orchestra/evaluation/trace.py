"""A run as a trace for ui.perfetto.dev, which draws calls and sub-tasks as slices on a time axis.

The main agent has a track, and so has each sub-task. Calls of one sub-task that overlap get tracks
of their own, since slices of one track must not overlap.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestra.vocabulary import ConfigError

# Off the duration of a call on the tape: rounded up, it could overlap the next call.
ROUNDING_US = 50
TIMES = ("began_s", "took_s")
SHOWN = (
    "call",
    "kind",
    "model",
    "input_tokens",
    "output_tokens",
    "cost_usd",
    "status",
    "error",
    "agent",
    "backend",
    "instruction",
)
TraceEvent = dict[str, Any]  # of Chrome's Trace Event Format
About = Mapping[str, Any]  # a call or a sub-task, with its fields


@dataclass(frozen=True)
class Slice:
    """A call, or a sub-task with its calls. Times are in microseconds since 1970."""

    track: str  # r1/t2 for sub-task 2 of round 1, else main
    kind: str  # chat, tool or sub-task
    name: str
    begin_us: int
    duration_us: int
    about: About

    @property
    def end_us(self) -> int:
        return self.begin_us + self.duration_us

    def event(self, track_id: int) -> TraceEvent:
        """This slice as a complete event on a track."""
        shown = {key: self.about.get(key) for key in SHOWN}
        args = {key: value for key, value in shown.items() if value not in (None, "")}
        return {
            "ph": "X",
            "pid": 1,
            "tid": track_id,
            "ts": self.begin_us,
            "dur": self.duration_us,
            "cat": self.kind,
            "name": self.name,
            "args": args,
        }


def perfetto(run: Mapping[str, Any]) -> dict[str, Any]:
    """A run, as report.run_row returns it, in Chrome's Trace Event Format, which Perfetto opens.
    Raises ConfigError if the tape has no times.
    """
    track_ids: dict[str, int] = {}
    free_us: dict[str, int] = {}  # of each track: when its last call ends
    events: list[TraceEvent] = []
    for piece in slices(run):
        track = _free_track(piece, free_us)
        if piece.kind != "sub-task":  # a sub-task contains its calls
            free_us[track] = piece.end_us
        track_id = track_ids.setdefault(track, len(track_ids) + 1)
        events.append(piece.event(track_id))
    names = [_track_name(track_id, name) for name, track_id in track_ids.items()]
    return {"traceEvents": names + events, "displayTimeUnit": "ms"}


def _free_track(piece: Slice, free_us: Mapping[str, int]) -> str:
    """The track of a slice: its own, or r1/t1 (2) and so on while calls on it still run."""
    track = piece.track
    number = 1
    while free_us.get(track, 0) > piece.begin_us:
        number += 1
        track = f"{piece.track} ({number})"
    return track


def _track_name(track_id: int, name: str) -> TraceEvent:
    args = {"name": name}
    return {"ph": "M", "pid": 1, "name": "thread_name", "tid": track_id, "args": args}


def slices(run: Mapping[str, Any]) -> list[Slice]:
    """The calls and sub-tasks of a run in order of time; a sub-task comes before its calls."""
    _check_times(run)
    subtasks = _subtasks(run["events"])
    calls = [_call(call, subtasks) for call in run["tape"]]
    around: list[Slice] = []
    for track, about in subtasks.items():
        own = [call for call in calls if call.track == track]
        if own:
            around.append(_around(own, track, about))
    return sorted([*around, *calls], key=lambda s: (s.begin_us, -s.duration_us))


def _check_times(run: Mapping[str, Any]) -> None:
    """Raises ConfigError if there is no call, or one of the calls has no times."""
    times = [call.get(key) for call in run["tape"] for key in TIMES]
    if not times or not all(isinstance(time, int | float) for time in times):
        raise ConfigError(
            f"{run['name']}: its tape has no times of calls; record it again"
        )


def _subtasks(events: Iterable[About]) -> dict[str, dict[str, Any]]:
    """The fields of each sub-task and of its result, by its track."""
    found: dict[str, dict[str, Any]] = {}
    for event in events:
        if event["event"] not in ("subtask", "result"):
            continue
        t, number, *_ = event["at"]
        about = found.setdefault(f"r{t}/t{number}", {})
        about.update(event["subtask"] if event["event"] == "subtask" else event)
    return found


def _call(call: About, subtasks: Mapping[str, Any]) -> Slice:
    """The slice of an exchange on the tape, such as r1/t2/s3/SearchAction."""
    place = call["call"].split("/")
    track = "/".join(place[:2])
    is_chat = call["kind"] == "chat"
    duration_us = round(call["took_s"] * 1e6) - ROUNDING_US
    return Slice(
        track=track if track in subtasks else "main",
        kind="chat" if is_chat else "tool",
        name=call["model"] if is_chat else place[-1],
        begin_us=round(call["began_s"] * 1e6),
        duration_us=max(duration_us, 0),
        about={**call, "status": "failed" if call["failed"] else "done"},
    )


def _around(calls: Sequence[Slice], track: str, about: About) -> Slice:
    """The slice of a sub-task, from the begin of its first call to the end of its last one."""
    begin_us = min(call.begin_us for call in calls)
    end_us = max(call.end_us for call in calls)
    return Slice(
        track=track,
        kind="sub-task",
        name=about["id"],
        begin_us=begin_us,
        duration_us=end_us - begin_us,
        about=about,
    )
