"""Runs an untrusted program in bubblewrap: no network, no other processes, none of your files.

The program works on a copy of its folder in memory. When it ends, its changes are copied back:
regular files, folders, and links that stay inside. tools/sandbox_init.py, the first process in the
sandbox, sets limits, copies and watches. If a cgroup can be created, it limits the whole sandbox.
If root starts the program, it runs as a user that owns nothing else. The attacks that are tested
are in tests/attacks; SECURITY.md says what is not covered.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from secrets import randbelow
from typing import Any

from orchestra.runtime.prompts import say
from orchestra.toolkit import ToolError

INIT = Path(__file__).with_name("sandbox_init.py").read_text(encoding="utf-8")
LIMITS = {  # for each process
    "RLIMIT_AS": 2 << 30,
    "RLIMIT_FSIZE": 64 << 20,
    "RLIMIT_NOFILE": 256,
    "RLIMIT_CORE": 1,  # no core file; with 0, the system's crash collector would still get one
    "RLIMIT_NPROC": 128,
}
MAX_PROCESSES = 160  # and threads, including bubblewrap and the first process
MAX_MEMORY_BYTES = 2 << 30  # of all processes together
MAX_ADDED_BYTES = 256 << 20  # to its folder
MAX_ADDED_FILES = 5_000
TMP_BYTES = 128 << 20  # for /tmp and for /dev/shm
USER = (
    1 << 20
)  # the first of the user ids, which own nothing, for programs that root starts
COPY_S = 60  # to copy the folder in and out
SYSTEM = (  # programs and libraries only: no settings, nothing else in /usr
    *(
        "/bin",
        "/sbin",
        "/lib",
        "/lib32",
        "/lib64",
        "/etc/alternatives",
        "/etc/ld.so.cache",
    ),
    *(f"/usr/{name}" for name in ("bin", "sbin", "lib", "lib32", "lib64", "libexec")),
    *("/usr/share", "/usr/include", "/usr/local/bin", "/usr/local/lib"),
)
ENTER = "sh", "-c", 'echo 0 > "$0/cgroup.procs"; exec "$@"'  # enters the cgroup $0
WORK = "/sandbox"  # the program's folder


@dataclass(frozen=True)
class World:
    """What a program sees besides the system: its folder, and read-only the task's media and a
    virtual environment. `place` is a second path of its folder, besides /sandbox.
    """

    folder: Path | None = None
    media: Path | None = None
    venv: Path | None = None
    place: Path | None = None


@dataclass(frozen=True)
class Ran:
    """A program's output, why it ended (end, timeout, flood, memory, disk), and its exit status."""

    output: bytes
    ended: str
    status: int


def python(source: str, *arguments: str) -> list[str]:
    """The command that runs Python source."""
    return [absolute(sys.executable), "-I", "-u", "-c", source, *arguments]


def confined(
    command: list[str], given: bytes, timeout_s: float, world: World, max_output: int,
    unsafe: bool = False,
) -> Ran:  # fmt: skip
    """Run a command with `given` on standard input; its output includes standard error. `unsafe`:
    without a sandbox, with limits only on time, output and file size.

    Raises ToolError if it cannot be started.
    """
    rules = {"run": command, "timeout_s": timeout_s, "output": max_output}
    try:
        with tempfile.TemporaryDirectory() as empty:
            folder = world.folder or Path(empty)
            folder.mkdir(parents=True, exist_ok=True)
            return (_unsafe if unsafe else _sandboxed)(rules, given, world, folder)
    except (OSError, subprocess.SubprocessError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ToolError(say("tools/notes", "no_program", reason=reason)) from error


def missing() -> str:
    """The message to the user if there is no sandbox."""
    return (
        f"bubblewrap does not work here ({trouble()}): apt install bubblewrap, or --unsafe-code "
        "runs the code of models without a sandbox (SECURITY.md)"
    )


@cache
def trouble() -> str:
    """Why no sandbox can be created, or "" if one can."""
    try:
        ran = confined(["/bin/true"], b"", 10, World(), 200)
    except ToolError as error:
        return str(error.__cause__)
    return (
        ran.output.decode("utf-8", "replace") or f"status {ran.status}"
        if ran.status
        else ""
    )


def _sandboxed(rules: dict[str, Any], given: bytes, world: World, folder: Path) -> Ran:
    limits = {**LIMITS, "RLIMIT_CPU": int(rules["timeout_s"]) + 1}
    with contextlib.ExitStack() as stack:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        stack.callback(os.close, descriptor)
        group = stack.enter_context(cgroup(folder))
        rules |= {
            "sandbox": True, "root": os.geteuid() == 0, "user": USER + randbelow(1 << 16),
            "limits": limits, "memory": MAX_MEMORY_BYTES, "added": MAX_ADDED_BYTES,
            "files": MAX_ADDED_FILES, "tmp": TMP_BYTES, "folder": descriptor,
        }  # fmt: skip
        entry = [*ENTER, str(group)] if group else []
        ran = _started(
            [*entry, *bubblewrap(world)], rules, given, pass_fds=[descriptor]
        )
        return replace(ran, ended="memory") if group and ran_out(group) else ran


@contextlib.contextmanager
def cgroup(folder: Path) -> Iterator[Path | None]:
    """A cgroup v2, next to our own, for a program that works on a copy of `folder`: limits on the
    total memory and the number of processes. None if it cannot be created.
    """
    group = None
    with contextlib.suppress(OSError, IndexError):
        own = re.findall(
            r"(?m)^0::/(.*)$", Path("/proc/self/cgroup").read_text("utf-8")
        )[0]
        parent = Path("/sys/fs/cgroup", own).parent if own else Path("/sys/fs/cgroup")
        if {"memory", "pids"} <= {
            *(parent / "cgroup.subtree_control").read_text().split()
        }:
            max_bytes = MAX_MEMORY_BYTES + MAX_ADDED_BYTES + 2 * TMP_BYTES
            max_bytes += sum(p.lstat().st_size for p in folder.rglob("*"))
            new = parent / f"orchestra-min-{os.getpid()}-{randbelow(1 << 60):x}"
            new.mkdir()
            group = new
            (group / "memory.max").write_text(str(max_bytes))
            (group / "pids.max").write_text(str(MAX_PROCESSES))
            (group / "memory.swap.max").write_text("0")  # last: not every kernel has it
    try:
        yield group
    finally:
        for _ in range(100 if group else 0):
            with contextlib.suppress(
                OSError
            ):  # a process that is ending keeps it for a moment
                (new / "cgroup.kill").write_text("1")
                new.rmdir()
                break
            time.sleep(0.01)


def ran_out(group: Path) -> bool:
    """Whether the kernel killed a process because memory ran out."""
    with contextlib.suppress(OSError):
        return "oom_kill 0" not in (group / "memory.events").read_text()
    return False


def _unsafe(rules: dict[str, Any], given: bytes, world: World, folder: Path) -> Ran:
    """Without a sandbox, for --unsafe-code."""
    rules |= {"sandbox": False, "limits": {"RLIMIT_FSIZE": LIMITS["RLIMIT_FSIZE"]}}
    if world.media and not os.path.lexists(folder / "media"):
        (folder / "media").symlink_to(world.media.resolve())
    variables = environment(str(folder.resolve()), world.venv)
    return _started([], rules, given, cwd=folder, env=variables)


def _started(before: list[str], rules: dict[str, Any], given: bytes, **how: Any) -> Ran:
    """Run the first process until it and all its children have ended."""
    init = [absolute(sys.executable), "-I", "-S", "-c", INIT, json.dumps(rules)]
    try:
        done = subprocess.run(
            [*before, *init], input=given, capture_output=True, start_new_session=True,
            check=False, timeout=rules["timeout_s"] + COPY_S, **how,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        why = f"its folder took longer than {COPY_S} s to copy"
        raise subprocess.SubprocessError(why) from None
    first, _, output = done.stdout.partition(b"\n")
    try:
        report = json.loads(first)
    except ValueError:  # bubblewrap failed
        report = {
            "failed": " ".join(done.stderr.decode("utf-8", "replace").split())[-200:]
        }
    if "failed" in report:
        raise subprocess.SubprocessError(
            report["failed"] or f"status {done.returncode}"
        )
    return Ran(output, report["ended"], report["status"])


def environment(home: str, venv: Path | None) -> dict[str, str]:
    """The environment variables of a program."""
    path = f"{venv}/bin:" if venv else ""
    path += (
        f"/usr/local/bin:/usr/bin:/bin:{absolute(sys.executable).rpartition('/')[0]}"
    )
    one_thread = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"), "1")
    return {"PATH": path, "HOME": home, "LANG": "C.UTF-8", **one_thread}


def bubblewrap(world: World) -> list[str]:
    """bwrap and its options. The first process may set limits, copy, and change its user; the
    program has no capabilities.
    """
    capabilities = [
        "KILL",
        "SYS_ADMIN",
        "DAC_OVERRIDE",
        "SETUID",
        "SETGID",
        "SETFCAP",
        "CHOWN",
    ]
    kernel = [
        f"--unshare-{what}" for what in ("ipc", "pid", "net", "uts", "cgroup-try")
    ]
    kernel += (
        [] if os.geteuid() == 0 else ["--unshare-user", "--uid", "0", "--gid", "0"]
    )

    def memory_disk(path: str) -> list[str]:
        return ["--perms", "1777", "--tmpfs", path]

    shown, venv, place = _shown(world.venv), world.venv, world.place or Path(WORK)
    if any(
        place.is_relative_to(path) for path in (*shown, Path(WORK))
    ):  # read-only, or taken
        place = Path(WORK)
    folder = [*_parents(place), *memory_disk(str(place))]
    folder += ["--symlink", str(place), WORK] if place != Path(WORK) else []
    sources = {path: path for path in shown}
    sources |= {venv: venv.resolve()} if venv else {}
    if world.media and world.media.is_dir():
        sources[place / "media"] = world.media.resolve()
    mounts = [flag for path, source in sources.items() for flag in _mount(path, source)]
    variables = environment(WORK, venv)
    return [
        *("bwrap", *kernel, "--die-with-parent", "--as-pid-1"),
        *(
            "--cap-drop",
            "ALL",
            *(f for c in capabilities for f in ("--cap-add", f"CAP_{c}")),
        ),
        *("--proc", "/proc", "--dev", "/dev", "--dev-bind", "/dev/full", "/dev/zero"),
        *(
            *memory_disk("/dev/shm"),
            "--remount-ro",
            "/dev",
            *memory_disk("/tmp"),
            *folder,
            *mounts,
        ),
        *("--remount-ro", "/", "--clearenv"),
        *(*(f for kv in variables.items() for f in ("--setenv", *kv)), "--chdir", "/"),
    ]


def _shown(venv: Path | None = None) -> list[Path]:
    """SYSTEM and, where they are outside it, folders of this Python and of the Python of `venv`."""
    prefixes = dict.fromkeys(map(absolute, (sys.base_prefix, sys.prefix, *_base(venv))))
    parts = [
        Path(p) / name
        for p in prefixes
        for name in ("bin", "lib", "lib64", "pyvenv.cfg")
    ]
    own = [
        part for part in parts if not any(part.is_relative_to(path) for path in SYSTEM)
    ]
    return [path for path in (*map(Path, SYSTEM), *own) if path.exists()]


def _base(venv: Path | None) -> list[str]:
    """The prefix of the Python that created a virtual environment."""
    config = venv / "pyvenv.cfg" if venv else Path()
    text = config.read_text("utf-8", "replace") if config.is_file() else ""
    found = map(absolute, re.findall(r"(?m)^home *= *(/.*)/bin */? *$", text))
    return [base for base in found if Path(base, "bin/python3").is_file()]


def absolute(path: str) -> str:
    return os.path.normpath(Path(path).absolute())


def _mount(path: Path, source: Path) -> list[str]:
    link = ["--symlink", str(source.readlink())] if source.is_symlink() else []
    return [*_parents(path), *(link or ["--ro-bind", str(source)]), str(path)]


def _parents(path: Path) -> list[str]:
    """Options that create the folders above a path for every user; by default they are 0700."""
    return [
        flag for parent in list(path.parents)[-2::-1] for flag in ("--dir", str(parent))
    ]
