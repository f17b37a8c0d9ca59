"""The mini-SWE sub-agent of AOrchestra (arXiv 2602.03786, after mini-swe-agent): one bash command a
step, until a command prints the marker.

Differences from the paper / the released code
1. Every command runs behind this program's wall, in a fresh shell: no network, no file of the user.
2. With --workdir each sub-task goes on from a copy of the folder as the sub-task before it left it;
   the repository comes without its history, so that no later commit can be looked up.
3. The unified diff, binary files included, compares files (orchestra/changes.py): what a command
   does to the folder's own .git changes nothing in it.
4. Long output is cut in the middle, with the number of characters left out.
5. The marker ends a task only where its command ends well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from orchestra.prompts import render, say
from orchestra.vocabulary import Result, Status, Step, SubTask
from subagents import bash_block
from subagents.executor import OBSERVATION_CHARS, STOPPED, Call, OnStep, cut_in_the_middle
from subagents.work_folder import COMMAND_TIMEOUT_S, SETTINGS, begin, changes, prepare
from tools import Environment, Tool, ToolError, code, reading

MARKER = "TASK_COMPLETE"  # the first line of a command's output: the rest is the report


def run(
    u: SubTask, env: Environment, tools: Mapping[str, Tool], call: Call, steps: int, on_step: OnStep
) -> Result:
    """Do `u` in at most `steps` commands. What went wrong is in the Result."""
    trace: list[Step] = []
    status: Status = "failed"
    answer, error = "", say("mini_swe/messages", "out_of_steps", steps=steps)
    try:
        for number in range(1, steps + 1):
            with env.tape.logical_call(*call, f"s{number}"):
                reply = env.chat(env.backend, _messages(u, env, trace, steps), env.purse)
                trace.append(_act(bash_block.read(reply.text, reply.cut), env, trace))
            on_step(number, trace[-1])
            if (report := _report(trace[-1])) is not None:
                status, answer, error = "done", report or trace[-1].memory, ""
                break
    except STOPPED as failure:
        error = say("mini_swe/messages", "stopped", reason=str(failure))
    if status != "done" and any(not s.failed for s in trace):
        status = "partial"
    with env.tape.logical_call(*call, "diff"):
        changed = str(env.local("diff", {}, lambda: changes(env)))
    return Result(status, answer, changed, env.purse.spent_usd, trace=tuple(trace), error=error)


def _report(step: Step) -> str | None:
    """What stands behind the marker. A file that begins with it ends nothing: the command has to
    name the marker, and to end well.
    """
    first, _, report = step.observation.lstrip().partition("\n")
    meant = not step.failed and MARKER in step.params.get("command", "")
    return report.strip() if meant and first.strip() == MARKER else None


def _messages(
    u: SubTask, env: Environment, trace: Sequence[Step], steps: int
) -> list[dict[str, str]]:
    done = [
        say("mini_swe/messages", "step", number=n, thought=s.memory or "-",
            command=s.params.get("command", "-"),
            output=reading.quoted(s.observation, 2 * OBSERVATION_CHARS))
        for n, s in enumerate(trace, 1)
    ]  # fmt: skip
    number = len(trace) + 1
    last = say("mini_swe/messages", "last_step", marker=MARKER) if number == steps else ""
    user = render(
        "mini_swe/user.md", instruction=u.instruction, step=number, steps_max=steps, warning=last,
        context=u.context or say("react/messages", "no_context"),
        files=", ".join(f"media/{m.name}" for m in env.task.media) or "-",
        steps="\n\n".join(done) or say("react/messages", "no_steps"),
    )  # fmt: skip
    system = render("mini_swe/system.md", marker=MARKER)
    return [{"role": "system", "content": system}, {"role": "user", "content": user}]


# ---- one command ---------------------------------------------------------------------------------


def _act(block: bash_block.Block, env: Environment, trace: Sequence[Step]) -> Step:
    """The one command of a reply, run; or what is wrong with it."""
    if block.mistake:
        return Step("invalid", {}, block.thought, block.mistake, failed=True)

    def run(command: str) -> dict[str, Any]:
        prepare(env.folder)
        media = env.task.media[0].path.parent if env.task.media else None
        lines = f"{SETTINGS}\n{command}"
        return code.run(lines, "bash", COMMAND_TIMEOUT_S, env.folder, media)

    def execute() -> dict[str, Any]:
        begin(env.folder, len(trace) + 1, [s.params["command"] for s in trace if s.params], run)
        return run(block.command)

    arguments = {"code": block.command, "code_type": "bash", "timeout_s": COMMAND_TIMEOUT_S}
    params = {"command": block.command}
    try:
        ran = env.local("bash", arguments, execute)
    except ToolError as failure:
        return Step("bash", params, block.thought, str(failure), failed=True)
    silent = ran["observation"] == say("notes", "code_silent")
    output = say("mini_swe/messages", "silent") if silent else ran["observation"]
    observation = cut_in_the_middle(output)
    return Step("bash", params, block.thought, observation, not ran["well"])
