"""A run as a trace for ui.perfetto.dev, which draws calls and sub-tasks as slices on a time axis.

The main agent has a track, and so has each sub-task. Calls of one sub-task that overlap get tracks
of their own, since slices of one track must not overlap.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any

from orchestra.runtime.tape_file import MAX_TIME_S, is_time
from orchestra.vocabulary import ConfigError

# Off the duration of a call on the tape: rounded up, it could overlap the next call.
ROUNDING_US = 50
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
    tracks: dict[str, _Tracks] = defaultdict(_Tracks)
    events: list[TraceEvent] = []
    for piece in slices(run):
        track = piece.track
        if piece.kind != "sub-task":  # a sub-task contains its calls
            number = tracks[track].number(piece)
            track += f" ({number})" if number > 1 else ""
        track_id = track_ids.setdefault(track, len(track_ids) + 1)
        events.append(piece.event(track_id))
    names = [_track_name(track_id, name) for name, track_id in track_ids.items()]
    return {"traceEvents": names + events, "displayTimeUnit": "ms"}


class _Tracks:
    """The numbered tracks of the main agent or of a sub-task."""

    def __init__(self) -> None:
        self.count = 0
        self.free: list[int] = []  # a heap of numbers
        self.busy: list[tuple[int, int]] = []  # a heap of (when its call ends, number)

    def number(self, piece: Slice) -> int:
        """The first track on which no call still runs; slices come in the order of time."""
        while self.busy and self.busy[0][0] <= piece.begin_us:
            heappush(self.free, heappop(self.busy)[1])
        if not self.free:
            self.count += 1
            heappush(self.free, self.count)
        number = heappop(self.free)
        heappush(self.busy, (piece.end_us, number))
        return number


def _track_name(track_id: int, name: str) -> TraceEvent:
    args = {"name": name}
    return {"ph": "M", "pid": 1, "name": "thread_name", "tid": track_id, "args": args}


def slices(run: Mapping[str, Any]) -> list[Slice]:
    """The calls and sub-tasks of a run in order of time; a sub-task comes before its calls."""
    _check_times(run)
    subtasks = _subtasks(run["events"])
    calls = [_call(call, subtasks) for call in run["tape"]]
    own: dict[str, list[Slice]] = defaultdict(list)
    for call in calls:
        own[call.track].append(call)
    around = [
        _around(own[track], track, about)
        for track, about in subtasks.items()
        if track in own
    ]
    return sorted([*around, *calls], key=lambda s: (s.begin_us, -s.duration_us))


def _check_times(run: Mapping[str, Any]) -> None:
    """Raises ConfigError if there is no call, or one of the calls has no times."""
    for call in run["tape"]:
        took_s = call.get("took_s")
        is_length = isinstance(took_s, int | float) and abs(took_s) < MAX_TIME_S
        if not (is_length and is_time(call.get("began_s"))):
            problem = "its tape has no times of calls, or impossible ones"
            raise ConfigError(f"{run['name']}: {problem}; record it again")
    if not run["tape"]:
        raise ConfigError(f"{run['name']}: its tape has no times of calls")


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
        name=str(call.get("model")) if is_chat else place[-1],
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
        name=about.get("id", track),  # a result without its sub-task has none
        begin_us=begin_us,
        duration_us=end_us - begin_us,
        about=about,
    )
