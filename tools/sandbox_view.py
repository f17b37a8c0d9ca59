"""What a program in the sandbox sees, as options of bubblewrap (tools/sandbox.py)."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

SYSTEM = (  # programs and libraries: no settings, and nothing else that may lie in /usr
    *("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc/alternatives", "/etc/ld.so.cache"),
    *(f"/usr/{name}" for name in ("bin", "sbin", "lib", "lib32", "lib64", "libexec")),
    *("/usr/share", "/usr/include", "/usr/local/bin", "/usr/local/lib"),
)
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


def mounts(world: World) -> dict[str, Path]:
    """What is mounted inside the folder of a program, by its path there."""
    found, also = {}, seen_also(world)
    if world.media and world.media.is_dir():
        found["media"] = world.media.resolve()
    if world.venv and also and world.venv.is_relative_to(also):
        found[str(world.venv.relative_to(also))] = world.venv
    return found


def seen_also(world: World) -> Path | None:
    """The path of the user's under which the folder is seen too, unless it is read-only there."""
    also = world.also
    return None if also and any(also.is_relative_to(path) for path in _shown()) else also


def environment(home: str, first: str = "") -> dict[str, str]:
    """All that a program finds in its environment."""
    path = f"{first}/usr/local/bin:/usr/bin:/bin:{absolute(sys.executable).rpartition('/')[0]}"
    one_thread = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"), "1")
    return {"PATH": path, "HOME": home, "LANG": "C.UTF-8", **one_thread}


def bubblewrap(world: World, size: int) -> list[str]:
    """bwrap and its options. The first process keeps the rights to set limits and change its user;
    the program has none.
    """
    rights = ["KILL", "SYS_ADMIN", "DAC_OVERRIDE", "SETUID", "SETGID", "SETFCAP"]
    kernel = [f"--unshare-{what}" for what in ("ipc", "pid", "net", "uts", "cgroup-try")]
    kernel += [] if os.geteuid() == 0 else ["--unshare-user", "--uid", "0", "--gid", "0"]
    system = [flag for path in _shown() for flag in _mount(path)]

    def memory(place: str, limit: int) -> list[str]:
        return ["--size", str(limit), "--perms", "1777", "--tmpfs", place]

    venv, also, inside = world.venv, seen_also(world), mounts(world)
    places = {Path(WORK, name): source for name, source in inside.items()}
    if venv and venv not in inside.values():
        places[venv] = venv
    first = next((f"{place}/bin:" for place, source in places.items() if source == venv), "")
    bound = [f for at, p in places.items() for f in (*_above(at), "--ro-bind", str(p), str(at))]
    variables = [f for kv in environment(WORK, first).items() for f in ("--setenv", *kv)]
    return [
        *("bwrap", *kernel, "--die-with-parent", "--new-session", "--as-pid-1"),
        *("--cap-drop", "ALL", *(f for right in rights for f in ("--cap-add", f"CAP_{right}"))),
        *("--proc", "/proc", "--dev", "/dev", "--dev-bind", "/dev/full", "/dev/zero"),
        *(*memory("/dev/shm", TMP_BYTES), "--remount-ro", "/dev", *memory("/tmp", TMP_BYTES)),
        *(*system, *memory(WORK, size), *bound),
        *([*_above(also), "--symlink", WORK, str(also)] if also else []),
        *("--remount-ro", "/", "--clearenv", *variables, "--chdir", "/"),
    ]


def _shown() -> list[Path]:
    return [path for path in (*map(Path, SYSTEM), *_python()) if path.exists()]


def _python() -> list[Path]:
    """The parts of this Python outside the folders of the system."""
    prefixes = dict.fromkeys(map(absolute, (sys.base_prefix, sys.prefix)))
    parts = [Path(p) / name for p in prefixes for name in ("bin", "lib", "lib64", "pyvenv.cfg")]
    return [part for part in parts if not any(part.is_relative_to(place) for place in SYSTEM)]


def absolute(path: str) -> str:
    return os.path.normpath(Path(path).absolute())


def _mount(path: Path) -> list[str]:
    if path.is_symlink():
        return [*_above(path), "--symlink", str(path.readlink()), str(path)]
    return [*_above(path), "--ro-bind", str(path), str(path)]


def _above(path: Path) -> list[str]:
    """The folders above a path, open to every user: bubblewrap itself would close them."""
    return [flag for a in list(path.parents)[-2::-1] for flag in ("--dir", str(a))]
