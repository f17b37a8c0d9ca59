"""The command line of bubblewrap: what a program in the sandbox can see and do.

bubblewrap (bwrap) starts a command in new namespaces of Linux. Its file system is empty at first
and gets what the options name, in their order: here the programs and libraries of the system, the
media of the task and a virtual environment, all read-only, and three empty folders in memory. The
program has no network and sees no processes but its own. tools/sandbox.py runs the command.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

Option = tuple[str, ...]  # an option of bwrap and its arguments

WORK = "/sandbox"  # the program's folder
SYSTEM = (  # programs and libraries only: no settings, nothing else in /usr
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/etc/alternatives",
    "/etc/ld.so.cache",
    "/usr/bin",
    "/usr/sbin",
    "/usr/lib",
    "/usr/lib32",
    "/usr/lib64",
    "/usr/libexec",
    "/usr/share",
    "/usr/include",
    "/usr/local/bin",
    "/usr/local/lib",
)
PYTHON_PARTS = "bin", "lib", "lib64", "pyvenv.cfg"  # what is shown of a Python
NAMESPACES = "ipc", "pid", "net", "uts", "cgroup-try"
CAPABILITIES = (  # of the first process; it gives them up before the program starts
    "KILL",
    "SYS_ADMIN",
    "DAC_OVERRIDE",
    "SETUID",
    "SETGID",
    "SETFCAP",
    "CHOWN",
)


def command(
    media: Path | None,
    venv: Path | None,
    alias: Path | None,
    variables: dict[str, str],
) -> list[str]:
    """bwrap and its options; a command to run in the sandbox follows them.

    The first process may set limits, copy, and change its user. `media` and `venv` are shown
    read-only. `alias` is a second path of the program's folder, besides /sandbox. `variables` are
    all the environment variables that the program has.
    """
    visible = _visible(venv)
    work = _work_folder(alias, visible)
    # Only in its own user namespace can a user be root.
    of_user = ("--unshare-user", "--uid", "0", "--gid", "0")
    options: list[Option] = [
        *((f"--unshare-{name}",) for name in NAMESPACES),
        of_user if os.geteuid() != 0 else (),
        ("--die-with-parent", "--as-pid-1", "--cap-drop", "ALL"),
        *(("--cap-add", f"CAP_{name}") for name in CAPABILITIES),
        ("--proc", "/proc", "--dev", "/dev"),
        # It reads like /dev/zero, but a shared mapping of /dev/zero is memory of no process.
        ("--dev-bind", "/dev/full", "/dev/zero"),
        _memory_disk("/dev/shm"),
        # /dev is itself a disk in memory, which no limit covers.
        ("--remount-ro", "/dev"),
        _memory_disk("/tmp"),
        *_parents(work),
        _memory_disk(str(work)),
        ("--symlink", str(work), WORK) if work != Path(WORK) else (),
        *_mounts(visible, venv, media, work),
        ("--remount-ro", "/", "--clearenv"),
        *(("--setenv", name, value) for name, value in variables.items()),
        ("--chdir", "/"),
    ]
    return ["bwrap", *chain.from_iterable(options)]


def absolute(path: str) -> str:
    """An absolute path without `..`. Links are kept, unlike with Path.resolve()."""
    return os.path.normpath(Path(path).absolute())


def _memory_disk(path: str) -> Option:
    return ("--perms", "1777", "--tmpfs", path)


def _work_folder(alias: Path | None, visible: list[Path]) -> Path:
    """Where the program's folder is: at `alias`, unless that is in a folder that is shown read-only
    or in /sandbox itself.
    """
    work = Path(WORK)
    if alias is None:
        return work
    taken = any(alias.is_relative_to(path) for path in (*visible, work))
    return work if taken else alias


def _mounts(
    visible: list[Path], venv: Path | None, media: Path | None, work: Path
) -> Iterator[Option]:
    """What is shown read-only: each path in the sandbox, with the path outside that it shows."""
    sources = {path: path for path in visible}
    if venv is not None:
        sources[venv] = venv.resolve()
    if media is not None and media.is_dir():
        sources[work / "media"] = media.resolve()
    for path, source in sources.items():
        yield from _parents(path)
        # A link such as /bin -> usr/bin stays a link: what it leads to has a mount of its own.
        if source.is_symlink():
            yield "--symlink", str(source.readlink()), str(path)
        else:
            yield "--ro-bind", str(source), str(path)


def _parents(path: Path) -> list[Option]:
    """Create the folders above a path for every user; by default bwrap creates them with 0700."""
    above = list(path.parents)[-2::-1]  # from the top, without /
    return [("--dir", str(parent)) for parent in above]


def _visible(venv: Path | None = None) -> list[Path]:
    """SYSTEM and, where they are outside it, folders of this Python and of the Python of `venv`."""
    prefixes = [sys.base_prefix, sys.prefix, *_base_of(venv)]
    unique = dict.fromkeys(absolute(prefix) for prefix in prefixes)
    parts = [Path(prefix) / name for prefix in unique for name in PYTHON_PARTS]
    others = [part for part in parts if not any(map(part.is_relative_to, SYSTEM))]
    return [path for path in (*map(Path, SYSTEM), *others) if path.exists()]


def _base_of(venv: Path | None) -> list[str]:
    """The prefix of the Python that created a virtual environment. It must hold a Python, because a
    repository of someone else could name any folder here.
    """
    config = venv / "pyvenv.cfg" if venv is not None else None
    if config is None or not config.is_file():
        return []
    text = config.read_text("utf-8", "replace")
    homes = re.findall(r"(?m)^home *= *(/.*)/bin */? *$", text)
    # Made absolute before the check. With `..` after a link, the path that is checked and the
    # folder that is mounted would differ.
    prefixes = [absolute(home) for home in homes]
    return [prefix for prefix in prefixes if Path(prefix, "bin/python3").is_file()]
