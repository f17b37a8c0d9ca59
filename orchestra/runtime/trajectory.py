"""tau = (s_1, y_1, Z_1, ..., s_T, y_T) as JSONL, one event a line, written as it happens.

Every line is `{"v": 5, "event": ..., "at": [...], ..., "timing": {...}}`. Measured values are in
`timing` alone; the rest is the same in every replay. `at` is the place in the run, (round,
sub-task, step): lines are written in the order of time and read in the order of `at`.

    run        at [0]            run.json: the task, the pool, the options, the parent of a fork
    decision   at [t, 0, a]      attempt a of round t: B_t, the reply, y_t or a mistake
    subtask    at [t, j, 0]      sub-task j as it was placed (Eq. 12), and what it may spend
    step       at [t, j, l]      (rho, a, o) of sub-task j, Eq. 13
    result     at [t, j, 2**30]  z of sub-task j, Eq. 14, and the media it opened
    end        at [T+2]          how the run ended and why, and the answer; round T+1 is that of a
                                 last chance

Nothing is written twice: runtime/retrace.py puts s_t together again. A resumed run appends a new
`run` line; only those from the last one on count.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

from orchestra.ending import Ending, EndState
from orchestra.money import Purse, add_usd
from orchestra.runtime import event_shapes, jsonl, run_folder, texts
from orchestra.runtime.run_log import RunLog
from orchestra.vocabulary import (
    Cause,
    Complete,
    ConfigError,
    Decision,
    Place,
    Reply,
    State,
)

VERSION = 5
# What a version began to write, or to write otherwise
NEW_IN: dict[int, dict[str, tuple[str, ...]]] = {
    4: {
        "step": ("spent_usd",),
        "result": ("cause",),
        "end": ("state", "cause", "why", "finished"),
    },
    5: {"result": ("steps",)},
}
NO_EVENT: dict[str, Any] = {"event": "none", "at": []}  # where one run has fewer events
LAST = 1 << 30  # the step number of a result: after every step
Event = dict[str, Any]
Listener = Callable[[Event], None]


@dataclass(frozen=True)
class Trajectory:
    """The outcome of a run. `state`, `cause` and `why` say how it ended (orchestra/ending.py)."""

    answer: str
    state: EndState
    cause: Cause
    rounds: int
    calls: int
    tokens: int  # in and out, as far as the endpoints reported them
    cost_usd: float | None  # of the whole run; None: some price is unknown
    paid_usd: float | None  # the part of it that this invocation paid
    failed_subtasks: int
    latency_s: float
    run: str  # its folder
    why: str = ""
    reused_calls: int = 0  # of `calls`, those that come from another run
    saved_usd: float | None = 0.0  # the part of `cost_usd` that they had cost there
    events: list[Event] = field(repr=False, default_factory=list)

    @property
    def fallback(self) -> bool:
        """Whether the answer is a fallback; a run without an answer has none."""
        return self.state == "fallback"


class Recorder:
    """Appends events to a file (in a replay, only to memory) and passes them to the listeners."""

    def __init__(self, folder: Path | None, listeners: Iterable[Listener] = ()) -> None:
        self._began_s = time.monotonic()
        self.events: list[Event] = []
        self._notices: set[str] = set()
        self._listeners = tuple(listeners)
        self._file: jsonl.Appender | None = None
        self._log: RunLog | None = None
        if folder is not None:
            self._file = jsonl.Appender(folder / "trajectory.jsonl")
            self._log = RunLog(folder / "log.txt")

    def emit(
        self,
        event: str,
        place: Place,
        timing: Mapping[str, float] | None = None,
        **content: Any,
    ) -> None:
        """Record an event of a sub-task or of the main agent. Raises TapeWriteError."""
        at = (place.round, place.subtask, place.step)
        self._write(event, at, content, timing)

    def _write(
        self,
        event: str,
        at: tuple[int, ...],
        content: Mapping[str, Any],
        timing: Mapping[str, float] | None = None,
    ) -> None:
        row = {"v": VERSION, "event": event, "at": at, **content}
        row["timing"] = timing or {}
        self.events.append(row)
        if self._file:
            self._file.append(json.dumps(row, ensure_ascii=False, default=str))
        self._tell(row)

    def notify(self, message: str, status: int = 0) -> None:
        """Send the listeners a message that is not an event, such as "waiting for M"; once each.
        `status`: that of the response behind it, 408 if it timed out, 0 if there was none.
        """
        if message not in self._notices:
            self._notices.add(message)
            row = {"event": "notice", "at": (), "message": message, "status": status}
            self._tell(row)

    def _tell(self, row: Event) -> None:
        if self._log:
            self._log.write(describe(row))
        for listener in self._listeners:
            listener(row)

    def begin(self, manifest: Mapping[str, Any]) -> None:
        """The first event: the run as run.json has it. Its time counts from here."""
        self._began_s = time.monotonic()
        self._write("run", (0,), manifest)

    def decision(
        self, s: State, attempt: int, replies: Sequence[Reply], **outcome: Any
    ) -> None:
        """One attempt of a decision."""
        self.emit(
            "decision",
            Place(s.round, step=attempt),
            rounds=s.rounds,
            budget_usd=s.budget_usd,
            waiting=s.waiting,
            reply=replies[-1].text if replies else "",
            cost_usd=add_usd(*(reply.cost_usd for reply in replies)),
            **outcome,
        )

    def end(
        self, folder: Path, ending: Ending, answer: str, rounds: int, purse: Purse
    ) -> Trajectory:
        """The end row, and the outcome of the run."""
        latency_s = time.monotonic() - self._began_s
        outcome: dict[str, Any] = {
            "answer": answer,
            "state": ending.state,
            "cause": ending.cause,
            "why": ending.why,
            "rounds": rounds,
            "calls": purse.calls,
            "cost_usd": purse.spent_usd,
            "tokens": purse.tokens,
            "failed_subtasks": failed_subtasks(self.events),
        }
        is_early = ending.state != "answered"
        row = {**outcome, "fallback": is_early, "finished": True}
        self._write("end", (rounds + 2,), row, {"latency_s": latency_s})
        return Trajectory(
            **outcome,
            paid_usd=purse.paid_usd,
            latency_s=latency_s,
            run=str(folder),
            events=self.events,
        )

    def stopped(
        self, ending: Ending, calls: int, tokens: int, cost_usd: float | None
    ) -> None:
        """The end row of a run that an error has stopped. It is the last row: what sub-agents do
        later is on the tape alone.
        """
        if self._file is None:  # a replay, or it is written
            return
        rounds = max(event["at"][0] for event in self.events)
        row: dict[str, Any] = {
            "answer": "",
            "fallback": True,
            **asdict(ending),
            "rounds": rounds,
            "calls": calls,
            "cost_usd": cost_usd,
            "tokens": tokens,
            "failed_subtasks": failed_subtasks(self.events),
        }
        latency_s = time.monotonic() - self._began_s
        self._write("end", (rounds + 2,), row, {"latency_s": latency_s})
        self.close()

    def close(self) -> None:
        """Later events are kept in memory only: a sub-agent may still end."""
        if self._file:
            self._file.unlock()
        self._file = None
        log, self._log = self._log, None
        if log and not log.close():
            self.notify("log.txt misses lines: another process holds its lock")


def read(path: Path) -> list[Event]:
    """The events of the last invocation, in the order of `at`. Raises ConfigError for a line that
    is not an event.
    """
    found: list[Event] = []
    for event in jsonl.read(path):
        if event.get("event") == "run":
            found = []
        found.append(event)
    problems = [event_shapes.problem(event) for event in found]
    if found and found[0].get("event") != "run":
        problems.append("the first one is missing")
    for problem in problems:
        if problem:
            advice = "--resume writes it anew"
            raise ConfigError(f"{path} has a damaged event ({problem}); {advice}")
    return in_order(found)


def read_if_sound(path: Path) -> list[Event]:
    """The same, or [] for a damaged file: the tape alone decides what a run still needs."""
    try:
        return read(path)
    except ConfigError:
        return []


def set_aside_if_damaged(path: Path) -> None:
    """Rename a file that cannot be read, so that a resume begins a new one."""
    try:
        read(path)
    except ConfigError:
        path.rename(path.with_suffix(".damaged"))


def write(path: Path, events: Iterable[Event]) -> None:
    """Write all events of a run anew."""
    rows = [json.dumps(row, ensure_ascii=False, default=str) for row in events]
    run_folder.write_whole(path, "".join(f"{row}\n" for row in rows))


def ended(events: Sequence[Event]) -> Event | None:
    """The end row, if the run could write one."""
    return events[-1] if events and events[-1]["event"] == "end" else None


def ending_of_row(end: Event) -> Ending:
    """How a run ended, by its end row. An earlier version wrote `fallback` alone."""
    early: EndState = "fallback" if end["answer"] else "stopped"
    return Ending(
        state=end.get("state", early if end["fallback"] else "answered"),
        cause=end.get("cause", ""),
        why=end["why"] or ("the last sub-task was not done" if end["fallback"] else ""),
        finished=end.get("finished", True),
    )


def is_finished(events: Sequence[Event]) -> bool:
    """Whether the method came to its end: a replay gives the same events."""
    end = ended(events)
    return end is not None and ending_of_row(end).finished


def failed_subtasks(events: Iterable[Event]) -> int:
    results = [event for event in events if event["event"] == "result"]
    return sum(event["status"] == "failed" for event in results)


def in_order(events: Iterable[Event]) -> list[Event]:
    return sorted(events, key=lambda e: tuple(e["at"]))


def first_difference(recorded: list[Event], replayed: list[Event]) -> str:
    """The first difference in content; "" if there is none. The event `run`, a copy of run.json, is
    not compared: a later version has more options, and the tape shows what they change.
    """
    version = recorded[0]["v"] if recorded else VERSION
    old = _comparable(recorded, version)
    new = _comparable(replayed, version)
    for before, now in zip_longest(old, new, fillvalue=NO_EVENT):
        if before != now:
            where = _place_of(before) or _place_of(now) or "the end"
            return f"{before['event']} of {where}, {_difference(before, now)}"
    return ""


def _difference(before: Any, now: Any, path: str = "") -> str:
    """The first value that differs, and where it is in both."""
    if isinstance(before, dict) and isinstance(now, dict):
        for key in {**before, **now}:
            if before.get(key) != now.get(key):
                return _difference(before.get(key), now.get(key), f"{path}.{key}")
    if isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        for n, pair in enumerate(zip(before, now, strict=True)):
            if pair[0] != pair[1]:
                return _difference(*pair, f"{path}[{n}]")
    return f"{path.lstrip('.')}: recorded {before!r}, now {now!r}"


def _comparable(events: Iterable[Event], version: int) -> list[Event]:
    """The events in order, as plain JSON, without what is measured and what the version lacks."""
    kept = [event for event in in_order(events) if event["event"] != "run"]
    plain: list[Event] = json.loads(json.dumps(kept, default=str))
    for event in plain:
        event.pop("timing", None)
        event.pop("v", None)
        for newer in range(version + 1, VERSION + 1):
            for name in NEW_IN.get(newer, {}).get(event["event"], ()):
                event.pop(name, None)
        decision = event.get("decision")
        if version == 2 and decision and "whole_graph" in decision:
            decision["drain"] = decision.pop("whole_graph")
            for name in ("answers", "final"):
                decision.pop(name, None)
    return plain


def decision_row(y_t: Decision) -> dict[str, Any]:
    """y_t as JSON: {"action": "delegate" | "complete", ...}."""
    action = "complete" if isinstance(y_t, Complete) else "delegate"
    return {"action": action, **asdict(y_t)}


# ---- as lines of text ----------------------------------------------------------------------------


def describe(event: Event) -> str:
    """One event as one line."""
    text = f"{_place_of(event)} {_content_of(event)}{_figures_of(event)}"
    return printable(" ".join(text.split()))


def _place_of(event: Event) -> str:
    """The place as it is spelled everywhere, r2/t1/s3; "" for the run as a whole."""
    if event["event"] not in ("decision", "subtask", "step", "result"):
        return ""
    round, subtask, step = event["at"]
    return str(Place(round, subtask, 0 if step == LAST else step))


def _content_of(event: Event) -> str:
    match event:
        case {"event": "run"}:
            options = event["options"]
            other = options.get("texts")  # an earlier version had none
            and_texts = f" and {texts.described(other)}" if other else ""
            return f"run: {event['question']!r} with {options['method']}{and_texts}"
        case {"event": "notice"}:
            return str(event["message"])
        case {"event": "decision", "mistake": mistake}:
            return f"mistake: {mistake}"
        case {
            "event": "decision",
            "decision": {"action": "complete", "answer": answer},
        }:
            return f"complete: {answer!r}"
        case {"event": "decision", "decision": {"subtasks": [{"agent": "single"}]}}:
            return "one agent answers the whole question"
        case {"event": "decision", "decision": y}:
            return f"delegate {len(y['subtasks'])}: {y['reasoning']}".rstrip(": ")
        case {"event": "subtask", "subtask": u}:
            tools = ", ".join(u["tools"]) or "no tools"
            return f"{u['id']} to {u['backend']} with {tools}: {u['instruction']}"
        case {"event": "step"}:
            observation = event["observation"][:300]
            done = f"{event['action']} {event['params']}"
            return f"{done} -> {observation}" if observation else done
        case {"event": "result"}:
            report = event["answer"] or event["error"] or event["summary"]
            return f"{_name_of(event)}{event['status']}: {report}"
        case _:
            return _end_text(event)


def _name_of(result: Event) -> str:
    """The name of the sub-task, which the main agent's texts have; "" where its place ends in it.

    >>> _name_of({"at": [2, 1, LAST], "subtask": "t3"})
    '(t3) '
    """
    name = result.get("subtask", "")  # an earlier version did not write it
    is_in_place = name == f"t{result['at'][1]}"
    return f"({name}) " if name and not is_in_place else ""


def _end_text(end: Event) -> str:
    """How the run ended, and why."""
    ending = ending_of_row(end)
    answer = f": {end['answer']!r}" if end["answer"] else ""
    why = f" ({ending.why})" if ending.why not in ("", ending.state) else ""
    return f"{ending.state}{answer}{why}"


def _figures_of(event: Event) -> str:
    """Cost and time, where both were measured."""
    latency_s = event.get("timing", {}).get("latency_s")
    if "cost_usd" not in event or latency_s is None:
        return ""
    return f" ({usd(event['cost_usd'])}, {latency_s:.1f} s)"


def printable(text: str, kept: str = "") -> str:
    """Text with its control characters escaped, but for those in `kept`: a model may have written
    it for a terminal.
    """
    if text.isprintable():
        return text
    shown = []
    for char in text:
        is_harmless = char.isprintable() or char in kept
        shown.append(char if is_harmless else f"\\x{ord(char):02x}")
    return "".join(shown)


def usd(amount: float | None) -> str:
    return "USD unknown" if amount is None else f"USD {amount:.4f}"
