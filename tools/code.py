"""ExecuteCodeAction runs model-written Python and bash in the sandbox.

Later steps of the same sub-agent find the same folder. tools/code_runner.py prints the value of the
last expression of a Python program, as a REPL does.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from orchestra.kernel.prompts import cut_in_the_middle, quoted, say
from orchestra.kernel.tool import Environment, tool
from orchestra.kernel.vocabulary import ToolError

if TYPE_CHECKING:
    from orchestra.tools.sandbox import Mounts

MAX_TIMEOUT_S = 60
MAX_OUTPUT_BYTES = 200_000
SHOWN_CHARS = 6900  # of the output; fits into a quotation
# Runs the program on standard input, without null bytes, which an argument cannot hold.
BASH = ["bash", "-c", r'exec bash -c "$(tr -d "\0")"']
RUNNER = Path(__file__).with_name("code_runner.py")
Observed = dict[str, Any]  # the `observation` of a program, and whether it went `well`


@tool("ExecuteCodeAction", "code")
def execute_code(
    env: Environment,
    code: str,
    code_type: Literal["python", "bash"] = "python",
    timeout_sec: int = 10,
) -> str:
    """Run code and see what it prints. Begin with the imports. It has the Python standard library
    and no network: write the facts you know into the code. A local time becomes another with
    zoneinfo.ZoneInfo:
    datetime(year, month, day, hour, minute,
    tzinfo=ZoneInfo("Area/City")).astimezone(ZoneInfo("UTC"))

    code: the program; print() what you want to see
    code_type: python or bash
    timeout_sec: seconds until it is stopped
    """
    if not code.strip():
        raise ToolError(say("tools/notes", "no_code"))
    timeout_s = max(1, min(timeout_sec, MAX_TIMEOUT_S))
    arguments = {"code": code, "code_type": code_type, "timeout_s": timeout_s}

    def work() -> Observed:
        from orchestra.tools import sandbox

        media = env.task.media[0].path.parent if env.task.media else None
        mounts = sandbox.Mounts(folder=env.folder, media=media)
        unsafe = env.options.more.get("unsafe_code", False)
        return run(code, code_type, timeout_s, mounts, unsafe, marked=True)

    ran = env.local("code", arguments, work)
    if not ran["well"]:
        raise ToolError(ran["observation"])
    return str(ran["observation"])


def run(
    code: str,
    code_type: str,
    timeout_s: float,
    mounts: Mounts,
    unsafe: bool = False,
    marked: bool = False,
) -> Observed:
    """Run one program. `marked`: its output is marked as data, for a prompt."""
    from orchestra.tools import sandbox

    ran = sandbox.confined(
        command=BASH
        if code_type == "bash"
        else sandbox.python(RUNNER.read_text("utf-8")),
        stdin=code.encode("utf-8", "replace"),
        timeout_s=timeout_s,
        mounts=mounts,
        max_output_bytes=MAX_OUTPUT_BYTES,
        unsafe=unsafe,
    )
    output = ran.output.decode("utf-8", "replace").replace("\r\n", "\n").rstrip()
    if marked:
        output = quoted(cut_in_the_middle(output, SHOWN_CHARS))
    return observed(output, ran.ended, ran.status, timeout_s)


def observed(output: str, ended: str, status: int, timeout_s: float) -> Observed:
    """What a model reads of a program that ended, or was stopped after `timeout_s` seconds."""
    if ended == "end" and status == 0:
        return {"observation": output or say("notes", "code_silent"), "well": True}
    how = "failed" if ended == "end" else ended
    observation = say(
        "notes",
        f"code_{how}",
        output=output or "-",
        seconds=f"{timeout_s:g}",
        limit=MAX_OUTPUT_BYTES,
        status=status,
    )
    return {"observation": observation, "well": False}
