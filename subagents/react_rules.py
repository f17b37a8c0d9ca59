"""What the steps of a ReAct sub-agent allow next: rules against loops, and against reports of what
was not looked at (subagents/react.py says for whom).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from orchestra.vocabulary import Step
from subagents.fan_out import SEARCH, VISIT, Job
from tools import Tool

FEW_STEPS = 5  # a warning when no more are left
SAME_CALLS = 3


def exhausted(job: Job) -> set[str]:
    """For an agent without a main agent: the tools that it may not use in this step. A tool is
    blocked after an identical call with an identical observation, until another call succeeds;
    after SAME_CALLS such calls it stays blocked.
    """
    if job.u.agent != "single":
        return set()
    calls = [(s.action, s.params, s.observation) for s in job.trace]
    found = {call[0] for call in calls if calls.count(call) >= SAME_CALLS}
    for n in reversed(range(len(calls))):
        if calls[n] in calls[:n]:
            found.add(job.trace[n].action)
        elif not job.trace[n].failed:
            break
    return found - {"invalid", "finish"}


def like_patterns(trace: Sequence[Step]) -> int:
    """How many of the last steps are of one kind. A visit right after a search belongs to it."""
    patterns: list[str] = []
    for before, step in zip([None, *trace], trace, strict=False):
        if not (step.action == VISIT and before and before.action == SEARCH):
            patterns.append(step.action)
    return next((n for n, p in enumerate(reversed(patterns)) if p != patterns[-1]), len(patterns))


def seen_before(name: str, params: Mapping[str, Any], job: Job) -> Step | None:
    """The first step that opened the same file with the same parameters, and saw it."""
    if not (name in job.tools and opens(job.tools[name])):
        return None
    same = (s for s in job.trace if (s.action, s.params, s.failed) == (name, params, False))
    return next(same, None)


def opens(tool: Tool) -> set[str]:
    """The kinds of files that a tool opens."""
    return {kind for field in tool.parameters.model_fields.values() for kind in field.metadata}


def saw_nothing(job: Job) -> bool:
    """No tool has worked, and one must. An agent without a main agent above it may know the answer
    of a task without files.
    """
    if not job.u.tools or (job.u.agent == "single" and not job.env.task.media):
        return False
    return all(s.failed or s.action == "finish" for s in job.trace)


def unopened(job: Job, tools: Sequence[Tool]) -> list[str]:
    """For an agent without a main agent, while it has steps: the files of the task that one of
    `tools` opens and that it has not tried to open.
    """
    if job.u.agent != "single" or job.steps - len(job.trace) <= FEW_STEPS:
        return []
    task = job.env.task
    tried = [task.file(str(value)) for s in job.trace for value in s.params.values()]
    kinds = set[str]().union(*map(opens, tools))
    return [m.name for m in task.media if m.modality in kinds and m not in tried]
