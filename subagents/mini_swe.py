"""The mini-SWE sub-agent of AOrchestra (arXiv 2602.03786, after mini-swe-agent): one bash command a
step, until a command prints the marker.

Differences from the paper / the released code
1. Every command runs behind this program's wall, in a fresh shell: no network, no file of the user.
2. With --workdir each sub-task goes on from a copy of the folder as the sub-task before it left it;
   the repository comes without its history, so that no later commit can be looked up.
3. The unified diff, binary files included, is made behind the wall too: git obeys the configuration
   of the folder it is in. One larger than DIFF_BYTES is cut, and says so where it ends.
4. Long output is cut in the middle, with the number of characters left out.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path

from orchestra.prompts import render, say
from orchestra.vocabulary import Result, Status, Step, SubTask
from subagents.executor import OBSERVATION_CHARS, STOPPED, Call, OnStep
from tools import Environment, Tool, ToolError, code, wall

MARKER = "TASK_COMPLETE"  # the first line of a command's output: the rest is the report
COMMAND_TIMEOUT_S = 60
DIFF_BYTES = 200_000
# A file changed twice in one second would else run from its old byte code; and behind the wall the
# program is another user than the owner of the copy.
SETTINGS = (
    "export PYTHONDONTWRITEBYTECODE=1 GIT_CONFIG_COUNT=1"
    " GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0='*'"
)
DIFF = (
    "git add -A -- {paths} && git diff --cached --binary --no-color --no-ext-diff --no-textconv"
    " --src-prefix=a/ --dst-prefix=b/ base"
)
BINARY = re.compile(r"(?m)^GIT binary patch\n(?:(?:literal|delta) \d+\n(?:.+\n)*\n?)+")
CHANGES = "changes.diff"


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
                trace.append(_act(reply.text, env))
            on_step(number, trace[-1])
            first, _, report = trace[-1].observation.lstrip().partition("\n")
            if first.strip() == MARKER:
                status, answer, error = "done", report.strip() or trace[-1].memory, ""
                break
    except STOPPED as failure:
        error = say("mini_swe/messages", "stopped", reason=str(failure))
    if status != "done" and any(not s.failed for s in trace):
        status = "partial"
    with env.tape.logical_call(*call, "diff"):
        changes = str(env.local("diff", {}, lambda: _changes(env)))
    return Result(status, answer, changes, env.purse.spent_usd, trace=tuple(trace), error=error)


def _messages(
    u: SubTask, env: Environment, trace: Sequence[Step], steps: int
) -> list[dict[str, str]]:
    done = [
        say("mini_swe/messages", "step", number=n, thought=s.memory or "-", output=s.observation,
            command=s.params.get("command", "-"))
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


def _act(reply: str, env: Environment) -> Step:
    """The one command of a reply, run; or what is wrong with it."""
    thought = reply.split("```")[0].strip()
    blocks = re.findall(r"```(?:bash|sh|shell)[ \t]*\n(.*?)\n?```", reply, flags=re.S)
    if len(blocks) != 1:
        told = say("mini_swe/messages", "one_command", count=len(blocks))
        return Step("invalid", {}, thought, told, failed=True)
    command = blocks[0]

    def execute() -> str:
        _prepare(env.folder)
        ran = code.run(f"{SETTINGS}\n{command}", "bash", COMMAND_TIMEOUT_S, env.folder)
        return str(ran["observation"])

    arguments = {"code": command, "code_type": "bash", "timeout_s": COMMAND_TIMEOUT_S}
    try:
        observation, failed = _cut(env.local("bash", arguments, execute)), False
    except ToolError as failure:
        observation, failed = str(failure), True
    return Step("bash", {"command": command}, thought, observation, failed)


def _prepare(folder: Path) -> None:
    """A copy of the folder of the sub-task before this one, or of the repository; or nothing."""
    if folder.exists():
        return
    place = _place(folder)
    before = [f for f in folder.parent.glob("r*-t*") if _place(f) < place]
    origin = max(before, key=_place, default=folder.parent.parent / "workdir")
    if not origin.is_dir():
        return
    try:
        shutil.copytree(origin, folder, symlinks=True, ignore=_special_files)
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        why = error.strerror or type(error).__name__
        raise ToolError(say("mini_swe/messages", "not_copied", reason=why)) from None


def _place(folder: Path) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", folder.name)))


def _special_files(folder: str, names: list[str]) -> list[str]:
    """Pipes, sockets and devices: what a command may have made and no copy can hold."""

    def kept(mode: int) -> bool:
        return stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode)

    return [name for name in names if not kept(os.lstat(Path(folder, name)).st_mode)]


def _cut(text: str) -> str:
    """The beginning and the end of a long text, with a note of how much is left out."""
    if len(text) <= OBSERVATION_CHARS:
        return text
    half = OBSERVATION_CHARS // 2
    left_out = len(text) - 2 * half
    return say("mini_swe/messages", "cut", head=text[:half], tail=text[-half:], count=left_out)


# ---- the changes ---------------------------------------------------------------------------------


def _changes(env: Environment) -> str:
    """Writes the diff of the repository against --workdir into the run's changes.diff. Returns what
    the main agent is told of it, "" where there is none.
    """
    if not (env.folder / ".git").exists():
        return ""
    paths = ". ':!media'" if env.task.media else "."  # the task's own files are shown there
    command = f"{SETTINGS}\n{DIFF.format(paths=paths)}".encode()
    ran = wall.confined(
        code.RUNNER, ["bash"], command, COMMAND_TIMEOUT_S, env.folder, None, DIFF_BYTES, False
    )
    diff, note = ran.output, ""
    if ran.ended == "flood":
        note = say("mini_swe/messages", "diff_cut", limit=DIFF_BYTES)
        diff += f"\n{note}\n".encode()
    elif ran.ended != "end" or ran.status:
        return say("mini_swe/messages", "no_diff", reason=f"{ran.ended}, {ran.status}")
    (env.folder.parent.parent / CHANGES).write_bytes(diff)
    left = say("mini_swe/messages", "binary")
    shown = _cut(BINARY.sub(f"{left}\n", ran.output.decode("utf-8", "replace")).rstrip())
    told = say("mini_swe/messages", "changed", diff=shown) if shown else ""
    return f"{told}\n{note}".strip()
