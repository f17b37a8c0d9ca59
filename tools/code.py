"""ExecuteCodeAction runs model-written Python and bash; tools/execution.py does it.

Later steps of the same sub-agent find the same folder.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

from orchestra.kernel.prompts import say
from orchestra.kernel.tool import Environment, tool
from orchestra.kernel.vocabulary import ToolError

MAX_TIMEOUT_S = 60


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

    def work() -> Any:
        from orchestra.tools import execution, sandbox

        media = env.task.media[0].path.parent if env.task.media else None
        mounts = sandbox.Mounts(folder=env.folder, media=media)
        unsafe = env.options.more.get("unsafe_code", False)
        return execution.run(code, code_type, timeout_s, mounts, unsafe, marked=True)

    def depends_on() -> str:
        from orchestra.tools import execution

        return execution.files_of(env)

    ran = replace(env, depends_on=depends_on).local("code", arguments, work)
    if not ran["well"]:
        raise ToolError(ran["observation"])
    return str(ran["observation"])
