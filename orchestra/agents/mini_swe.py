"""The mini-SWE sub-agent of AOrchestra (arXiv 2602.03786, after mini-swe-agent): one bash command a
step, until a command prints the marker.

Differences from the paper / the released code
1. Every command runs in this program's sandbox, in a new shell, without network. Of the user's
   files it sees only the copy and the project's virtual environment.
2. With --workdir each sub-task continues in a copy of the folder of the sub-task before it. The
   repository has no history, so that no later commit can be looked up.
3. The diff is made by git in a directory of its own (workdir.py), so it does not depend
   on what commands do to the folder's .git.
4. Long output is cut in the middle, with the number of characters left out.
5. The marker ends a task only if its command names the marker and succeeds.
6. A command that was cut off by a kill runs again on a resume, in the folder as it was left.
"""

from __future__ import annotations

import re

from orchestra.agents import workdir
from orchestra.agents.job import OBSERVATION_CHARS, Job
from orchestra.runtime.chat import STOPPED
from orchestra.runtime.parsing import after_thinking
from orchestra.runtime.prompts import as_messages, render, say
from orchestra.seams import Messages
from orchestra.toolkit import ToolError
from orchestra.tools import code, reading, sandbox
from orchestra.vocabulary import Reply, Result, Status, Step

MARKER = "TASK_COMPLETE"  # the first line of the last command's output; the rest is the report
COMMAND_TIMEOUT_S = 60
# DONTWRITEBYTECODE: a file that is changed twice in a second would run from its old byte code.
# ADDOPTS: our pytest plugin is not in the sandbox. safe.directory: the copy has another owner.
SETTINGS = (
    "export PYTHONDONTWRITEBYTECODE=1 PYTEST_ADDOPTS='-p no:orchestra.runtime.pytest_plugin'"
    " GIT_CONFIG_COUNT=1"
    " GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0='*'"
)
BLOCK = re.compile(r"^(`{3,})(?:bash|sh|shell)[ \t]*\n(.*?)^\1[ \t]*$", re.S | re.M)
MOST_TICKS = 1000  # of ``` in a reply: the time to pair them is quadratic
MESSAGES = "mini_swe/messages"


def run(job: Job) -> Result:
    """Do `u` in at most `job.steps` commands. Failures are reported in the Result."""
    env, trace = job.env, job.trace
    status: Status = "failed"
    answer, error = "", say(MESSAGES, "out_of_steps", steps=job.steps)
    try:
        while len(trace) < job.steps:
            with env.tape.call(job.next_place):
                job.note(_act(env.chat(env.backend, _messages(job), env.purse), job))
            if (report := _report(trace[-1])) is not None:
                status, answer, error = "done", report or trace[-1].memory, ""
                break
    except STOPPED as failure:
        error = say(MESSAGES, "stopped", reason=str(failure))
    if status != "done" and any(not s.failed for s in trace):
        status = "partial"
    with env.tape.call(job.next_place, "diff"):
        changed = str(env.local("diff", {}, lambda: _changes(job), str))
    summary = "\n".join(part for part in (error, changed) if part)
    return job.result(status, answer, summary, error)


def _report(step: Step) -> str | None:
    """The text after the marker; None if the step does not end the task. (A command that prints a
    file with the marker does not end it.)
    """
    first, _, report = step.observation.lstrip().partition("\n")
    intended = not step.failed and MARKER in step.params.get("command", "")
    return report.strip() if intended and first.strip() == MARKER else None


def _messages(job: Job) -> Messages:
    done = [
        say(MESSAGES, "step", number=n, thought=s.memory or "-",
            command=s.params.get("command", "-"),
            output=reading.quoted(s.observation, 2 * OBSERVATION_CHARS))
        for n, s in enumerate(job.trace, 1)
    ]  # fmt: skip
    number = len(job.trace) + 1
    last = say(MESSAGES, "last_step", marker=MARKER) if number == job.steps else ""
    user = render(
        "mini_swe/user.md", instruction=job.u.instruction, step=number, steps_max=job.steps,
        context=job.u.context or say("react/messages", "no_context"), warning=last,
        files=", ".join(f"media/{m.name}" for m in job.env.task.media) or "-",
        steps="\n\n".join(done) or say("react/messages", "no_steps"),
    )  # fmt: skip
    system = render("mini_swe/system.md", marker=MARKER)
    return as_messages(system, user)


# ---- one command ---------------------------------------------------------------------------------


def read_command(reply: str, cut: bool) -> tuple[str, str, str]:
    """The thought before the command, the command, and the error of the reply. An ambiguous reply
    has no command, so that no part of a command runs. A block in more backticks may contain fewer.
    `cut`: the reply hit its length limit.

    >>> read_command("I see.\\n```bash\\nls\\n```", cut=False)
    ('I see.', 'ls', '')
    """
    text = after_thinking(reply.replace("\r\n", "\n"))
    thought, *rest = text.split("```")
    thought, blocks = (
        thought.strip(),
        list(BLOCK.finditer(text)) if len(rest) < MOST_TICKS else [],
    )
    if cut:
        return thought, "", say("mistakes", "cut")
    if len(blocks) != 1:
        return thought, "", say(MESSAGES, "one_command", count=len(blocks))
    before, after = text[: blocks[0].start()], text[blocks[0].end() :]
    if "```" in before + after or "<think" in before:
        return thought, "", say(MESSAGES, "text_behind")
    return thought, blocks[0][2].removesuffix("\n"), ""


def _act(reply: Reply, job: Job) -> Step:
    """Run the command of a reply, or report the error of the reply."""
    thought, command, mistake = read_command(reply.text, reply.cut)
    if mistake:
        return Step("invalid", {}, thought, mistake, failed=True)
    env, params = job.env, {"command": command}

    def execute() -> code.Observed:
        workdir.prepare(env.folder)
        script, venv = f"{SETTINGS}\n{command}", workdir.virtual_environment(env.repo)
        world = sandbox.World(env.folder, env.media_folder, venv, env.repo)
        return code.run(script, "bash", COMMAND_TIMEOUT_S, world, env.unsafe_code)

    arguments = {"code": command, "code_type": "bash", "timeout_s": COMMAND_TIMEOUT_S}
    try:
        ran = env.local("bash", arguments, execute, code.Observed)
    except ToolError as failure:
        return Step("bash", params, thought, str(failure), failed=True)
    silent = ran["observation"] == say("notes", "code_silent")
    shown = code.cut_in_the_middle(ran["observation"], OBSERVATION_CHARS)
    output = say(MESSAGES, "silent") if silent else shown
    return Step("bash", params, thought, output, not ran["well"])


def _changes(job: Job) -> str:
    """The changes against --workdir, as the main agent reads them; "" without --workdir."""
    try:
        diff = workdir.changes(job.env.folder)
    except ToolError as error:
        return str(error)
    if diff is None:
        return ""
    shown = code.cut_in_the_middle(diff, OBSERVATION_CHARS)
    return say(MESSAGES, "changed", diff=shown) if diff else say(MESSAGES, "same")
