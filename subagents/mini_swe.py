"""The mini-SWE sub-agent of AOrchestra (arXiv 2602.03786, after mini-swe-agent): one bash command a
step, until a command prints the marker.

Differences from the paper / the released code
1. Every command runs in this program's sandbox, in a fresh shell: no network, no file of the user
   but the copy and the project's virtual environment.
2. With --workdir each sub-task continues in a copy of the folder as the sub-task before it left it;
   the repository comes without its history, so that no later commit can be looked up.
3. The unified diff is made by git in a directory of its own (subagents/workdir.py), so commands
   that change the folder's .git change nothing in it.
4. Long output is cut in the middle, with the number of characters left out.
5. The marker ends a task only where its command succeeds.
6. A command that a kill cut off runs again on a resume, in the folder as it was left.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from orchestra.main_agent import Messages
from orchestra.vocabulary import Result, Status, Step
from runtime.chat import STOPPED
from runtime.parsing import after_thinking
from runtime.prompts import as_messages, render, say
from subagents import workdir
from subagents.fan_out import OBSERVATION_CHARS, Job
from tools import ToolError, code, reading, sandbox

MARKER = "TASK_COMPLETE"  # the first line of a command's output; the rest is the report
COMMAND_TIMEOUT_S = 60
# Without the first, a file that is changed twice in a second runs from its old byte code.
# safe.directory: in the sandbox another user owns the copy. Our pytest plugin is not there.
SETTINGS = (
    "export PYTHONDONTWRITEBYTECODE=1 PYTEST_ADDOPTS='-p no:runtime.pytest_plugin'"
    " GIT_CONFIG_COUNT=1"
    " GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0='*'"
)
BLOCK = re.compile(r"^(`{3,})(?:bash|sh|shell)[ \t]*\n(.*?)^\1[ \t]*$", re.S | re.M)
MOST_TICKS = 1000  # in a reply: to pair them takes quadratic time
MESSAGES = "mini_swe/messages"


def run(job: Job) -> Result:
    """Do `u` in at most `job.steps` commands. What went wrong is in the Result."""
    env, trace = job.env, job.trace
    status: Status = "failed"
    answer, error = "", say(MESSAGES, "out_of_steps", steps=job.steps)
    try:
        while len(trace) < job.steps:
            with env.tape.call(*job.next_call):
                reply = env.chat(env.backend, _messages(job), env.purse)
                job.note(_act(read_block(reply.text, reply.cut), job))
            if (report := _report(trace[-1])) is not None:
                status, answer, error = "done", report or trace[-1].memory, ""
                break
    except STOPPED as failure:
        error = say(MESSAGES, "stopped", reason=str(failure))
    if status != "done" and any(not s.failed for s in trace):
        status = "partial"
    with env.tape.call(*job.next_call, "diff"):
        changed = str(env.local("diff", {}, lambda: _changes(job), str))
    summary = "\n".join(part for part in (error, changed) if part)
    return job.result(status, answer, summary, error)


def _report(step: Step) -> str | None:
    """The text behind the marker. Printing a file that begins with the marker does not end the
    task: the command must name the marker, and succeed.
    """
    first, _, report = step.observation.lstrip().partition("\n")
    meant = not step.failed and MARKER in step.params.get("command", "")
    return report.strip() if meant and first.strip() == MARKER else None


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


class Block(NamedTuple):
    """The thought before a command and the command, or what is wrong with the reply."""

    thought: str
    command: str
    mistake: str


def read_block(reply: str, cut: bool) -> Block:
    """The one bash block of a reply. What can be read in two ways is no command: half of it
    might run. A block between more backticks may contain fewer. `cut`: it hit its length limit.

    >>> read_block("I see.\\n```bash\\nls\\n```", cut=False)
    Block(thought='I see.', command='ls', mistake='')
    """
    text = after_thinking(reply.replace("\r\n", "\n"))
    thought, *rest = text.split("```")
    thought, blocks = thought.strip(), list(BLOCK.finditer(text)) if len(rest) < MOST_TICKS else []
    if cut:
        return Block(thought, "", say("mistakes", "cut"))
    if len(blocks) != 1:
        return Block(thought, "", say(MESSAGES, "one_command", count=len(blocks)))
    before, after = text[: blocks[0].start()], text[blocks[0].end() :]
    if "```" in before + after or "<think" in before:
        return Block(thought, "", say(MESSAGES, "text_behind"))
    return Block(thought, blocks[0][2].removesuffix("\n"), "")


def _act(block: Block, job: Job) -> Step:
    """The one command of a reply, run; or what is wrong with it."""
    if block.mistake:
        return Step("invalid", {}, block.thought, block.mistake, failed=True)
    env, params = job.env, {"command": block.command}

    def execute() -> code.Observed:
        workdir.prepare(env.folder)
        script, venv = f"{SETTINGS}\n{block.command}", workdir.environment_of(env.repo)
        world = sandbox.World(env.folder, env.media_folder, venv, env.repo)
        return code.run(script, "bash", COMMAND_TIMEOUT_S, world, env.unsafe_code)

    arguments = {"code": block.command, "code_type": "bash", "timeout_s": COMMAND_TIMEOUT_S}
    try:
        ran = env.local("bash", arguments, execute, code.Observed)
    except ToolError as failure:
        return Step("bash", params, block.thought, str(failure), failed=True)
    silent = ran["observation"] == say("notes", "code_silent")
    shown = code.cut_in_the_middle(ran["observation"], OBSERVATION_CHARS)
    output = say(MESSAGES, "silent") if silent else shown
    return Step("bash", params, block.thought, output, not ran["well"])


def _changes(job: Job) -> str:
    """What the main agent is told of the changes against --workdir, "" without it."""
    try:
        diff = workdir.changes(job.env.folder)
    except ToolError as error:
        return str(error)
    if diff is None:
        return ""
    shown = code.cut_in_the_middle(diff, OBSERVATION_CHARS)
    return say(MESSAGES, "changed", diff=shown) if diff else say(MESSAGES, "same")
