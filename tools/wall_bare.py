# Stands first at the bare wall (tools/wall.py): this process stays behind as a watcher, the program
# goes on in a child. Linux hands the watcher whatever the program leaves running, detached or not;
# it ends that with the program, when it is told to (SIGTERM), and when the parent is killed.
import contextlib
import ctypes
import os
import signal
import sys
from pathlib import Path

SET_PARENT_DEATH_SIGNAL, SET_CHILD_SUBREAPER = 1, 36  # of prctl(2)


def _descendants() -> set[int]:
    parents: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # gone meanwhile
            parents[int(entry.parts[2])] = int(entry.read_bytes().rpartition(b")")[2].split()[1])
    family = {os.getpid()}
    while grown := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= grown
    return family - {os.getpid()}


def _end(status: int) -> None:
    while left := _descendants():
        for pid in left:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        os.wait()
    os._exit(status)


def _watch(program: int) -> None:
    ended = status = 0
    while ended != program:
        ended, status = os.wait()
    code = os.waitstatus_to_exitcode(status)
    _end(128 - code if code < 0 else code)


if sys.platform == "linux":
    _prctl = ctypes.CDLL(None).prctl
    _prctl(SET_CHILD_SUBREAPER, 1)
    signal.signal(signal.SIGTERM, lambda *_: _end(1))
    _prctl(SET_PARENT_DEATH_SIGNAL, signal.SIGTERM)
    if _program := os.fork():
        _watch(_program)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
