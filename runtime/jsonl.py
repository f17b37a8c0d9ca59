"""JSONL files that threads append to, one whole line at a time."""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from orchestra.vocabulary import ConfigError, EndOfRun

MAX_LINE_BYTES = 512 << 20


class TapeWriteError(EndOfRun):
    """The run folder cannot be written (a full disk): no further call is started."""


class Appender:
    """A JSONL file that threads append to. O_APPEND keeps their lines apart without a lock.

    The file stays open until the last thread that may write is gone, so no file that is opened
    later can get its lines.
    """

    def __init__(self, path: Path) -> None:
        self.path, self._fd = path, -1
        flags = os.O_CREAT | os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW
        self._fd = os.open(path, flags, 0o666)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f"{path.parent} is in use by another process; wait, or copy it"
            ) from None
        size = os.fstat(self._fd).st_size
        self._torn = size > 0 and os.pread(self._fd, 1, size - 1) != b"\n"

    def append(self, line: str) -> None:
        """Write one line; it outlives this process. Raises TapeWriteError."""
        data = (b"\n" if self._torn else b"") + line.encode() + b"\n"
        try:
            self._torn = os.write(self._fd, data) < len(data)
            if self._torn:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            raise no_space(self.path, error.strerror) from None

    def unlock(self) -> None:
        fcntl.flock(self._fd, fcntl.LOCK_UN)

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)


def no_space(path: Path, why: str | None) -> TapeWriteError:
    return TapeWriteError(f"{path}: {why}; free some space, then resume the run")


def _loads(line: str | bytes) -> Any:
    try:
        return json.loads(line)
    except RecursionError:
        raise ValueError("nested too deep") from None


def read(path: Path) -> Iterator[dict[str, Any]]:
    """The complete lines of a JSONL file; one that a kill cut off is left out."""
    import jsonlines

    def lines() -> Iterator[bytes]:
        with path.open("rb") as file:
            while line := file.readline(MAX_LINE_BYTES):
                if len(line) == MAX_LINE_BYTES:
                    raise ConfigError(f"{path} has a line without end; restore it from a copy")
                yield line

    with jsonlines.Reader(lines() if path.exists() else [], loads=_loads) as reader:
        yield from reader.iter(type=dict, skip_empty=True, skip_invalid=True)
