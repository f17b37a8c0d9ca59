"""A program that nobody trusts, run by bubblewrap: no network, no other process, no file of yours.

It works in memory: its folder is copied in and, when it has ended, what it changed is copied out:
regular files, folders, and links that stay inside. tools/sandbox_init.py is the first process of
its world and sets the limits. Started by root, the program runs as a user that owns nothing else.
What is tried against it is in tests/attacks; what it does not cover is in SECURITY.md.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from secrets import randbelow
from typing import IO, Any

from runtime.prompts import say
from tools import ToolError
from tools.sandbox_folder import Packed, pack, unpack
from tools.sandbox_view import World as World
from tools.sandbox_view import absolute, bubblewrap, environment, mounts

INIT = Path(__file__).with_name("sandbox_init.py").read_text(encoding="utf-8")
LIMITS = {  # of each process
    "RLIMIT_AS": 2 << 30,
    "RLIMIT_FSIZE": 64 << 20,
    "RLIMIT_NOFILE": 256,
    "RLIMIT_CORE": 1,  # too small for a file; 0 would not keep it from a collector of the system
    "RLIMIT_NPROC": 128,
}
MAX_MEMORY_BYTES = 2 << 30  # of all processes
MAX_ADDED_BYTES = 256 << 20  # to its folder
MAX_ADDED_FILES = 5_000
USER = 1 << 20  # who a program is: where root starts it, one of these users, who own nothing
GRACE_S = 20  # to copy the folder out after a stop


@dataclass(frozen=True)
class Ran:
    """What a program printed, why it ended (end, timeout, flood, memory), and its exit status."""

    output: bytes
    ended: str
    status: int


def confined(
    source: str, arguments: list[str], given: bytes, timeout_s: float, world: World,
    max_output: int = 200_000, errors: bool = True, unsafe: bool = False,
) -> Ran:  # fmt: skip
    """Run Python source with `given` on standard input. `errors`: standard error is output too.
    `unsafe`: without a sandbox, with limits on time, output and the size of a file only.

    Raises ToolError where it cannot be started.
    """
    if unsafe:
        size = LIMITS["RLIMIT_FSIZE"]
        source = f"import resource as r; r.setrlimit(r.RLIMIT_FSIZE, ({size}, {size}))\n{source}"
    run = [absolute(sys.executable), "-I", "-u", "-c", source, *arguments]
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(tempfile.NamedTemporaryFile())
        file.write(given)
        file.flush()
        stdin = stack.enter_context(Path(file.name).open("rb"))  # to read only
        out = stack.enter_context(tempfile.TemporaryFile())
        how = {"stdin": stdin, "stderr": subprocess.STDOUT if errors else subprocess.DEVNULL}
        try:
            if unsafe:
                return _without(run, how, timeout_s, world, max_output)
            packed = pack(world.folder, mounts(world)) if world.folder else None
            stack.enter_context(packed.file if packed else contextlib.nullcontext())
            return _inside(run, how, timeout_s, world, max_output, packed, out)
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise ToolError(say("tools/notes", "no_program", reason=reason)) from None


def works() -> bool:
    """Whether a sandbox can be built here."""
    return not trouble()


def missing() -> str:
    """What to do where it cannot."""
    return (
        f"bubblewrap does not work here ({trouble()}): apt install bubblewrap, or --unsafe-code "
        "runs the code of models without a sandbox (SECURITY.md)"
    )


@cache
def trouble() -> str:
    """Why no sandbox can be built here, "" if one can: tried once."""
    if sys.platform != "linux" or os.uname().machine not in ("x86_64", "aarch64"):
        return "it needs Linux on x86_64 or aarch64"
    if os.geteuid() == 0 and not any(USER in users for users in _users()):
        return "this is root of a user namespace with too few users"
    try:
        command = [*bubblewrap(World(), 1 << 20), "true"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        return error.strerror or "it does not start"
    why = " ".join(done.stderr.split())[-200:] or f"status {done.returncode}"
    return why if done.returncode else ""


def _users() -> Iterator[range]:
    """The users that this namespace has."""
    for row in Path("/proc/self/uid_map").read_text().splitlines():
        first, _, count = map(int, row.split())
        yield range(first, first + count)


def _inside(
    run: list[str], how: dict[str, Any], timeout_s: float, world: World, max_output: int,
    packed: Packed | None, out: IO[bytes],
) -> Ran:  # fmt: skip
    files, size = (packed.files, packed.size_bytes) if packed else (0, 0)
    size += 4096 * files + MAX_ADDED_BYTES  # in memory, a file takes whole pages
    rules = {
        "run": run, "root": os.geteuid() == 0, "memory": MAX_MEMORY_BYTES,
        "user": USER + randbelow(1 << 16),
        "limits": {**LIMITS, "RLIMIT_CPU": int(timeout_s) + 1}, "out": out.fileno(),
        "in": packed.file.fileno() if packed else None, "size": size,
        "inodes": files + MAX_ADDED_FILES,
    }  # fmt: skip
    told, tell = os.pipe()
    fds = [tell, out.fileno(), *([packed.file.fileno()] if packed else ())]
    init = [run[0], "-I", "-S", "-c", INIT, json.dumps(rules)]
    command = [*bubblewrap(world, size), "--info-fd", str(tell), *init]
    with os.fdopen(told) as info:
        try:
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, pass_fds=fds, start_new_session=True, **how
            )
        finally:
            os.close(tell)
        assert process.stdout
        with process, process.stdout:
            try:
                first = os.pidfd_open(json.loads(info.read())["child-pid"])
            except (ValueError, ProcessLookupError):  # bwrap could not begin
                why = process.stdout.read(300).decode("utf-8", "replace").strip()
                raise ToolError(say("tools/notes", "no_program", reason=why)) from None
            try:
                output, ended = _listen(process.stdout, first, timeout_s, max_output)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(first, signal.SIGKILL)
                _wait_for(first)
                os.close(first)
    report = _report(out, ended)
    kept = not world.folder or unpack(out, world.folder, report["gone"])
    if not kept or report["lost"]:
        ended = "disk"
    return Ran(output, ended if ended != "end" else report["ended"], report["status"])


def _report(out: IO[bytes], ended: str) -> dict[str, Any]:
    """The first line of what the first process wrote, before the archive of the changed files.
    Raises ToolError where it could not start the program.
    """
    out.seek(0)
    try:
        report: dict[str, Any] = json.loads(out.readline())
    except ValueError:  # it did not end in time, or could not begin
        report = {"ended": ended, "status": 1, "gone": [], "lost": False}
        report |= {"failed": "no report"} if ended == "end" else {}
    if "failed" in report:
        raise ToolError(say("tools/notes", "no_program", reason=report["failed"]))
    return report


def _wait_for(fd: int) -> None:
    """Until the first process, and with it every other, is gone."""
    with selectors.DefaultSelector() as selector:
        selector.register(fd, selectors.EVENT_READ)
        selector.select(GRACE_S)


def _listen(stdout: IO[bytes], first: int, timeout_s: float, most: int) -> tuple[bytes, str]:
    """The output until the first process has ended, and why it was told to, if it was."""
    output, ended, deadline = bytearray(), "end", time.monotonic() + timeout_s
    tries = GRACE_S
    with selectors.DefaultSelector() as selector:
        selector.register(stdout, selectors.EVENT_READ)
        selector.register(first, selectors.EVENT_READ)
        while selector.get_map():
            events = selector.select(max(0.0, deadline - time.monotonic()))
            for key, _ in events:
                chunk = os.read(key.fd, 65536) if key.fd != first else b""
                output += chunk
                if not chunk:
                    selector.unregister(key.fileobj)
            late = time.monotonic() >= deadline
            if ended == "end" and len(output) > most:
                ended, late = "flood", True
            elif late and ended == "end":
                ended = "timeout"
            if late and tries == 0:  # it was told to end, and did not
                break
            if late:  # once a second: a signal of the program's own may hide ours
                tries, deadline = tries - 1, time.monotonic() + 1
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(first, signal.SIGTERM)
            del output[most:]
    return bytes(output), ended


def _without(
    run: list[str], how: dict[str, Any], timeout_s: float, world: World, max_output: int
) -> Ran:
    """No sandbox: the user said --unsafe-code."""
    with tempfile.TemporaryDirectory() as empty, tempfile.TemporaryFile() as output:
        folder = world.folder or Path(empty)
        folder.mkdir(parents=True, exist_ok=True)
        if world.media and not os.path.lexists(folder / "media"):
            (folder / "media").symlink_to(world.media.resolve())
        first = f"{world.venv}/bin:" if world.venv else ""
        process = subprocess.Popen(
            run, stdout=output, cwd=folder, env=environment(str(folder.resolve()), first),
            start_new_session=True, **how,
        )  # fmt: skip
        ended = "end"
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            ended = "timeout"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output.seek(0)
        printed = output.read(max_output + 1)
    flood = len(printed) > max_output
    return Ran(printed[:max_output], "flood" if flood else ended, process.returncode)
