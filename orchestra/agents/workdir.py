"""--workdir: a copy of the user's repository for mini-SWE sub-agents, and a diff of their changes.

The copy has the files that git lists, in their current state: tracked files, also of submodules,
and new files that are not ignored. It is committed to RUN/workdir.git, which no command of a
sub-agent can reach; `git diff` against that commit gives RUN/changes.diff.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from orchestra.runtime.prompts import say
from orchestra.toolkit import ToolError
from orchestra.vocabulary import ConfigError

GIT_TIMEOUT_S = 60
PROGRESS_FILES = 1000  # between two reports of progress
BINARY = re.compile(r"(?m)^GIT binary patch\n(?:(?:literal|delta) \d+\n(?:.+\n)*\n?)+")
ISOLATED = {  # git without the user's or the system's configuration
    "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull, "GIT_ATTR_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "orchestra-min", "GIT_AUTHOR_EMAIL": "-", "GIT_COMMITTER_NAME": "-",
    "GIT_COMMITTER_EMAIL": "-", "LC_ALL": "C",
}  # fmt: skip


def _git(*arguments: str | Path, isolated: bool = True, given: bytes = b"") -> bytes:
    """The output of a git command. Raises OSError and subprocess.SubprocessError."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    settings = ("core.fsmonitor=false", "core.protectNTFS=false", "safe.directory=*")
    command = [
        "git",
        *(word for s in settings for word in ("-c", s)),
        *map(str, arguments),
    ]
    env = env | ISOLATED if isolated else env
    return subprocess.run(
        command,
        env=env,
        input=given,
        capture_output=True,
        timeout=GIT_TIMEOUT_S,
        check=True,
    ).stdout


def check(path: Path | None, with_media: bool) -> None:
    """Raises ConfigError if sub-agents cannot work in a copy of the repository `path`."""
    problem = ""
    if path and not (path / ".git").exists():
        problem = (
            "is not a git repository (no .git); give its top folder, or use git init"
        )
    elif path and with_media and os.path.lexists(path / "media"):
        problem = (
            "has a folder media, where sub-agents find the files of the task; rename it"
        )
    elif path and not shutil.which("git"):
        problem = "needs git on this machine; install it"
    if problem:
        raise ConfigError(f"--workdir {path}: {problem}")


def copy_into(run: Path, source: Path, tell: Callable[[str], None]) -> None:
    """Copy the repository to RUN/workdir and commit it; progress goes to `tell`. Raises
    ConfigError.
    """
    target = run / "workdir"
    try:
        target.mkdir()
        names, top = _files_to_copy(source, run), source.resolve()
        for n, name in enumerate(names):
            if n % PROGRESS_FILES == 0 and len(names) > PROGRESS_FILES:
                tell(f"copying {source}: {n} of {len(names)} files")
            place, parent = source / name, (source / name).parent.resolve()
            no_link = parent == top / name.parent  # no folder of the path is a link
            if no_link and (place.is_symlink() or place.is_file()):
                (target / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(place, target / name, follow_symlinks=False)
        _git("-C", target, "init", "-q", "--template=", "-b", "main")
        _git("-C", target, "add", "-A", "-f", ".")
        _git("-C", target, "commit", "-q", "--allow-empty", "-m", "base")
        shutil.copytree(target / ".git", run / "workdir.git")
        (target / ".git" / "info").mkdir()
        (target / ".git" / "info" / "exclude").write_text("/media\n/.venv\n/venv\n")
    except (OSError, shutil.Error, subprocess.SubprocessError) as error:
        raise ConfigError(
            f"--workdir {source}: cannot be copied ({_reason(error)})"
        ) from None


def _files_to_copy(source: Path, run: Path) -> list[Path]:
    """The files that git lists, without the new files of run folders, as of `run` itself."""
    tracked, new = (
        os.fsdecode(_git("-C", source, "ls-files", "-z", *which, isolated=False)).split(
            "\0"
        )
        for which in (("--recurse-submodules",), ("--others", "--exclude-standard"))
    )
    tapes = {
        name.removesuffix("tape.jsonl") for name in new if name.endswith("/tape.jsonl")
    }
    own = os.path.relpath(run.resolve(), source.resolve()) + "/"
    runs = own, *(folder for folder in tapes if f"{folder}run.json" in new)
    found = [*tracked, *(name for name in new if not name.startswith(runs))]
    return [Path(name) for name in found if name and name[-1] != "/"]


def prepare(folder: Path) -> None:
    """Make the work folder of a sub-task, unless it exists: a copy of the folder of the sub-task
    before it; for the first, of the repository. Raises ToolError.
    """
    if folder.is_dir():
        return
    before = [f for f in folder.parent.glob("r*-t*") if _order(f) < _order(folder)]
    origin = max(before, key=_order) if before else folder.parent.parent / "workdir"
    if not origin.is_dir():
        return
    part = folder.with_name(f".{folder.name}.part")  # a kill must not leave half a copy
    try:
        shutil.rmtree(part, ignore_errors=True)
        shutil.copytree(origin, part, symlinks=True)
        part.rename(folder)
    except (OSError, RecursionError) as error:
        raise ToolError(
            say("mini_swe/messages", "not_copied", reason=_reason(error))
        ) from None


def changes(folder: Path) -> str | None:
    """Write RUN/changes.diff, the changes of a work folder. Returns them without the content of
    binary files, or None if the run has no repository. Raises ToolError.
    """
    run = folder.parent.parent
    base = run / "workdir.git/refs/heads/main"
    if not base.is_file() or not folder.is_dir():
        return None
    try:
        (run / "changes.diff").unlink(missing_ok=True)
        with (
            tempfile.TemporaryDirectory() as own
        ):  # the settings of workdir.git are not trusted
            work = f"--git-dir={own}", f"--work-tree={folder}"
            _git(work[0], "init", "-q", "--template=")
            alternates = Path(own, "objects/info/alternates")
            alternates.write_text(f"{(run / 'workdir.git/objects').absolute()}\n")
            commit = bytes.fromhex(base.read_text()).hex()
            _git(*work, "read-tree", commit)
            new = (
                "ls-files",
                "-z",
                "--others",
                "--ignored",
                "--exclude-per-directory=.gitignore",
            )
            kept = set(_files_and_links(folder)) - set(_git(*work, *new).split(b"\0"))
            _git(*work, "read-tree", "--empty")
            _git(
                *work,
                "update-index",
                "--add",
                "-z",
                "--stdin",
                given=b"\0".join(sorted(kept)),
            )
            how = "--cached", "--binary", "--no-renames", "--no-ext-diff"
            diff = _git(*work, "diff", *how, commit, "--")
        if diff:
            (run / "changes.diff").write_bytes(diff)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise ToolError(
            say("mini_swe/messages", "no_diff", reason=_reason(error))
        ) from None
    left_out = say("mini_swe/messages", "binary") + "\n"
    return BINARY.sub(left_out, diff.decode("utf-8", "replace")).strip()


def _files_and_links(folder: Path) -> Iterator[bytes]:
    """The files and links of a folder, also of other repositories in it. They are added one by one,
    because `git add` obeys the settings of such a repository, which can name commands.
    """
    with_media = (
        folder.parent.parent / "media"
    ).is_dir()  # of the task, shown in the folder
    for here, folders, names in os.walk(folder):
        out = {".git", "media"} if here == str(folder) and with_media else {".git"}
        folders[:] = [name for name in folders if name not in out]
        places = [Path(here, name) for name in (*names, *folders) if name not in out]
        for place in places:
            if place.is_symlink() or place.is_file():
                yield os.fsencode(place.relative_to(folder))


def write_changes(run: Path) -> None:
    """Write changes.diff of a fork, from its last work folder. Raises ConfigError."""
    if folders := sorted((run / "work").glob("r*-t*"), key=_order):
        try:
            changes(folders[-1])
        except ToolError as error:
            raise ConfigError(f"{run}: {error}") from None


def _order(folder: Path) -> tuple[int, ...]:
    """(round, sub-task) of a work folder, (2, 1) of r2-t1."""
    return tuple(map(int, re.findall(r"\d+", folder.name)))


def _reason(error: Exception) -> str:
    output = getattr(error, "stderr", None) or b""
    return " ".join((output.decode("utf-8", "replace") or str(error)).split())[:200]


def virtual_environment(repo: Path | None) -> Path | None:
    """The virtual environment of the user's project, if there is one."""
    active = os.environ.get("VIRTUAL_ENV", "")
    places = [repo / ".venv", repo / "venv"] if repo else []
    places += [Path(active)] if repo and active and active != sys.prefix else []
    return next((p.absolute() for p in places if (p / "pyvenv.cfg").is_file()), None)
