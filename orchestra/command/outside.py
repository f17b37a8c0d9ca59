"""Checks of run folders and sweeps that may come from someone else, before they are used.

A file must be a regular file, not a link, pipe, socket or device, and not too large. JSON from it
must not be nested deeply, nor have very many values: 1 MB of `[]` would take 24 MB of memory.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from itertools import accumulate
from pathlib import Path
from typing import Any

from orchestra.kernel.vocabulary import ConfigError, ModelMistake

MAX_ENTRIES = 1_000_000  # of a folder and those in it
MAX_DEPTH = 100  # of JSON
MAX_VALUES = 1_000_000  # of one JSON text
MAX_FILE_BYTES = 1 << 30  # of a file that is read line by line
MAX_LINE_BYTES = 64 << 20
MAX_LINES = 100_000
MAX_SETTINGS_BYTES = 16 << 20  # of run.json, or of a like file
MAX_MEDIA_BYTES = 4 << 30  # of all media together
MANY_ATTEMPTS = re.compile(rb'"unanswered":\s*\d{5}')  # they are charged one by one
STEP = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
NO_BRACKET = bytes(set(range(256)) - STEP.keys())
SAFE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # to open a pipe would block


def check_run(folder: Path) -> None:
    """Raises ConfigError for what is not a run folder, or has in it what no run writes."""
    if not os.path.lexists(folder / "run.json"):
        raise ConfigError(f"{folder} is not a run folder (no run.json)")
    for part in (folder, folder / "media", folder / "work"):
        check(part)
    check(folder / "workdir.git", deep=True)
    alternates = folder / "workdir.git/objects/info/alternates"
    if os.path.lexists(alternates):  # git's link to objects elsewhere
        raise _special(alternates)
    row = json_of(folder / "run.json")
    media = row.get("media") if isinstance(row, dict) else None
    listed = media if isinstance(media, list) else ()
    names = [m.get("name") for m in listed if isinstance(m, dict)]
    sizes = 0
    for name in names:
        path = member(folder / "media", name)
        if os.path.lexists(path):
            sizes += path.stat().st_size
    if sizes > MAX_MEDIA_BYTES:
        raise ConfigError(
            f"{folder / 'media'} is larger than {MAX_MEDIA_BYTES >> 20} MiB"
        )
    for name in ("tape.jsonl", "trajectory.jsonl"):
        if os.path.lexists(folder / name):
            for line in lines_of(folder / name, MAX_FILE_BYTES):
                check_values(folder / name, line)
                if MANY_ATTEMPTS.search(line):
                    raise ConfigError(
                        f"{folder / name} is damaged: very many attempts of a call"
                    )


DAMAGE = (
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    AssertionError,
    RecursionError,
    ModelMistake,
)
WHY_CHARS = 200


@contextmanager
def damage_is_one_line(folder: Path) -> Iterator[None]:
    """Data of another shape than a run writes raises such errors. Here they become ConfigError."""
    try:
        yield
    except DAMAGE as error:
        why = " ".join(f"{type(error).__name__}: {error}".split())[:WHY_CHARS]
        problem = f"{folder} is damaged, or of another version ({why}); restore a copy"
        raise ConfigError(problem) from error


# ---- a file --------------------------------------------------------------------------------------


def opened(path: Path, most_bytes: int) -> BufferedReader:
    """A file to read. Raises FileNotFoundError, OSError, and ConfigError for what is not a plain
    file.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | SAFE)
    except OSError as error:
        if os.path.lexists(path) and not stat.S_ISREG(path.lstat().st_mode):
            raise _special(path) from error
        raise
    status = os.fstat(descriptor)
    problem = None
    if not stat.S_ISREG(status.st_mode):
        problem = _special(path)
    elif status.st_size > most_bytes:
        problem = ConfigError(f"{path} is larger than {most_bytes >> 20} MiB")
    if problem:
        os.close(descriptor)
        raise problem
    return os.fdopen(descriptor, "rb")


def json_of(path: Path, hint: str = "restore it from a copy") -> Any:
    """The JSON in a file. Raises ConfigError, with a hint if there is no such file."""
    try:
        with opened(path, MAX_SETTINGS_BYTES) as file:
            data = file.read()
        check_values(path, data)
        return json.loads(data)
    except FileNotFoundError:
        raise ConfigError(f"{path}: there is no such file; {hint}") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"{path} is damaged ({' '.join(str(error).split())})"
        ) from None


def lines_of(path: Path, most_bytes: int) -> Iterator[bytes]:
    with opened(path, most_bytes) as file:
        for number, line in enumerate(
            iter(lambda: file.readline(MAX_LINE_BYTES + 1), b"")
        ):
            if number >= MAX_LINES or len(line) > MAX_LINE_BYTES:
                raise ConfigError(
                    f"{path} is damaged: too many lines, or too long ones"
                )
            yield line


def check_values(path: Path, data: bytes) -> None:
    """Raises ConfigError if a JSON text is nested too deep or has too many values."""
    opening = data.count(b"[") + data.count(b"{")
    if opening + data.count(b",") > MAX_VALUES or opening > MAX_DEPTH:
        plain = data.replace(b"\\\\", b"").replace(b'\\"', b"")
        bare = b"".join(plain.split(b'"')[::2])  # without its strings
        count = bare.count(b"[") + bare.count(b"{") + bare.count(b",")
        brackets = bare.translate(None, NO_BRACKET)
        depth = max(accumulate(STEP[bracket] for bracket in brackets), default=0)
        if count > MAX_VALUES or depth > MAX_DEPTH:
            raise ConfigError(f"{path} is damaged: nested too deep, or too many values")


def _special(path: Path) -> ConfigError:
    shown = str(path) if str(path).isprintable() else repr(str(path))
    problem = "is a link or a special file, which a run folder does not have; remove it"
    return ConfigError(f"{shown} {problem}")


# ---- a folder ------------------------------------------------------------------------------------


def check(folder: Path, deep: bool = False) -> None:
    """Raises ConfigError for a link or a special file in a folder. `deep`: also in those in it."""
    for entry in entries_of(folder, deep):
        if entry.is_symlink() or not (entry.is_file() or entry.is_dir()):
            raise _special(Path(entry.path))


def member(folder: Path, name: object) -> Path:
    """The entry of this name in a folder. Raises ConfigError for a name that leads elsewhere."""
    path = folder / str(name)
    is_inside = (
        path.parent == folder and path.name not in ("", "..") and "\0" not in str(name)
    )
    if not isinstance(name, str) or not is_inside or path.is_symlink():
        raise ConfigError(f"{folder}: {name!r} is not a name of something in it")
    return path


def entries_of(folder: Path, deep: bool) -> Iterator[os.DirEntry[str]]:
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
