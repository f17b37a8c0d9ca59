"""JSONL files that many threads append to: each line in one write, so it is there whole or not.

What a crash or a full disk tore stays a line of its own, which reading leaves out.
"""

from __future__ import annotations

import errno
import json
import logging
import os
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

Row = dict[str, Any]


def dumps(row: Any) -> str:
    return json.dumps(row, ensure_ascii=False)


class Appender:
    """No lock: O_APPEND keeps the writes of threads apart, and a lock held over a write would make
    every thread wait for the one that has it.
    """

    def __init__(self, path: Path, dumps: Callable[[Any], str] = dumps) -> None:
        self._dumps, self._fd = dumps, -1
        self._fd = os.open(path, os.O_CREAT | os.O_RDWR | os.O_APPEND, 0o600)
        size = os.fstat(self._fd).st_size
        self._torn = size > 0 and os.pread(self._fd, 1, size - 1) != b"\n"

    def append(self, row: Row) -> None:
        """Write one line; it outlives this process. Raises OSError (a full disk, a closed file)."""
        line = (b"\n" if self._torn else b"") + self._dumps(row).encode() + b"\n"
        self._torn = os.write(self._fd, line) < len(line)
        if self._torn:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def close(self) -> None:
        """Further lines raise OSError. The number of the file stays taken for as long as a thread
        may have this: no file that is opened next gets a line that was meant for this one.
        """
        nowhere = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nowhere, self._fd)
        os.close(nowhere)

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)


def read(path: Path) -> Iterator[Row]:
    """The whole lines of a file, in order; none if there is no file. A damaged line is told, but
    for one that was cut by a kill: the last of all, or of what was written before a resume.
    """
    if not path.exists():
        return
    import jsonlines  # a fiftieth of a second to load, and a new run reads nothing

    damaged = 0
    with jsonlines.Reader(path.read_bytes().split(b"\n"), loads=json.loads) as reader:
        while True:
            try:
                row = reader.read(type=dict, skip_empty=True)
            except EOFError:
                return
            except jsonlines.InvalidLineError as error:
                if damaged:
                    _tell(path, damaged)
                damaged = error.lineno
                continue
            if damaged and "resumed" not in row and row.get("event") != "run":
                _tell(path, damaged)
            damaged = 0
            yield row


@cache
def _tell(path: Path, line: int) -> None:
    """Once, however often the file is read."""
    said = "%s:%d: a damaged line is left out; restore the file if you have a copy"
    logging.getLogger("orchestra").warning(said, path, line)
