"""The tape: every paid exchange is on disk before its answer is used; replay, resume and fork.

A tape is a JSONL file with one line per exchange. An exchange is found by its logical call and the
SHA-256 of its request, without the address of the model. So neither the timing of threads nor the
place of a server plays a part:

    with tape.call(Place(1, 2, 1)):                 # inside the worker: round, sub-task, step
        outcome = tape.exchange("chat", body, ask)  # Answer or Failure

`ask()` makes the exchange. It returns the answer as JSON, or a Failure.

    record   a new tape                      calls ask() for each exchange
    resume   plays the recorded answers      calls ask() for what is missing, and again for a
                                             failure that no later answer may quote
    replay   plays answers and failures      raises TapeMiss for what is missing, with a diff

What is missing may also be on the tape of another run (--reuse, reuse.py). Its answer is copied to
this tape, with the name of that run. tape_file.py reads what is on a tape.
"""

from __future__ import annotations

import contextlib
import difflib
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired

from pydantic import Field, ValidationError
from typing_extensions import TypedDict

from orchestra.contracts import adapter
from orchestra.runtime.interruption import of_process as interruption
from orchestra.runtime.jsonl import Appender, Row, TapeWriteError, row_at
from orchestra.runtime.secrets import Secrets
from orchestra.runtime.tape_file import Entry, entries, key_of, request_text
from orchestra.vocabulary import Cause, EndOfRun, Failure

VERSION = 3  # of the lines that are written; in version 2, `key` had the address in it
POLL_S = 0.05
WAKE_S = 0.5  # how long a pause goes on after the tape was closed
DIFF_LINES = 41  # of the difference that a miss shows
DIFF_ROWS = 20  # among which the most similar one is looked for
Mode = Literal["record", "resume", "replay"]
_call: ContextVar[str] = ContextVar("logical_call")


class TapeMiss(EndOfRun):
    """A replay made a request that the tape does not hold. `differs`: another one is in its place;
    otherwise a resume can make it.
    """

    def __init__(self, message: str, differs: bool = True) -> None:
        super().__init__(message)
        self.differs = differs

    cause: Cause = "recording"


class Cancelled(EndOfRun):
    """The run was interrupted: no further call is started."""


@dataclass(frozen=True)
class Answer:
    """The answer of an exchange, as JSON without secrets. `played`: it comes from the tape."""

    value: Any
    played: bool


# The number of attempts that may be billed
Unanswered = Annotated[int, Field(ge=0, le=10_000, strict=True)]


class FailureRow(TypedDict):
    """A Failure on the tape."""

    status: int
    why: str
    unanswered: Unanswered
    cause: NotRequired[str]
    most_usd: NotRequired[float | None]


# (kind, call, key, how often the call made this request) -> the name of another run, and its row
Find = Callable[[str, str, str, int], tuple[str, Row] | None]


class Tape:
    """Raises TapeMiss, TapeWriteError or Cancelled from any thread; each ends the run. `cancelled`
    may be set from outside; the tape sets it when it cannot be written. `find` looks on the tapes
    of other runs. `same_budget`: a call that the budget did not cover is not made in a resume.
    """

    def __init__(
        self,
        path: Path,
        mode: Mode,
        secrets: Secrets | None = None,
        cancelled: threading.Event | None = None,
        find: Find | None = None,
        same_budget: bool = True,
    ) -> None:
        self.path = path
        self.mode = mode
        self.secrets = secrets or Secrets()
        self.cancelled = cancelled or threading.Event()
        self._find = find
        self._made: dict[tuple[str, str], int] = {}  # how often, by call and key
        self._unplayed: dict[tuple[str, str], list[Entry]] = {}
        # Within rounds that a fork keeps: nothing is made or reused
        self.frozen = False
        self._closed = False
        self.in_flight: list[str] = []  # the logical calls that are being made
        self._write_error: TapeWriteError | None = None
        self._file = None if mode == "replay" else Appender(path)
        if self._file and mode == "resume":
            # before the tape is read: `entries` then omits the failures to retry
            self._file.append(json.dumps({"v": VERSION, "resumed": True}))
        recorded = [] if mode == "record" else entries(path, same_budget)
        for entry in reversed(recorded):  # the first one is popped first
            self._unplayed.setdefault((entry.call, entry.key), []).append(entry)
        interruption.watch(self)

    def close(self) -> None:
        """Start no further call. The file stays locked until the calls in flight are written."""
        self._closed = True
        self._unlock_if_done()

    def _unlock_if_done(self) -> None:
        if self._file and self._closed and not self.in_flight:
            self._file.unlock()

    def wait_for_calls(self, most_s: float) -> None:
        """Wait until the calls in flight are on the tape, or a time is over. This takes no lock,
        because an interrupt may have left one locked.
        """
        deadline = time.monotonic() + most_s
        while self.in_flight and time.monotonic() < deadline:
            time.sleep(POLL_S)

    @contextlib.contextmanager
    def call(self, *parts: object) -> Iterator[None]:
        """Name the logical call of the exchanges inside. Threads do not inherit it: enter it in the
        worker.
        """
        token = _call.set("/".join(map(str, parts)))
        try:
            yield
        finally:
            _call.reset(token)

    @property
    def current_call(self) -> str:
        return _call.get()

    def exchange(
        self, kind: str, request: Row, ask: Callable[[], Any], shape: Any = Any
    ) -> Answer | Failure:
        """The recorded outcome of this request in the current logical call. Without one, the answer
        to it in another run, or else what `ask()` returns; it is recorded first. Raises TapeMiss.

        `shape` is the type of an answer. It is checked if the answer comes from the tape.
        """
        text = request_text(kind, request)
        call = _call.get()
        if self.cancelled.is_set():
            raise self._stopped()
        key = key_of(json.loads(text))
        made = self._made[call, key] = self._made.get((call, key), 0) + 1
        try:
            entry = self._unplayed[call, key].pop()  # atomic: one thread gets it
        except (KeyError, IndexError):
            if self.frozen:
                raise self._miss(call, text) from None
            found = self._find(kind, call, key, made) if self._find else None
            if found is None:
                return self._record(call, key, text, ask)
            run, row = found
            self._played(call, row, shape)  # raises TapeMiss for a damaged answer
            return self._record(call, key, text, lambda: row["answer"], run)
        return self._played(call, row_at(self.path, entry.offset), shape)

    def has(self, kind: str, request: Row) -> bool:
        """Whether the outcome of this request in the current logical call is recorded."""
        key = key_of(json.loads(request_text(kind, request)))
        return bool(self._unplayed.get((_call.get(), key)))

    def value(
        self, kind: str, request: Row, function: Callable[[], Any], shape: Any = Any
    ) -> Any:
        """The recorded value of a function that returns JSON. Raises TapeMiss."""
        outcome = self.exchange(kind, request, function, shape)
        if isinstance(outcome, Failure):
            raise TapeMiss(f"{self.path}: {_call.get()!r} has a failure, not a value")
        return outcome.value

    def _played(self, call: str, row: Row, shape: Any) -> Answer | Failure:
        """The outcome in a row, which is checked: a tape may come from someone else."""
        try:
            if "failure" in row:
                fields = adapter(FailureRow).validate_python(row["failure"])
                return Failure(**fields, played=True)
            adapter(shape).validate_python(row["answer"])
            return Answer(row["answer"], played=True)
        except ValidationError as error:
            where = ".".join(map(str, error.errors()[0]["loc"]))
            problem = f"the answer of {call!r} is damaged ({where})"
            raise TapeMiss(f"{self.path}: {problem}") from None

    def wait(self, seconds: float) -> None:
        """Sleep before an attempt. Raises Cancelled soon after the run was interrupted."""
        deadline = time.monotonic() + seconds
        while True:
            left_s = deadline - time.monotonic()
            if self.cancelled.wait(min(left_s, WAKE_S)) or self._closed:
                raise self._stopped()
            if left_s <= WAKE_S:
                return

    def _stopped(self) -> EndOfRun:
        return self._write_error or Cancelled(f"{_call.get()}: interrupted")

    def _record(
        self, call: str, key: str, text: str, ask: Callable[[], Any], reused: str = ""
    ) -> Answer | Failure:
        """The outcome of `ask()`, which is on disk before it is returned. `reused`: the run that it
        comes from. Raises TapeMiss.
        """
        if self._file is None:
            raise self._miss(call, text)
        self.in_flight.append(call)  # before it checks whether the tape is closed
        try:
            self.wait(0)
            self._file.check_space()
            began_s = time.time()
            value = ask()
            took_s = round(time.time() - began_s, 4)
            failed = isinstance(value, Failure)
            value = self.secrets.redacted(value.row() if failed else value)
            kept = json.dumps(value, ensure_ascii=False, default=str)
            timing = json.dumps({"began_s": began_s, "took_s": took_s})
            outcome = "failure" if failed else "answer"
            head = f'{{"v": {VERSION}, "call": {json.dumps(call)}, "key": "{key}"'
            line = f'{head}, "request": {text}, "{outcome}": {kept}, "timing": {timing}'
            source = f', "reused": {json.dumps(reused)}' if reused else ""
            self._file.append(f"{line}{source}}}")
        except TapeWriteError as error:
            self._write_error = error
            self.cancelled.set()
            raise
        finally:
            self.in_flight.remove(call)
            self._unlock_if_done()
        value = json.loads(kept)  # as a replay will read it
        if failed:
            return Failure(**value)
        return Answer(value, played=reused != "")

    def _miss(self, call: str, text: str) -> TapeMiss:
        """What a replay did not find: the request `text` next to the most similar one that is left
        of this call.
        """
        left = [
            e for (at, _), rows in [*self._unplayed.items()] if at == call for e in rows
        ]
        if not left:
            problem = f"nothing is recorded for the call {call!r}; --resume makes it"
            return TapeMiss(f"{self.path}: {problem}", differs=False)
        now = _readable(json.loads(text))
        recorded = [row_at(self.path, entry.offset) for entry in left[:DIFF_ROWS]]
        before = [_readable(row["request"]) for row in recorded]
        nearest = max(before, key=lambda lines: len(set(lines) & set(now)))
        names = ("recorded", "this run")
        diff = difflib.unified_diff(nearest, now, *names, n=1, lineterm="")
        problem = f"{self.path}: the call {call!r} differs from its recording"
        return TapeMiss("\n".join([problem, *islice(diff, DIFF_LINES)]))


def _readable(request: Row) -> list[str]:
    text = json.dumps(request, sort_keys=True, ensure_ascii=False, indent=1)
    return text.replace("\\n", "\n").splitlines()
