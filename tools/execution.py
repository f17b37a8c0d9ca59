"""A program that runs in the sandbox, and what a model reads of it.

tools/code_runner.py prints the value of the last expression of a Python program, as a REPL does.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from orchestra.kernel.prompts import cut_in_the_middle, quoted, say
from orchestra.tools import sandbox

MAX_OUTPUT_BYTES = 200_000
SHOWN_CHARS = 6900  # of the output; fits into a quotation
# Runs the program on standard input, without null bytes, which an argument cannot hold.
BASH = ["bash", "-c", r'exec bash -c "$(tr -d "\0")"']
RUNNER = Path(__file__).with_name("code_runner.py")
Observed = dict[str, Any]  # the `observation` of a program, and whether it went `well`


def run(
    code: str,
    code_type: str,
    timeout_s: float,
    mounts: sandbox.Mounts,
    unsafe: bool = False,
    marked: bool = False,
) -> Observed:
    """Run one program. `marked`: its output is marked as data, for a prompt."""
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
