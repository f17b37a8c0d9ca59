"""What sub-agents of plain text do with their Job: calls, several at a time, and the newest answer.

    @agent
    def cot(talk: Talk) -> str:
        return talk.ask("think", f"Think. {talk.job.u.instruction}").text

Parallel calls each have a place and a purse of their own, given in the order of the prompts, so no
request depends on the timing of threads. They also have threads of their own: if they used the
threads of the sub-agents, a full pool would wait for itself.

Half a reply is not a reply. If one hits its length limit, and the sub-agent has said what it then
wants (`if_cut`), the model sees the end of its reply and is asked once to state that alone, in a
few tokens. The second call has a place of its own, r1/t2/s1/again, and the money for it is held
back while the first one is made.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from orchestra.kernel.chat import Chat
from orchestra.kernel.job import Agent, Job, has_worked
from orchestra.kernel.money import Purse, add_usd, input_token_bound
from orchestra.kernel.prompts import closed, explained, say
from orchestra.kernel.vocabulary import (
    Backend,
    BudgetExceeded,
    EndpointError,
    Messages,
    ModelMistake,
    Place,
    Reply,
    Result,
    Step,
    ToolError,
)
from orchestra.methods.react import Unreported, summarized

AGAIN = "again"  # the part of the second call's place
AGAIN_TOKENS = 256  # the length limit of the second reply
SHOWN_BYTES = 4000  # of the end of the first one: a full context has room for them
FIELD_TOKENS = 64  # of what a request has besides messages and options
MAX_THREADS = 8  # of parallel calls of one sub-agent
# Of parallel calls, unless the pool has a temperature above 0: at 0 all samples would be equal.
TEMPERATURE = 0.5
SUMMARY_CHARS = 600
STOPPED = (EndpointError, BudgetExceeded)
Failure = EndpointError | BudgetExceeded | ToolError | ModelMistake


@dataclass(frozen=True)
class Said(Reply):
    """A reply, and the `unfinished` one that it stands for, which was cut off."""

    unfinished: str | None = None


@dataclass
class Talk:
    """A running sub-task and what its sub-agent has so far, in case a later call fails."""

    job: Job
    answer: str = ""  # the newest one
    output: str = ""  # the whole reply that has it
    cut: bool = False  # the newest reply hit its length limit

    def __post_init__(self) -> None:
        self.share_usd = self.job.env.purse.limit_usd

    def ask(self, what: str, prompt: str, later: int = 0, if_cut: str = "") -> Said:
        """One call; `what` names its step. `later`: how many more calls the purse must pay after
        it. Raises EndpointError or BudgetExceeded.
        """
        (said,) = self.ask_all([(what, prompt)], later, if_cut)
        assert said is not None  # the failure of a single call is raised
        return said

    def ask_all(
        self, prompts: Sequence[tuple[str, str]], later: int = 0, if_cut: str = ""
    ) -> list[Said | None]:
        """Parallel calls, each (the name of its step, prompt); the replies in the same order.
        Several are samples, drawn at TEMPERATURE. A reply that was cut off is asked again with the
        message `if_cut`, unless that is empty. The reply of a failed call is None; raises the first
        failure if all failed.
        """
        env = self.job.env
        if self.answer:  # there will be a report: no money is kept for a summary
            env.purse.limit_usd = self.share_usd
        calls = self._calls(prompts, later, if_cut)
        with ThreadPoolExecutor(MAX_THREADS, thread_name_prefix="call") as executor:
            outcomes = list(executor.map(Call.outcome, calls))
        for call, outcome in zip(calls, outcomes, strict=True):
            env.chat.unsupported.update(call.chat.unsupported)
            env.purse.join(call.purse)
            self.job.note(call.step(outcome))
        failures = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
        if failures and len(failures) == len(outcomes):
            raise failures[0]
        return [outcome if isinstance(outcome, Said) else None for outcome in outcomes]

    def _calls(
        self, prompts: Sequence[tuple[str, str]], later: int, if_cut: str
    ) -> list[Call]:
        env = self.job.env
        count = len(prompts)
        left_usd = env.purse.left_usd
        share_usd = None if left_usd is None else max(left_usd, 0.0) / (count + later)
        calls = []
        for number, (what, prompt) in enumerate(prompts, 1):
            part = f"p{number}" if count > 1 else ""
            call = Call(
                what=what,
                prompt=prompt,
                place=self.job.next_place._replace(part=part),
                backend=env.backend,
                chat=env.chat.copy(),
                purse=Purse(share_usd),
                temperature=_temperature(env.backend) if count > 1 else None,
                if_cut=if_cut,
            )
            calls.append(call)
        return calls

    def use(self, tool: str, **params: Any) -> Step:
        """The step of a tool call, which is noted."""
        step = self.job.use(tool, params)
        self.job.note(step)
        return step

    @property
    def summary(self) -> str:
        """The whole reply that has the answer, or else the end of the newest observation that is
        not the answer itself.
        """
        if self.output:
            return self.output
        for step in reversed(self.job.trace):
            text = step.observation.strip()
            if not step.failed and text != self.answer:
                return text[-SUMMARY_CHARS:]
        return ""

    def stopped(self, failure: Failure) -> Result:
        """z of a sub-task that a failure has ended: partial with the answer so far; failed if its
        steps have shown nothing. Raises Unreported if they have shown something.
        """
        job = self.job
        reason = (
            explained(failure) if isinstance(failure, ModelMistake) else str(failure)
        )
        if self.answer:
            return job.result(
                "partial", self.answer, self.summary, reason, failure.cause
            )
        steps = job.trace
        if isinstance(
            failure, ToolError
        ):  # the replies that led to it have found nothing
            steps = [step for step in steps if step.action in job.tools]
        if has_worked(steps):
            raise Unreported(reason, failure.cause) from failure
        return job.result("failed", "", "", reason, failure.cause)


def _temperature(backend: Backend) -> float:
    own: Any = backend.options.get("temperature")
    return own or TEMPERATURE


def agent(body: Callable[[Talk], str]) -> Agent:
    """Make a sub-agent of a function that returns the answer. A failure becomes the error of the
    Result, next to the answer so far, if there is one. After a reply that was cut off, `talk.cut`,
    the Result is partial.
    """

    @functools.wraps(body)
    def run(job: Job) -> Result:
        talk = Talk(job)
        try:
            talk.answer = body(talk).strip()
        except (*STOPPED, ToolError) as failure:
            return talk.stopped(failure)
        if talk.cut:
            reason = say("notes", "cut_reply")
            return job.result("partial", talk.answer, talk.summary, reason, "replies")
        if not talk.answer:
            return talk.stopped(ModelMistake("empty_reply", "notes"))
        return job.result("done", talk.answer, talk.summary)

    return summarized(run)


# ---- one call ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Call:
    """A call with a place, a chat client and a purse of its own, so it may run in parallel."""

    what: str  # the name of its step
    prompt: str
    place: Place
    backend: Backend
    chat: Chat
    purse: Purse
    temperature: float | None
    if_cut: str = (
        ""  # the message that asks again; "": a cut reply is returned as it is
    )

    def outcome(self) -> Said | Exception:
        """The reply, or the failure that ends a sub-task."""
        try:
            return self._whole_reply()
        except STOPPED as failure:
            return failure

    def _whole_reply(self) -> Said:
        """The reply; if it was cut off, the second one, with the first as `unfinished`."""
        messages = [{"role": "user", "content": self.prompt}]
        purse = self._first_purse(messages) if self.if_cut else self.purse
        try:
            first = self._reply(self.place, self.backend, messages, purse)
        finally:
            if purse is not self.purse:
                self.purse.join(purse)
        if not first.cut or not self.if_cut:
            return Said(**vars(first))
        part = "/".join(filter(None, (self.place.part, AGAIN)))
        limit = min(AGAIN_TOKENS, self.backend.max_output_tokens or AGAIN_TOKENS)
        second = self._reply(
            self.place._replace(part=part),
            replace(self.backend, max_output_tokens=limit),
            self._messages_again(first.text),
            self.purse,
        )
        cost_usd = add_usd(first.cost_usd, second.cost_usd)
        return Said(**{**vars(second), "cost_usd": cost_usd}, unfinished=first.text)

    def _reply(
        self, place: Place, backend: Backend, messages: Messages, purse: Purse
    ) -> Reply:
        with self.chat.tape.call(place):
            return self.chat(backend, messages, purse, temperature=self.temperature)

    def _messages_again(self, text: str) -> Messages:
        """The messages of the second call, after a first reply that was cut off."""
        shown = text.encode("utf-8", "replace")[-SHOWN_BYTES:].decode("utf-8", "ignore")
        if not shown.strip():  # it was still thinking
            return [{"role": "user", "content": f"{self.prompt}\n\n{self.if_cut}"}]
        return [
            {"role": "user", "content": self.prompt},
            {"role": "assistant", "content": shown},
            {"role": "user", "content": self.if_cut},
        ]

    def _first_purse(self, messages: Messages) -> Purse:
        """The purse of the first call: it leaves the most that the second one can cost, unless it
        would then hold less than that itself. An unknown cost counts as 0.
        """
        left_usd = self.purse.left_usd
        if left_usd is None:
            return Purse()
        rest_usd = left_usd - self._cost_usd(self._messages_again("x" * SHOWN_BYTES))
        return Purse(rest_usd if rest_usd >= self._cost_usd(messages) else left_usd)

    def _cost_usd(self, messages: Messages) -> float:
        """The most that a call can cost whose reply is as long as a second one."""
        read = input_token_bound(self.backend, messages, {}) + FIELD_TOKENS
        return self.backend.cost_usd(read, AGAIN_TOKENS) or 0.0

    def step(self, outcome: Said | Exception) -> Step:
        """The call as a step of its sub-agent, with both replies if it was asked again."""
        failed = isinstance(outcome, Exception)
        text = str(outcome) if isinstance(outcome, Exception) else outcome.text
        if isinstance(outcome, Said) and outcome.unfinished is not None:
            text = say(
                "notes",
                "asked_again",
                text=closed(outcome.unfinished),
                again=outcome.text,
            )
        return Step(self.what, {}, "", text, failed)
