"""Runs an untrusted program in bubblewrap: no network, no other processes, none of your files.

The program works on a copy of its folder in memory. When it ends, its changes are copied back:
regular files, folders, and links that stay inside.

Four files belong to this one. tools/bubblewrap.py says what the program sees, tools/seccomp.py
which system calls the kernel refuses it, and tools/cgroup.py limits the whole sandbox, where a
cgroup can be created. tools/sandbox_init.py is the first process in the sandbox: it sets limits,
copies and watches.

If root starts the program, it runs as a user that owns nothing else. The attacks that are tested
are in tests/attacks; docs/security.md says what is not covered.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from secrets import randbelow
from typing import Any

from orchestra.kernel.prompts import say
from orchestra.kernel.vocabulary import ToolError
from orchestra.tools import bubblewrap, cgroup, seccomp

INIT = Path(__file__).with_name("sandbox_init.py").read_text(encoding="utf-8")
LIMITS = {  # for each process
    "RLIMIT_AS": 2 << 30,
    "RLIMIT_FSIZE": 64 << 20,
    "RLIMIT_NOFILE": 256,
    "RLIMIT_CORE": 1,  # no core file; with 0, the system's crash collector would still get one
    "RLIMIT_NPROC": 128,
    "RLIMIT_SIGPENDING": 1_000,  # queued signals and timers of all processes together
}
MAX_PROCESSES = 160  # and threads, including bubblewrap and the first process
MAX_MEMORY_BYTES = 2 << 30  # of all processes together
MAX_ADDED_BYTES = 256 << 20  # to its folder
MAX_ADDED_FILES = 5_000
TMP_BYTES = 128 << 20  # for /tmp and for /dev/shm
COPY_S = 60  # to copy the folder in and out
# Programs that root starts run as one of these users, who own nothing.
FIRST_USER = 1 << 20
USERS = 1 << 16
Rules = dict[str, Any]  # for the first process


@dataclass(frozen=True)
class Mounts:
    """What a program sees besides the system: its folder, and read-only the task's media and a
    virtual environment. `alias` is a second path of its folder, besides /sandbox.
    """

    folder: Path | None = None
    media: Path | None = None
    venv: Path | None = None
    alias: Path | None = None


@dataclass(frozen=True)
class CompletedProgram:
    """What a program printed, why it ended, and its exit status.

    `ended` is "end" if the program ended by itself. It is "timeout", "flood" (too much output) or
    "memory" if it was killed, and "disk" if its changes to its folder could not be copied back.
    """

    output: bytes
    ended: str
    status: int


def python(source: str, *arguments: str) -> list[str]:
    """The command that runs Python source."""
    return [_interpreter(), "-I", "-u", "-c", source, *arguments]


def confined(
    command: list[str],
    stdin: bytes,
    timeout_s: float,
    mounts: Mounts,
    max_output_bytes: int,
    unsafe: bool = False,
) -> CompletedProgram:
    """Run a command with `stdin` on standard input; its output includes standard error.

    `unsafe`: without a sandbox, with limits only on time, output and file size. Raises ToolError if
    the command cannot be started.
    """
    rules: Rules = {"command": command, "timeout_s": timeout_s}
    rules["max_output_bytes"] = max_output_bytes
    run = _unsafe if unsafe else _sandboxed
    try:
        with tempfile.TemporaryDirectory() as empty:
            folder = mounts.folder or Path(empty)
            folder.mkdir(parents=True, exist_ok=True)
            return run(rules, stdin, mounts, folder)
    except (OSError, subprocess.SubprocessError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ToolError(say("tools/notes", "no_program", reason=reason)) from error


def missing() -> str:
    """The message to the user if there is no sandbox."""
    problem = f"bubblewrap does not work here ({trouble()})"
    if shutil.which("bwrap") is None:
        problem = "bubblewrap is not installed (apt install bubblewrap)"
    advice = "--unsafe-code runs it without a sandbox (docs/security.md)"
    return f"{problem}, so no code of models runs; {advice}"


@cache
def trouble() -> str:
    """Why no sandbox can be created, or "" if one can."""
    try:
        ran = confined(["/bin/true"], b"", 10, Mounts(), max_output_bytes=200)
    except ToolError as error:
        return str(error.__cause__)
    if ran.status == 0:
        return ""
    return ran.output.decode("utf-8", "replace") or f"status {ran.status}"


def cgroup_for(folder: Path) -> contextlib.AbstractContextManager[Path | None]:
    """A cgroup for a program that works on a copy of `folder`, or None; see tools/cgroup.py."""
    max_bytes = MAX_MEMORY_BYTES + MAX_ADDED_BYTES + 2 * TMP_BYTES
    return cgroup.limited(folder, max_bytes, MAX_PROCESSES)


def _sandboxed(
    rules: Rules, stdin: bytes, mounts: Mounts, folder: Path
) -> CompletedProgram:
    variables = _environment(bubblewrap.WORK, mounts.venv)
    bwrap = bubblewrap.command(mounts.media, mounts.venv, mounts.alias, variables)
    with contextlib.ExitStack() as stack:
        # The folder is not mounted: the first process reaches it by this descriptor only, which it
        # does not hand on to the program.
        folder_fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        stack.callback(os.close, folder_fd)
        group = stack.enter_context(cgroup_for(folder))
        enter = [] if group is None else [*cgroup.ENTER, str(group)]
        rules = rules | _sandbox_rules(rules["timeout_s"], folder_fd)
        ran = _run_init([*enter, *bwrap], rules, stdin, pass_fds=[folder_fd])
        if group is not None and cgroup.ran_out_of_memory(group):
            return replace(ran, ended="memory")
        return ran


def _sandbox_rules(timeout_s: float, folder_fd: int) -> Rules:
    """What the first process must know in a sandbox; sizes are in bytes."""
    return {
        "sandbox": True,
        "started_by_root": os.geteuid() == 0,
        "user": FIRST_USER + randbelow(USERS),
        "limits": {**LIMITS, "RLIMIT_CPU": int(timeout_s) + 1},
        "filter": seccomp.build(os.uname().machine).hex(),
        "max_memory_bytes": MAX_MEMORY_BYTES,
        "max_added_bytes": MAX_ADDED_BYTES,
        "max_added_files": MAX_ADDED_FILES,
        "tmp_bytes": TMP_BYTES,
        "folder_fd": folder_fd,
    }


def _unsafe(
    rules: Rules, stdin: bytes, mounts: Mounts, folder: Path
) -> CompletedProgram:
    """Without a sandbox, for --unsafe-code."""
    limits = {"RLIMIT_FSIZE": LIMITS["RLIMIT_FSIZE"]}
    media = folder / "media"
    if mounts.media is not None and not os.path.lexists(media):
        media.symlink_to(mounts.media.resolve())
    variables = _environment(str(folder.resolve()), mounts.venv)
    rules |= {"sandbox": False, "limits": limits}
    return _run_init([], rules, stdin, cwd=folder, env=variables)


def _run_init(
    before: list[str], rules: Rules, stdin: bytes, **popen: Any
) -> CompletedProgram:
    """Run the first process until it and all its children have ended. `before` is the command that
    starts it, and `popen` are further arguments of subprocess.Popen.
    """
    init = [_interpreter(), "-I", "-S", "-c", INIT, json.dumps(rules)]
    try:
        done = subprocess.run(
            [*before, *init],
            input=stdin,
            capture_output=True,
            start_new_session=True,
            check=False,
            timeout=rules["timeout_s"] + COPY_S,
            **popen,
        )
    except subprocess.TimeoutExpired:
        why = f"its folder took longer than {COPY_S} s to copy"
        raise subprocess.SubprocessError(why) from None
    return _read_report(done)


def _read_report(done: subprocess.CompletedProcess[bytes]) -> CompletedProgram:
    """The first process prints a line of JSON, and then the output of the program."""
    first_line, _, output = done.stdout.partition(b"\n")
    try:
        report = json.loads(first_line)
    except ValueError:  # bubblewrap failed
        words = done.stderr.decode("utf-8", "replace").split()
        report = {"failed": " ".join(words)[-200:]}
    if "failed" in report:
        reason = report["failed"] or f"status {done.returncode}"
        raise subprocess.SubprocessError(reason)
    return CompletedProgram(output, report["ended"], report["status"])


def _environment(home: str, venv: Path | None) -> dict[str, str]:
    """The environment variables of a program: none of the user's, which may hold keys."""
    path = f"/usr/local/bin:/usr/bin:/bin:{_interpreter().rpartition('/')[0]}"
    return {
        "PATH": f"{venv}/bin:{path}" if venv else path,
        "HOME": home,
        "LANG": "C.UTF-8",
        # Otherwise the libraries of numpy start a thread for each core, and reach the limits.
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
    }


def _interpreter() -> str:
    """This Python, by a path as bubblewrap mounts it: without `..`."""
    return bubblewrap.absolute(sys.executable)
