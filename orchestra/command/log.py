"""RUN/log.txt: a line for each event, written by a thread of its own.

concurrent-log-handler waits for a lock that other processes can hold, and a run must never wait for
it. So the thread owns the handler, and lines reach it through a SimpleQueue. The handler locks and
checks its file whenever it writes, so it gets the lines of BATCH_S together. What the log misses,
such as the last lines before a kill, is still in trajectory.jsonl.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread

from orchestra.command.terminal import Text, describe, tell
from orchestra.kernel.folder import Event

LOG_BYTES = 10 << 20
BATCH_S = 0.25  # between two writes, unless the log is closed
CLOSE_S = 2.0  # for the last lines to be written
LINE = logging.Formatter("%(asctime)s %(message)s")


class Log:
    """A listener. It never waits and never raises; `close` waits at most CLOSE_S. The thread starts
    with the first event, when the folder is there.
    """

    def __init__(self, path: Path, redact: Text = str) -> None:
        self.path = path
        self.redact = redact
        self.lock = path.with_name(
            f".__{path.name}.lock"
        )  # which concurrent-log-handler locks
        self._records: SimpleQueue[logging.LogRecord | None] = (
            SimpleQueue()
        )  # None: close
        self._closing: SimpleQueue[None] = SimpleQueue()  # ends the wait for a batch
        self._thread: Thread | None = None

    def __call__(self, event: Event) -> None:
        if self._thread is None:
            self._thread = Thread(target=self._write_all, name="log", daemon=True)
            self._thread.start()
        record = logging.makeLogRecord(
            {"msg": describe(event), "levelno": logging.INFO}
        )
        self._records.put_nowait(record)

    def close(self) -> bool:
        """Whether all lines were written in time."""
        if self._thread is None:
            return True
        self._records.put_nowait(None)
        self._closing.put_nowait(None)
        self._thread.join(CLOSE_S)
        if self._thread.is_alive():
            return False
        self.lock.unlink(missing_ok=True)
        return True

    def _write_all(self) -> None:
        """The thread. It also closes the handler, after the last line."""
        handler: logging.Handler = logging.NullHandler()
        with suppress(OSError):  # too many open files: the tape reports it
            handler = handler_of(self.path, self.lock)
        is_open = True
        while is_open:
            batch = self._batch()
            is_open = None not in batch
            lines = [self.redact(LINE.format(record)) for record in batch if record]
            if lines:  # `handle` would hold a lock that logging.shutdown needs
                handler.emit(logging.makeLogRecord({"msg": "\n".join(lines)}))
        with suppress(OSError, ValueError):  # a full disk
            handler.close()
        handler.close()  # the lock, if the log could not be closed

    def _batch(self) -> list[logging.LogRecord | None]:
        """All records that have come after BATCH_S, or until the log is closed; at least one."""
        with suppress(Empty):
            self._closing.get(timeout=BATCH_S)
        first = self._records.get()
        return [first, *(self._records.get() for _ in range(self._records.qsize()))]


def handler_of(path: Path, lock: Path) -> logging.Handler:
    """concurrent-log-handler, which rotates the log. Only this user may open its lock: others could
    hold it.
    """
    from concurrent_log_handler import ConcurrentRotatingFileHandler

    with suppress(OSError):  # then the handler writes nothing
        descriptor = os.open(lock, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600)
        os.fchmod(descriptor, 0o600)
        os.close(descriptor)
    handler: logging.Handler = ConcurrentRotatingFileHandler(
        str(path), maxBytes=LOG_BYTES, backupCount=2, encoding="utf-8"
    )
    handler.handleError = lambda record: None  # type: ignore[method-assign]  # the tape reports it
    return handler


@contextmanager
def logged_in(folder: Path, redact: Text = str) -> Iterator[Log]:
    """The log of the run in a folder."""
    log = Log(folder / "log.txt", redact)
    try:
        yield log
    finally:
        if not log.close():
            tell("log.txt misses lines: another process holds its lock")
