"""changes.diff: what a work folder holds against the run's copy of the repository.

Python finds which files differ; git only writes that down, in a repository made for it and empty of
settings. So nothing that was done to the work folder's own .git counts, a repository inside it is
files like others, and no hook, filter or attribute is obeyed. New files that the folder's
.gitignore names are left out.
"""

from __future__ import annotations

import logging
import os
import re
import stat
import subprocess
import tempfile
from bisect import bisect_right
from collections.abc import Collection, Iterator, Set
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple, NoReturn

from orchestra.git import git, said
from orchestra.prompts import say

FILE = "changes.diff"
MAX_BYTES = 50 << 20  # of the files in it, as they were and as they are
TIMEOUT_S = 60
GITS_OWN = re.compile(r"(\.git|git~1)[ .]*", re.I)  # names that git refuses in any repository
DIFF = (
    "diff --binary --no-color --no-ext-diff --no-textconv --no-renames --src-prefix=a/"
    " --dst-prefix=b/ base work"
)


class Entry(NamedTuple):
    mode: bytes  # as git writes it
    size: int


class Side(NamedTuple):
    """A folder as it was or as it is."""

    folder: Path
    entries: dict[Path, Entry]


def work_folders(run: Path) -> list[Path]:
    """Those of a run's sub-tasks, as r2-t1, in the order of the sub-tasks."""
    return sorted((run / "work").glob("r*-t*"), key=place)


def place(folder: Path) -> tuple[int, ...]:
    """Round and task, from the name of a work folder."""
    return tuple(map(int, re.findall(r"\d+", folder.name)))


def write(run: Path, folder: Path) -> tuple[bytes, str]:
    """Writes the run's changes.diff. Returns it, and what its readers must know: that files are too
    large for it, or that nothing could be compared; then there is no changes.diff.
    """
    part = run / f"{FILE}.part"
    try:
        with tempfile.TemporaryDirectory() as own:
            note = _write(part, run, folder, Path(own))
        diff = part.read_bytes()
        part.rename(run / FILE)
    except (OSError, subprocess.SubprocessError) as error:
        for stale in (part, run / FILE):
            stale.unlink(missing_ok=True)
        why = said(error) if isinstance(error, subprocess.SubprocessError) else str(error)
        _tell(run, f"{folder} could not be compared ({why}), so there is none")
        return b"", say("mini_swe/messages", "no_diff")
    if note:
        _tell(run, note)
    return diff, note


def _tell(run: Path, what: str) -> None:
    logging.getLogger("orchestra").warning("%s: %s", run / FILE, what)


def _write(part: Path, run: Path, folder: Path, own: Path) -> str:
    git(own, "init", "-q", "--template=")
    # What a command closed to its owner is opened; no copy keeps the right to become another user.
    opened = ["chmod", "-R", "u+rwX,ug-s", "--", str(folder)]
    subprocess.run(opened, capture_output=True, check=False)
    base, work = (Side(f, dict(_entries(f))) for f in (run / "workdir", folder))
    if (run / "media").is_dir():  # the task's files are shown there
        for path in [path for path in work.entries if path.parts[0] == "media"]:
            del work.entries[path]
    for path in _ignored(own, folder, work.entries.keys() - base.entries.keys()):
        del work.entries[path]
    changed, too_large = _changed(base, work)
    rows = [*_commit(b"base", base, changed), *_commit(b"work", work, changed)]
    git(own, "fast-import", "--quiet", given=b"".join(rows), timeout_s=TIMEOUT_S)
    names = ", ".join(repr(str(path)) for path in too_large)
    note = say("mini_swe/messages", "too_large", files=names) if names else ""
    with part.open("wb") as out:
        out.write(f"{note}\n".encode() if note else b"")
        out.flush()
        git(own, *DIFF.split(), out=out, timeout_s=TIMEOUT_S)
    return note


def _entries(folder: Path) -> Iterator[tuple[Path, Entry]]:
    """The files and links, by their paths in `folder`. No link is followed."""

    def refuse(error: OSError) -> NoReturn:
        raise error

    for at, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = [name for name in folders if not GITS_OWN.fullmatch(name)]
        for name in (*folders, *names):
            path = Path(at, name)
            found = path.lstat()
            mode = b"100755" if found.st_mode & stat.S_IXUSR else b"100644"
            mode = b"120000" if stat.S_ISLNK(found.st_mode) else mode
            kept = stat.S_ISLNK(found.st_mode) or stat.S_ISREG(found.st_mode)
            if kept and not GITS_OWN.fullmatch(name):
                yield path.relative_to(folder), Entry(mode, found.st_size)


def _ignored(own: Path, folder: Path, new: Collection[Path]) -> list[Path]:
    """Those of the new files that the folder's .gitignore names."""
    if not new:
        return []
    given = b"".join(b"./%s\0" % os.fsencode(path) for path in new)  # a name may begin with :
    there = (f"--git-dir={own}/.git", "--work-tree=.")
    asked = ("check-ignore", "-z", "--stdin", "--no-index")
    none = 1  # the exit status where none is
    found = git(folder, *there, *asked, given=given, well=(0, none), timeout_s=TIMEOUT_S)
    return [Path(os.fsdecode(name)) for name in found.split(b"\0")[:-1]]


def _changed(base: Side, work: Side) -> tuple[set[Path], list[Path]]:
    """The paths that differ, the smallest first up to MAX_BYTES; and the others."""
    sides = base, work
    bytes_of = {
        path: sum(side.entries[path].size for side in sides if path in side.entries)
        for path in base.entries.keys() | work.entries.keys()
        if base.entries.get(path) != work.entries.get(path)
        or _content(base.folder / path) != _content(work.folder / path)
    }
    paths = sorted(bytes_of, key=lambda path: (bytes_of[path], path))
    total = list(accumulate(bytes_of[path] for path in paths))
    fit = bisect_right(total, MAX_BYTES)
    return set(paths[:fit]), paths[fit:]


def _content(path: Path) -> bytes:
    return os.fsencode(path.readlink()) if path.is_symlink() else path.read_bytes()


def _commit(name: bytes, side: Side, changed: Set[Path]) -> Iterator[bytes]:
    """The changed files of one side as git's fast-import reads them."""
    yield b"commit refs/heads/%s\ncommitter - <-> 0 +0000\ndata 0\n" % name
    for path in sorted(side.entries.keys() & changed):
        quoted = re.sub(rb'["\\\n]', lambda found: b"\\%03o" % ord(found[0]), os.fsencode(path))
        content = _content(side.folder / path)
        mode = side.entries[path].mode
        yield b'M %s inline "%s"\ndata %d\n%s\n' % (mode, quoted, len(content), content)
