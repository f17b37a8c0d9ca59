"""tau = (s_1, y_1, Z_1, ..., s_T, y_T) as JSONL, one event a line, written as it happens.

Every line is `{"v": 1, "event": ..., "at": [...], ..., "timing": {...}}`. What is measured stands
in `timing` alone; the rest is content, the same in every replay. `at` is the place in the run,
(round, sub-task, step): lines are written in the order of time and read in the order of `at`.

    run        at [0]          run.json: the task, the pool, the options, the parent of a fork
    decision   at [t, 0, a]    attempt a of round t: s_t, the reply, y_t or its mistake, cost
    subtask    at [t, j, 0]    sub-task j as it was placed (Eq. 12), and what it may spend
    step       at [t, j, l]    (rho, a, o) of sub-task j, Eq. 13
    result     at [t, j, inf]  z of sub-task j with its executor (b, T), Eq. 14
    end        at [T+2]        answer, fallback, cost; round T+1 is that of a last chance

A resumed run appends a new `run` line; what counts are the lines from the last one on.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from orchestra import lines
from orchestra.money import Ledger
from orchestra.replay import TapeWriteError
from orchestra.secrets import scrub_json
from orchestra.vocabulary import Complete, ConfigError, Decision, Delegate

VERSION = 1
LAST = 1 << 30  # the step number of a result: after every step
Event = dict[str, Any]
Listener = Callable[[Event], None]


@dataclass(frozen=True)
class Trajectory:
    """What a run came to. `fallback`: the main agent did not complete by itself; the answer is what
    the evidence supports.
    """

    answer: str
    fallback: bool
    rounds: int
    calls: int
    tokens: int  # in and out, as far as the endpoints said
    cost_usd: float | None  # the whole run's; None: some price is unknown
    paid_usd: float | None  # of it, paid by this invocation
    latency_s: float
    run: Path
    why: str = ""  # it ended before its time
    events: list[Event] = field(repr=False, default_factory=list)


class Recorder:
    """Appends events to a file (or only to memory, in a replay) and tells the listeners: the log
    and the progress.
    """

    def __init__(self, path: Path | None, listeners: tuple[Listener, ...] = ()) -> None:
        self._started = time.monotonic()
        self.events: list[Event] = []
        self._listeners = listeners
        self._lines = lines.Appender(path, _dumps) if path else None

    def emit(
        self,
        event: str,
        at: tuple[int, ...],
        timing: Mapping[str, float] | None = None,
        **content: Any,
    ) -> None:
        row = {"v": VERSION, "event": event, "at": at, **content, "timing": timing or {}}
        self.events.append(row)
        if self._lines:
            try:
                self._lines.append(row)
            except OSError as error:
                why = f"the trajectory can not be written: {error.strerror}"
                raise TapeWriteError(f"{why}; free some space, then resume the run") from None
        for listener in self._listeners:
            listener(row)

    def end(
        self, run: Path, answer: str, fallback: bool, rounds: int, ledger: Ledger, why: str
    ) -> Trajectory:
        """The last event, and what the run came to."""
        latency_s = time.monotonic() - self._started
        books = {"calls": ledger.calls, "cost_usd": ledger.cost_usd}
        came_to = {"answer": answer, "fallback": fallback, "rounds": rounds, **books}
        self.emit("end", (rounds + 2,), {"latency_s": latency_s}, **came_to)
        money = ledger.calls, ledger.tokens, ledger.cost_usd, ledger.paid_usd
        return Trajectory(answer, fallback, rounds, *money, latency_s, run, why, self.events)

    def close(self) -> None:
        if self._lines:
            self._lines.close()


def _dumps(value: Any) -> str:
    return scrub_json(lines.dumps(value))


def read(path: Path) -> list[Event]:
    """The events of the last invocation, in the order of `at`. A line that a crash tore is left
    out. Raises ConfigError for one that is no event.
    """
    events: list[Event] = []
    for event in lines.read(path):
        if not (isinstance(event.get("event"), str) and isinstance(event.get("at"), list)):
            raise ConfigError(f"{path}: holds a line that is no event; restore it from a copy")
        if event["event"] == "run":
            events = []
        if events or event["event"] == "run":
            events.append(event)
    return in_order(events)


def in_order(events: list[Event]) -> list[Event]:
    return sorted(events, key=lambda e: tuple(e["at"]))


def content(events: list[Event]) -> list[Event]:
    """The events as JSON without what is measured: equal for a run and each of its replays."""
    plain: list[Event] = json.loads(
        _dumps([{k: v for k, v in e.items() if k != "timing"} for e in in_order(events)])
    )
    return plain


def first_difference(recorded: list[Event], replayed: list[Event]) -> str:
    """The place and the field where two trajectories part; "" if their content is the same."""
    ours, theirs = content(recorded), content(replayed)
    for a, b in zip(ours, theirs, strict=False):
        if a != b:
            field = next(k for k in {**a, **b} if a.get(k) != b.get(k))
            said = f"recorded {a.get(field)!r}, now {b.get(field)!r}"
            return f"event {a['event']} at {a['at']}, {field}: {said}"
    return "" if len(ours) == len(theirs) else f"recorded {len(ours)} events, now {len(theirs)}"


ADDED_LATER = {"roles", "drain", "fallback"}  # left out while empty: older records stay equal


def plain(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The `dict_factory` of what goes into an event."""
    return {k: v for k, v in pairs if v or k not in ADDED_LATER}


def decision_content(decision: Decision) -> dict[str, Any]:
    """y_t as JSON: {"action": "delegate" | "complete", ...}."""
    action = {Delegate: "delegate", Complete: "complete"}[type(decision)]
    return {"action": action, **asdict(decision, dict_factory=plain)}
