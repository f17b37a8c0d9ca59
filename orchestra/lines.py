"""JSONL files that many threads append to: each line in one write, so it is there whole or not.

What a crash or a full disk tore stays a line of its own, and reading leaves it out.
"""

from __future__ import annotations

import errno
import io
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonlines

Row = dict[str, Any]


def dumps(row: Any) -> str:
    return json.dumps(row, ensure_ascii=False)


class Appender:
    """No lock: O_APPEND keeps the writes of threads apart, and a lock held over a write would make
    every thread wait for the one that has it.
    """

    def __init__(self, path: Path, dumps: Callable[[Any], str] = dumps) -> None:
        self._dumps = dumps
        self._fd = os.open(path, os.O_CREAT | os.O_RDWR | os.O_APPEND, 0o600)
        size = os.fstat(self._fd).st_size
        self._torn = size > 0 and os.pread(self._fd, 1, size - 1) != b"\n"

    def append(self, row: Row) -> None:
        """Write one line; it outlives this process. Raises OSError (a full disk, a closed file)."""
        buffer = io.BytesIO(b"\n" if self._torn else b"")
        buffer.seek(0, io.SEEK_END)
        jsonlines.Writer(buffer, dumps=self._dumps).write(row)
        line = buffer.getvalue()
        self._torn = os.write(self._fd, line) < len(line)
        if self._torn:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def read(path: Path) -> Iterator[Row]:
    """The whole lines of a file, in order; none if there is no file."""
    if path.exists():
        with jsonlines.Reader(path.read_bytes().split(b"\n"), loads=json.loads) as reader:
            yield from reader.iter(type=dict, skip_empty=True, skip_invalid=True)
