"""A Python program that nobody trusts, in a process of its own behind the strongest wall this
machine has.

    bubblewrap   no network, no process but its own, read-only system, no file of the user; its own
                 folder writable, the task's media readable; no new namespaces
    unshare      the same from the kernel's namespaces by hand, where bubblewrap is not installed
    bare         the limits below only; the network and what the user may read are open to it

Always: an empty environment; limits on time, memory, processors, processes, files, disk and output;
nothing of it outlives its call. Started by root, it runs as a user that owns nothing else. Which
attempts each level stops is tested in tests/attacks and told in SECURITY.md.
"""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import zlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from tools import wall_watch

HERE = Path(__file__).parent
LIMITS = {
    "RLIMIT_AS": 2 << 30,
    "RLIMIT_FSIZE": 64 << 20,
    "RLIMIT_NOFILE": 256,
    "RLIMIT_CORE": 0,
    "RLIMIT_NPROC": 128,
}
TMP_BYTES = 64 << 20
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}  # a pool a core would not fit
SYSTEM = (
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/etc/alternatives",
    "/etc/ld.so.cache",
)

NO_NAMESPACES = 'echo 0 > /proc/sys/user/max_user_namespaces; exec "$@"'

Wall = Literal["bubblewrap", "unshare", "bare"]
WALLS: tuple[Wall, ...] = ("bubblewrap", "unshare", "bare")


@dataclass(frozen=True)
class Ran:
    """How a program went: what it printed, why it ended, its exit status, and behind which wall."""

    output: bytes
    ended: wall_watch.Ended
    status: int
    wall: Wall


@dataclass(frozen=True)
class Box:
    """Where a program runs. `uid`: the user it becomes, where root starts it."""

    wall: Wall
    folder: Path
    media: Path | None = None
    uid: int | None = None


def confined(
    program: Path,
    arguments: list[str],
    given: bytes,
    timeout_s: float,
    folder: Path,
    media: Path | None = None,
    max_output: int = 200_000,
    errors: bool = True,
    wall: Wall | None = None,
) -> Ran:
    """Run a Python file with `given` on standard input; `errors`: standard error is output too."""
    box = make_box(wall or strongest_wall(), folder.resolve(), media)
    user = box.uid if box.wall == "bare" else None  # the other walls change it behind them
    process = subprocess.Popen(
        command(box, program, arguments, timeout_s),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT if errors else subprocess.DEVNULL,
        cwd=box.folder,
        env=_environment(box.folder),
        start_new_session=True,
        user=user,
        group=user,
        extra_groups=None if user is None else [],
    )
    try:
        output, ended = wall_watch.converse(process, box.folder, given, timeout_s, max_output)
    finally:
        wall_watch.end(process, box.folder, box.uid, search=box.wall == "bare")
    if ended == "disk":
        _empty(box.folder)
    return Ran(output[:max_output], ended, process.returncode, box.wall)


def make_box(wall: Wall, folder: Path, media: Path | None = None) -> Box:
    """The folder, made and given to the user that will own it."""
    folder.mkdir(parents=True, exist_ok=True)
    uid = 1 << 20 | zlib.crc32(str(folder).encode()) & 0xFFFFF if os.geteuid() == 0 else None
    if wall == "bare" and uid is not None and not _can_become(uid):
        uid = None
    if uid is not None and folder.stat().st_uid != uid:  # new, with what was copied into it
        for place, _, files in os.walk(folder):  # follows no link
            for name in (".", *files):
                os.chown(Path(place, name), uid, uid, follow_symlinks=False)
    if media is not None and media.is_dir():
        inside = folder / "media"
        if wall == "bare" and not inside.exists():
            inside.symlink_to(media.resolve())
        return Box(wall, folder, media.resolve(), uid)
    return Box(wall, folder, None, uid)


# ---- the three walls -----------------------------------------------------------------------------


def command(box: Box, program: Path, arguments: list[str], timeout_s: float) -> list[str]:
    limits = {**LIMITS, "RLIMIT_CPU": int(timeout_s) + 1}
    if box.wall == "bare" and box.uid is None:
        del limits["RLIMIT_NPROC"]  # it would count what else the user runs
    source = f"LIMITS = {limits!r}\n" + "".join(
        p.read_text(encoding="utf-8") for p in (HERE / "wall_limits.py", program)
    )
    run = [sys.executable, "-I", "-u", "-c", source, *arguments]
    if box.wall == "bubblewrap":
        return _bubblewrap(box, run)
    return _unshare(box, run) if box.wall == "unshare" else run


def _bubblewrap(box: Box, run: list[str]) -> list[str]:
    shown = _system()
    above = dict.fromkeys(str(a) for p in shown for a in list(p.parents)[-2::-1])
    mounts = [f for a in above for f in ("--dir", a)] + [f for p in shown for f in _mount(p)]
    media = ("--ro-bind", str(box.media), "/sandbox/media") if box.media else ()
    environment = [f for k, v in _environment(Path("/sandbox")).items() for f in ("--setenv", k, v)]
    memory = ("--size", str(TMP_BYTES), "--perms", "1777", "--tmpfs")
    no_namespaces = ["--unshare-user", "--disable-userns"]
    kernel = [f"--unshare-{what}" for what in ("ipc", "pid", "net", "uts", "cgroup-try")]
    outer = [
        *("bwrap", *kernel, "--die-with-parent", "--new-session", "--cap-drop", "ALL"),
        *("--proc", "/proc", "--dev", "/dev", *memory, "/dev/shm", "--remount-ro", "/dev"),
        *(*memory, "/tmp"),
        *mounts,
        *("--bind", str(box.folder), "/sandbox", *media),
        *("--remount-ro", "/", "--clearenv", *environment),
    ]
    if box.uid is None:
        return [*outer, *no_namespaces, "--chdir", "/sandbox", *run]
    become = ["setpriv", f"--reuid={box.uid}", f"--regid={box.uid}", "--clear-groups"]
    inner = ["bwrap", *no_namespaces, "--dev-bind", "/", "/", "--chdir", "/sandbox"]
    inner = inner if _makes_namespaces(box.uid) else ["env", "--chdir=/sandbox"]
    rights = ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    return [*outer, *rights, "--chdir", "/", *become, *inner, *run]


def _unshare(box: Box, run: list[str]) -> list[str]:
    kernel = ["--mount", "--net", "--ipc", "--uts", "--pid", "--fork", "--kill-child"]
    user = ["--user", "--map-root-user"] if box.uid is None else []
    become = ["setpriv", f"--reuid={box.uid}", f"--regid={box.uid}", "--clear-groups"]
    inner = ["unshare", "--user", "--map-root-user", "sh", "-ec", NO_NAMESPACES, "wall"]
    if box.uid is None:
        become = []
    elif not _makes_namespaces(box.uid):
        inner = []
    drop = ["setpriv", "--inh-caps=-all", "--bounding-set=-all", "--no-new-privs"]
    drop = drop if inner or box.uid is None else []  # a user that is not root has no rights to drop
    script = (HERE / "wall_unshare.sh").read_text(encoding="utf-8")
    shown = [str(box.folder), str(box.media or ""), *map(str, _system())]
    return [
        *("unshare", *user, *kernel, "sh", "-ec", script, "wall", str(len(shown)), *shown),
        *(*become, *inner, *drop, *run),
    ]


def _system() -> list[Path]:
    """What of the system a program sees: programs, libraries and this Python, no settings."""
    python = [
        Path(prefix) / part
        for prefix in dict.fromkeys((sys.base_prefix, sys.prefix))
        if not Path(prefix).is_relative_to("/usr")
        for part in ("bin", "lib", "lib64", "pyvenv.cfg")
    ]
    return [p for p in (*map(Path, SYSTEM), *python) if p.exists()]


def _mount(path: Path) -> list[str]:
    if path.is_symlink():
        return ["--symlink", str(path.readlink()), str(path)]
    return ["--ro-bind", str(path), str(path)]


def _environment(home: Path) -> dict[str, str]:
    path = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(home), "LANG": "C.UTF-8"}
    return {**path, **ONE_THREAD}


@cache
def strongest_wall() -> Wall:
    """The strongest wall that holds here, tried once by starting this Python behind it."""
    wall = next(w for w in WALLS if w == "bare" or holds(w))
    if wall != "bubblewrap":
        logging.getLogger("orchestra").warning(
            "model-written code runs behind the wall %r: install bubblewrap for the strongest", wall
        )
    return wall


@cache
def holds(wall: Wall) -> bool:
    """Whether this wall can be built here."""
    import tempfile

    if not all(map(shutil.which, {"bubblewrap": ["bwrap"], "unshare": ["unshare"]}[wall])):
        return False
    with tempfile.TemporaryDirectory() as folder:
        ran = confined(HERE / "code_runner.py", ["python"], b"6 * 7", 10, Path(folder), wall=wall)
        return ran.output == b"42\n"


@cache
def _makes_namespaces(uid: int) -> bool:
    """Whether a user who is not root may make namespaces here, and so must be kept from it."""
    run = ["setpriv", f"--reuid={uid}", "--clear-groups", "unshare", "--user", "true"]
    return subprocess.run(run, capture_output=True, check=False).returncode == 0


@cache
def _can_become(uid: int) -> bool:
    """Whether another user could start this Python (not if it lies in a closed home)."""
    try:
        run = [sys.executable, "-I", "-c", ""]
        done = subprocess.run(run, user=uid, group=uid, extra_groups=[], cwd="/", check=False)
        return done.returncode == 0
    except OSError:
        return False


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        if path.is_symlink() or path.is_file():
            path.unlink()
        else:
            shutil.rmtree(path, ignore_errors=True)
