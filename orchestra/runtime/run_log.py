"""RUN/log.txt: a line for each event, written by a thread of its own.

concurrent-log-handler waits for a lock that other processes can hold, and a signal must never find
the main thread waiting. So the thread owns the handler, and lines reach it through a SimpleQueue,
whose `put` takes no lock that an interrupt could leave locked. What the log misses is still in
trajectory.jsonl.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from logging.handlers import QueueHandler, QueueListener
from pathlib import Path
from queue import SimpleQueue

LOG_BYTES = 10 << 20
CLOSE_S = 2.0  # for the last lines to be written
CLOSE = logging.makeLogRecord({})  # in place of a line


class RunLog:
    """`write` never waits and never raises; `close` waits at most CLOSE_S."""

    def __init__(self, path: Path) -> None:
        queue: SimpleQueue[logging.LogRecord] = SimpleQueue()
        self._lock = lock_of(path)
        self._entrance = QueueHandler(queue)
        self._writer = Writer(queue, handler_of(path))
        self._writer.start()

    def write(self, line: str) -> None:
        record = logging.makeLogRecord({"msg": line, "levelno": logging.INFO})
        self._entrance.emit(record)  # `handle` would take a lock

    def close(self) -> bool:
        """Whether all lines were written in time."""
        written = self._writer.closed_in(CLOSE_S)
        if written:
            self._lock.unlink(missing_ok=True)
        return written


class Writer(QueueListener):
    """The thread. It also closes the handler, after the last line."""

    def handle(self, record: logging.LogRecord) -> None:
        (handler,) = self.handlers
        if record is not CLOSE:
            handler.emit(
                record
            )  # `handle` would hold a lock that logging.shutdown needs
            return
        with suppress(OSError, ValueError):  # a full disk
            handler.close()
        handler.close()  # the lock, if the log could not be closed

    def closed_in(self, seconds: float) -> bool:
        self.queue.put_nowait(CLOSE)
        self.enqueue_sentinel()
        assert self._thread is not None
        self._thread.join(seconds)
        return not self._thread.is_alive()


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
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    return handler


def lock_of(log: Path) -> Path:
    """The file that concurrent-log-handler locks."""
    return log.with_name(f".__{log.name}.lock")
