"""A cgroup (v2) for one sandbox: the kernel limits the memory and the number of all its processes.

Limits such as RLIMIT_AS hold for one process each. Only a cgroup limits all processes of a program
together. It can be created where the cgroup above hands on the controllers `memory` and `pids`
and you may write to it: as root, or under `systemd-run --user --scope`. Where it cannot, the first
process of the sandbox checks the memory ten times a second instead.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from secrets import randbelow

ROOT = Path("/sys/fs/cgroup")
ENTER = "sh", "-c", 'echo 0 > "$0/cgroup.procs"; exec "$@"'  # run "$@" in the cgroup $0
NEEDED = {"memory", "pids"}  # controllers
REMOVE_ATTEMPTS = 100
REMOVE_PAUSE_S = 0.01


@contextlib.contextmanager
def limited(copied: Path, max_bytes: int, max_processes: int) -> Iterator[Path | None]:
    """A new cgroup next to our own, or None if it cannot be created.

    Its processes may use `max_bytes` of memory, and as much as the folder `copied` holds, because
    the sandbox copies that folder into memory. Threads count as processes. At the end, all its
    processes are killed, and it is removed.
    """
    group = _create(copied, max_bytes, max_processes)
    try:
        yield group
    finally:
        if group is not None:
            _remove(group)


def ran_out_of_memory(group: Path) -> bool:
    """Whether the kernel killed a process because memory ran out."""
    try:
        events = (group / "memory.events").read_text()
    except OSError:
        return False
    return "oom_kill 0" not in events


def _create(copied: Path, max_bytes: int, max_processes: int) -> Path | None:
    try:
        parent = _parent()
        if parent is None or not _hands_on_controllers(parent):
            return None
        copied_bytes = sum(path.lstat().st_size for path in copied.rglob("*"))
        group = parent / f"orchestra-min-{os.getpid()}-{randbelow(1 << 60):x}"
        group.mkdir()
    except OSError:
        return None
    with contextlib.suppress(OSError):
        (group / "memory.max").write_text(str(max_bytes + copied_bytes))
        (group / "pids.max").write_text(str(max_processes))
        (group / "memory.swap.max").write_text("0")  # last: not every kernel has it
    return group


def _parent() -> Path | None:
    """The cgroup above our own; for the root itself, the root. None if there is no cgroup v2."""
    text = Path("/proc/self/cgroup").read_text("utf-8")
    own = re.search(r"(?m)^0::/(.*)$", text)
    if own is None:
        return None
    return Path(ROOT, own[1]).parent if own[1] else ROOT


def _hands_on_controllers(parent: Path) -> bool:
    controllers = (parent / "cgroup.subtree_control").read_text().split()
    return NEEDED.issubset(controllers)


def _remove(group: Path) -> None:
    """Kill what is left in a cgroup and remove it. It stays while a process in it is ending."""
    for _ in range(REMOVE_ATTEMPTS):
        with contextlib.suppress(OSError):
            (group / "cgroup.kill").write_text("1")
            group.rmdir()
            return
        time.sleep(REMOVE_PAUSE_S)
