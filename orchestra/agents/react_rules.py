"""Which actions the next step of the ReAct sub-agent may have: rules against loops, and against
reports of what was not seen. Each rule depends on the job and its steps so far alone.

An agent without a main agent (--method react) is `alone`. It has more rules, because nobody reads
its report and asks again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from orchestra.agents.job import Job
from orchestra.toolkit import SEARCH, VISIT, Tool
from orchestra.vocabulary import FINISH, INVALID, Step

LIKE_PATTERNS = 5
WARNED_PART = 5  # the warning comes in the last fifth of the steps
SAME_CALLS = 3


@dataclass(frozen=True)
class Offer:
    """What the sub-agent may do in its next step: use one of these tools, or finish. `unopened` are
    the files that it must try to open before it is done. `may_finish`: whether a schema has
    `finish`; it is left out of the step after a report that was refused, which small models repeat.
    """

    tools: Sequence[Tool]
    must_finish: bool
    unopened: Sequence[str] = ()
    may_finish: bool = True


def next_offer(job: Job) -> Offer:
    """The actions of the next step."""
    blocked = blocked_tools(job)
    tools = [tool for tool in job.assigned if tool.name not in blocked]
    if must_finish(job, tools):
        return Offer(tools=[], must_finish=True)
    unopened = unopened_files(job, tools)
    is_refused = bool(job.trace) and was_refused(job.trace[-1])
    may_finish = not (unopened and is_refused)
    return Offer(tools, must_finish=False, unopened=unopened, may_finish=may_finish)


def was_refused(step: Step) -> bool:
    """Whether a step is a report that was not accepted."""
    return step.action == INVALID and "result" in step.params


def alone(job: Job) -> bool:
    """Whether the agent has no main agent: it answers the whole question."""
    return job.u.agent == "single"


def must_finish(job: Job, tools: Sequence[Tool]) -> bool:
    """Whether `finish` is the only action of the next step: it is the last one, all tools are
    blocked, or the steps repeat themselves.
    """
    is_last = len(job.trace) + 1 == job.steps
    all_blocked = bool(job.u.tools) and not tools
    return is_last or all_blocked or like_patterns(job.trace) >= LIKE_PATTERNS


def has_few_steps(job: Job) -> bool:
    """Whether the steps that are left are the last fifth of all, or the last one."""
    steps_left = job.steps - len(job.trace)
    return steps_left <= max(1, job.steps // WARNED_PART)


def saw_nothing(job: Job) -> bool:
    """Whether a tool must work, but none has. An agent without a main agent may answer a question
    without files from its own knowledge.
    """
    if not job.u.tools:
        return False
    if alone(job) and not job.task.media:
        return False
    return all(step.failed or step.action == FINISH for step in job.trace)


def unopened_files(job: Job, tools: Sequence[Tool]) -> list[str]:
    """For an agent without a main agent that has enough steps left: the files of the task that it
    has not tried to open although one of `tools` opens them.
    """
    if not alone(job) or has_few_steps(job):
        return []
    tried = []
    for step in job.trace:
        tried += [job.task.file(str(value)) for value in step.params.values()]
    kinds: set[str] = set()
    for tool in tools:
        kinds.update(tool.files.values())
    can_open = [media for media in job.task.media if media.modality in kinds]
    return [media.name for media in can_open if media not in tried]


def like_patterns(trace: Sequence[Step]) -> int:
    """How many of the last steps are of one kind. A visit right after a search counts with it."""
    patterns: list[str] = []
    before = ""
    for step in trace:
        if not (step.action == VISIT and before == SEARCH):
            patterns.append(step.action)
        before = step.action
    alike = takewhile(lambda pattern: pattern == patterns[-1], reversed(patterns))
    return len(list(alike))


def same_call(job: Job, name: str, params: Mapping[str, Any]) -> Step | None:
    """The first successful step that opened the same file with the same parameters."""
    opens_files = name in job.tools and job.tools[name].files
    if not opens_files:
        return None
    for step in job.trace:
        if step.action == name and step.params == params and not step.failed:
            return step
    return None


def blocked_tools(job: Job) -> set[str]:
    """For an agent without a main agent: the tools that it must not use in this step. A tool that
    was called twice with the same parameters and the same result is blocked until another call
    succeeds. After SAME_CALLS such calls it stays blocked.
    """
    if not alone(job):
        return set()
    calls = [(step.action, step.params, step.observation) for step in job.trace]
    blocked = {call[0] for call in calls if calls.count(call) >= SAME_CALLS}
    for n in reversed(range(len(calls))):
        if calls[n] in calls[:n]:
            blocked.add(job.trace[n].action)
        elif not job.trace[n].failed:
            break  # a call that succeeded and told something new
    return blocked - {INVALID, FINISH}
