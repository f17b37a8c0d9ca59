"""The command line of each wall: what is shown behind it, what is taken away (tools/wall.py)."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from tools.wall_view import view

HERE = Path(__file__).parent
LIMITS = {  # of one process
    "RLIMIT_AS": 2 << 30,
    "RLIMIT_FSIZE": 64 << 20,
    "RLIMIT_NOFILE": 256,
    "RLIMIT_CORE": 1,  # too small for a file; 0 would not keep it from a collector of the system
    "RLIMIT_NPROC": 128,
}
TMP_BYTES = 64 << 20
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}  # a pool a core would not fit
NO_NAMESPACES = 'echo 0 > /proc/sys/user/max_user_namespaces; exec "$@"'

Wall = Literal["bubblewrap", "unshare", "bare"]
WALLS: tuple[Wall, ...] = ("bubblewrap", "unshare", "bare")


@dataclass(frozen=True)
class Box:
    """Where a program runs. `uid`: the user it becomes, where root starts it."""

    wall: Wall
    folder: Path
    media: Path | None = None
    uid: int | None = None


def command(box: Box, program: Path, arguments: list[str], timeout_s: float) -> list[str]:
    """What starts a Python file in its box."""
    limits = {**LIMITS, "RLIMIT_CPU": int(timeout_s) + 1}
    if box.wall == "bare" and box.uid is None:
        del limits["RLIMIT_NPROC"]  # it would count what else the user runs
    first = [HERE / "wall_bare.py"] if box.wall == "bare" else []
    files = [p.read_text(encoding="utf-8") for p in (*first, HERE / "wall_limits.py", program)]
    source = "".join([f"LIMITS = {limits!r}\n", *files])
    run = [sys.executable, "-I", "-u", "-c", source, *arguments]
    if box.wall == "bubblewrap":
        return _bubblewrap(box, run)
    return _unshare(box, run) if box.wall == "unshare" else run


def environment(home: Path) -> dict[str, str]:
    """All that a program finds in its environment."""
    path = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(home), "LANG": "C.UTF-8"}
    return {**path, **ONE_THREAD}


def _bubblewrap(box: Box, run: list[str]) -> list[str]:
    shown = view(box.folder)
    mounts = [f for path, covered in shown for f in _mount(path, covered)]
    mounts += [f for path, covered in shown if covered for f in ("--remount-ro", str(path))]
    media = ("--ro-bind", str(box.media), "/sandbox/media") if box.media else ()
    variables = [f for k, v in environment(Path("/sandbox")).items() for f in ("--setenv", k, v)]
    memory = ("--size", str(TMP_BYTES), "--perms", "1777", "--tmpfs")
    no_namespaces = ["--unshare-user", "--disable-userns"]
    kernel = [f"--unshare-{what}" for what in ("ipc", "pid", "net", "uts", "cgroup-try")]
    outer = [
        *("bwrap", *kernel, "--die-with-parent", "--new-session", "--cap-drop", "ALL"),
        *("--proc", "/proc", "--dev", "/dev", *memory, "/dev/shm", "--remount-ro", "/dev"),
        *(*memory, "/tmp"),
        *mounts,
        *("--bind", str(box.folder), "/sandbox", *media),
        *("--remount-ro", "/", "--clearenv", *variables),
    ]
    if box.uid is None:
        return [*outer, *no_namespaces, "--chdir", "/sandbox", *run]
    inner = ["bwrap", *no_namespaces, "--dev-bind", "/", "/", "--chdir", "/sandbox"]
    inner = inner if _makes_namespaces(box.uid) else ["env", "--chdir=/sandbox"]
    rights = ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    return [*outer, *rights, "--chdir", "/", *_become(box.uid), *inner, *run]


def _unshare(box: Box, run: list[str]) -> list[str]:
    kernel = ["--mount", "--net", "--ipc", "--uts", "--pid", "--fork", "--kill-child"]
    user = ["--user", "--map-root-user"] if box.uid is None else []
    become = _become(box.uid) if box.uid is not None else []
    inner = ["unshare", "--user", "--map-root-user", "sh", "-ec", NO_NAMESPACES, "wall"]
    if box.uid is not None and not _makes_namespaces(box.uid):
        inner = []
    drop = ["setpriv", "--inh-caps=-all", "--bounding-set=-all", "--no-new-privs"]
    drop = drop if inner or box.uid is None else []  # a user that is not root has no rights to drop
    script = (HERE / "wall_unshare.sh").read_text(encoding="utf-8")
    shown = view(box.folder)
    mounts = [f"cover:{path}" if covered else str(path) for path, covered in shown]
    mounts += [f"close:{path}" for path, covered in shown if covered]
    places = [str(box.folder), str(box.media or ""), *mounts]
    return [
        *("setpriv", "--pdeathsig", "KILL", "unshare", *user, *kernel),
        *("sh", "-ec", script, "wall", str(len(places)), *places),
        *(*become, *inner, *drop, *run),
    ]


def _become(uid: int) -> list[str]:
    return ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]


def _mount(path: Path, covered: bool) -> list[str]:
    above = [f for a in list(path.parents)[-2::-1] for f in ("--dir", str(a))]
    if covered:
        return ["--perms", "0755", "--tmpfs", str(path)]
    if path.is_symlink():
        return [*above, "--symlink", str(path.readlink()), str(path)]
    return [*above, "--ro-bind", str(path), str(path)]


@cache
def _makes_namespaces(uid: int) -> bool:
    """Whether a user who is not root may make namespaces here, and so must be kept from it."""
    run = [*_become(uid), "unshare", "--user", "true"]
    return subprocess.run(run, capture_output=True, check=False).returncode == 0
