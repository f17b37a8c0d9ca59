"""The folder of a walled program: what it holds, opened again after it, emptied (tools/wall.py)."""

from __future__ import annotations

import contextlib
import math
import os
import stat
import subprocess
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

MAX_DISK_BYTES = 256 << 20  # that its programs add to it
MAX_FILES = 5_000  # folders too
MAX_DEPTH = 100  # of folders in one another


@dataclass(frozen=True)
class Contents:
    """What a folder holds. `files`: infinite where it cannot be looked into at all."""

    files: float = 0
    size_bytes: int = 0
    depth: int = 0

    def exceeds(self, most: Contents) -> bool:
        return (
            self.files > most.files or self.size_bytes > most.size_bytes or self.depth > most.depth
        )


@lru_cache(4096)  # one a sub-agent: what all its programs add counts, not what each does
def allowed(folder: Path) -> Contents:
    """The most that it may hold: more than at first, when it may be a copy of a repository."""
    first = contents(folder, Contents(math.inf, 1 << 62, 1 << 30), opens=True)
    depth = max(first.depth, MAX_DEPTH)
    return Contents(first.files + MAX_FILES, first.size_bytes + MAX_DISK_BYTES, depth)


def contents(folder: Path, most: Contents, opens: bool = False) -> Contents:
    """What it holds, or the first that exceeds `most`. `opens`: while no program runs, what one has
    closed to its own user is opened again; else that is passed over, and counted when it ended.
    """
    files, size, deepest = 0, 0, 0
    waiting = [(str(folder), 0)]
    if opens:
        _open(str(folder), folder.stat().st_mode)
    while waiting:
        here, depth = waiting.pop()
        deepest = max(deepest, depth)
        try:
            with os.scandir(here) as entries:
                for entry in entries:
                    files += 1
                    with contextlib.suppress(FileNotFoundError):  # gone meanwhile
                        found = entry.stat(follow_symlinks=False)
                        size += found.st_blocks * 512
                        if opens:
                            _open(entry.path, found.st_mode)
                        if stat.S_ISDIR(found.st_mode):
                            waiting.append((entry.path, depth + 1))
                    held = Contents(files, size, deepest)
                    if held.exceeds(most):
                        return held
        except (FileNotFoundError, NotADirectoryError):
            continue  # gone meanwhile
        except OSError as error:
            if opens or not isinstance(error, PermissionError):
                return Contents(math.inf, size, deepest)
    return Contents(files, size, deepest)


def _open(path: str, mode: int) -> None:
    """Let the owner into a folder, and let it read a file. No link is followed."""
    wanted = 0o700 if stat.S_ISDIR(mode) else 0o400 if stat.S_ISREG(mode) else 0
    if mode & wanted != wanted:
        with contextlib.suppress(OSError):
            Path(path).chmod(stat.S_IMODE(mode) | wanted)


def empty(folder: Path) -> None:
    """Take out all that is in it, however deep or closed: these programs mind neither."""
    for tidy in (("chmod", "-R", "u+rwX", folder), ("find", folder, "-mindepth", "1", "-delete")):
        subprocess.run(tidy, capture_output=True, check=False)
