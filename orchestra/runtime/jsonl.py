"""JSONL files that threads append to and that a kill cannot spoil: tapes, trajectories, rows.

A line is written in one piece before anything else happens with what it holds. A line that a kill
cut off is left out when the file is read.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from orchestra.vocabulary import Cause, ConfigError, EndOfRun

MAX_BYTES = 2 << 30  # of a file to read
FREE_BYTES = 8 << 20  # with less disk space no call starts: its answer might not fit
Row = dict[str, Any]


class TapeWriteError(EndOfRun):
    """The run folder cannot be written, as on a full disk. No further call is started."""

    cause: Cause = "disk"


class Appender:
    """A JSONL file, locked against other processes, that threads append to. O_APPEND keeps their
    lines apart. The file is closed only when no thread refers to it: a file descriptor that is used
    again would get the lines of a late thread.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = -1  # if it cannot be opened
        flags = os.O_CREAT | os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW
        self._fd = os.open(path, flags, 0o666)
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
            advice = "free some space, then resume the run"
            message = f"{self.path}: {error.strerror}; {advice}"
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
