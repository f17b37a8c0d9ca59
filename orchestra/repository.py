"""--workdir: the repository that sub-agents work in a copy of, in the run folder.

Copied is what git lists: tracked files and new ones that are not ignored, as they are now; of a
submodule the same. What git ignores (a .env, a build) stays where it is, and so do run folders.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from pathlib import Path

from orchestra.git import git
from orchestra.vocabulary import ConfigError


def check(path: Path, with_media: bool = False) -> None:
    """Raises ConfigError where `path` is no git repository, there is no git to compare with, or the
    task's files would hide a folder of it.
    """
    if not path.is_dir():
        raise ConfigError(f"--workdir {path}: there is no such folder; check the path")
    if not (path / ".git").exists():
        raise ConfigError(
            f"--workdir {path}: is no git repository (it has no .git); name its top folder, or "
            "make it one with git init"
        )
    if with_media and os.path.lexists(path / "media"):
        raise ConfigError(
            f"--workdir {path}: has a media of its own, where sub-agents see the task's files; "
            "rename it, or ask without files"
        )
    if not shutil.which("git"):
        raise ConfigError("--workdir: needs git on this machine; install it")


def copy_into(folder: Path, source: Path) -> None:
    """Copy the files as they are now, without their history: its one commit is tagged `base`."""
    target = folder / "workdir"
    commands = "init -q", "add -A -f", "commit -q --allow-empty --no-verify -m base", "tag base"
    try:
        kept = _kept(source, folder)

        def left_out(at: str, names: list[str]) -> list[str]:
            place = Path(at).relative_to(source)
            return [*special_files(at, names), *(n for n in names if place / n not in kept)]

        shutil.copytree(source, target, symlinks=True, ignore=left_out)
        for command in (*commands, "repack -adq"):
            git(target, *command.split())
    except (OSError, shutil.Error) as error:
        why = getattr(error, "strerror", None) or "some file can not be read"
        raise ConfigError(f"--workdir {source}: can not be copied ({why})") from None
    except subprocess.CalledProcessError as error:
        said = " ".join(error.stderr.decode("utf-8", "replace").split())[:200]
        raise ConfigError(f"--workdir {source}: git can not read it ({said})") from None


def _kept(source: Path, folder: Path) -> set[Path]:
    """What is copied, with the folders it is in: not the run folder, nor others like it."""
    new = _listed(source, "-o", "--exclude-standard")
    own = Path(os.path.relpath(folder.resolve(), source.resolve()))
    beside = {own.parent} - {Path()}
    locked = {path.parent for path in new if path.name == "lock"}
    runs = {own, *(p for p in locked if p / "run.json" in new or p.parent in beside)}
    files = [p for p in _listed(source, "-co", "--exclude-standard") if runs.isdisjoint(p.parents)]
    return {part for path in files for part in (path, *path.parents)}


def _listed(folder: Path, *which: str) -> set[Path]:
    """What git lists, as paths in `folder`; for a repository inside it, what git lists there."""
    found: set[Path] = set()
    for name in git(folder, "ls-files", "-z", *which, theirs=True).split(b"\0")[:-1]:
        path = Path(os.fsdecode(name))
        if not (folder / path).is_symlink() and os.path.lexists(folder / path / ".git"):
            found |= {path / inner for inner in _listed(folder / path, *which)}
        else:
            found.add(path)
    return found


def special_files(folder: str, names: list[str]) -> list[str]:
    """Pipes, sockets and devices: what a command may have made and no copy can hold."""

    def kept(mode: int) -> bool:
        return stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode)

    return [name for name in names if not kept(os.lstat(Path(folder, name)).st_mode)]
