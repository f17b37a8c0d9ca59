"""--workdir: a copy of the user's repository for mini-SWE sub-agents, and a diff of their changes.

The copy has the files that git lists, in their current state: tracked files, also of submodules,
and new files that are not ignored. It is committed to RUN/workdir.git, which no command of a
sub-agent can reach; `git diff` against that commit gives RUN/changes.diff.

The repository may come from someone else, and the settings in its .git can name commands. Git reads
it in `_listed` alone, where none of these settings has an effect. The copy has no part of its .git.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from orchestra.kernel.prompts import outside, say, visible
from orchestra.kernel.vocabulary import ConfigError, ToolError

GIT_TIMEOUT_S = 60
PROGRESS_FILES = 1000  # between two reports of progress
REASON_CHARS = 400  # of an error
BINARY = re.compile(r"(?m)^GIT binary patch\n(?:(?:literal|delta) \d+\n(?:.+\n)*\n?)+")
GIT_SETTINGS = ("core.fsmonitor=false", "core.protectNTFS=false")
OWN_SETTINGS = (*GIT_SETTINGS, "safe.directory=*")  # for a repository that we have made
# For a repository that may come from someone else, whose settings can name commands. Git obeys
# those of the monitor and of hooks; and if it fetches a missing object of a partial clone, those of
# the remote, of ssh, of proxies and of credentials. Without a protocol it fetches nothing.
FOREIGN_SETTINGS = (*GIT_SETTINGS, f"core.hooksPath={os.devnull}")
# The variables with the user's own files of settings
USER_SETTINGS = {"GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM"}
FOREIGN = {
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_NO_LAZY_FETCH": "1",  # git 2.39.4, 2.45 and later do not even try
    "GIT_OPTIONAL_LOCKS": "0",  # nothing is written into it
    "GIT_TERMINAL_PROMPT": "0",
    "LC_ALL": "C",
}
ISOLATED = {  # git without the user's or the system's configuration
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_SYSTEM": os.devnull,
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "orchestra-min",
    "GIT_AUTHOR_EMAIL": "-",
    "GIT_COMMITTER_NAME": "-",
    "GIT_COMMITTER_EMAIL": "-",
    "LC_ALL": "C",
}


def _git(*arguments: str | Path, stdin: bytes = b"") -> bytes:
    """The output of a git command in a repository that we have made. Raises OSError and
    subprocess.SubprocessError.
    """
    return _run(arguments, OWN_SETTINGS, ISOLATED, stdin)


def _run(
    arguments: Sequence[str | Path],
    settings: Sequence[str],
    variables: Mapping[str, str],
    stdin: bytes = b"",
) -> bytes:
    """The output of a git command, with these settings and variables. The user's own GIT_...
    variables do not count, but for those that name the files of their settings.
    """
    env = {}
    for name, value in os.environ.items():
        if not name.startswith("GIT_") or name in USER_SETTINGS:
            env[name] = value
    command = ["git", "--no-pager"]
    for setting in settings:
        command += ["-c", setting]
    done = subprocess.run(
        [*command, *map(str, arguments)],
        env={**env, **variables},
        input=stdin,
        capture_output=True,
        timeout=GIT_TIMEOUT_S,
        check=True,
    )
    return done.stdout


def _reason(error: Exception) -> str:
    """What git wrote to standard error, or else the error, in one line."""
    if isinstance(error, subprocess.TimeoutExpired):
        return f"git took longer than {error.timeout:g} s"
    output: bytes | None = getattr(error, "stderr", None)
    text = output.decode("utf-8", "replace") if output else str(error)
    return visible(" ".join(text.split()))[:REASON_CHARS]


# ---- the copy of the repository ------------------------------------------------------------------


def check(repo: Path, with_media: bool) -> None:
    """Raises ConfigError if sub-agents cannot work in a copy of a repository."""
    if not repo.is_dir():
        problem = "there is no such folder"
    elif not (repo / ".git").exists():
        problem = (
            "is not a git repository (no .git); give its top folder, or use git init"
        )
    elif with_media and os.path.lexists(repo / "media"):
        found = "has a folder media, where sub-agents find the files of the task"
        problem = f"{found}; rename it"
    elif not shutil.which("git"):
        problem = "needs git on this machine; install it"
    else:
        return
    raise ConfigError(f"--workdir {repo}: {problem}")


def copy_into(run: Path, repo: Path, tell: Callable[[str], None]) -> None:
    """Copy a repository to RUN/workdir and commit it; `tell` shows progress. Raises ConfigError."""
    target = run / "workdir"
    try:
        target.mkdir(parents=True)
        _copy_files(repo, target, _files_to_copy(repo, run), tell)
        _commit(target, run / "workdir.git")
    except (OSError, subprocess.SubprocessError) as error:
        shutil.rmtree(target, ignore_errors=True)
        problem = f"cannot be copied ({_reason(error)})"
        raise ConfigError(f"--workdir {repo}: {problem}") from None


def _files_to_copy(repo: Path, run: Path) -> list[Path]:
    """The files that git lists, except new files in run folders, such as `run` itself."""
    tracked = _listed(repo, "--recurse-submodules")
    new = _listed(repo, "--others", "--exclude-standard")
    runs = [os.path.relpath(run.resolve(), repo.resolve()) + "/"]
    for name in new:
        folder = name.removesuffix("tape.jsonl")
        if name.endswith("/tape.jsonl") and f"{folder}run.json" in new:
            runs.append(folder)
    not_of_runs = [name for name in new if not name.startswith(tuple(runs))]
    found = [*tracked, *not_of_runs]
    return [Path(name) for name in found if not name.endswith("/")]


def _listed(repo: Path, *which: str) -> list[str]:
    """The files that git lists in a repository that may come from someone else.

    The user's own settings count: the files that they ignore everywhere, and the folders that they
    call safe. What git refuses to read, such as a repository of another user, it refuses here too.
    """
    variables = {**FOREIGN, "GIT_CEILING_DIRECTORIES": str(repo.resolve().parent)}
    arguments = ["-C", str(repo), "ls-files", "-z", *which]
    listed = _run(arguments, FOREIGN_SETTINGS, variables)
    names = os.fsdecode(listed).split("\0")
    return [name for name in names if name and _is_inside(name)]


def _is_inside(name: str) -> bool:
    """Whether a name is one of a file in the repository, and not in its .git: the index of someone
    else can hold any name.
    """
    plain = name.encode("ascii", "ignore").decode()  # macOS takes .g\u200cit for .git
    parts = plain.casefold().split("/")
    return not name.startswith("/") and {".git", ".."}.isdisjoint(parts)


def _copy_files(
    repo: Path, target: Path, names: Sequence[Path], tell: Callable[[str], None]
) -> None:
    """Copy files, and links as links. A file in a linked folder is left out."""
    top = repo.resolve()
    for n, name in enumerate(names):
        if n % PROGRESS_FILES == 0 and len(names) > PROGRESS_FILES:
            tell(f"copying {repo}: {n} of {len(names)} files")
        file = repo / name
        in_linked_folder = file.parent.resolve() != top / name.parent
        if in_linked_folder or not (file.is_symlink() or file.is_file()):
            continue
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(file, target / name, follow_symlinks=False)


def _commit(target: Path, base: Path) -> None:
    """Commit all files of `target`, and copy its repository to `base`."""
    _git("-C", target, "init", "-q", "--template=", "-b", "main")
    _git("-C", target, "add", "-A", "-f", ".")
    _git("-C", target, "commit", "-q", "--allow-empty", "-m", "base")
    shutil.copytree(target / ".git", base)
    info = target / ".git" / "info"
    info.mkdir()
    (info / "exclude").write_text("/media\n.venv\n/venv\n")


def top_level(run: Path) -> list[str]:
    """The names at the top level of the copy; those of folders end in a slash."""
    names = sorted(
        p.name + ("/" if p.is_dir() else "") for p in (run / "workdir").glob("*")
    )
    return [name for name in names if name != ".git/"]


# ---- the work folders of sub-tasks ---------------------------------------------------------------


def prepare(folder: Path) -> None:
    """Make the work folder of a sub-task, unless it exists: a copy of the folder of the sub-task
    before it; for the first, of the repository. Raises ToolError.
    """
    if folder.is_dir():
        return
    origin = _folder_before(folder)
    if not origin.is_dir():
        return
    part = folder.with_name(f".{folder.name}.part")  # a kill must not leave half a copy
    try:
        shutil.rmtree(part, ignore_errors=True)
        shutil.copytree(origin, part, symlinks=True)
        part.rename(folder)
    except (OSError, RecursionError) as error:
        text = say("mini_swe/messages", "not_copied", reason=outside(_reason(error)))
        raise ToolError(text) from None


def _folder_before(folder: Path) -> Path:
    before = [f for f in folder.parent.glob("r*-t*") if _order(f) < _order(folder)]
    if before:
        return max(before, key=_order)
    return folder.parent.parent / "workdir"


def _order(folder: Path) -> tuple[int, ...]:
    """(round, sub-task) of a work folder, (2, 1) of r2-t1."""
    return tuple(int(number) for number in re.findall(r"\d+", folder.name))


def virtual_environment(repo: Path | None) -> Path | None:
    """The virtual environment of the user's project, if there is one. A link in the repository does
    not count, because it could show any folder to the sandbox; what the user has activated does.
    """
    if repo is None:
        return None
    folders = [repo / ".venv", repo / "venv"]
    folders = [folder for folder in folders if not folder.is_symlink()]
    active = os.environ.get("VIRTUAL_ENV", "")
    if active and active != sys.prefix:
        folders.append(Path(active))
    for folder in folders:
        if (folder / "pyvenv.cfg").is_file():
            return folder.absolute()
    return None


# ---- their changes -------------------------------------------------------------------------------


def changes(folder: Path) -> str | None:
    """Write RUN/changes.diff, the changes of a work folder. Returns them without the content of
    binary files, or None if the run has no repository. Raises ToolError.
    """
    run = folder.parent.parent
    base = run / "workdir.git"
    if not _head(base).is_file() or not folder.is_dir():
        return None
    try:
        (run / "changes.diff").unlink(missing_ok=True)
        diff = _diff(base, folder)
        if diff:
            (run / "changes.diff").write_bytes(diff)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        text = say("mini_swe/messages", "no_diff", reason=outside(_reason(error)))
        raise ToolError(text) from None
    left_out = say("mini_swe/messages", "binary") + "\n"
    return BINARY.sub(left_out, diff.decode("utf-8", "replace")).strip()


def write_changes(run: Path) -> None:
    """Write changes.diff of a fork, from its last work folder. Raises ConfigError."""
    folders = sorted((run / "work").glob("r*-t*"), key=_order)
    try:
        for folder in folders[-1:]:
            changes(folder)
    except ToolError as error:
        raise ConfigError(f"{run}: {error}") from None


def _head(base: Path) -> Path:
    """The file with the hash of the commit."""
    return base / "refs/heads/main"


def _diff(base: Path, folder: Path) -> bytes:
    """The difference between the commit in `base` and a folder, for `git apply`.

    It is made in a repository of its own, because the settings of `base` are not trusted. Raises
    OSError, subprocess.SubprocessError, and ValueError if `base` has no hash of a commit.
    """
    with tempfile.TemporaryDirectory() as own:
        _git(f"--git-dir={own}", "init", "-q", "--template=")
        alternates = Path(own, "objects/info/alternates")
        alternates.write_text(f"{(base / 'objects').absolute()}\n")
        commit = bytes.fromhex(_head(base).read_text()).hex()
        git = partial(_git, f"--git-dir={own}", f"--work-tree={folder}")
        git("read-tree", commit)
        names = set(_files_and_links(folder)) - _ignored(git)
        git("read-tree", "--empty")
        git("update-index", "--add", "-z", "--stdin", stdin=b"\0".join(sorted(names)))
        how = ("--cached", "--binary", "--no-renames", "--no-ext-diff")
        return git("diff", *how, commit, "--")


def _ignored(git: Callable[..., bytes]) -> set[bytes]:
    """The new files that a .gitignore excludes."""
    how = ("--others", "--ignored", "--exclude-per-directory=.gitignore")
    return set(git("ls-files", "-z", *how).split(b"\0"))


def _files_and_links(folder: Path) -> Iterator[bytes]:
    """The files and links of a folder, also of other repositories in it. They are added one by one,
    because `git add` obeys the settings of such a repository, which can name commands.
    """
    media_of_task = folder.parent.parent / "media"  # shown in the folder
    out_at_top = {".git", "media"} if any(media_of_task.glob("*")) else {".git"}
    for here, folders, names in os.walk(folder):
        out = out_at_top if here == str(folder) else {".git"}
        folders[:] = [name for name in folders if name not in out]
        for name in (*names, *folders):
            path = Path(here, name)
            if name not in out and (path.is_symlink() or path.is_file()):
                yield os.fsencode(path.relative_to(folder))
