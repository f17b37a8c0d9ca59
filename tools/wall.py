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

import contextlib
import logging
import os
import shutil
import subprocess
import sys
import threading
import zlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from runtime.prompts import say
from tools import ToolError, wall_folder, wall_watch
from tools.wall_commands import WALLS, Box, Wall, command, environment

HERE = Path(__file__).parent
_trying = threading.Lock()
NEEDS = {"bubblewrap": ("bwrap",), "unshare": ("unshare", "setpriv"), "bare": ()}


@dataclass(frozen=True)
class Ran:
    """How a program went: what it printed, why it ended, its exit status, and behind which wall."""

    output: bytes
    ended: wall_watch.Ended
    status: int
    wall: Wall


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
    """Run a Python file with `given` on standard input; `errors`: standard error is output too.

    Raises ToolError where it cannot be started: no process or no disk is left.
    """
    try:
        box = make_box(wall or strongest_wall(), folder.resolve(), media)
        most = wall_folder.allowed(box.folder)
        process = _start(box, command(box, program, arguments, timeout_s), errors)
        try:
            output, ended = wall_watch.converse(process, box.folder, given, timeout_s, max_output)
        finally:
            wall_watch.end(process, watched=box.wall == "bare")
        if wall_folder.contents(box.folder, most, opens=True).exceeds(most):
            ended = "disk"
        if ended == "disk":
            wall_folder.empty(box.folder)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ToolError(say("tools/notes", "no_program", reason=reason)) from None
    return Ran(output[:max_output], ended, process.returncode, box.wall)


def _start(box: Box, run: list[str], errors: bool) -> subprocess.Popen[bytes]:
    user = box.uid if box.wall == "bare" else None  # the other walls change it behind them
    return subprocess.Popen(
        run,
        executable=shutil.which(run[0]),  # not looked for in the program's own environment
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT if errors else subprocess.DEVNULL,
        cwd=box.folder,
        env=environment(box.folder),
        start_new_session=True,
        user=user,
        group=user,
        extra_groups=None if user is None else [],
    )


def make_box(wall: Wall, folder: Path, media: Path | None = None) -> Box:
    """The folder, made and given to the user that will own it."""
    folder.mkdir(parents=True, exist_ok=True)
    uid = 1 << 20 | zlib.crc32(os.fsencode(folder)) & 0xFFFFF if os.geteuid() == 0 else None
    if wall == "bare" and uid is not None and not _can_become(uid):
        uid = None
    if uid is not None and folder.stat().st_uid != uid:  # new, with what was copied into it
        for place, _, files in os.walk(folder):  # follows no link
            for name in (".", *files):
                os.chown(Path(place, name), uid, uid, follow_symlinks=False)
    if media is not None and media.is_dir():
        inside = folder / "media"
        if wall == "bare" and not os.path.lexists(inside):
            inside.symlink_to(media.resolve())
        return Box(wall, folder, media.resolve(), uid)
    return Box(wall, folder, None, uid)


def strongest_wall() -> Wall:
    """The strongest wall that holds here, tried once by starting this Python behind it."""
    with _trying:
        return _strongest_wall()


@cache
def _strongest_wall() -> Wall:
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

    if not all(map(shutil.which, NEEDS[wall])):
        return False
    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(ToolError):
        ran = confined(HERE / "code_runner.py", ["python"], b"6 * 7", 10, Path(folder), wall=wall)
        return ran.output == b"42\n"
    return False


@cache
def _can_become(uid: int) -> bool:
    """Whether another user could start this Python (not if it lies in a closed home)."""
    try:
        run = [sys.executable, "-I", "-c", ""]
        done = subprocess.run(run, user=uid, group=uid, extra_groups=[], cwd="/", check=False)
        return done.returncode == 0
    except OSError:
        return False
