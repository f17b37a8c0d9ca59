"""A program that nobody trusts, run by bubblewrap: no network, no other process, no file of yours.

It works in memory: its folder is copied in and, when it has ended, what it changed is copied out:
regular files, folders, and links that stay inside. tools/sandbox_init.py is the first process of
its world: it sets the limits, copies and watches; where a cgroup can be made, it limits the whole
world. Started by root, the program runs as a user that owns nothing else. What is tried against it
is in tests/attacks; what it does not cover is in SECURITY.md.
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

from runtime.prompts import say
from tools import ToolError

INIT = Path(__file__).with_name("sandbox_init.py").read_text(encoding="utf-8")
LIMITS = {  # of each process
    "RLIMIT_AS": 2 << 30,
    "RLIMIT_FSIZE": 64 << 20,
    "RLIMIT_NOFILE": 256,
    "RLIMIT_CORE": 1,  # bytes: no file; with 0, the system's crash collector would still get it
    "RLIMIT_NPROC": 128,
}
MAX_PROCESSES = 160  # and threads, with bubblewrap and the first process
MAX_MEMORY_BYTES = 2 << 30  # of all processes
MAX_ADDED_BYTES = 256 << 20  # to its folder
MAX_ADDED_FILES = 5_000
TMP_BYTES = 128 << 20  # /tmp; the same for /dev/shm
USER = 1 << 20  # the first of the users that a program gets where root starts it; they own nothing
COPY_S = 60  # to copy the folder in and out
SYSTEM = (  # programs and libraries: no settings, and nothing else that may lie in /usr
    *("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc/alternatives", "/etc/ld.so.cache"),
    *(f"/usr/{name}" for name in ("bin", "sbin", "lib", "lib32", "lib64", "libexec")),
    *("/usr/share", "/usr/include", "/usr/local/bin", "/usr/local/lib"),
)
ENTER = "sh", "-c", 'echo 0 > "$0/cgroup.procs"; exec "$@"'  # $0: a cgroup, to enter
WORK = "/sandbox"  # where a program finds its folder


@dataclass(frozen=True)
class World:
    """What a program sees besides the system: its folder, the media of the task, a virtual
    environment (both read-only), and a second path for its folder, besides /sandbox.
    """

    folder: Path | None = None
    media: Path | None = None
    venv: Path | None = None
    place: Path | None = None


@dataclass(frozen=True)
class Ran:
    """What a program printed, why it ended (end, timeout, flood, memory, disk), and its exit
    status.
    """

    output: bytes
    ended: str
    status: int


def python(source: str, *arguments: str) -> list[str]:
    """The command that runs this source."""
    return [absolute(sys.executable), "-I", "-u", "-c", source, *arguments]


def confined(
    command: list[str], given: bytes, timeout_s: float, world: World, max_output: int,
    unsafe: bool = False,
) -> Ran:  # fmt: skip
    """Run a command with `given` on standard input; standard error is output too. `unsafe`: without
    a sandbox, with limits on time, output and the size of a file only.

    Raises ToolError where it cannot be started.
    """
    rules = {"run": command, "timeout_s": timeout_s, "output": max_output}
    try:
        return _ran(rules, given, world, unsafe)
    except (OSError, subprocess.SubprocessError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ToolError(say("tools/notes", "no_program", reason=reason)) from None


def missing() -> str:
    """What to tell the user where no sandbox can be built."""
    return (
        f"bubblewrap does not work here ({trouble()}): apt install bubblewrap, or --unsafe-code "
        "runs the code of models without a sandbox (SECURITY.md)"
    )


@cache
def trouble() -> str:
    """Why no sandbox can be built here, "" if one can: tried once."""
    rules = {"run": ["/bin/true"], "timeout_s": 10, "output": 200}
    try:
        ran = _ran(rules, b"", World())
    except (OSError, subprocess.SubprocessError) as error:
        return getattr(error, "strerror", None) or str(error)
    return ran.output.decode("utf-8", "replace") or f"status {ran.status}" if ran.status else ""


def _ran(rules: dict[str, Any], given: bytes, world: World, unsafe: bool = False) -> Ran:
    """Raises OSError and SubprocessError where the program cannot be started."""
    with tempfile.TemporaryDirectory() as empty:
        folder = world.folder or Path(empty)
        folder.mkdir(parents=True, exist_ok=True)
        return (_unsafe if unsafe else _sandboxed)(rules, given, world, folder)


def _sandboxed(rules: dict[str, Any], given: bytes, world: World, folder: Path) -> Ran:
    limits = {**LIMITS, "RLIMIT_CPU": int(rules["timeout_s"]) + 1}
    held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    rules |= {
        "sandbox": True, "root": os.geteuid() == 0, "user": USER + randbelow(1 << 16),
        "limits": limits, "memory": MAX_MEMORY_BYTES, "added": MAX_ADDED_BYTES,
        "files": MAX_ADDED_FILES, "tmp": TMP_BYTES, "folder": held,
    }  # fmt: skip
    try:
        with cgroup(folder) as group:
            entry = [*ENTER, str(group)] if group else []
            ran = _started([*entry, *bubblewrap(world)], rules, given, pass_fds=[held])
            return replace(ran, ended="memory") if group and ran_out(group) else ran
    finally:
        os.close(held)


@contextlib.contextmanager
def cgroup(folder: Path) -> Iterator[Path | None]:
    """A cgroup v2 for a program that works on a copy of `folder`, beside that of this process: the
    kernel limits the memory and the number of all its processes. None where none can be made.
    """
    group = None
    with contextlib.suppress(OSError, IndexError):
        own = re.findall(r"(?m)^0::/(.*)$", Path("/proc/self/cgroup").read_text("utf-8"))[0]
        above = Path("/sys/fs/cgroup", own).parent if own else Path("/sys/fs/cgroup")
        if {"memory", "pids"} <= {*(above / "cgroup.subtree_control").read_text().split()}:
            most = MAX_MEMORY_BYTES + MAX_ADDED_BYTES + 2 * TMP_BYTES
            most += sum(p.lstat().st_size for p in folder.rglob("*"))
            new = above / f"orchestra-min-{os.getpid()}-{randbelow(1 << 60):x}"
            new.mkdir()
            group = new
            (group / "memory.max").write_text(str(most))
            (group / "pids.max").write_text(str(MAX_PROCESSES))
            (group / "memory.swap.max").write_text("0")  # last: not every kernel has it
    try:
        yield group
    finally:
        if group:
            _remove(group)


def _remove(group: Path) -> None:
    """With all that is left in it; a process that is ending keeps it for a moment."""
    for _ in range(100):
        with contextlib.suppress(OSError):
            (group / "cgroup.kill").write_text("1")
            group.rmdir()
            return
        time.sleep(0.01)


def ran_out(group: Path) -> bool:
    """Whether the kernel ended a process for memory."""
    with contextlib.suppress(OSError):
        return "oom_kill 0" not in (group / "memory.events").read_text()
    return False


def _unsafe(rules: dict[str, Any], given: bytes, world: World, folder: Path) -> Ran:
    """No sandbox: the user said --unsafe-code."""
    rules |= {"sandbox": False, "limits": {"RLIMIT_FSIZE": LIMITS["RLIMIT_FSIZE"]}}
    if world.media and not os.path.lexists(folder / "media"):
        (folder / "media").symlink_to(world.media.resolve())
    own = environment(str(folder.resolve()), world.venv)
    return _started([], rules, given, cwd=folder, env=own)


def _started(before: list[str], rules: dict[str, Any], given: bytes, **how: Any) -> Ran:
    """The first process, until it and all that it started are gone."""
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
    except ValueError:  # bubblewrap could not begin
        report = {"failed": " ".join(done.stderr.decode("utf-8", "replace").split())[-200:]}
    if "failed" in report:
        raise subprocess.SubprocessError(report["failed"] or f"status {done.returncode}")
    return Ran(output, report["ended"], report["status"])


def environment(home: str, venv: Path | None) -> dict[str, str]:
    """All that a program finds in its environment."""
    first = f"{venv}/bin:" if venv else ""
    path = f"{first}/usr/local/bin:/usr/bin:/bin:{absolute(sys.executable).rpartition('/')[0]}"
    one_thread = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"), "1")
    return {"PATH": path, "HOME": home, "LANG": "C.UTF-8", **one_thread}


def bubblewrap(world: World) -> list[str]:
    """bwrap and its options. The first process keeps the rights to set limits, to copy, and to
    change its user; the program has none.
    """
    rights = ["KILL", "SYS_ADMIN", "DAC_OVERRIDE", "SETUID", "SETGID", "SETFCAP", "CHOWN"]
    kernel = [f"--unshare-{what}" for what in ("ipc", "pid", "net", "uts", "cgroup-try")]
    kernel += [] if os.geteuid() == 0 else ["--unshare-user", "--uid", "0", "--gid", "0"]

    def memory(place: str) -> list[str]:
        return ["--perms", "1777", "--tmpfs", place]

    shown, venv, place = _shown(world.venv), world.venv, world.place or Path(WORK)
    if any(place.is_relative_to(path) for path in (*shown, Path(WORK))):  # read-only, or taken
        place = Path(WORK)
    folder = [*_above(place), *memory(str(place))]
    folder += ["--symlink", str(place), WORK] if place != Path(WORK) else []
    seen = {path: path for path in shown}
    seen |= {venv: venv.resolve()} if venv else {}
    seen |= {place / "media": world.media.resolve()} if world.media and world.media.is_dir() else {}
    system = [flag for at, source in seen.items() for flag in _mount(at, source)]
    variables = environment(WORK, venv)
    return [
        *("bwrap", *kernel, "--die-with-parent", "--as-pid-1"),
        *("--cap-drop", "ALL", *(f for right in rights for f in ("--cap-add", f"CAP_{right}"))),
        *("--proc", "/proc", "--dev", "/dev", "--dev-bind", "/dev/full", "/dev/zero"),
        *(*memory("/dev/shm"), "--remount-ro", "/dev", *memory("/tmp"), *folder, *system),
        *("--remount-ro", "/", "--clearenv"),
        *(*(f for kv in variables.items() for f in ("--setenv", *kv)), "--chdir", "/"),
    ]


def _shown(venv: Path | None = None) -> list[Path]:
    """The parts of the system, and those outside them of this Python and of that of `venv`."""
    prefixes = dict.fromkeys(map(absolute, (sys.base_prefix, sys.prefix, *_base(venv))))
    parts = [Path(p) / name for p in prefixes for name in ("bin", "lib", "lib64", "pyvenv.cfg")]
    own = [part for part in parts if not any(part.is_relative_to(place) for place in SYSTEM)]
    return [path for path in (*map(Path, SYSTEM), *own) if path.exists()]


def _base(venv: Path | None) -> list[str]:
    """The Python that a virtual environment was made with."""
    config = venv / "pyvenv.cfg" if venv else Path()
    text = config.read_text("utf-8", "replace") if config.is_file() else ""
    found = map(absolute, re.findall(r"(?m)^home *= *(/.*)/bin */? *$", text))
    return [base for base in found if Path(base, "bin/python3").is_file()]


def absolute(path: str) -> str:
    return os.path.normpath(Path(path).absolute())


def _mount(at: Path, source: Path) -> list[str]:
    if source.is_symlink():
        return [*_above(at), "--symlink", str(source.readlink()), str(at)]
    return [*_above(at), "--ro-bind", str(source), str(at)]


def _above(path: Path) -> list[str]:
    """The folders above a path, which every user may enter; bubblewrap would make them 0700."""
    return [flag for a in list(path.parents)[-2::-1] for flag in ("--dir", str(a))]
