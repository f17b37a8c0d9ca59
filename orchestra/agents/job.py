"""A Job is one running sub-task. Its sub-agent reaches models and tools through it, and makes its
result with it. The Protocol in seams.py is the part that the user's own sub-agents need.

    @agent
    def cot(job: Job) -> str:
        prompt = say("reasoning/messages", "think", task=job.u.instruction)
        return job.ask("think", prompt)

Parallel calls each have a place and a purse of their own, given in the order of the prompts, so no
request depends on the timing of threads. They also have threads of their own: if they used the
threads of the sub-agents, a full pool would wait for itself.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from orchestra.agents import trace_summary
from orchestra.agents.calls import Call, Prompt
from orchestra.ending import wrong_with
from orchestra.runtime.chat import STOPPED
from orchestra.runtime.prompts import capped, explained, say
from orchestra.runtime.what_if import Observed
from orchestra.toolkit import Environment, Tool, ToolError
from orchestra.vocabulary import (
    BudgetExceeded,
    Cause,
    ConfigError,
    EndpointError,
    ModelMistake,
    Place,
    Reply,
    Result,
    Status,
    Step,
    SubTask,
    Task,
)

# What ends a sub-agent alone
Failed = ModelMistake | EndpointError | BudgetExceeded | ConfigError | ToolError
MAX_THREADS = 8  # of parallel calls of one sub-agent
# Of parallel calls, unless the pool has a temperature above 0: at 0 all samples would be equal.
TEMPERATURE = 0.5
OBSERVATION_CHARS = 8000
SUMMARY_CHARS = 600


@dataclass
class Job:
    """One sub-task `u` in its thread: its environment, its place in the run, and its steps so far.

    `on_step` gets each step and its number, from 1, as it happens. `tools` are all tools of the
    run. `steps` is the most that the run allows. `answer` is the newest one; it is kept if a later
    call fails. `output` is the whole reply that has it.
    """

    u: SubTask
    env: Environment
    tools: Mapping[str, Tool]
    place: Place  # r1/t2
    steps: int
    on_step: Callable[[int, Step], None]
    trace: list[Step] = field(default_factory=list)
    answer: str = ""
    output: str = ""
    cut: bool = False  # the newest reply of `ask` hit its length limit
    replaced: Mapping[Place, Observed] = field(default_factory=dict)  # --what-if

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
        self.trace.append(step)
        self.on_step(len(self.trace), step)
        self._keep_for_summary()

    def _keep_for_summary(self) -> None:
        """Hold back what the summary may cost, if this sub-agent should end without a report."""
        purse = self.env.purse
        if purse.limit_usd is None:
            return
        most_usd = trace_summary.most_usd(self.env.backend, self.u, self.trace)
        purse.kept_usd = 0.0 if self.answer else most_usd

    # ---- models ----------------------------------------------------------------------------------

    def ask(self, what: str, prompt: str, later: int = 0) -> str:
        """One call; `what` names its step. `later`: how many more calls the purse must pay after
        it.
        """
        (reply,) = self.ask_all([(what, prompt)], later)
        assert reply is not None  # the failure of a single call is raised
        self.cut = reply.cut
        return reply.text

    def ask_all(
        self, prompts: Sequence[tuple[str, Prompt]], later: int = 0, if_cut: str = ""
    ) -> list[Reply | None]:
        """Parallel calls, each (the name of its step, prompt); the replies in the same order.
        Several are samples, drawn at TEMPERATURE. A reply that was cut off is asked again with the
        message `if_cut`, unless that is empty (calls.py).

        The reply of a failed call is None. Raises the first failure if all failed.
        """
        self._keep_for_summary()  # an answer that was set since the last step needs none
        calls = self._calls(prompts, later, if_cut)
        with ThreadPoolExecutor(MAX_THREADS, thread_name_prefix="call") as executor:
            outcomes = list(executor.map(Call.outcome, calls))
        for call, outcome in zip(calls, outcomes, strict=True):
            self.env.chat.refused.update(call.chat.refused)
            self.env.purse.join(call.purse)
            self.note(call.step(outcome))
        failures = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
        if failures and len(failures) == len(outcomes):
            raise failures[0]
        return [outcome if isinstance(outcome, Reply) else None for outcome in outcomes]

    def _calls(
        self, prompts: Sequence[tuple[str, Prompt]], later: int, if_cut: str
    ) -> list[Call]:
        count = len(prompts)
        purses = self.env.purse.split(count, later)
        calls = []
        for number, (what, prompt) in enumerate(prompts, 1):
            part = f"p{number}" if count > 1 else ""
            call = Call(
                what=what,
                prompt=prompt,
                place=self.next_place._replace(part=part),
                backend=self.env.backend,
                chat=self.env.chat.copy(),
                purse=purses[number - 1],
                temperature=self._temperature(count),
                if_cut=if_cut,
            )
            calls.append(call)
        return calls

    def _temperature(self, count: int) -> float | None:
        """That of `count` parallel calls; None: the backend's own."""
        if count < 2:
            return None
        own: Any = self.env.backend.options.get("temperature")
        return own if own else TEMPERATURE

    # ---- tools -----------------------------------------------------------------------------------

    def use(self, name: str, /, **params: Any) -> str:
        """The observation of a tool, which is noted as a step."""
        step = self.call_tool(name, params)
        self.note(step)
        return step.observation

    def call_tool(self, name: str, params: Mapping[str, Any], memory: str = "") -> Step:
        """(rho, a, o) of a tool call. A failure, also of a missing tool, is an observation."""
        if self.next_place in self.replaced:
            given = self.replaced[self.next_place]
            observation = given["observation"]
            failed = given.get("failed", False)
        else:
            observation, failed = self._observed(name, params)
        return Step(
            action=name,
            params=params,
            memory=memory,
            observation=capped(observation, OBSERVATION_CHARS),
            failed=failed,
        )

    def _observed(self, name: str, params: Mapping[str, Any]) -> tuple[str, bool]:
        """The observation of a tool call, and whether it failed."""
        with self.env.tape.call(self.next_place, name):
            try:
                return self._observation(name, params), False
            except ToolError as failure:
                return str(failure), True
            except ModelMistake as mistake:
                return explained(mistake), True

    def _observation(self, name: str, params: Mapping[str, Any]) -> str:
        if name not in self.tools:
            raise ToolError(say("notes", "no_such_tool", tool=name))
        return self.tools[name](self.env, params)

    # ---- the result ------------------------------------------------------------------------------

    def result(
        self,
        status: Status,
        answer: str,
        summary: str,
        error: str = "",
        cause: Cause = "",
        why: str = "",
    ) -> Result:
        """z = Omega(zeta), Eq. 14. `cause`: what ended it early; `why`: the same for people."""
        return Result(
            status=status,
            answer=answer,
            summary=summary,
            cost_usd=self.env.purse.spent_usd,
            trace=tuple(self.trace),
            error=error,
            cause=cause,
            why=why,
            steps=len(self.trace),
        )

    def stopped(self, failure: Failed) -> Result:
        """z of a sub-task that a failure has ended: partial with the answer so far, or with a
        summary of what its steps have shown; failed if they have shown nothing.
        """
        reason = str(failure)
        why = ""
        if isinstance(failure, ModelMistake):
            reason = explained(failure)
            why = wrong_with(failure)
        summary = ""
        if self.answer:
            summary = self.summary
        elif self._has_found(failure):
            summary = self.summary_without_report(failure)
        status: Status = "partial" if self.answer or summary else "failed"
        return self.result(status, self.answer, summary, reason, failure.cause, why)

    def so_far(self, failure: EndpointError) -> Result | None:
        """z of an agent without a main agent when a failed endpoint ends the run: partial, with a
        digest of its newest observations, for people. Nothing is asked for it, because a resume
        goes on with the step that failed. None if no step has shown anything.
        """
        if not trace_summary.has_worked(self.trace):
            return None
        summary = trace_summary.digest(self.trace)
        return self.result("partial", "", summary, cause=failure.cause)

    def _has_found(self, failure: Failed) -> bool:
        """Whether there is something to summarize. If a tool has failed, the replies that led to it
        are not.
        """
        steps = self.trace
        if isinstance(failure, ToolError):
            steps = [step for step in steps if step.action in self.tools]
        return trace_summary.has_worked(steps)

    def summary_without_report(
        self,
        failure: Exception | None = None,
        further: trace_summary.Question | None = None,
    ) -> str:
        """omega, Eq. 14, by one more call or as a digest: trace_summary.py."""
        return trace_summary.summary_of(
            self.env, self.place, self.u, self.trace, failure, further
        )

    @property
    def summary(self) -> str:
        """The whole reply that has the answer, or else the end of the newest observation that is
        not the answer itself.
        """
        if self.output:
            return self.output
        for step in reversed(self.trace):
            text = step.observation.strip()
            if not step.failed and text != self.answer:
                return text[-SUMMARY_CHARS:]
        return ""


# ---- sub-agents as functions ---------------------------------------------------------------------

AgentFunction = Callable[[Job], Result]


def guarded(run: AgentFunction) -> AgentFunction:
    """A sub-agent whose errors end its sub-task alone, as a Result with the reason. A ConfigError
    ends the run: it is a mistake of the user.
    """

    @functools.wraps(run)
    def safe(job: Job) -> Result:
        try:
            return run(job)
        except (ModelMistake, EndpointError, BudgetExceeded, ToolError) as failure:
            return job.stopped(failure)

    return safe


def agent(body: Callable[[Job], str]) -> AgentFunction:
    """Make a sub-agent of a function that returns the answer. A failure becomes the error of the
    Result, next to the answer so far, if there is one. After a reply that was cut off, `job.cut`,
    the Result is partial.
    """

    @functools.wraps(body)
    def run(job: Job) -> Result:
        try:
            job.answer = body(job).strip()
        except (*STOPPED, ToolError) as failure:
            return job.stopped(failure)
        if job.cut:
            reason = say("notes", "cut_reply")
            why = wrong_with(ModelMistake("cut"))
            return job.result(
                "partial", job.answer, job.summary, reason, "replies", why
            )
        if not job.answer:
            return job.stopped(ModelMistake("empty_reply", "notes"))
        return job.result("done", job.answer, job.summary)

    return run
