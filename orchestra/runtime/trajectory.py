"""tau = (s_1, y_1, Z_1, ..., s_T, y_T) as JSONL, one event a line, written as it happens.

Every line is `{"v": 2, "event": ..., "at": [...], ..., "timing": {...}}`. Measured values are in
`timing` alone; the rest is the same in every replay. `at` is the place in the run, (round,
sub-task, step): lines are written in the order of time and read in the order of `at`.

    run        at [0]          run.json: the task, the pool, the options, the parent of a fork
    decision   at [t, 0, a]    attempt a of round t: B_t, the reply, y_t or a mistake
    subtask    at [t, j, 0]    sub-task j as it was placed (Eq. 12), and what it may spend
    step       at [t, j, l]    (rho, a, o) of sub-task j, Eq. 13
    result     at [t, j, 2**30]  z of sub-task j, Eq. 14, and the media it opened
    end        at [T+2]        answer, fallback, cost; round T+1 is that of a last chance

Nothing is written twice: training/examples.py puts s_t together again. A resumed run appends a new
`run` line; only those from the last one on count.
"""

from __future__ import annotations

import json
import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

from orchestra.money import Purse, add_usd
from orchestra.runtime import tape
from orchestra.vocabulary import Complete, ConfigError, Decision, Reply, State

VERSION = 2
LOG_BYTES = 10 << 20
LAST = 1 << 30  # the step number of a result: after every step
Event = dict[str, Any]
Listener = Callable[[Event], None]


@dataclass(frozen=True)
class Trajectory:
    """The outcome of a run. `fallback`: the main agent did not complete by itself; the answer is
    what the evidence supports. `why`: what ended the run early.
    """

    answer: str
    fallback: bool
    rounds: int
    calls: int
    tokens: int  # in and out, as far as the endpoints said
    cost_usd: float | None  # of the whole run; None: some price is unknown
    paid_usd: float | None  # the part of it that this invocation paid
    failed_subtasks: int
    latency_s: float
    run: str  # its folder
    why: str = ""
    events: list[Event] = field(repr=False, default_factory=list)


class Recorder:
    """Appends events to a file (in a replay, only to memory) and passes them to the listeners."""

    def __init__(self, folder: Path | None, listeners: Iterable[Listener] = ()) -> None:
        self._started = time.monotonic()
        self.events: list[Event] = []
        self._notices: set[str] = set()
        self._file = tape.Appender(folder / "trajectory.jsonl") if folder else None
        self._log = _log(folder / "log.txt") if folder else None
        self._listeners = tuple(listeners)

    def emit(
        self, event: str, at: tuple[int, ...], timing: Any = None, **content: Any
    ) -> None:
        """Raises TapeWriteError."""
        row = {
            "v": VERSION,
            "event": event,
            "at": at,
            **content,
            "timing": timing or {},
        }
        self.events.append(row)
        if self._file:
            self._file.append(json.dumps(row, ensure_ascii=False, default=str))
        self._tell(row)

    def notify(self, message: str, status: int = 0) -> None:
        """Send the listeners a message that is not an event, such as "waiting for M"; once each.
        `status`: the HTTP status that it is about, 429 for a rate limit; 0 if there is none.
        """
        if message not in self._notices:
            self._notices.add(message)
            notice = {"event": "notice", "at": (), "message": message}
            self._tell({**notice, "status": status})

    def _tell(self, row: Event) -> None:
        if self._log:
            self._log.handle(
                logging.makeLogRecord({"msg": describe(row), "levelno": logging.INFO})
            )
        for listener in self._listeners:
            listener(row)

    def end(
        self,
        run: Path,
        answer: str,
        fallback: bool,
        rounds: int,
        purse: Purse,
        why: str,
    ) -> Trajectory:
        """The last event, and the outcome of the run."""
        latency_s = time.monotonic() - self._started
        failed = sum(
            e["event"] == "result" and e["status"] == "failed" for e in self.events
        )
        outcome: dict[str, Any] = {
            "answer": answer, "fallback": fallback, "rounds": rounds, "calls": purse.calls,
            "cost_usd": purse.spent_usd, "tokens": purse.tokens, "failed_subtasks": failed,
            "why": why,
        }  # fmt: skip
        self.emit("end", (rounds + 2,), {"latency_s": latency_s}, **outcome)
        outcome |= {"paid_usd": purse.paid_usd, "latency_s": latency_s, "run": str(run)}
        return Trajectory(**outcome, events=self.events)

    def decision(
        self, s: State, attempt: int, replies: Sequence[Reply], **outcome: Any
    ) -> None:
        """One attempt of a decision."""
        self.emit(
            "decision", (s.round, 0, attempt), rounds=s.rounds, budget_usd=s.budget_usd,
            waiting=s.waiting, reply=replies[-1].text if replies else "",
            cost_usd=add_usd(*(r.cost_usd for r in replies)), **outcome,
        )  # fmt: skip

    def close(self) -> None:
        if self._file:
            self._file.unlock()
        if self._log:
            self._log.close()
        self._file = self._log = None  # a sub-agent that is left may still end


def read(path: Path) -> list[Event]:
    """The events of the last invocation, in the order of `at`. Raises ConfigError for a line that
    is not an event.
    """
    events: list[Event] = []
    for event in tape.read(path):
        at = event.get("at")
        place = isinstance(at, list) and all(isinstance(n, int) for n in at)
        if not (place and isinstance(event.get("event"), str)):
            raise ConfigError(
                f"{path} has a line that is not an event; restore it from a copy"
            )
        if event["event"] == "run":
            events = []
        events.append(event)
    return in_order(events)


def ended(events: Sequence[Event]) -> Event | None:
    """The event `end`, if the run has ended."""
    return events[-1] if events and events[-1]["event"] == "end" else None


def in_order(events: Iterable[Event]) -> list[Event]:
    return sorted(events, key=lambda e: tuple(e["at"]))


def first_difference(recorded: list[Event], replayed: list[Event]) -> str:
    """The first difference in content; "" if there is none. The event `run`, a copy of run.json, is
    not compared: a later version has more options, and the tape shows what they change.
    """
    both = [
        [e for e in in_order(events) if e["event"] != "run"]
        for events in (recorded, replayed)
    ]
    plain = json.loads(json.dumps(both, default=str))
    for a, b in zip_longest(*plain, fillvalue={"event": "none", "at": []}):
        for key in {**a, **b}:
            if key != "timing" and a.get(key) != b.get(key):
                values = f"recorded {a.get(key)!r}, now {b.get(key)!r}"
                return f"event {a['event']} at {a['at']}, {key}: {values}"
    return ""


def decision_row(y_t: Decision) -> dict[str, Any]:
    """y_t as JSON: {"action": "delegate" | "complete", ...}."""
    return {
        "action": "complete" if isinstance(y_t, Complete) else "delegate",
        **asdict(y_t),
    }


# ---- as lines of text ----------------------------------------------------------------------------


def describe(event: Event) -> str:
    """One event as one line."""
    at = () if event["event"] == "end" else event["at"]  # its round does not exist
    kinds = (
        "rta" if event["event"] == "decision" else "rts"
    )  # of a decision: its attempt
    place = "/".join(
        f"{k}{n}" for k, n in zip(kinds, at, strict=False) if n not in (0, LAST)
    )
    e, figures = event, ""
    if "cost_usd" in e and "latency_s" in e["timing"]:
        figures = f" ({usd(e['cost_usd'])}, {e['timing']['latency_s']:.1f} s)"
    match e["event"]:
        case "run":
            text = f"run: {e['question']!r} with {e['options']['method']}"
        case "notice":
            text = e["message"]
        case "decision" if "mistake" in e:
            text = f"mistake: {e['mistake']}"
        case "decision":
            y = e["decision"]
            delegated = (
                f"delegate {len(y.get('subtasks', ()))}: {y['reasoning']}".rstrip(": ")
            )
            text = (
                f"complete: {y['answer']!r}" if y["action"] == "complete" else delegated
            )
        case "subtask":
            u = e["subtask"]
            tools = ", ".join(u["tools"]) or "no tools"
            text = f"{u['id']} to {u['backend']} with {tools}: {u['instruction']}"
        case "step":
            text = f"{e['action']} {e['params']} -> {e['observation'][:300]}"
        case "result":
            text = (
                f"{e['status']}: {e['answer'] or e['error'] or e['summary']}{figures}"
            )
        case _:
            text = (
                f"{'fallback' if e['fallback'] else 'answer'}: {e['answer']!r}{figures}"
            )
    return printable(" ".join(f"{place} {text}".split()))


def printable(text: str, kept: str = "") -> str:
    """Text with its control characters escaped: a model may have written it for a terminal."""
    return "".join(
        c if c.isprintable() or c in kept else f"\\x{ord(c):02x}" for c in text
    )


def usd(amount: float | None) -> str:
    return "USD unknown" if amount is None else f"USD {amount:.4f}"


def _log(path: Path) -> logging.Handler:
    """RUN/log.txt: a line an event; concurrent-log-handler rotates it."""
    from concurrent_log_handler import ConcurrentRotatingFileHandler

    locks = (
        f"{tempfile.gettempdir()}/orchestra-min-{os.getuid()}"  # not in the run folder
    )
    how: Any = {"encoding": "utf-8", "lock_file_directory": locks}
    log: logging.Handler = ConcurrentRotatingFileHandler(
        str(path), "a", LOG_BYTES, 2, **how
    )
    log.handleError = lambda record: None  # type: ignore[method-assign]  # the tape tells it
    log.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    return log
