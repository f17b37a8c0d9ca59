"""ExecuteCodeAction: model-written Python and bash behind the wall of tools/wall.py.

Its folder is kept for later steps of the same sub-agent; the value of the last expression is shown,
as in a REPL.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from functools import cache

from pathlib import Path
from typing import Any, Literal

from orchestra.prompts import say
from tools import Environment, tool, wall

MAX_TIMEOUT_S = 60
MAX_OUTPUT_BYTES = 200_000
SHOWN_CHARS = 2000  # of a flood
RUNNER = Path(__file__).with_name("code_runner.py")


@tool("ExecuteCodeAction", "code")
def execute_code(
    env: Environment,
    code: str,
    code_type: Literal["python", "bash"] = "python",
    timeout_sec: int = 10,
) -> str:
    """Run code and see what it prints. It has the Python standard library and no network. A local
    time becomes another with zoneinfo.ZoneInfo: datetime(year, month, day, hour, minute,
    tzinfo=ZoneInfo("Area/City")).astimezone(ZoneInfo("UTC"))

    time becomes another with zoneinfo.ZoneInfo:
    datetime(year, month, day, hour, minute, tzinfo=ZoneInfo("Area/City")).astimezone(ZoneInfo("UTC"))

    The task's files are in media/.

    code: the program; print() what you want to see
    code_type: python or bash
    timeout_sec: seconds until it is stopped
    """
    timeout_s = max(1, min(timeout_sec, MAX_TIMEOUT_S))
    arguments = {"code": code, "code_type": code_type, "timeout_s": timeout_s}
    shown: str = env.local("code", arguments, lambda: run(code, code_type, timeout_s, env.folder))
    return shown


def run(code: str, code_type: str, timeout_s: float, folder: Path, wall: Wall | None = None) -> str:
    """The observation of one program: its output, and how it ended if not well. `wall` None: the
    strongest that holds here.
    """
    folder.mkdir(parents=True, exist_ok=True)
    process = subprocess.Popen(
        _command(wall or strongest_wall(), folder, code_type),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=folder,
        env={"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(folder), "LANG": "C.UTF-8"},
        start_new_session=True,
    )
    try:
        output, ended = _converse(process, code.encode("utf-8", "replace"), timeout_s)
    finally:
        with_group_killed(process)
    text = output.decode("utf-8", "replace").rstrip()
    if ended == "timeout":

    media = env.task.media[0].path.parent if env.task.media else None
    ran = env.local("code", arguments, lambda: run(code, code_type, timeout_s, env.folder, media))
    return str(ran["observation"])


def run(
    code: str,
    code_type: str,
    timeout_s: float,
    folder: Path,
    media: Path | None = None,
    level: wall.Wall | None = None,
) -> dict[str, Any]:
    """The observation of one program, how it ended if not well, and the wall it ran behind."""
    ran = wall.confined(
        RUNNER, [code_type], code.encode("utf-8", "replace"), timeout_s, folder, media,
        MAX_OUTPUT_BYTES, wall=level,
    )  # fmt: skip
    text = ran.output.decode("utf-8", "replace").rstrip()
    return {"observation": _observation(ran, text, timeout_s), "wall": ran.wall}


def _observation(ran: wall.Ran, text: str, timeout_s: float) -> str:
    if ran.ended == "timeout":
        return say("notes", "code_timeout", seconds=f"{timeout_s:g}", output=text or "-")
    if ran.ended == "flood":
        return say("notes", "code_flood", limit=MAX_OUTPUT_BYTES, output=text[:SHOWN_CHARS])
    if ran.ended != "end":
        return say("notes", f"code_{ran.ended}", output=text[:SHOWN_CHARS] or "-")
    if ran.status:
        return say("notes", "code_failed", status=ran.status, output=text or "-")
    return text or say("notes", "code_silent")


def _converse(process: subprocess.Popen[bytes], code: bytes, timeout_s: float) -> tuple[bytes, str]:
    """Give the program in, take its output out, until it ends ("end"), takes too long ("timeout")
    or floods ("flood").
    """
    assert process.stdin and process.stdout
    deadline = time.monotonic() + timeout_s
    output = b""
    with selectors.DefaultSelector() as selector:
        os.set_blocking(process.stdin.fileno(), False)
        selector.register(process.stdin, selectors.EVENT_WRITE)
        selector.register(process.stdout, selectors.EVENT_READ)
        while len(output) < MAX_OUTPUT_BYTES:
            events = selector.select(max(0.0, deadline - time.monotonic()))
            if not events:
                return output, "timeout"
            for key, _ in events:
                if key.fileobj is process.stdin:
                    try:
                        code = code[os.write(key.fd, code) :]
                    except BrokenPipeError:
                        code = b""
                    if not code:
                        selector.unregister(process.stdin)
                        process.stdin.close()
                elif chunk := os.read(key.fd, 65536):
                    output += chunk
                else:  # it has closed its output, and may still run
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(max(0.1, deadline - time.monotonic()))
                        return output, "end"
                    return output, "timeout"
    return output, "flood"


def with_group_killed(process: subprocess.Popen[bytes]) -> None:
    """Nothing of the program outlives its call."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe:
            pipe.close()


def _command(wall: Wall, folder: Path, code_type: str) -> list[str]:
    runner = [sys.executable, "-I", "-u", "-c", RUNNER.read_text(encoding="utf-8"), code_type]
    if wall == "unshare":
        return [
            "unshare",
            "--user",
            "--map-root-user",
            "--net",
            "--ipc",
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
            *runner,
        ]
    if wall == "bare":
        return runner
    system = [
        p
        for p in (
            "/usr",
            "/bin",
            "/sbin",
            "/lib",
            "/lib64",
            "/etc/alternatives",
            "/etc/ld.so.cache",
        )
        if Path(p).exists()
    ]
    python = {sys.base_prefix, sys.prefix} - {"/usr"}
    mounts = [flag for p in system for flag in _mount(Path(p))] + [
        f for p in sorted(python) for f in ("--ro-bind", p, p)
    ]
    media = folder.parent.parent / "media"
    tied = ("--die-with-parent", "--new-session", "--cap-drop", "ALL")
    environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/work", "LANG": "C.UTF-8"}
    return [
        *("bwrap", "--unshare-all", "--unshare-user", *tied),
        *("--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"),
        *mounts,
        *("--bind", str(folder), "/work", "--chdir", "/work"),
        *(("--ro-bind", str(media), "/work/media") if media.is_dir() else ()),
        "--clearenv",
        *(word for name, value in environment.items() for word in ("--setenv", name, value)),
        *runner,
    ]


def _mount(path: Path) -> list[str]:
    return (
        ["--symlink", str(path.readlink()), str(path)]
        if path.is_symlink()
        else ["--ro-bind", str(path), str(path)]
    )


@cache
def strongest_wall() -> Wall:
    """The strongest wall that holds here: each is tried once with a program as it will be run.
    (Some containers let bubblewrap start, but not mount /proc.)
    """
    walls: tuple[Wall, ...] = ("bubblewrap", "unshare")
    with tempfile.TemporaryDirectory() as run_folder:
        folder = Path(run_folder, "work", "try")
        folder.mkdir(parents=True)
        for wall in walls:
            with contextlib.suppress(OSError):  # not installed
                command = _command(wall, folder, "python")
                if subprocess.run(command, input=b"", capture_output=True).returncode == 0:
                    return wall
    return "bare"

