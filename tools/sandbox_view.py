"""What a program in the sandbox sees, as options of bubblewrap (tools/sandbox.py)."""

from __future__ import annotations

import os
import site
import sys
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
SYSTEM = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64"),
    *("/etc/alternatives", "/etc/ld.so.cache"),
)
PROGRAMS = ("/usr/bin", "/usr/sbin", "/usr/lib")
WORK = "/sandbox"  # where a program finds its folder
TMP_BYTES = 128 << 20  # /tmp; the same for /dev/shm


@dataclass(frozen=True)
class World:
    """What a program sees beside the system: its folder, the media of the task, a virtual
    environment (both read-only), and the path of the user's under which its folder is seen too.
    """

    folder: Path | None = None
    media: Path | None = None
    venv: Path | None = None
    also: Path | None = None


def environment(home: str, first: str = "") -> dict[str, str]:
    """All that a program finds in its environment."""
    path = f"{first}/usr/local/bin:/usr/bin:/bin"
    one_thread = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"), "1")
    return {"PATH": path, "HOME": home, "LANG": "C.UTF-8", **one_thread}


def bubblewrap(world: World, size: int) -> list[str]:
    """bwrap and its options. The first process keeps the rights to set limits and change its user;
    the program has none.
    """
    rights = ["KILL", "SYS_ADMIN", "DAC_OVERRIDE", "SETUID", "SETGID", "SETFCAP"]
    kernel = [f"--unshare-{what}" for what in ("ipc", "pid", "net", "uts", "cgroup-try")]
    kernel += [] if os.geteuid() == 0 else ["--unshare-user", "--uid", "0", "--gid", "0"]
    shown = _shown(world)
    mounts = [flag for path, covered in shown for flag in _mount(path, covered)]
    mounts += [flag for path, covered in shown if covered for flag in ("--remount-ro", str(path))]

    def memory(place: str, limit: int) -> list[str]:
        return ["--size", str(limit), "--perms", "1777", "--tmpfs", place]

    venv, also, media = world.venv, world.also, world.media
    if also and any(also.is_relative_to(path) for path, _ in shown):  # read-only there
        also = None
    if venv and also and venv.is_relative_to(also):
        venv = Path(WORK, venv.relative_to(also))
    first = f"{venv}/bin:" if venv else ""
    variables = [f for kv in environment(WORK, first).items() for f in ("--setenv", *kv)]
    return [
        *("bwrap", *kernel, "--die-with-parent", "--new-session", "--as-pid-1"),
        *("--cap-drop", "ALL", *(f for right in rights for f in ("--cap-add", f"CAP_{right}"))),
        *("--proc", "/proc", "--dev", "/dev", *memory("/dev/shm", TMP_BYTES)),
        *("--remount-ro", "/dev", *memory("/tmp", TMP_BYTES), *mounts, *memory(WORK, size)),
        *(["--ro-bind", str(media.resolve()), f"{WORK}/media"] if media and media.is_dir() else []),
        *([*_above(venv), "--ro-bind", str(world.venv), str(venv)] if venv else []),
        *([*_above(also), "--symlink", WORK, str(also)] if also else []),
        *("--remount-ro", "/", "--clearenv", *variables, "--chdir", "/"),
    ]


def _shown(world: World) -> list[tuple[Path, bool]]:
    """(path, whether it is covered): programs, libraries and this Python, no settings. Where the
    project, the run or the home lie in these, as in /usr/src/app, they are covered, and the parts
    of this Python in them shown again.
    """
    python = _python()
    shown = [Path(p) for p in SYSTEM] + [p for p in python if not p.is_relative_to("/usr")]
    shown = [p for p in shown if p.exists()]
    own = {PROJECT, Path(os.environ.get("HOME", "/"))}
    own |= {world.folder.parent.parent} if world.folder else set()
    covers: list[Path] = []
    for place in sorted(p.resolve() for p in own):  # what lies in another comes after it
        seen = place.is_dir() and any(_lies_in(place, p.resolve()) for p in shown)
        if seen and not any(_lies_in(place, c) for c in covers) and not _needed(place, python):
            covers.append(place)
    again = [p for p in python if p.exists() and any(_lies_in(p, c) for c in covers)]
    rows = dict.fromkeys((*shown, *again), False) | dict.fromkeys(covers, True)
    return sorted(rows.items(), key=lambda row: len(row[0].parts))


def _python() -> list[Path]:
    prefixes = dict.fromkeys(map(absolute, (sys.base_prefix, sys.prefix)))
    return [Path(p) / part for p in prefixes for part in ("bin", "lib", "lib64", "pyvenv.cfg")]


def absolute(path: str) -> str:
    return os.path.normpath(Path(path).absolute())


def _lies_in(path: Path, folder: Path) -> bool:
    return path != folder and path.is_relative_to(folder)


def _needed(place: Path, python: Iterable[Path]) -> bool:
    """Whether it cannot be covered: programs, or packages of this Python, would be gone."""
    again = [p for p in python if _lies_in(p, place)]
    kinds = ("stdlib", "platstdlib", "purelib", "platlib", "scripts")
    packages = [*map(sysconfig.get_path, kinds), *site.getsitepackages()]
    needed = [Path(p) for p in (*PROGRAMS, *packages)]
    return any(
        n.is_relative_to(place) and not any(n.is_relative_to(p) for p in again) for n in needed
    )


def _mount(path: Path, covered: bool) -> list[str]:
    if covered:
        return ["--perms", "0755", "--tmpfs", str(path)]
    if path.is_symlink():
        return [*_above(path), "--symlink", str(path.readlink()), str(path)]
    return [*_above(path), "--ro-bind", str(path), str(path)]


def _above(path: Path) -> list[str]:
    """The folders above a path, open to every user: bubblewrap itself would close them."""
    return [flag for a in list(path.parents)[-2::-1] for flag in ("--dir", str(a))]
