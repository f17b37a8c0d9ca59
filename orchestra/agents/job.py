"""A Job is one running sub-task. This file defines it, and how a sub-agent makes several calls in
parallel.

    @agent
    def cot(job: Job) -> str:
        return job.ask("think", say("reasoning/messages", "think", task=job.u.instruction))

Each parallel call has its own name and purse, given in the order of the prompts, so no request
depends on the timing of threads. Each fan-out has its own threads: if it used the pool of the
sub-agents, a full pool would wait for itself.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from orchestra.money import Purse
from orchestra.runtime.chat import STOPPED, Chat
from orchestra.runtime.prompts import capped, explained, say
from orchestra.toolkit import Environment, Tool, ToolError
from orchestra.vocabulary import (
    ModelMistake,
    Place,
    Reply,
    Result,
    Status,
    Step,
    SubTask,
    Task,
)

MAX_THREADS = 8  # of one fan-out
TEMPERATURE = (
    0.5  # of samples, unless the pool has one above 0: at 0 they would all be equal
)
OBSERVATION_CHARS = 8000
SUMMARY_CHARS = 600
SEARCH = "GoogleSearchAction"
VISIT = "ExtractUrlContentAction"
CODE = "ExecuteCodeAction"


@dataclass
class Job:
    """One sub-task `u` in its thread: its environment, its logical call, and its steps so far.

    `on_step` gets each step and its number, from 1, as it happens. `answer`: the newest one; it is
    kept if a later call fails. `output`: the whole reply that has it.
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
    cut: bool = False  # the newest reply hit its length limit

    @property
    def task(self) -> Task:
        return self.env.task

    @property
    def next_place(self) -> Place:
        """The place of the next step."""
        return self.place._replace(step=len(self.trace) + 1)

    def note(self, step: Step) -> None:
        self.trace.append(step)
        self.on_step(len(self.trace), step)

    def result(
        self, status: Status, answer: str, summary: str, error: str = ""
    ) -> Result:
        """z = Omega(zeta), Eq. 14."""
        spent, trace = self.env.purse.spent_usd, tuple(self.trace)
        return Result(status, answer, summary, spent, trace=trace, error=error)

    def ask(self, what: str, prompt: str, later: int = 0) -> str:
        """One call. `later`: how many more calls the purse must pay after it."""
        (reply,) = self.ask_all([(what, prompt)], later)
        self.cut = bool(reply and reply.cut)
        return reply.text if reply else ""

    def ask_all(
        self, prompts: Sequence[tuple[str, str]], later: int = 0
    ) -> list[Reply | None]:
        """Parallel calls, each (the name of its step, prompt); the replies in the same order.
        Several are samples, drawn at TEMPERATURE.

        The reply of a failed call is None. Raises the first failure if all failed.
        """
        purses = self.env.purse.split(len(prompts), later)
        chats = [self.env.chat.copy() for _ in prompts]
        places = [self.next_place]
        if len(prompts) > 1:
            numbers = range(1, len(prompts) + 1)
            places = [self.next_place._replace(part=f"p{n}") for n in numbers]
        texts = [prompt for _, prompt in prompts]
        ask = partial(self._reply, temperature=self._temperature(len(prompts)))
        with ThreadPoolExecutor(MAX_THREADS, thread_name_prefix="fan-out") as executor:
            outcomes = list(executor.map(ask, chats, places, texts, purses))
        self.env.chat.refused.update(*(chat.refused for chat in chats))
        replies: list[Reply | None] = []
        for (what, _), purse, outcome in zip(prompts, purses, outcomes, strict=True):
            reply = outcome if isinstance(outcome, Reply) else None
            replies.append(reply)
            self.env.purse.join(purse)
            observation = str(outcome) if reply is None else reply.text
            failed = reply is None
            self.note(Step(what, {}, "", observation, failed=failed))
        first = outcomes[0] if outcomes else None
        if isinstance(first, Exception) and not any(replies):
            raise first
        return replies

    def _temperature(self, count: int) -> float | None:
        """That of `count` parallel calls; None: the backend's own."""
        if count < 2:
            return None
        own: Any = self.env.backend.options.get("temperature")
        return own or TEMPERATURE

    def _reply(
        self,
        chat: Chat,
        place: Place,
        prompt: str,
        purse: Purse,
        temperature: float | None,
    ) -> Reply | Exception:
        messages = [{"role": "user", "content": prompt}]
        with self.env.tape.call(place):
            try:
                return chat(self.env.backend, messages, purse, temperature=temperature)
            except STOPPED as failure:
                return failure

    def use(self, name: str, **params: Any) -> str:
        """The observation of a tool, which is noted as a step."""
        self.note(step := self.call_tool(name, params))
        return step.observation

    def call_tool(self, name: str, params: Mapping[str, Any], memory: str = "") -> Step:
        """(rho, a, o) of a tool call. A failure, also of a missing tool, is an observation."""
        failed = True
        with self.env.tape.call(self.next_place, name):
            try:
                if name not in self.tools:
                    raise ToolError(say("notes", "no_such_tool", tool=name))
                observation, failed = self.tools[name](self.env, params), False
            except ToolError as failure:
                observation = str(failure)
            except ModelMistake as mistake:
                observation = explained(mistake)
        return Step(
            name, params, memory, capped(observation, OBSERVATION_CHARS), failed
        )


Agent = Callable[[Job], Result]


def guarded(run: Agent) -> Agent:
    """A sub-agent of which one failing call fails one sub-task, with the reason."""

    @functools.wraps(run)
    def safe(job: Job) -> Result:
        try:
            return run(job)
        except (*STOPPED, ToolError) as failure:
            return job.result("failed", "", "", str(failure))

    return safe


def agent(body: Callable[[Job], str]) -> Agent:
    """Make a sub-agent of a function that returns the answer. A failure becomes the error of the
    Result, next to the answer so far, if there is one.
    """

    @functools.wraps(body)
    def run(job: Job) -> Result:
        error = ""
        try:
            job.answer = body(job).strip()
            if job.cut:
                error = say("mistakes", "cut")
        except (*STOPPED, ToolError) as failure:
            error = str(failure)
        if not job.answer:
            return job.result("failed", "", "", error or say("notes", "empty_reply"))
        status: Status = "partial" if error else "done"
        return job.result(status, job.answer, job.output or _newest(job), error)

    return run


def _newest(job: Job) -> str:
    """The end of the newest observation that is not the answer itself."""
    for step in reversed(job.trace):
        text = step.observation.strip()
        if not step.failed and text != job.answer:
            return text[-SUMMARY_CHARS:]
    return ""
