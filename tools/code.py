"""ExecuteCodeAction: model-written Python and bash behind the wall of tools/wall.py.

Its folder is kept for later steps of the same sub-agent; the value of the last expression is shown,
as in a REPL.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from runtime.prompts import say
from tools import Environment, ToolError, reading, tool, wall
from tools.wall_commands import Wall

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
    """Run code and see what it prints. It has the Python standard library and no network: write the
    facts you know into the code. A local time becomes another with zoneinfo.ZoneInfo:
    datetime(year, month, day, hour, minute,
    tzinfo=ZoneInfo("Area/City")).astimezone(ZoneInfo("UTC"))

    code: the program; print() what you want to see
    code_type: python or bash
    timeout_sec: seconds until it is stopped
    """
    timeout_s = max(1, min(timeout_sec, MAX_TIMEOUT_S))
    arguments = {"code": code, "code_type": code_type, "timeout_s": timeout_s}
    media = env.task.media[0].path.parent if env.task.media else None
    ran = env.local(
        "code", arguments, lambda: run(code, code_type, timeout_s, env.folder, media, marked=True)
    )
    if not ran["well"]:
        raise ToolError(ran["observation"])
    return str(ran["observation"])


def run(
    code: str,
    code_type: str,
    timeout_s: float,
    folder: Path,
    media: Path | None = None,
    level: Wall | None = None,
    marked: bool = False,
) -> dict[str, Any]:
    """The observation of one program, how it ended if not well, and the wall it ran behind.
    `marked`: what it printed stands between the marks of data.
    """
    ran = wall.confined(
        RUNNER, [code_type], code.encode("utf-8", "replace"), timeout_s, folder, media,
        MAX_OUTPUT_BYTES, wall=level,
    )  # fmt: skip
    text = ran.output.decode("utf-8", "replace").replace("\r\n", "\n").rstrip()
    well = ran.ended == "end" and not ran.status
    return {
        "observation": _observation(ran, text, timeout_s, marked),
        "well": well,
        "wall": ran.wall,
    }


def _observation(ran: wall.Ran, text: str, timeout_s: float, marked: bool) -> str:
    text = text if ran.ended in ("end", "timeout") else text[:SHOWN_CHARS]
    output = reading.quoted(text) if marked else text
    if ran.ended == "timeout":
        return say("notes", "code_timeout", seconds=f"{timeout_s:g}", output=output or "-")
    if ran.ended == "flood":
        return say("notes", "code_flood", limit=MAX_OUTPUT_BYTES, output=output)
    if ran.ended != "end":
        return say("tools/notes", f"code_{ran.ended}", output=output or "-")
    if ran.status:
        return say("notes", "code_failed", status=ran.status, output=output or "-")
    return output or say("notes", "code_silent")
