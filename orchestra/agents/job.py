"""One sub-task: what all styles of executor share, and parallel calls.

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
from typing import Any

from orchestra.money import Purse
from orchestra.runtime.chat import STOPPED, Chat
from orchestra.runtime.prompts import capped, explained, say
from orchestra.toolkit import Environment, Tool, ToolError
from orchestra.vocabulary import ModelMistake, Reply, Result, Status, Step, SubTask

MAX_THREADS = 8  # of one fan-out
TEMPERATURE = (
    0.5  # of samples, unless the pool has one above 0: at 0 they would all be equal
)
OBSERVATION_CHARS = 8000
SUMMARY_CHARS = 600
SEARCH, VISIT, CODE = (
    "GoogleSearchAction",
    "ExtractUrlContentAction",
    "ExecuteCodeAction",
)


@dataclass
class Job:
    """One sub-task `u` in its thread: its environment, its logical call, and its steps so far.

    `on_step` gets each step and its number, from 1, as it happens. `answer`: the newest one; it is
    kept if a later call fails. `output`: the whole reply that has it.
    """

    u: SubTask
    env: Environment
    tools: Mapping[str, Tool]
    call: tuple[str, ...]  # as in ("r1", "t2")
    steps: int
    on_step: Callable[[int, Step], None]
    trace: list[Step] = field(default_factory=list)
    answer: str = ""
    output: str = ""
    cut: bool = False  # the newest reply hit its length limit

    @property
    def next_call(self) -> tuple[str, ...]:
        return (*self.call, f"s{len(self.trace) + 1}")

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
        call = self.next_call
        calls = (
            [(*call, f"p{n}") for n in range(1, len(prompts) + 1)]
            if prompts[1:]
            else [call]
        )
        backend = self.env.backend
        own: Any = backend.options.get("temperature")
        temperature = own or TEMPERATURE if prompts[1:] else None

        def outcome(
            chat: Chat, call: tuple[str, ...], prompt: tuple[str, str], purse: Purse
        ) -> Reply | Exception:
            messages = [{"role": "user", "content": prompt[1]}]
            with self.env.tape.call(*call):
                try:
                    return chat(backend, messages, purse, temperature=temperature)
                except STOPPED as failure:
                    return failure

        chats = [self.env.chat.copy() for _ in prompts]
        with ThreadPoolExecutor(MAX_THREADS, thread_name_prefix="fan-out") as executor:
            outcomes = list(executor.map(outcome, chats, calls, prompts, purses))
        self.env.chat.refused.update(*(chat.refused for chat in chats))
        replies = [o if isinstance(o, Reply) else None for o in outcomes]
        for (what, _), purse, o, reply in zip(
            prompts, purses, outcomes, replies, strict=True
        ):
            self.env.purse.join(purse)
            self.note(
                Step(what, {}, "", reply.text if reply else str(o), failed=not reply)
            )
        if not any(replies) and isinstance(outcomes[0], Exception):
            raise outcomes[0]
        return replies

    def use(self, name: str, **params: Any) -> str:
        """The observation of a tool, which is noted as a step."""
        self.note(step := self.call_tool(name, params))
        return step.observation

    def call_tool(self, name: str, params: Mapping[str, Any], memory: str = "") -> Step:
        """(rho, a, o) of a tool call. A failure, also of a missing tool, is an observation."""
        failed = True
        with self.env.tape.call(*self.next_call, name):
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


Style = Callable[[Job], Result]  # a style of executor


def agent(body: Callable[[Job], str]) -> Style:
    """Make a style of executor of a function that returns the answer. A failure becomes the error
    of the Result, next to the answer so far, if there is one.
    """

    @functools.wraps(body)
    def run(job: Job) -> Result:
        error = ""
        try:
            job.answer = body(job).strip()
            error = say("mistakes", "cut") if job.cut else ""
        except (*STOPPED, ToolError) as failure:
            error = str(failure)
        if not job.answer:
            return job.result("failed", "", "", error or say("notes", "empty_reply"))
        replies = (s.observation.strip() for s in reversed(job.trace) if not s.failed)
        summary = (
            job.output
            or next((t for t in replies if t != job.answer), "")[-SUMMARY_CHARS:]
        )
        return job.result("partial" if error else "done", job.answer, summary, error)

    return run
