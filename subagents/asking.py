"""How a sub-agent without a loop of its own asks: one prompt, or several side by side.

    @agent
    def cot(it: Asking) -> str:
        return it.ask("think", say("reasoning/messages", "think", task=it.u.instruction))

The calls have names of their own (s1, s2, ...) and purses of their own, in the order in which they
are written here, so that no thread's timing changes a request. Threads are made for each fan-out
(at most MAX_THREADS): a full pool of sub-agents can not wait for itself.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from orchestra.money import Purse
from orchestra.prompts import say
from orchestra.replies import Reply
from orchestra.vocabulary import (
    BudgetExceeded,
    ConfigError,
    EndpointError,
    ModelMistake,
    Result,
    Status,
    Step,
    SubTask,
)
from subagents.executor import STOPPED, Call, OnStep, Run, capped
from tools import Environment, Tool, ToolError

MAX_THREADS = 8  # of one fan-out
SUMMARY_CHARS = 600
Failure = EndpointError | BudgetExceeded | ConfigError


@dataclass
class Asking:
    """One sub-agent at work on `u`: what it may reach, its place in the run, its steps so far.

    `stopped`: why it ended before its time, with an answer that it had by then.
    """

    u: SubTask
    env: Environment
    tools: Mapping[str, Tool]
    call: Call
    on_step: OnStep
    trace: list[Step] = field(default_factory=list)
    stopped: str = ""

    def ask(self, what: str, prompt: str, later: int = 0) -> str:
        """One call. `later`: how many calls after it must still be paid from the same purse."""
        (reply,) = self.ask_all([(what, prompt)], later)
        return reply.text if reply else ""

    def ask_all(self, prompts: Sequence[tuple[str, str]], later: int = 0) -> list[Reply | None]:
        """(what it is, prompt) each, side by side; the replies in the order of the prompts.

        One that failed is None. Raises the first failure if all did.
        """
        purses = self.env.purse.split(len(prompts), later)
        numbers = range(len(self.trace) + 1, len(self.trace) + 1 + len(prompts))
        if len(prompts) == 1:
            outcomes = [self._one(numbers[0], prompts[0], purses[0])]
        else:
            threads = min(len(prompts), MAX_THREADS)
            with ThreadPoolExecutor(threads, thread_name_prefix="side-by-side") as executor:
                outcomes = list(executor.map(self._one, numbers, prompts, purses))
        for (what, _), purse, outcome in zip(prompts, purses, outcomes, strict=True):
            self.env.purse.join(purse)
            said = outcome.text if isinstance(outcome, Reply) else str(outcome)
            self._note(Step(what, {}, "", said, failed=not isinstance(outcome, Reply)))
        failures = [o for o in outcomes if not isinstance(o, Reply)]
        if len(failures) == len(outcomes):
            raise failures[0]
        return [o if isinstance(o, Reply) else None for o in outcomes]

    def _one(self, number: int, prompt: tuple[str, str], purse: Purse) -> Reply | Failure:
        messages = [{"role": "user", "content": prompt[1]}]
        with self.env.tape.logical_call(*self.call, f"s{number}"):
            try:
                return self.env.chat(self.env.backend, messages, purse)
            except STOPPED as failure:
                return failure

    def use(self, name: str, **params: Any) -> str:
        """A tool's observation; what went wrong is one too, and so is a tool that is not there."""
        failed = True
        with self.env.tape.logical_call(*self.call, f"s{len(self.trace) + 1}", name):
            try:
                if name not in self.tools:
                    raise ToolError(say("notes", "no_such_tool", tool=name))
                observation, failed = self.tools[name](self.env, params), False
            except (ToolError, ModelMistake) as failure:
                observation = str(failure)
        observation = capped(observation)
        self._note(Step(name, params, "", observation, failed))
        return observation

    def _note(self, step: Step) -> None:
        self.trace.append(step)
        self.on_step(len(self.trace), step)


def agent(body: Callable[[Asking], str]) -> Run:
    """A sub-agent from a function that returns its answer; what fails is the Result's error, and so
    is what stopped it once it had one.
    """

    @functools.wraps(body)
    def run(
        u: SubTask,
        env: Environment,
        tools: Mapping[str, Tool],
        call: Call,
        steps: int,
        on_step: OnStep,
    ) -> Result:
        it = Asking(u, env, tools, call, on_step)
        try:
            answer, error = body(it).strip(), ""
        except (*STOPPED, ToolError) as failure:
            answer, error = "", str(failure)
        spent, trace = env.purse.spent_usd, tuple(it.trace)
        if not answer:
            error = error or say("notes", "said_nothing")
            return Result("failed", "", "", spent, trace=trace, error=error)
        status: Status = "partial" if it.stopped else "done"
        summary = _summary(it.trace, answer)
        return Result(status, answer, summary, spent, trace=trace, error=it.stopped)

    return run


def _summary(trace: Sequence[Step], answer: str) -> str:
    """The end of the last reply that says more than the answer: how it came to it."""
    replies = (s.observation for s in reversed(trace) if not s.failed)
    said = next((s for s in replies if s.strip() != answer), "")
    return said.strip()[-SUMMARY_CHARS:]
