"""RUN/log.txt: a line for each event, written by a thread of its own.

concurrent-log-handler waits for a lock that other processes can hold, and a signal must never find
the main thread waiting. So the thread owns the handler, and lines reach it through a SimpleQueue,
whose `put` takes no lock that an interrupt could leave locked. The handler locks and checks its
file whenever it writes, so it gets the lines of BATCH_S together. What the log misses, such as the
last lines before a kill, is still in trajectory.jsonl.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread

LOG_BYTES = 10 << 20
BATCH_S = 0.25  # between two writes, unless the log is closed
CLOSE_S = 2.0  # for the last lines to be written
CLOSE = logging.makeLogRecord({})  # in place of a line
LINE = logging.Formatter("%(asctime)s %(message)s")


class RunLog:
    """`write` never waits and never raises; `close` waits at most CLOSE_S."""

    def __init__(self, path: Path) -> None:
        self._lock = lock_of(path)
        self._records: SimpleQueue[logging.LogRecord] = SimpleQueue()
        self._closing: SimpleQueue[None] = SimpleQueue()  # ends the wait for a batch
        writer = partial(self._write_all, handler_of(path))
        self._thread = Thread(target=writer, name="log", daemon=True)
        self._thread.start()

    def write(self, line: str) -> None:
        record = logging.makeLogRecord({"msg": line, "levelno": logging.INFO})
        self._records.put_nowait(record)

    def close(self) -> bool:
        """Whether all lines were written in time."""
        self._records.put_nowait(CLOSE)
        self._closing.put_nowait(None)
        self._thread.join(CLOSE_S)
        written = not self._thread.is_alive()
        if written:
            self._lock.unlink(missing_ok=True)
        return written

    def _write_all(self, handler: logging.Handler) -> None:
        """The thread. It also closes the handler, after the last line."""
        is_open = True
        while is_open:
            batch = self._batch()
            is_open = CLOSE not in batch
            lines = [LINE.format(record) for record in batch if record is not CLOSE]
            if lines:  # `handle` would hold a lock that logging.shutdown needs
                handler.emit(logging.makeLogRecord({"msg": "\n".join(lines)}))
        with suppress(OSError, ValueError):  # a full disk
            handler.close()
        handler.close()  # the lock, if the log could not be closed

    def _batch(self) -> list[logging.LogRecord]:
        """All records that have come after BATCH_S, or until the log is closed; at least one."""
        with suppress(Empty):
            self._closing.get(timeout=BATCH_S)
        first = self._records.get()
        return [first, *(self._records.get() for _ in range(self._records.qsize()))]


def handler_of(path: Path) -> logging.Handler:
    """concurrent-log-handler, which rotates the log. Only this user may open its lock: others could
    hold it.
    """
    from concurrent_log_handler import ConcurrentRotatingFileHandler

    with suppress(OSError):  # then the handler writes nothing
        flags = os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW
        lock = os.open(lock_of(path), flags, 0o600)
        os.fchmod(lock, 0o600)
        os.close(lock)
    handler: logging.Handler = ConcurrentRotatingFileHandler(
        str(path), maxBytes=LOG_BYTES, backupCount=2, encoding="utf-8"
    )
    handler.handleError = lambda record: None  # type: ignore[method-assign]  # the tape reports it
    return handler


def lock_of(log: Path) -> Path:
    """The file that concurrent-log-handler locks."""
    return log.with_name(f".__{log.name}.lock")
