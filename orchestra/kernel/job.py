"""A Job is one running sub-task. Its sub-agent reaches models and tools through it alone, so that
everything is recorded, paid for and shown. A sub-agent is a function (job) -> Result:

    def think(job: Job) -> Result:
        reply = job.ask(as_messages("Think.", job.u.instruction))
        return job.result("done", reply.text, "")
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from orchestra.kernel.prompts import (
    capped,
    explained,
    say,
)
from orchestra.kernel.tool import Environment, Tool
from orchestra.kernel.vocabulary import (
    FINISH,
    INVALID,
    BudgetExceeded,
    EndpointError,
    Messages,
    ModelMistake,
    Place,
    Reply,
    Result,
    Schema,
    Status,
    Step,
    SubTask,
    Task,
    ToolError,
)

OBSERVATION_CHARS = 8000
FAILURES = (
    EndpointError,
    BudgetExceeded,
    ModelMistake,
    ToolError,
)  # they end one sub-task alone


@dataclass
class Job:
    """One sub-task `u` in its thread: its environment, its place, and its steps so far. `steps` is
    the most that the run allows, and `tools` are all tools of the run.
    """

    u: SubTask
    env: Environment
    tools: Mapping[str, Tool]
    place: Place  # r1/t2
    steps: int
    on_step: Callable[[Place, Step], None]
    trace: list[Step] = field(default_factory=list)

    @property
    def task(self) -> Task:
        return self.env.task

    @property
    def assigned(self) -> list[Tool]:
        """The tools that were assigned to the sub-task, T of Eq. 2."""
        return [self.tools[name] for name in self.u.tools or ()]

    @property
    def next_place(self) -> Place:
        """The place of the next step."""
        return self.place._replace(step=len(self.trace) + 1)

    def note(self, step: Step) -> None:
        """Add a step, and show it."""
        self.on_step(self.next_place, step)
        self.trace.append(step)

    def ask(self, messages: Messages, schema: Schema | None = None) -> Reply:
        """The reply of the sub-task's model. Raises EndpointError or BudgetExceeded."""
        with self.env.tape.call(self.next_place):
            return self.env.chat(self.env.backend, messages, self.env.purse, schema)

    def use(self, name: str, params: Mapping[str, Any], memory: str = "") -> Step:
        """(rho, a, o) of a tool call. A failure, also of a missing tool, is an observation."""
        failed = False
        with self.env.tape.call(self.next_place, name):
            try:
                if name not in self.tools:
                    raise ToolError(say("notes", "no_such_tool", tool=name))
                observation = self.tools[name](self.env, params)
            except ToolError as error:
                observation, failed = str(error), True
            except ModelMistake as mistake:
                observation, failed = explained(mistake), True
        observation = capped(observation, OBSERVATION_CHARS)
        return Step(name, params, memory, observation, failed)

    def result(
        self,
        status: Status,
        answer: str,
        summary: str,
        error: str = "",
        cause: str = "",
    ) -> Result:
        """z = Omega(zeta), Eq. 14, with what the calls have cost and with the trace."""
        return Result(
            status=status,
            answer=answer,
            summary=summary,
            cost_usd=self.env.purse.spent_usd,
            trace=tuple(self.trace),
            error=error,
            cause=cause,
        )

    def unreported(self, error: str, cause: str) -> Result:
        """z of a sub-task that ended without a report: what its steps have shown was paid for, so
        a digest of it reaches the main agent.
        """
        from orchestra.kernel.digest import digest

        status: Status = "partial" if has_worked(self.trace) else "failed"
        notes = [step.memory for step in self.trace if step.memory]
        text = digest(seen_in(self.trace), "".join(notes[-1:]))
        return self.result(status, "", text, error, cause)


Agent = Callable[[Job], Result]
Question = tuple[Messages, Schema | None]  # to the model of a sub-agent


def seen_in(trace: Sequence[Step]) -> list[tuple[int, Step]]:
    """The steps with an observation, and their numbers."""
    steps = enumerate(trace, 1)
    return [
        (n, s) for n, s in steps if s.action not in (FINISH, INVALID) and s.observation
    ]


def has_worked(trace: Sequence[Step]) -> bool:
    """Whether some step has shown something that is not an error."""
    return any(not step.failed for _, step in seen_in(trace))
