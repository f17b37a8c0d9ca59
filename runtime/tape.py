"""The tape: every paid exchange is on disk before its answer is used; replay, resume and fork.

A tape is a JSONL file with one line an exchange, written in one piece. An exchange is found again
by (logical call, SHA-256 of its request), so the timing of threads plays no part:

    with tape.call("r1", "t2", "s1"):                   # inside the worker: round, sub-task, step
        answer, played = tape.exchange("chat", body, ask)   # ask() returns JSON or raises Failure

    record   a new tape                  a miss asks
    resume   plays what was answered     a miss asks; a failure is asked again, unless an answer of
                                         a later round or step may quote it
    replay   plays all, asks nothing     a miss raises TapeMiss and shows the difference
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import fcntl
import hashlib
import json
import os
import re
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from orchestra.vocabulary import ConfigError, EndOfRun
from runtime.secrets import Secrets

VERSION = 2
MAX_BYTES = 2 << 30  # of a file that is read
FREE_BYTES = 8 << 20  # no call starts with less disk space: its answer could not be kept
BASE64 = re.compile(r"(?<![A-Za-z0-9+/])[A-Za-z0-9+/]{4096,}={0,2}")  # a picture, a sound
TYPES = ("call", str), ("key", str), ("request", dict)
OUTCOMES = {"answer", "failure"}
Mode = Literal["record", "resume", "replay"]
Row = dict[str, Any]
_call: ContextVar[str] = ContextVar("logical_call")
adapter = cache(TypeAdapter)  # of a type; to make one takes longer than a check


class TapeMiss(EndOfRun):
    """A replay made a request that the tape does not hold."""


class TapeWriteError(EndOfRun):
    """The run folder cannot be written (a full disk): no further call is started."""


class Cancelled(EndOfRun):
    """The run was interrupted: no further call is started."""


class Failure(Exception):
    """An exchange without an answer. `args`: its outcome as JSON, so that a replay meets it too."""


Unanswered = Annotated[int, Field(ge=0, le=10_000, strict=True)]  # attempts that may be billed


class Problem(TypedDict):
    """The outcome of a failed exchange."""

    status: int
    why: str
    unanswered: Unanswered


def round_of(call: str) -> int:
    """The round of a call or of a work folder, r2/t1/s3 or r2-t1; 0 for any other name."""
    found = re.match(r"r(\d+)[/-]", call)
    return int(found[1]) if found else 0


class Tape:
    """Raises TapeMiss, TapeWriteError or Cancelled from any thread; each ends the run. `cancelled`
    may be set from outside, and is set when the run ends early.
    """

    def __init__(
        self,
        path: Path,
        mode: Mode,
        secrets: Secrets | None = None,
        cancelled: threading.Event | None = None,
    ) -> None:
        self.path, self.mode = path, mode
        self.secrets = secrets or Secrets()
        self.cancelled = cancelled or threading.Event()
        self._unplayed: dict[tuple[str, str], deque[Row]] = {}
        self._closed = False
        self._in_flight = 0
        self._counting = threading.Lock()
        self._full: TapeWriteError | None = None  # what ended the run, in whatever thread
        self._file = None if mode == "replay" else Appender(path)
        if mode == "resume":  # first: `exchanges` then leaves out the failures to ask again
            self._append(json.dumps({"v": VERSION, "resumed": True}))
        for row in exchanges(path) if mode != "record" else ():
            self._unplayed.setdefault((row["call"], row["key"]), deque()).append(row)

    def close(self) -> None:
        """Start no further call. Those in flight are still written; until then nobody else may."""
        self._closed = True
        self._flies(0)

    def _flies(self, more: int) -> None:
        with self._counting:
            self._in_flight += more
            if self._file and self._closed and not self._in_flight:
                self._file.unlock()

    @contextlib.contextmanager
    def call(self, *parts: object) -> Iterator[None]:
        """Name the exchanges inside. A thread of a pool has no name: enter this in the worker."""
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
    ) -> tuple[Any, bool]:
        """What `ask()` returned, or the outcome of the Failure that it raised, as JSON without
        secrets; and whether it comes from the tape. Raises TapeMiss.

        `ask` is called only where the tape has no answer. `shape`: the type of an answer.
        """
        own = {f"{k}_" if k == "kind" else k: v for k, v in request.items()}  # a tool may have one
        text = _without_data({**own, "kind": kind})
        call, key = _call.get(), hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()
        try:
            row = self._unplayed[call, key].popleft()  # atomic: one thread gets it
        except (KeyError, IndexError):
            return self._ask(call, key, text, ask), False
        self._check(row, Problem if "failure" in row else shape)
        return row.get("failure", row.get("answer")), True

    def _check(self, row: Row, shape: Any) -> None:
        """A tape may come from someone else. Raises TapeMiss for an answer of another type."""
        try:
            adapter(shape).validate_python(row.get("failure", row.get("answer")))
        except ValidationError as error:
            call, where = row["call"], ".".join(map(str, error.errors()[0]["loc"]))
            raise TapeMiss(f"{self.path}: the answer of {call!r} is damaged ({where})") from None

    def wait(self, seconds: float) -> None:
        """Sleep before the next attempt. Raises Cancelled at once when the run is interrupted."""
        if self.cancelled.wait(seconds) or self._closed:
            raise self._full or Cancelled(f"{_call.get()}: interrupted")

    def _ask(self, call: str, key: str, text: str, ask: Callable[[], Any]) -> Any:
        if self.mode == "replay":
            raise TapeMiss(self._difference(call, text))
        self._flies(1)  # before it looks whether the tape is closed
        try:
            return self._kept(call, key, text, ask)
        finally:
            self._flies(-1)

    def _kept(self, call: str, key: str, text: str, ask: Callable[[], Any]) -> Any:
        if self.cancelled.is_set() or self._closed:
            raise self._full or Cancelled(f"{call} was not started: the run was interrupted")
        self._check_space()
        began_s = time.time()
        try:
            outcome, value = "answer", ask()
        except Failure as failure:
            outcome, value = "failure", failure.args[0]
        timing = json.dumps({"began_s": began_s, "took_s": round(time.time() - began_s, 4)})
        value = json.dumps(self.secrets.redacted(value), ensure_ascii=False, default=str)
        head = f'{{"v": {VERSION}, "call": {json.dumps(call)}, "key": "{key}"'
        self._append(f'{head}, "request": {text}, "{outcome}": {value}, "timing": {timing}}}')
        return json.loads(value)

    # ---- the file --------------------------------------------------------------------------------

    def _append(self, line: str) -> None:
        assert self._file, "a replay writes nothing"
        try:
            self._file.append(line)
        except TapeWriteError as error:
            self._full = error
            self.cancelled.set()  # what cannot be kept is not asked
            raise

    def _check_space(self) -> None:
        disk = os.statvfs(self.path.parent)
        if disk.f_bavail * disk.f_frsize < FREE_BYTES:
            problem = f"{self.path}: less than {FREE_BYTES >> 20} MiB of disk are free"
            self._full = TapeWriteError(problem)
            self.cancelled.set()
            raise self._full

    def _difference(self, call: str, text: str) -> str:
        recorded = [row for row in exchanges(self.path) if row["call"] == call]
        if not recorded:
            return f"{self.path}: nothing is recorded for the call {call!r}; --resume asks it"
        new, *old = map(_readable, (json.loads(text), *(row["request"] for row in recorded)))
        near = max(old, key=lambda lines: len({*lines} & {*new}))
        diff = difflib.unified_diff(near, new, "recorded", "this run", n=1, lineterm="")
        return "\n".join([f"{self.path}: the call {call!r} differs from its recording", *diff][:42])


def _without_data(request: Row) -> str:
    """A request as JSON, with the digest of each picture and sound: RUN/media has them."""
    text = json.dumps(request, sort_keys=True, ensure_ascii=False, default=str)
    return BASE64.sub(lambda data: f"blob:{hashlib.sha256(data[0].encode()).hexdigest()}", text)


def exchanges(path: Path) -> list[Row]:
    """The exchanges of a tape that count."""
    rows: list[Row] = []
    for row in read(path):
        if "resumed" in row:
            rows = _without_retried(rows)
        elif not (all(isinstance(row.get(k), t) for k, t in TYPES) and OUTCOMES & row.keys()):
            raise TapeMiss(f"{path} has a line that is not an exchange; restore a copy")
        else:
            rows.append(row)
    return rows


def _readable(request: Row) -> list[str]:
    text = json.dumps(request, sort_keys=True, ensure_ascii=False, indent=1)
    return text.replace("\\n", "\n").splitlines()


def _without_retried(rows: list[Row]) -> list[Row]:
    """Without the failures that a resume asks again. A failure stays if a later round, another
    step of its sub-task or the same call was answered after it, since that prompt may quote it, or
    if a fork kept it.
    """
    left, last_round, calls = list[Row](), 0, set[str]()
    steps: dict[str, set[str]] = defaultdict(set)
    for row in reversed(rows):
        call, parts = row["call"], row["call"].split("/")  # as r1/t2/s3/part4
        task, step = "/".join(parts[:2]), "/".join(parts[:3])
        quoted = last_round > round_of(call) or call in calls or steps[task] - {step}
        if "answer" in row:
            last_round = max(last_round, round_of(call))
            steps[task].add(step)
            calls.add(call)
        if "answer" in row or "kept" in row or quoted:
            left.append(row)
    return left[::-1]


# ---- JSONL files ---------------------------------------------------------------------------------


class Appender:
    """A JSONL file that threads append to. O_APPEND keeps their lines apart without a lock.

    The file stays open until the last thread that may write is gone, so no file that is opened
    later can get its lines.
    """

    def __init__(self, path: Path) -> None:
        self.path, self._fd = path, -1
        self._fd = os.open(path, os.O_CREAT | os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW, 0o666)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            message = f"{path.parent} is in use by another process; wait, or copy it"
            raise ConfigError(message) from None
        size = os.fstat(self._fd).st_size
        self._torn = size > 0 and os.pread(self._fd, 1, size - 1) != b"\n"

    def append(self, line: str) -> None:
        """Write one line; it outlives this process. Raises TapeWriteError."""
        data = (b"\n" if self._torn else b"") + line.encode("utf-8", "replace") + b"\n"
        try:
            self._torn = os.write(self._fd, data) < len(data)
            if self._torn:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            message = f"{self.path}: {error.strerror}; free some space, then resume the run"
            raise TapeWriteError(message) from None

    def unlock(self) -> None:
        fcntl.flock(self._fd, fcntl.LOCK_UN)

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)


def read(path: Path) -> Iterator[Row]:
    """The complete lines of a JSONL file; one that a kill cut off is left out."""
    import jsonlines

    if not path.is_file():
        return
    if path.stat().st_size > MAX_BYTES:
        raise ConfigError(f"{path} is larger than {MAX_BYTES >> 30} GiB; restore it from a copy")
    with path.open("rb") as file, jsonlines.Reader(file, loads=_loads) as reader:
        yield from reader.iter(type=dict, skip_empty=True, skip_invalid=True)


def _loads(line: str | bytes) -> Any:
    try:
        return json.loads(line)
    except RecursionError:
        raise ValueError("nested too deep") from None
