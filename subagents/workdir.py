"""--workdir: the repository whose copy mini-SWE sub-agents change, and the diff of the changes.

Copied are the files that git lists: tracked ones, those of submodules too, and new ones that are
not ignored, as they are now. The copy as it was is a commit in RUN/workdir.git, which no command of
a sub-agent can reach; `git diff` against it gives RUN/changes.diff.
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

from orchestra.vocabulary import ConfigError
from runtime.prompts import say
from tools import ToolError

GIT_TIMEOUT_S = 60
PROGRESS_FILES = 1000
BINARY = re.compile(r"(?m)^GIT binary patch\n(?:(?:literal|delta) \d+\n(?:.+\n)*\n?)+")
ISOLATED = {  # git without the user's or the system's configuration
    "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull, "GIT_ATTR_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "orchestra-min", "GIT_AUTHOR_EMAIL": "-", "GIT_COMMITTER_NAME": "-",
    "GIT_COMMITTER_EMAIL": "-", "LC_ALL": "C",
}  # fmt: skip


def _git(*arguments: str | Path, isolated: bool = True, given: bytes = b"") -> bytes:
    """What git prints. Raises OSError and subprocess.SubprocessError."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    settings = ("core.fsmonitor=false", "core.protectNTFS=false", "safe.directory=*")
    command = ["git", *(word for s in settings for word in ("-c", s)), *map(str, arguments)]
    env = env | ISOLATED if isolated else env
    return subprocess.run(
        command, env=env, input=given, capture_output=True, timeout=GIT_TIMEOUT_S, check=True
    ).stdout


def check(path: Path | None, with_media: bool) -> None:
    """Raises ConfigError where `path` is not a repository whose copy can be worked in."""
    problem = ""
    if path is None:
        return
    if not (path / ".git").exists():
        problem = "is not a git repository (no .git); give its top folder, or use git init"
    elif with_media and os.path.lexists(path / "media"):
        problem = "has a folder media, where sub-agents see the files of the task; rename it"
    elif not shutil.which("git"):
        problem = "needs git on this machine; install it"
    if problem:
        raise ConfigError(f"--workdir {path}: {problem}")


def copy_into(run: Path, source: Path, tell: Callable[[str], None]) -> None:
    """Copy the repository into RUN/workdir and commit it; `tell` how far. Raises ConfigError."""
    target = run / "workdir"
    try:
        target.mkdir()
        names, top, own_run = _listed(source), source.resolve(), run.resolve()
        for n, name in enumerate(names):
            if n % PROGRESS_FILES == 0 and len(names) > PROGRESS_FILES:
                tell(f"copying {source}: {n} of {len(names)} files")
            place = source / name
            parent = place.parent.resolve()
            inside = top / name.parent == parent  # not through a link
            own = own_run in (parent, *parent.parents)
            if inside and not own and (place.is_symlink() or place.is_file()):
                (target / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(place, target / name, follow_symlinks=False)
        git_dir = f"--git-dir={run / 'workdir.git'}"
        _git(git_dir, "init", "-q", "--template=", "-b", "main")
        _git(git_dir, f"--work-tree={target}", "add", "-A", "-f", ".")
        _git(git_dir, f"--work-tree={target}", "commit", "-q", "--allow-empty", "-m", "base")
        shutil.copytree(run / "workdir.git", target / ".git")  # for git in the sub-agents' shells
        _git("config", "--file", target / ".git" / "config", "core.bare", "false")
        (target / ".git" / "info").mkdir(exist_ok=True)
        (target / ".git" / "info" / "exclude").write_text("/media\n/.venv\n/venv\n")
    except (OSError, shutil.Error, subprocess.SubprocessError) as error:
        raise ConfigError(f"--workdir {source}: cannot be copied ({_reason(error)})") from None


def _listed(source: Path) -> list[Path]:
    """The files that git lists: tracked ones, those of submodules too, and new ones outside of run
    folders.
    """
    tracked, new = (
        os.fsdecode(_git("-C", source, "ls-files", "-z", *which, isolated=False)).split("\0")
        for which in (("--recurse-submodules",), ("--others", "--exclude-standard"))
    )
    tapes = {name.removesuffix("tape.jsonl") for name in new if name.endswith("/tape.jsonl")}
    runs = tuple(folder for folder in tapes if f"{folder}run.json" in new)
    found = [*tracked, *(name for name in new if not name.startswith(runs))]
    return [Path(name) for name in found if name and name[-1] != "/"]


def prepare(folder: Path) -> None:
    """Make the work folder of a sub-task, unless it exists: a copy of the newest earlier
    sub-task's folder; without one, of the repository. Raises ToolError.
    """
    if folder.is_dir():
        return
    before = [f for f in folder.parent.glob("r*-t*") if _place(f) < _place(folder)]
    origin = max(before, key=_place) if before else folder.parent.parent / "workdir"
    if not origin.is_dir():
        return
    part = folder.with_name(f".{folder.name}.part")  # a kill leaves no half copy under its name
    try:
        shutil.rmtree(part, ignore_errors=True)
        shutil.copytree(origin, part, symlinks=True)
        part.rename(folder)
    except (OSError, RecursionError) as error:
        raise ToolError(say("mini_swe/messages", "not_copied", reason=_reason(error))) from None


def changes(folder: Path) -> str | None:
    """Writes RUN/changes.diff, what a work folder changed against the repository. Returns it
    without the content of binary files; None where there is no repository. Raises ToolError.
    """
    run = folder.parent.parent
    base = run / "workdir.git/refs/heads/main"
    if not base.is_file() or not folder.is_dir():
        return None
    try:
        with tempfile.TemporaryDirectory() as own:  # settings in workdir.git may be someone else's
            work = f"--git-dir={own}", f"--work-tree={folder}"
            _git(work[0], "init", "-q", "--template=")
            alternates = Path(own, "objects/info/alternates")
            alternates.write_text(f"{(run / 'workdir.git/objects').absolute()}\n")
            commit = bytes.fromhex(base.read_text()).hex()
            _git(*work, "read-tree", commit)
            new = "ls-files", "-z", "--others", "--ignored", "--exclude-per-directory=.gitignore"
            kept = set(_files(folder)) - set(_git(*work, *new).split(b"\0"))
            _git(*work, "read-tree", "--empty")
            _git(*work, "update-index", "--add", "-z", "--stdin", given=b"\0".join(sorted(kept)))
            how = "--cached", "--binary", "--no-renames", "--no-ext-diff"
            diff = _git(*work, "diff", *how, commit, "--")
        (run / "changes.diff").unlink(missing_ok=True)
        if diff:
            (run / "changes.diff").write_bytes(diff)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        (run / "changes.diff").unlink(missing_ok=True)
        raise ToolError(say("mini_swe/messages", "no_diff", reason=_reason(error))) from None
    left_out = say("mini_swe/messages", "binary") + "\n"
    return BINARY.sub(left_out, diff.decode("utf-8", "replace")).strip()


def _files(folder: Path) -> Iterator[bytes]:
    """The files and links of a folder, also those inside other repositories in it. Named one by
    one: `git add` would obey the settings of such a repository, and settings can name commands.
    """
    with_media = (folder.parent.parent / "media").is_dir()  # those of the task are seen there
    for here, folders, names in os.walk(folder):
        out = {".git", "media"} if here == str(folder) and with_media else {".git"}
        folders[:] = [name for name in folders if name not in out]
        places = [Path(here, name) for name in (*names, *folders) if name not in out]
        for place in places:
            if place.is_symlink() or place.is_file():
                yield os.fsencode(place.relative_to(folder))


def write_last(run: Path) -> None:
    """changes.diff of a fork: what its last work folder changed. Raises ConfigError."""
    if folders := sorted((run / "work").glob("r*-t*"), key=_place):
        try:
            changes(folders[-1])
        except ToolError as error:
            raise ConfigError(f"{run}: {error}") from None


def _place(folder: Path) -> tuple[int, ...]:
    """Round and sub-task, from the name of a work folder, r2-t1."""
    return tuple(map(int, re.findall(r"\d+", folder.name)))


def _reason(error: Exception) -> str:
    output = getattr(error, "stderr", None) or b""
    text = output.decode("utf-8", "replace") or getattr(error, "strerror", None) or str(error)
    return " ".join(text.split())[:200]


def environment_of(repo: Path | None) -> Path | None:
    """The virtual environment of the user's project, if there is one."""
    active = os.environ.get("VIRTUAL_ENV", "")
    places = [repo / ".venv", repo / "venv"] if repo else []
    places += [Path(active)] if repo and active and active != sys.prefix else []
    return next((p.absolute() for p in places if (p / "pyvenv.cfg").is_file()), None)
