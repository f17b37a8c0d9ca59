"""The tape: every paid exchange is on disk before its answer is used; replay, resume and fork.

A tape is a JSONL file with one line per exchange. An exchange is found by (logical call, SHA-256 of
its request), so the timing of threads plays no part:

    with tape.call("r1", "t2", "s1"):                   # inside the worker: round, sub-task, step
        answer, played = tape.exchange("chat", body, ask)   # ask() returns JSON or raises Failure

    record   a new tape                      calls ask() for each exchange
    resume   plays the recorded answers      calls ask() for what is missing, and again for a
                                             failure that no later answer may quote
    replay   plays answers and failures      raises TapeMiss for what is missing, with a diff
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

from orchestra.runtime.secrets import Secrets
from orchestra.vocabulary import ConfigError, EndOfRun

VERSION = 2
MAX_BYTES = 2 << 30  # of a file to read
FREE_BYTES = 8 << 20  # with less disk space no call starts: its answer might not fit
BASE64 = re.compile(
    r"(?<![A-Za-z0-9+/])[A-Za-z0-9+/]{4096,}={0,2}"
)  # an image, a sound
TYPES = ("call", str), ("key", str), ("request", dict)
Mode = Literal["record", "resume", "replay"]
Row = dict[str, Any]
_call: ContextVar[str] = ContextVar("logical_call")
adapter = cache(TypeAdapter)  # creating one takes longer than a check


class TapeMiss(EndOfRun):
    """A replay made a request that the tape does not hold."""


class TapeWriteError(EndOfRun):
    """The run folder cannot be written, as on a full disk. No further call is started."""


class Cancelled(EndOfRun):
    """The run was interrupted: no further call is started."""


class Failure(Exception):
    """An exchange without an answer. `args`: its outcome as JSON, which the tape keeps."""


Unanswered = Annotated[
    int, Field(ge=0, le=10_000, strict=True)
]  # attempts that may be billed


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
    may be set from outside; the tape sets it when it cannot be written.
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
        self._in_flight: list[str] = []  # the logical calls
        self._write_error: TapeWriteError | None = None
        self._file = None if mode == "replay" else Appender(path)
        if (
            self._file and mode == "resume"
        ):  # first: `exchanges` then omits the failures to retry
            self._file.append(json.dumps({"v": VERSION, "resumed": True}))
        for row in exchanges(path) if mode != "record" else ():
            self._unplayed.setdefault((row["call"], row["key"]), deque()).append(row)

    def close(self) -> None:
        """Start no further call. The file stays locked until the calls in flight are written."""
        self._closed = True
        self._unlock_if_done()

    def _unlock_if_done(self) -> None:
        if self._file and self._closed and not self._in_flight:
            self._file.unlock()

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
    ) -> tuple[Any, bool]:
        """The answer, as JSON without secrets, and whether it comes from the tape; else what
        `ask()` returns, or the outcome of the Failure it raises. Raises TapeMiss.

        `shape`: the type of an answer, checked if it comes from the tape.
        """
        own = {
            f"{k}_" if k == "kind" else k: v for k, v in request.items()
        }  # a tool's parameter
        text = _without_data({**own, "kind": kind})
        call, key = (
            _call.get(),
            hashlib.sha256(text.encode("utf-8", "replace")).hexdigest(),
        )
        try:
            row = self._unplayed[call, key].popleft()  # atomic: one thread gets it
        except (KeyError, IndexError):
            return self._ask(call, key, text, ask), False
        answer = row.get("failure", row.get("answer"))
        try:  # a tape may come from someone else
            adapter(Problem if "failure" in row else shape).validate_python(answer)
        except ValidationError as error:
            where = ".".join(map(str, error.errors()[0]["loc"]))
            raise TapeMiss(
                f"{self.path}: the answer of {call!r} is damaged ({where})"
            ) from None
        return answer, True

    def wait(self, seconds: float) -> None:
        """Sleep before an attempt. Raises Cancelled as soon as the run is interrupted."""
        if self.cancelled.wait(seconds) or self._closed:
            raise self._write_error or Cancelled(f"{_call.get()}: interrupted")

    def _ask(self, call: str, key: str, text: str, ask: Callable[[], Any]) -> Any:
        if not self._file:
            raise TapeMiss(self._difference(call, text))
        self._in_flight.append(call)  # before it checks whether the tape is closed
        try:
            self.wait(0)
            self._file.check_space()
            line, answer = self._asked(call, key, text, ask)
            self._file.append(line)
            return answer
        except TapeWriteError as error:
            self._write_error = error
            self.cancelled.set()
            raise
        finally:
            self._in_flight.remove(call)
            self._unlock_if_done()

    def _asked(
        self, call: str, key: str, text: str, ask: Callable[[], Any]
    ) -> tuple[str, Any]:
        """The line for the tape, and the answer as a replay will read it."""
        began_s = time.time()
        try:
            outcome, value = "answer", ask()
        except Failure as failure:
            outcome, value = "failure", failure.args[0]
        timing = json.dumps(
            {"began_s": began_s, "took_s": round(time.time() - began_s, 4)}
        )
        value = json.dumps(
            self.secrets.redacted(value), ensure_ascii=False, default=str
        )
        head = f'{{"v": {VERSION}, "call": {json.dumps(call)}, "key": "{key}"'
        line = f'{head}, "request": {text}, "{outcome}": {value}, "timing": {timing}}}'
        return line, json.loads(value)

    def _difference(self, call: str, text: str) -> str:
        recorded = [row for row in exchanges(self.path) if row["call"] == call]
        if not recorded:
            return f"{self.path}: nothing is recorded for the call {call!r}; --resume makes it"
        new, *old = map(
            _readable, (json.loads(text), *(row["request"] for row in recorded))
        )
        near = max(old, key=lambda lines: len({*lines} & {*new}))
        diff = difflib.unified_diff(near, new, "recorded", "this run", n=1, lineterm="")
        return "\n".join(
            [f"{self.path}: the call {call!r} differs from its recording", *diff][:42]
        )


def _without_data(request: Row) -> str:
    """A request as JSON, with the digest of each image and sound: the data is in RUN/media."""
    text = json.dumps(request, sort_keys=True, ensure_ascii=False, default=str)
    return BASE64.sub(
        lambda data: f"blob:{hashlib.sha256(data[0].encode()).hexdigest()}", text
    )


def exchanges(path: Path) -> list[Row]:
    """The exchanges of a tape, without the failures that a resume retried."""
    rows: list[Row] = []
    for row in read(path):
        if "resumed" in row:
            rows = _without_retried(rows)
        elif not (
            all(isinstance(row.get(k), t) for k, t in TYPES)
            and row.keys() & {"answer", "failure"}
        ):
            raise TapeMiss(f"{path} has a line that is not an exchange; restore a copy")
        else:
            rows.append(row)
    return rows


def _readable(request: Row) -> list[str]:
    text = json.dumps(request, sort_keys=True, ensure_ascii=False, indent=1)
    return text.replace("\\n", "\n").splitlines()


def _without_retried(rows: list[Row]) -> list[Row]:
    """Without the failures that a resume retries. A failure stays if a later round, another step of
    its sub-task or the same call was answered after it, since that prompt may quote it, or if a
    fork kept it.
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
    """A JSONL file, locked against other processes, that threads append to. O_APPEND keeps their
    lines apart. The file is closed only when no thread refers to it: a file descriptor that is used
    again would get the lines of a late thread.
    """

    def __init__(self, path: Path) -> None:
        self.path, self._fd = path, -1
        self._fd = os.open(
            path, os.O_CREAT | os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW, 0o666
        )
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            message = f"{path.parent} is in use by another process; wait, or copy it"
            raise ConfigError(message) from None
        size = os.fstat(self._fd).st_size
        self._torn = size > 0 and os.pread(self._fd, 1, size - 1) != b"\n"

    def check_space(self) -> None:
        """Raises TapeWriteError."""
        disk = os.statvfs(self.path.parent)
        if disk.f_bavail * disk.f_frsize < FREE_BYTES:
            free = f"less than {FREE_BYTES >> 20} MiB of disk are free"
            raise TapeWriteError(f"{self.path}: {free}")

    def append(self, line: str) -> None:
        """Write one line, in one piece; it survives a kill. Raises TapeWriteError."""
        data = (b"\n" if self._torn else b"") + line.encode("utf-8", "replace") + b"\n"
        try:
            self._torn = os.write(self._fd, data) < len(data)
            if self._torn:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            message = (
                f"{self.path}: {error.strerror}; free some space, then resume the run"
            )
            raise TapeWriteError(message) from None

    def unlock(self) -> None:
        fcntl.flock(self._fd, fcntl.LOCK_UN)

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)


def read(path: Path) -> Iterator[Row]:
    """The rows of a JSONL file, without a line that a kill cut off."""
    import jsonlines

    if not path.is_file():
        return
    if path.stat().st_size > MAX_BYTES:
        raise ConfigError(
            f"{path} is larger than {MAX_BYTES >> 30} GiB; restore it from a copy"
        )
    with path.open("rb") as file, jsonlines.Reader(file, loads=_loads) as reader:
        yield from reader.iter(type=dict, skip_empty=True, skip_invalid=True)


def _loads(line: str | bytes) -> Any:
    try:
        return json.loads(line)
    except RecursionError:
        raise ValueError("nested too deep") from None
