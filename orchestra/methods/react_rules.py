"""What the steps of a ReAct sub-agent say about its next one. Each depends on the steps alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any

from orchestra.kernel.job import Job
from orchestra.kernel.tool import SEARCH, VISIT
from orchestra.kernel.vocabulary import INVALID, Step

LIKE_PATTERNS = 5  # of one kind are enough
WARNED_PART = 5  # the warning comes in the last fifth of the steps


def steps_left(job: Job) -> int:
    """The next step included."""
    return job.steps - len(job.trace)


def has_few_steps(job: Job) -> bool:
    """Whether the steps that are left are the last fifth of all, or the last one."""
    return steps_left(job) <= max(1, job.steps // WARNED_PART)


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


def is_refused_report(step: Step) -> bool:
    """Whether a step is a report that was not accepted."""
    return step.action == INVALID and "result" in step.params


def same_call(job: Job, name: str, params: Mapping[str, Any]) -> Step | None:
    """The first successful step that opened the same file with the same parameters."""
    if name not in job.tools or not job.tools[name].files:
        return None
    for step in job.trace:
        if step.action == name and step.params == params and not step.failed:
            return step
    return None
