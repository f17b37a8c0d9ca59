"""The one door for run folders and sweeps. They may come from someone else, so nothing in them is
read or written before it was checked here.

A file must be a regular file, not a link, pipe, socket or device, and not too large. JSON from it
must not be nested deeply, nor have very many values: 1 MB of `[]` would take 24 MB of memory.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterator
from io import BufferedReader
from itertools import accumulate
from pathlib import Path
from typing import Any, BinaryIO

from orchestra.vocabulary import ConfigError

MAX_ENTRIES = 1_000_000  # of a folder and those in it
MAX_DEPTH = 100  # of JSON
MAX_VALUES = 1_000_000  # of one JSON text
SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
STEP = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
NO_BRACKET = bytes(set(range(256)) - STEP.keys())
SAFE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # to open a pipe would block


# ---- a file --------------------------------------------------------------------------------------


def opened(path: Path, most_bytes: int) -> BufferedReader:
    """A file to read. Raises FileNotFoundError, and ConfigError for what is not a plain file."""
    file = os.fdopen(descriptor(path, os.O_RDONLY), "rb")
    size = os.fstat(file.fileno()).st_size
    if size > most_bytes:
        file.close()
        problem = f"is larger than {most_bytes >> 20} MiB; restore it from a copy"
        raise ConfigError(f"{path} {problem}")
    return file


def written(path: Path) -> BinaryIO:
    """A file to write anew. Raises ConfigError, OSError."""
    file = os.fdopen(descriptor(path, os.O_WRONLY | os.O_CREAT), "wb")
    file.truncate(0)
    return file


def descriptor(path: Path, flags: int) -> int:
    """A regular file, opened. Raises FileNotFoundError, ConfigError, OSError."""
    try:
        opened = os.open(path, flags | SAFE, 0o666)
    except FileNotFoundError:
        raise
    except OSError as error:
        if _is_plain(path):
            raise
        raise _special(path) from error
    if stat.S_ISREG(os.fstat(opened).st_mode):
        return opened
    os.close(opened)
    raise _special(path)


def _is_plain(path: Path) -> bool:
    """Whether it is a regular file, or does not exist."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return True


def _special(path: Path) -> ConfigError:
    problem = "is a link, a folder or a special file where a file is needed"
    return ConfigError(f"{path} {problem}; remove it")


# ---- a folder ------------------------------------------------------------------------------------


def check(folder: Path, deep: bool = False, links: bool = False) -> None:
    """Raises ConfigError for a link or a special file in a folder. `deep`: also in the folders in
    it. `links`: these are allowed, as in the copy of a repository.
    """
    for entry in _entries(folder, deep):
        is_link = entry.is_symlink()
        is_special = not (is_link or entry.is_file() or entry.is_dir())
        if is_special or (is_link and not links):
            problem = "is a link or a special file; a run folder has none"
            path = entry.path if entry.path.isprintable() else repr(entry.path)
            raise ConfigError(f"{path} {problem}")


def _entries(folder: Path, deep: bool) -> Iterator[os.DirEntry[str]]:
    """What is in a folder, if it is one. Raises ConfigError if that is too much."""
    folders = [str(folder)]
    count = 0
    while folders:
        here = folders.pop()
        if not Path(here).is_dir():
            continue
        with os.scandir(here) as entries:
            for entry in entries:
                count += 1
                if count > MAX_ENTRIES:
                    raise ConfigError(f"{folder} has over {MAX_ENTRIES} files in it")
                yield entry
                if deep and entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)


def folders_in(folder: Path) -> list[Path]:
    """The folders in a folder, in their order, without links. Raises ConfigError, OSError."""
    entries = _entries(folder, deep=False)
    names = [e.name for e in entries if e.is_dir(follow_symlinks=False)]
    return [folder / name for name in sorted(names)]


def files_in(folder: Path) -> list[Path]:
    """The regular files in a folder and in those in it, without links. Raises ConfigError."""
    entries = _entries(folder, deep=True)
    return sorted(Path(e.path) for e in entries if e.is_file(follow_symlinks=False))


def runs_in(folder: Path, depth: int) -> list[Path]:
    """The run folders in a folder, at most `depth` levels down. Raises ConfigError, OSError."""
    found: list[Path] = []
    folders = [folder]
    for _ in range(depth):
        folders = [inner for here in folders for inner in folders_in(here)]
        if len(folders) > MAX_ENTRIES:
            raise ConfigError(f"{folder} has over {MAX_ENTRIES} folders in it")
        found += [here for here in folders if os.path.lexists(here / "run.json")]
    return sorted(found)


def member(folder: Path, name: object) -> Path:
    """The folder of this name in a folder. Raises ConfigError for a name that leads elsewhere."""
    path = folder / str(name)
    leads_out = path.parent != folder or path.name in ("", "..")
    if not isinstance(name, str) or leads_out or path.is_symlink():
        problem = "is not the name of a folder in it"
        raise ConfigError(f"{folder}: {name!r} {problem}")
    return path


# ---- JSON ----------------------------------------------------------------------------------------


def parsed(data: bytes) -> Any:
    """The value of a JSON text. Raises ValueError."""
    return counted(data)[0]


def counted(data: bytes) -> tuple[Any, int]:
    """The value of a JSON text, and at least how many values are in it. Raises ValueError."""
    count = values_in(data)
    value = json.loads(data)
    if SURROGATE.search(data):
        json.dumps(value, ensure_ascii=False).encode()  # not half of a pair
    return value, count


def values_in(data: bytes) -> int:
    """At least the number of values in a JSON text. Raises ValueError if it is nested too deep or
    there are too many.
    """
    opening = data.count(b"[") + data.count(b"{")
    most = opening + data.count(b",")
    is_prose = most * 64 <= len(data)
    if is_prose and opening <= MAX_DEPTH:
        return most  # commas in strings included
    plain = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    if plain.count(b'"') > 2 * MAX_VALUES:
        raise ValueError(f"has more than {MAX_VALUES} values")
    bare = b"".join(plain.split(b'"')[::2])  # without its strings
    count = bare.count(b"[") + bare.count(b"{") + bare.count(b",")
    if count > MAX_VALUES:
        raise ValueError(f"has more than {MAX_VALUES} values")
    brackets = bare.translate(None, NO_BRACKET)
    if max(accumulate(STEP[bracket] for bracket in brackets), default=0) > MAX_DEPTH:
        raise ValueError("nested too deep")
    return count
