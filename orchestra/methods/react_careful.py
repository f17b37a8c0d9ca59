"""ReAct with rules against loops and against reports of what was not seen, for models of few
parameters: the sub-agent of Orchestra-o1 with --prompts small, and of AOrchestra.

1. After five steps of one kind, `finish` is the only action; another step ends the sub-task.
2. A sub-task with tools that reports "done" before a tool has worked is "partial".
"""

from __future__ import annotations

from dataclasses import replace

from orchestra.kernel.job import Job
from orchestra.kernel.prompts import say
from orchestra.kernel.vocabulary import FINISH, Result
from orchestra.methods.react import (
    LIKE_PATTERNS,
    PROMPTS,
    Action,
    Offer,
    React,
    like_patterns,
    summarized,
)


class CarefulReact(React):
    """The loop with both rules."""

    enough = "repeated"

    def offer(self, job: Job) -> Offer:
        if like_patterns(job.trace) >= LIKE_PATTERNS:
            return Offer([], must_finish=True)
        return super().offer(job)

    def usual(self, job: Job) -> str:
        return say(PROMPTS, "next_unseen" if self.saw_nothing(job) else self.next)

    def saw_nothing(self, job: Job) -> bool:
        """Whether a tool must work, but none has."""
        return bool(job.u.tools) and all(
            s.failed or s.action == FINISH for s in job.trace
        )

    def finished(self, job: Job, action: Action) -> Result:
        z = super().finished(job, action)
        if z.status == "done" and self.saw_nothing(job):
            return replace(z, status="partial", error=say(PROMPTS, "nothing_worked"))
        return z


LOOP = CarefulReact()
careful = summarized(LOOP, LOOP.question)
