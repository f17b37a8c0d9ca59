"""The mini-SWE sub-agent of AOrchestra (arXiv 2602.03786, after mini-swe-agent): one bash command a
step, until a command prints the marker.

Differences from the paper / the released code
1. Every command runs in this program's sandbox, in a new shell, without network. Of the user's
   files it sees only the copy and the project's virtual environment.
2. With --workdir each sub-task continues in a copy of the folder of the sub-task before it. The
   repository has no history, so that no later commit can be looked up.
3. The diff is made by git in a directory of its own (worktree.py), so it does not depend
   on what commands do to the folder's .git.
4. Long output is cut in the middle, with the number of characters left out.
5. The marker ends a task only if its command names the marker and succeeds.
6. A report must not be empty while the diff is empty: it says why nothing was to do.
7. A command that was cut off by a kill runs again on a resume, in the folder as it was left.
"""

from __future__ import annotations

import re
from bisect import bisect
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from orchestra.coding import worktree
from orchestra.kernel.depends import anew
from orchestra.kernel.job import FAILURES, OBSERVATION_CHARS, Job, Question
from orchestra.kernel.prompts import (
    THINK_END,
    as_messages,
    cut_in_the_middle,
    named,
    quoted,
    render,
    say,
)
from orchestra.kernel.tool import Environment
from orchestra.kernel.vocabulary import INVALID, Messages, Result, Step, ToolError
from orchestra.methods.react import (
    MOST_UNUSABLE,
    Unreported,
    has_few_steps,
    out_of_steps,
    summarized,
    unusable,
)
from orchestra.tools import execution, sandbox

MARKER = "TASK_COMPLETE"  # the first line of the last command's output; the rest is the report
COMMAND_TIMEOUT_S = 60
# DONTWRITEBYTECODE: a file that is changed twice in a second would run from its old byte code.
# ADDOPTS: our pytest plugin is not in the sandbox. safe.directory: the copy has another owner.
SETTINGS = (
    "export PYTHONDONTWRITEBYTECODE=1"
    " PYTEST_ADDOPTS='-p no:orchestra.variation.pytest_plugin'"
    " GIT_CONFIG_COUNT=1"
    " GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0='*'"
)
FENCE = "```"
# The first and the last line of a block
OPENING = re.compile(r"(`{3,})(?:bash|sh|shell)[ \t]*")
CLOSING = re.compile(r"(`{3,})[ \t]*")
PROMPTS = "mini_swe/messages"
# Runs a command in the work folder.
Shell = Callable[[Environment, str], execution.Observed]


def run(job: Job, repo: Path | None = None) -> Result:
    """Do `u` in at most `job.steps` commands in the sandbox, which shows the copy of `repo`."""
    return run_at(partial(in_sandbox, repo), job)


def run_at(shell: Shell, job: Job) -> Result:
    """The same with another shell, such as one in a container. What a command prints depends on the
    state that earlier ones left, so that no other run reuses it.
    """
    job = replace(job, env=replace(job.env, depends_on=anew))
    z = summarized(partial(_work, shell), _question)(job)
    texts = (z.summary, _recorded_changes(job))
    return replace(z, summary="\n".join(text for text in texts if text))


def _work(shell: Shell, job: Job) -> Result:
    """The commands, until one reports. Raises Unreported."""
    try:
        step = Step(INVALID, {}, "", "")
        while len(job.trace) < job.steps:
            step = _next_step(shell, job)
            is_last = len(job.trace) + 1 == job.steps
            if _report(step) == "" and not is_last and _is_unchanged(job):
                why = say(PROMPTS, "nothing_done", marker=MARKER)
                step = replace(step, observation=why, failed=True)
            job.note(step)
            report = _report(step)
            if report is not None:
                return job.result("done", report or step.memory, "")
            if len(unusable(job)) == MOST_UNUSABLE:
                break
    except FAILURES as failure:
        error = say(PROMPTS, "stopped", reason=str(failure))
        raise Unreported(error, failure.cause) from failure
    raise out_of_steps(job, step.memory)


def _next_step(shell: Shell, job: Job) -> Step:
    """One call of the model, and its command."""
    reply = job.ask(_messages(job))
    command = read_command(reply.text, reply.cut)
    if command.mistake:
        return Step(INVALID, {}, command.thought, command.mistake, failed=True)
    with job.env.tape.call(job.next_place):
        return _execute(shell, job, command)


def _report(step: Step) -> str | None:
    """The text after the marker; None if the step does not end the task. (A command that prints a
    file with the marker does not end it.)
    """
    if step.failed or MARKER not in step.params.get("command", ""):
        return None
    first, _, report = step.observation.lstrip().partition("\n")
    return report.strip() if first.strip() == MARKER else None


# ---- what the sub-agent reads --------------------------------------------------------------------


def _messages(job: Job) -> Messages:
    number = len(job.trace) + 1
    warning = _warning(job)
    warning = f" {warning}" if warning else ""
    now = say(PROMPTS, "now", step=number, steps=job.steps, warning=warning)
    return _with_steps(job, now)


def _question(job: Job) -> Question:
    """The messages after the last step, which ask for a summary; the reply is plain text."""
    return _with_steps(job, say(PROMPTS, "summarize")), None


def _with_steps(job: Job, now: str) -> Messages:
    """The task and the steps so far, which a server has in its prefix cache, and what to do now."""
    files = [named(f"media/{media.name}") for media in job.task.media]
    user = render(
        "mini_swe/user.md",
        instruction=job.u.instruction,
        context=job.u.context or say("react/messages", "no_context"),
        files=", ".join(files) or "-",
        steps=_steps_done(job.trace),
        now=now,
    )
    return as_messages(render("mini_swe/system.md", marker=MARKER), user)


def _warning(job: Job) -> str:
    """That the steps end soon; "" before the last fifth of them."""
    steps_left = job.steps - len(job.trace)  # the next step included
    if steps_left == 1:
        return say(PROMPTS, "last_step", marker=MARKER)
    if has_few_steps(job):
        return say(PROMPTS, "few_steps_left", left=steps_left, marker=MARKER)
    return ""


def _steps_done(trace: Sequence[Step]) -> str:
    rows = []
    for number, step in enumerate(trace, 1):
        row = say(
            PROMPTS,
            "step",
            number=number,
            thought=step.memory or "-",
            command=step.params.get("command", "-"),
            output=quoted(step.observation, 2 * OBSERVATION_CHARS),
        )
        rows.append(row)
    return "\n\n".join(rows) or say("react/messages", "no_steps")


# ---- one command ---------------------------------------------------------------------------------


class Command(NamedTuple):
    """The command of a reply and the thought before it, or the mistake in the reply."""

    thought: str
    text: str = ""
    mistake: str = ""


def read_command(reply: str, cut: bool) -> Command:
    """An ambiguous reply has no command, so that no part of a command runs. A block in more
    backticks may contain fewer. `cut`: the reply hit its length limit.

    >>> read_command("I see.\\n```bash\\nls\\n```", cut=False)
    Command(thought='I see.', text='ls', mistake='')
    """
    text = re.split(THINK_END, reply.replace("\r\n", "\n"))[-1]
    thought = text.partition(FENCE)[0].strip()
    if cut:
        return Command(thought, mistake=say("mistakes", "cut"))
    lines = text.split("\n")
    blocks = _blocks(lines)
    if len(blocks) != 1:
        mistake = say(PROMPTS, "one_command", count=len(blocks))
        return Command(thought, mistake=mistake)
    [(first, last)] = blocks
    before = "\n".join(lines[:first])
    after = "\n".join(lines[last + 1 :])
    if FENCE in before or FENCE in after or "<think" in before:
        return Command(thought, mistake=say(PROMPTS, "text_behind"))
    return Command(thought, "\n".join(lines[first + 1 : last]))


def _blocks(lines: Sequence[str]) -> list[tuple[int, int]]:
    """The first and the last line of each block of shell commands."""
    fences = [n for n, line in enumerate(lines) if line.startswith(FENCE)]
    closings: dict[str, list[int]] = defaultdict(list)  # by their backticks
    for n in fences:
        closing = CLOSING.fullmatch(lines[n])
        if closing:
            closings[closing[1]].append(n)
    blocks: list[tuple[int, int]] = []
    for n in fences:
        opening = OPENING.fullmatch(lines[n])
        if opening is None or (blocks and n <= blocks[-1][1]):
            continue
        lasts = closings[opening[1]]
        nearest = bisect(lasts, n)
        if nearest < len(lasts):
            blocks.append((n, lasts[nearest]))
    return blocks


def _execute(shell: Shell, job: Job, command: Command) -> Step:
    """Run a command in the work folder of the sub-task, and record its output."""
    arguments = {
        "code": command.text,
        "code_type": "bash",
        "timeout_s": COMMAND_TIMEOUT_S,
    }
    params = {"command": command.text}
    try:
        ran = job.env.local("bash", arguments, partial(shell, job.env, command.text))
    except ToolError as failure:
        return Step("bash", params, command.thought, str(failure), failed=True)
    output = _shown(ran["observation"])
    return Step("bash", params, command.thought, output, failed=not ran["well"])


def in_sandbox(repo: Path | None, env: Environment, command: str) -> execution.Observed:
    """Run a command in the work folder; it finds the copy at the path of the repository, too."""
    worktree.prepare(env.folder)
    mounts = sandbox.Mounts(
        folder=env.folder,
        media=env.task.media[0].path.parent if env.task.media else None,
        venv=worktree.virtual_environment(repo),
        alias=repo,
    )
    unsafe = bool(env.options.more.get("unsafe_code"))
    script = f"{SETTINGS}\n{command}"
    return execution.run(script, "bash", COMMAND_TIMEOUT_S, mounts, unsafe)


def _shown(output: str) -> str:
    if output == say("notes", "code_silent"):
        return say(PROMPTS, "silent")
    return cut_in_the_middle(output, OBSERVATION_CHARS)


# ---- what was changed ----------------------------------------------------------------------------


def _recorded_changes(job: Job) -> str:
    with job.env.tape.call(job.next_place, "diff"):
        return str(job.env.local("diff", {}, partial(_changes, job.env.folder)))


def _is_unchanged(job: Job) -> bool:
    """Whether the copy of --workdir is as it was; False without --workdir."""
    with job.env.tape.call(job.next_place, "unchanged"):
        return bool(
            job.env.local("unchanged", {}, partial(_has_no_diff, job.env.folder))
        )


def _has_no_diff(folder: Path) -> bool:
    try:
        return worktree.changes(folder) == ""
    except ToolError:
        return False


def _changes(folder: Path) -> str:
    """The changes against --workdir, as the main agent reads them; "" without --workdir."""
    try:
        diff = worktree.changes(folder)
    except ToolError as error:
        return str(error)
    if diff is None:
        return ""
    if not diff:
        return say(PROMPTS, "same")
    return say(PROMPTS, "changed", diff=cut_in_the_middle(diff, OBSERVATION_CHARS))
