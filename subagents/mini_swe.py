"""The mini-SWE sub-agent of AOrchestra (arXiv 2602.03786, after mini-swe-agent): one bash command a
step, until a command prints the marker.

Differences from the paper / the released code
1. Every command runs behind this program's wall, in a fresh shell: no network, no file of the user.
2. With --workdir each sub-task goes on from a copy of the folder as the sub-task before it left it;
   the repository comes without its history, so that no later commit can be looked up.
3. The unified diff is made behind the wall too: git obeys the configuration of the folder it is in.
4. Long output is cut in the middle, with the number of characters left out.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from orchestra.prompts import render, say
from orchestra.vocabulary import (
    BudgetExceeded,
    EndpointError,
    ModelMistake,
    Result,
    Status,
    Step,
    SubTask,
)
from subagents.react import Call, OnStep
from tools import Environment, Tool, code

MARKER = "TASK_COMPLETE"  # the first line of a command's output: the rest is the report
COMMAND_TIMEOUT_S = 60
OUTPUT_CHARS = 8000
# A file changed twice in one second would else run from its old byte code; and behind the wall the
# program is another user than the owner of the copy.
SETTINGS = (
    "export PYTHONDONTWRITEBYTECODE=1 GIT_CONFIG_COUNT=1"
    " GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0='*'"
)
DIFF = "git add -A -- {paths} && git diff --cached base"
CHANGES = "changes.diff"


def run(
    u: SubTask, env: Environment, tools: Mapping[str, Tool], call: Call, steps: int, on_step: OnStep
) -> Result:
    """Do `u` in at most `steps` commands. What went wrong is in the Result."""
    trace: list[Step] = []
    error = say("mini_swe/messages", "out_of_steps", steps=steps)
    try:
        for number in range(1, steps + 1):
            user = _user_prompt(u, env, trace, number, steps)
            messages = [
                {"role": "system", "content": render("mini_swe/system.md", marker=MARKER)},
                {"role": "user", "content": user},
            ]
            with env.tape.logical_call(*call, f"s{number}"):
                reply = env.chat(env.backend, messages, env.purse)
                trace.append(_act(reply.text, env))
            on_step(number, trace[-1])
            first, _, report = trace[-1].observation.lstrip().partition("\n")
            if first.strip() == MARKER:
                with env.tape.logical_call(*call, "diff"):
                    diff = _diff(env)
                return _result("done", report.strip() or trace[-1].memory, diff, env, trace)
    except (EndpointError, BudgetExceeded) as failure:
        error = say("mini_swe/messages", "stopped", reason=str(failure))
    with env.tape.logical_call(*call, "diff"):
        diff = _diff(env)
    status: Status = "partial" if any(not s.failed for s in trace) else "failed"
    return _result(status, "", diff, env, trace, error)


def _act(reply: str, env: Environment) -> Step:
    """The one command of a reply, run; or what is wrong with it."""
    thought = re.split(r"```", reply)[0].strip()
    try:
        blocks = re.findall(r"```(?:bash|sh|shell)[ \t]*\n(.*?)\n?```", reply, flags=re.S)
        if len(blocks) != 1:
            raise ModelMistake(say("mini_swe/messages", "one_command", count=len(blocks)))
    except ModelMistake as mistake:
        return Step("invalid", {}, thought, str(mistake), failed=True)
    arguments = {"code": blocks[0], "code_type": "bash", "timeout_s": COMMAND_TIMEOUT_S}

    def execute() -> str:
        _prepare(env.folder)
        return _shell(blocks[0], env)

    return Step(
        "bash", {"command": blocks[0]}, thought, _capped(env.local("bash", arguments, execute))
    )


def _shell(command: str, env: Environment) -> str:
    ran = code.run(f"{SETTINGS}\n{command}", "bash", COMMAND_TIMEOUT_S, env.folder)
    return str(ran["observation"])


def _prepare(folder: Path) -> None:
    """A copy of the folder of the sub-task before this one, or of the repository; or nothing."""
    if folder.exists():
        return
    place = _place(folder)
    before = [f for f in folder.parent.glob("r*-t*") if _place(f) < place]
    origin = max(before, key=_place, default=folder.parent.parent / "workdir")
    if origin.is_dir():
        shutil.copytree(origin, folder, symlinks=True)


def _place(folder: Path) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", folder.name)))


def _diff(env: Environment) -> str:
    """What this sub-task and those before it changed in the repository; "" without --workdir."""
    run = env.folder.parent.parent

    def make() -> str:
        if not (env.folder / ".git").exists():
            return ""
        paths = ". ':!media'" if env.task.media else "."  # the task's own files are shown there
        diff = _shell(DIFF.format(paths=paths), env)
        diff = "" if diff == say("notes", "code_silent") else diff + "\n"
        (run / CHANGES).write_text(diff, encoding="utf-8")
        return diff

    return str(env.local("diff", {}, make))


def _result(
    status: Status, answer: str, diff: str, env: Environment, trace: Sequence[Step], error: str = ""
) -> Result:
    summary = say("mini_swe/messages", "changed", diff=_capped(diff)) if diff else ""
    return Result(status, answer, summary, env.purse.spent_usd, trace=tuple(trace), error=error)


def _user_prompt(
    u: SubTask, env: Environment, trace: Sequence[Step], number: int, steps: int
) -> str:
    done = [
        say("mini_swe/messages", "step", number=n, thought=s.memory or "-", output=s.observation,
            command=s.params.get("command", "-"))
        for n, s in enumerate(trace, 1)
    ]  # fmt: skip
    last = say("mini_swe/messages", "last_step", marker=MARKER) if number == steps else ""
    return render(
        "mini_swe/user.md", instruction=u.instruction, step=number, steps_max=steps, warning=last,
        context=u.context or say("react/messages", "no_context"),
        files=", ".join(f"media/{m.name}" for m in env.task.media) or "-",
        steps="\n\n".join(done) or say("react/messages", "no_steps"),
    )  # fmt: skip


def _capped(text: str) -> str:
    if len(text) <= OUTPUT_CHARS:
        return text
    half = OUTPUT_CHARS // 2
    left_out = len(text) - 2 * half
    return say("mini_swe/messages", "cut", head=text[:half], tail=text[-half:], count=left_out)
