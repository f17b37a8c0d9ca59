"""JSONL files that threads append to and that a kill cannot spoil: tapes, trajectories, rows.

A line is written in one piece before anything else happens with what it holds. A line that a kill
cut off is left out when the file is read.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from orchestra.runtime import outside
from orchestra.vocabulary import Cause, ConfigError, EndOfRun

MAX_BYTES = 1 << 30  # of a file that is read row by row
HELD_BYTES = 128 << 20  # of one whose rows are in memory together
HELD_VALUES = 4_000_000
MAX_LINE_BYTES = 64 << 20
MAX_LINES = 100_000
MAX_CUT_OFF = 1000  # lines that a kill cut off
BLANK = b"\xef\xbb\xbf\0\r\n"  # the mark of an editor; zeros of a power failure
ADVICE = "free some space, then resume the run"
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
        self._fd = outside.descriptor(path, os.O_CREAT | os.O_RDWR | os.O_APPEND)
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
            raise TapeWriteError(f"{self.path}: {free}; {ADVICE}")

    def append(self, line: str) -> None:
        """Write one line, in one piece; it survives a kill. Raises TapeWriteError."""
        data = (b"\n" if self._torn else b"") + line.encode("utf-8", "replace") + b"\n"
        if len(data) > MAX_LINE_BYTES:
            problem = f"a line over {MAX_LINE_BYTES >> 20} MiB could not be read again"
            raise TapeWriteError(f"{self.path}: {problem}")
        try:
            self._torn = os.write(self._fd, data) < len(data)
            if self._torn:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            message = f"{self.path}: {error.strerror}; {ADVICE}"
            raise TapeWriteError(message) from None

    def unlock(self) -> None:
        fcntl.flock(self._fd, fcntl.LOCK_UN)

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)


class _Lines:
    """The lines of a file from outside, one at a time. Raises ConfigError when they are too many,
    too long or not ours.
    """

    def __init__(self, path: Path, file: BinaryIO, most_values: int) -> None:
        self.path = path
        self.file = file
        self.left = most_values  # of all rows together
        self.at = 0  # where the newest line begins
        self.cut_off = 0

    def __iter__(self) -> Iterator[bytes]:
        count = 0
        while line := self.file.readline(MAX_LINE_BYTES + 1):
            count += 1
            if count > MAX_LINES:
                raise self.damaged(f"has over {MAX_LINES} lines")
            if len(line) > MAX_LINE_BYTES:
                raise self.damaged(f"has a line over {MAX_LINE_BYTES >> 20} MiB")
            if line.lstrip(BLANK)[:1] not in (b"", b"{"):  # no kill leaves such a line
                raise self.damaged("has a line that is not a JSON object")
            yield line
            self.at += len(line)

    def loads(self, line: str | bytes) -> Any:
        """The value of a line, which jsonlines leaves out if this raises ValueError."""
        assert isinstance(line, str)
        try:
            value, count = outside.counted(line.encode())
        except ValueError:
            self.cut_off += 1
            if self.cut_off > MAX_CUT_OFF:
                raise self.damaged("has too many broken lines") from None
            raise
        self.left -= count
        if self.left < 0:
            raise self.damaged("has too many values")
        return value

    def damaged(self, problem: str) -> ConfigError:
        return ConfigError(f"{self.path} {problem}; restore it from a copy")


def read(path: Path) -> Iterator[Row]:
    """The rows of a JSONL file, without a line that a kill cut off. All of them fit into memory.
    Raises ConfigError.
    """
    for _, row in _located(path, HELD_BYTES, HELD_VALUES):
        yield row


def located(path: Path) -> Iterator[tuple[int, Row]]:
    """The rows of a larger file, each with its offset for `row_at`."""
    return _located(path, MAX_BYTES, MAX_LINES * outside.MAX_VALUES)


def _located(path: Path, most: int, most_values: int) -> Iterator[tuple[int, Row]]:
    import jsonlines

    if not os.path.lexists(path):
        return
    with outside.opened(path, most) as file:
        lines = _Lines(path, file, most_values)
        reader = jsonlines.Reader(lines, loads=lines.loads)
        for row in reader.iter(type=dict, skip_empty=True, skip_invalid=True):
            yield lines.at, row


def row_at(path: Path, offset: int) -> Row:
    """The row that `located` found at an offset. Raises ConfigError if the file has changed."""
    with outside.opened(path, MAX_BYTES) as file:
        file.seek(offset)
        try:
            row = outside.parsed(file.readline(MAX_LINE_BYTES))
        except ValueError:
            row = None
    if not isinstance(row, dict):
        raise ConfigError(f"{path} was changed while it was read")
    return row
