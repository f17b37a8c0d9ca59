"""What a walled program does while it runs, and that nothing of it is left (tools/wall.py).

The limits here are on all its processes together and on its folder; those of each process are set
by tools/wall_limits.py.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tools import wall_folder

MAX_MEMORY_BYTES = 2 << 30  # of all its processes together
MAX_PROCESSES = 128
SOCKET_BYTES = 16 << 20  # that the kernel keeps for one, at most
MAX_WRITTEN_BYTES = 1 << 30  # all that it ever wrote, deleted files too
WATCH_S = 0.1
LOOK_SHARE = 0.2  # of the time at most goes into looking: a large folder is looked at less often
WATCHER_S = 2.0

Ended = Literal["end", "timeout", "flood", "memory", "processes", "disk"]


@dataclass
class Beside:
    """Memory that no process has of its own, as it is known for the whole machine only: the least
    that files without a disk took since the start, and the most that was free.
    """

    shared_bytes: int
    free_bytes: int

    def grown(self, sockets: int) -> int:
        """What was taken since the start in files, or may have been in that many sockets."""
        shared, free = _of_the_machine()
        self.shared_bytes = min(self.shared_bytes, shared)  # what ran before may still give back
        self.free_bytes = max(self.free_bytes, free)
        in_sockets = min(self.free_bytes - free, sockets * SOCKET_BYTES)
        return max(shared - self.shared_bytes, in_sockets)


def converse(
    process: subprocess.Popen[bytes], folder: Path, given: bytes, timeout_s: float, max_output: int
) -> tuple[bytes, Ended]:
    """Give the input in and take the output out, until the program ends or goes too far."""
    assert process.stdin and process.stdout
    deadline, most = time.monotonic() + timeout_s, wall_folder.allowed(folder)
    watch, beside = time.monotonic() + WATCH_S, Beside(*_of_the_machine())
    output, talks = bytearray(), True
    with selectors.DefaultSelector() as selector:
        os.set_blocking(process.stdin.fileno(), False)
        selector.register(process.stdin, selectors.EVENT_WRITE)
        selector.register(process.stdout, selectors.EVENT_READ)
        while len(output) <= max_output:
            if not talks and _is_over(process):
                return bytes(output), "end"
            wait_s = min(WATCH_S, max(0.0, deadline - time.monotonic()))
            for key, _ in selector.select(wait_s if talks else 0):
                if key.fileobj is process.stdin:
                    given = _give(selector, process, given)
                elif chunk := os.read(key.fd, 65536):
                    output += chunk
                else:  # closed, at its end as a rule
                    selector.unregister(process.stdout)
                    talks = False
            if time.monotonic() >= deadline:
                return bytes(output), "timeout"
            if (began := time.monotonic()) >= watch:
                if excess := _excess(process.pid, beside):
                    return bytes(output), excess
                if wall_folder.contents(folder, most).exceeds(most):
                    return bytes(output), "disk"
                took_s = time.monotonic() - began
                watch = began + max(WATCH_S, took_s / LOOK_SHARE)
    return bytes(output), "flood"


def _is_over(process: subprocess.Popen[bytes]) -> bool:
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(WATCH_S)
        return True
    return False


def _give(
    selector: selectors.BaseSelector, process: subprocess.Popen[bytes], given: bytes
) -> bytes:
    assert process.stdin
    try:
        given = given[os.write(process.stdin.fileno(), given[:65536]) :]
    except BrokenPipeError:
        given = b""
    if not given:
        selector.unregister(process.stdin)
        process.stdin.close()
    return given


def _excess(root: int, beside: Beside) -> Ended | None:
    """What limits of a process do not see: all of its processes, and what is beside them."""
    family, grown = {root}, True
    rows = list(_processes())
    while grown:
        new = {pid for pid, parent, _ in rows if parent in family} - family
        family, grown = family | new, bool(new)
    if len(family) > MAX_PROCESSES:
        return "processes"
    resident = sum(size for pid, _, size in rows if pid in family)
    if max(resident, beside.grown(max(map(_sockets, family)))) > MAX_MEMORY_BYTES:
        return "memory"
    return "disk" if sum(map(_written_bytes, family)) > MAX_WRITTEN_BYTES else None


def _processes() -> Iterator[tuple[int, int, int]]:
    """(pid, parent, resident bytes) of every process."""
    for entry in os.scandir("/proc") if sys.platform == "linux" else ():
        with contextlib.suppress(OSError, IndexError, ValueError):
            if entry.name.isdecimal():
                text = Path(entry.path, "stat").read_bytes()
                row = text[text.rindex(b")") + 2 :].split()
                yield int(entry.name), int(row[1]), int(row[21]) * os.sysconf("SC_PAGESIZE")


def _of_the_machine() -> tuple[int, int]:
    """Bytes of memory that are files without a disk, and that are free."""
    rows: dict[bytes, int] = {}
    with contextlib.suppress(OSError):
        for row in Path("/proc/meminfo").read_bytes().splitlines():
            rows[row.split()[0]] = int(row.split()[1]) << 10
    return rows.get(b"Shmem:", 0), rows.get(b"MemAvailable:", 0)


def _sockets(pid: int) -> int:
    """How many there are in the network of a process, if that is none of ours."""
    place = Path(f"/proc/{pid}")
    with contextlib.suppress(OSError):
        if (place / "ns/net").readlink() != Path("/proc/self/ns/net").readlink():
            return int((place / "net/sockstat").read_bytes().split()[2])  # sockets: used N
    return 0


def _written_bytes(pid: int) -> int:
    """What a process, and those that it has waited for, sent to disks."""
    with contextlib.suppress(OSError):
        for row in Path(f"/proc/{pid}/io").read_bytes().splitlines():
            if row.startswith(b"write_bytes:"):
                return int(row.split()[1])
    return 0


def end(process: subprocess.Popen[bytes], watched: bool) -> None:
    """Nothing of the program outlives its call: the namespace of its processes ends with the first
    of them; where there is none, a watcher (tools/wall_bare.py) ends them when told to.
    """
    with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
        if watched:
            process.terminate()
            process.wait(WATCHER_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe:
            pipe.close()
