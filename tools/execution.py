"""A program that runs in the sandbox, and what a model reads of it.

tools/code_runner.py prints the value of the last expression of a Python program, as a REPL does.
"""

from __future__ import annotations

import json
import re
import textwrap
from pathlib import Path
from typing import Any

from orchestra.kernel.depends import anew, digest_of
from orchestra.kernel.prompts import cut_in_the_middle, quoted, say
from orchestra.kernel.tool import Environment
from orchestra.tools import sandbox

MAX_OUTPUT_BYTES = 200_000
SHOWN_CHARS = 6900  # of the output; fits into a quotation
# Runs the program on standard input, without null bytes, which an argument cannot hold.
BASH = ["bash", "-c", r'exec bash -c "$(tr -d "\0")"']
RUNNER = Path(__file__).with_name("code_runner.py")
FENCE = re.compile(
    r"(`{3,}|~{3,})[^`\n]*\n(.*?)\n?(?:\1[`~]*)?", re.S
)  # around all of it
Observed = dict[str, Any]  # the `observation` of a program, and whether it went `well`


def run(
    code: str,
    code_type: str,
    timeout_s: float,
    mounts: sandbox.Mounts,
    unsafe: bool = False,
    marked: bool = False,
) -> Observed:
    """Run one program, as it is meant. `marked`: its output is marked as data, for a prompt."""
    ran = sandbox.confined(
        command=BASH
        if code_type == "bash"
        else sandbox.python(RUNNER.read_text("utf-8")),
        stdin=as_meant(code).encode("utf-8", "replace"),
        timeout_s=timeout_s,
        mounts=mounts,
        max_output_bytes=MAX_OUTPUT_BYTES,
        unsafe=unsafe,
    )
    output = ran.output.decode("utf-8", "replace").replace("\r\n", "\n").rstrip()
    if marked:
        output = quoted(cut_in_the_middle(output, SHOWN_CHARS))
    return observed(output, ran.ended, ran.status, timeout_s)


def files_of(env: Environment) -> str:
    """A digest of the files that a program can open. It never repeats if those are more than the
    files of the task: what earlier programs left in its folder, or all files without the sandbox.
    """
    finds_more = env.folder.is_dir() and any(env.folder.iterdir())
    if finds_more or env.options.more.get("unsafe_code"):
        return anew()
    files = [[file.name, file.sha256] for file in env.task.media]
    return digest_of(json.dumps(files))


def as_meant(code: str) -> str:
    """A program without the Markdown fence around it, Windows line ends and the indentation of all
    of it.

    >>> as_meant("```bash\\necho 42\\r\\n```"), as_meant("    if x:\\n        print(x)")
    ('echo 42', 'if x:\\n    print(x)')
    """
    code = code.replace("\r\n", "\n")
    fenced = FENCE.fullmatch(code.strip())
    if fenced:
        code = fenced[2]
    is_indented = code.lstrip("\n")[:1] in (" ", "\t")
    return textwrap.dedent(code) if is_indented else code


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
