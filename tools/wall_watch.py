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
from pathlib import Path
from typing import Literal

MAX_MEMORY_BYTES = 2 << 30  # of all its processes together
MAX_PROCESSES = 128
MAX_DISK_BYTES = 256 << 20  # its folder
MAX_FILES = 5_000
WATCH_S = 0.1

Ended = Literal["end", "timeout", "flood", "memory", "processes", "disk"]


def converse(
    process: subprocess.Popen[bytes], folder: Path, given: bytes, timeout_s: float, max_output: int
) -> tuple[bytes, Ended]:
    """Give the input in and take the output out, until the program ends or goes too far."""
    assert process.stdin and process.stdout
    deadline = time.monotonic() + timeout_s
    watch = time.monotonic() + WATCH_S
    output = bytearray()
    with selectors.DefaultSelector() as selector:
        os.set_blocking(process.stdin.fileno(), False)
        selector.register(process.stdin, selectors.EVENT_WRITE)
        selector.register(process.stdout, selectors.EVENT_READ)
        while len(output) <= max_output:
            for key, _ in selector.select(min(WATCH_S, max(0.0, deadline - time.monotonic()))):
                if key.fileobj is process.stdin:
                    given = _give(selector, process, given)
                elif chunk := os.read(key.fd, 65536):
                    output += chunk
                else:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(max(0.1, deadline - time.monotonic()))
                        return bytes(output), _excess(process.pid, folder) or "end"
                    return bytes(output), "timeout"
            if time.monotonic() >= deadline:
                return bytes(output), "timeout"
            if time.monotonic() >= watch:
                if excess := _excess(process.pid, folder):
                    return bytes(output), excess
                watch = time.monotonic() + WATCH_S
    return bytes(output), "flood"


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


def _excess(root: int, folder: Path) -> Ended | None:
    """What limits of a process do not see: all its processes together, and its folder."""
    family, grown = {root}, True
    rows = list(_processes())
    while grown:
        new = {pid for pid, parent, _ in rows if parent in family} - family
        family, grown = family | new, bool(new)
    if len(family) > MAX_PROCESSES:
        return "processes"
    if sum(size for pid, _, size in rows if pid in family) > MAX_MEMORY_BYTES:
        return "memory"
    files = size = 0
    for here, folders, names in os.walk(folder):
        files += len(folders) + len(names)
        for name in names:
            with contextlib.suppress(OSError):
                size += os.lstat(f"{here}/{name}").st_blocks * 512
        if size > MAX_DISK_BYTES or files > MAX_FILES:
            return "disk"
    return None


def _processes() -> Iterator[tuple[int, int, int]]:
    """(pid, parent, resident bytes) of every process."""
    for entry in os.scandir("/proc") if sys.platform == "linux" else ():
        with contextlib.suppress(OSError, IndexError, ValueError):
            if entry.name.isdecimal():
                text = Path(entry.path, "stat").read_bytes()
                row = text[text.rindex(b")") + 2 :].split()
                yield int(entry.name), int(row[1]), int(row[21]) * os.sysconf("SC_PAGESIZE")


def end(process: subprocess.Popen[bytes], folder: Path, uid: int | None, search: bool) -> None:
    """Nothing of the program outlives its call: the namespace of its processes ends with the first
    of them; where there is none (`search`), what still runs is looked for.
    """
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe:
            pipe.close()
    for _ in range(20 if search else 0):
        left = [pid for pid, *_ in _processes() if _belongs(pid, folder, uid)]
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if not left:
            return
        time.sleep(0.01)


def _belongs(pid: int, folder: Path, uid: int | None) -> bool:
    with contextlib.suppress(OSError):
        if uid is not None:
            return Path(f"/proc/{pid}").stat().st_uid == uid
        mark = b"HOME=" + os.fsencode(folder)
        return mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return False
