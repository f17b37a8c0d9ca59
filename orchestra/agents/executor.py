"""Z_t = AsyncExecute(u_1, ..., u_K): every sub-task has its own thread and environment (Eq. 13-15).

`SubAgents.execute` starts each sub-task as soon as its needs have ended and returns the results in
submission order. `SubTask.agent` names the sub-agent: one of AGENTS, or the user's own Python.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from orchestra import contracts
from orchestra.agents import experts, mini_swe, react, reasoning
from orchestra.agents.job import AgentFunction, Job, guarded
from orchestra.agents.own_texts import with_trace_summary
from orchestra.matching import Placed
from orchestra.memory import opened
from orchestra.runtime import user_code
from orchestra.runtime.chat import Chat
from orchestra.runtime.options import METHODS_OF_AGENT, Options
from orchestra.runtime.pool import Pool
from orchestra.runtime.prompts import quoted_whole, say
from orchestra.runtime.tape import Tape
from orchestra.runtime.texts import Texts
from orchestra.runtime.trajectory import LAST, Recorder
from orchestra.runtime.what_if import Replaced
from orchestra.seams import SubAgent
from orchestra.toolkit import Environment, Tool
from orchestra.tools import sandbox
from orchestra.tools.media import ENGINES
from orchestra.vocabulary import (
    ConfigError,
    EndOfRun,
    EndpointError,
    Place,
    Result,
    Step,
    SubTask,
    Task,
)

AGENTS: dict[str, AgentFunction] = {  # by SubTask.agent
    "react": react.run,
    "single": react.run,
    "mini-swe": mini_swe.run,
    "read-file": experts.read_file,
    "cot": reasoning.cot,
    "sc": reasoning.self_consistency,
    "debate": reasoning.debate,
    "reflexion": reasoning.reflexion,
    "search-loop": reasoning.search,
    "answer": experts.answer,
    "answer-unlabelled": experts.answer_unlabelled,
    "enhance_reasoning": experts.enhance_reasoning,
    "search": experts.search,
}
INSERT = re.compile(r"\$\{([\w:]+)\}")
# A Ctrl-C that comes just before the main thread begins to wait does not wake it (CPython).
WAKE_S = 0.5
GRACE_S = 3.0  # after an interrupt, for calls in flight to be recorded
Ended = SimpleQueue[tuple[Place, Result | BaseException]]


@dataclass
class SubAgents:
    """The sub-agents of a run, and their threads. `chat`, `tape` and `recorder` are the run's."""

    task: Task
    options: Options
    pool: Pool
    tools: Mapping[str, Tool]
    chat: Chat
    tape: Tape
    recorder: Recorder
    repo: Path | None = None  # --workdir
    threads: int | None = None  # --parallel by default
    replaced: Replaced = field(default_factory=lambda: Replaced({}))  # --what-if

    def __post_init__(self) -> None:
        """Raises ConfigError if the run's own sub-agent cannot be used."""
        threads = self.threads or self.options.parallel
        self.executor = ThreadPoolExecutor(threads, thread_name_prefix="sub-agent")
        self._chats: list[Chat] = []  # of the sub-tasks that work now
        self._agents: dict[str, AgentFunction] = dict(AGENTS)
        default = user_code.name_of(self.options.agent)
        selectable = {name: AGENTS[name] for name in METHODS_OF_AGENT}
        self._agents[default] = _chosen(self.options.agent, selectable, "--agent")
        self.texts = Texts(self.options.texts) if self.options.texts else None

    @property
    def names(self) -> tuple[str, ...]:
        """The sub-agents that the program ships, and the run's own."""
        return tuple(self._agents)

    def execute(
        self, t: int, placed: Sequence[Placed], shared_context: str = ""
    ) -> list[Result]:
        """Z_t, Eq. 15: in parallel, the results in submission order. `shared_context` is what each
        sub-agent reads next to its own context.

        In a graph, a node starts when the last of its needs has ended, so the graph takes the time
        of its critical path. A node that needs a failed one reads its error. Raises ConfigError
        before the first one starts if a sub-task names an unknown sub-agent or tool.
        """
        for p in placed:
            self._check(p.subtask)
        ended: dict[str, Result] = {}  # by sub-task
        running: dict[Place, str] = {}
        just_ended: Ended = SimpleQueue()  # an interrupt leaves no lock of it locked
        waiting = {Place(t, j): p for j, p in enumerate(placed, 1)}
        while waiting or running:
            for place in _startable(waiting, running.values()):
                p = waiting.pop(place)
                u = insert_outputs(p.subtask, ended)
                running[place] = u.id
                p = self._recorded(place, replace(p, subtask=u), shared_context)
                self.executor.submit(self._run, place, p, just_ended)
            with suppress(Empty):
                place, z = just_ended.get(timeout=WAKE_S)
                if isinstance(z, BaseException):
                    raise z
                ended[running.pop(place)] = z
        self._learn_refused_media()
        return [ended[p.subtask.id] for p in placed]

    def _learn_refused_media(self) -> None:
        """Later sub-tasks do not send again what an endpoint takes from none."""
        for chat in self._chats:
            media = {refused for refused in chat.refused if refused[1] in ENGINES}
            self.chat.refused.update(media)
        self._chats.clear()

    def _recorded(self, place: Place, p: Placed, shared_context: str) -> Placed:
        """Record the sub-task as it was placed, and add the shared context to it."""
        u = p.subtask
        self.recorder.emit(
            "subtask", place, subtask=vars(u), share_usd=p.purse.limit_usd
        )
        contexts = [text for text in (u.context, shared_context) if text]
        return replace(p, subtask=replace(u, context="\n\n".join(contexts)))

    def _run(self, place: Place, p: Placed, just_ended: Ended) -> None:
        try:
            just_ended.put((place, self._result(place, p)))
        except BaseException as error:  # raised again where the run waits for it
            just_ended.put((place, error))

    def _result(self, place: Place, p: Placed) -> Result:
        """zeta and z of a sub-task, Eq. 13-14."""
        if place in self.replaced.results:
            z = replace(self.replaced.results[place], round=place.round)
            self._record(place, p.subtask, z, what_if=True)
            return z
        started = time.monotonic()
        env = self._environment(place, p)

        def on_step(number: int, step: Step) -> None:
            at = place._replace(step=number)
            row = {**vars(step), "spent_usd": env.purse.spent_usd}
            if at in self.replaced.observations:
                row["what_if"] = True
            self.recorder.emit("step", at, **row)

        job = Job(
            u=p.subtask,
            env=env,
            tools=self.tools,
            place=place,
            steps=self.options.steps,
            on_step=on_step,
            replaced=self.replaced.observations,
        )
        run = self.agent(p.subtask)
        flag = f"agent {p.subtask.agent} of sub-task {p.subtask.id}"
        try:
            z = contracts.result(run(job), flag)
        except EndpointError as failure:  # of an agent alone: it ends the run
            found = job.so_far(failure)
            if found is not None:
                self._record(place, p.subtask, self._measured(found, place, started))
            raise
        z = self._measured(with_trace_summary(job, z), place, started)
        self._record(place, p.subtask, z)
        return z

    def _measured(self, z: Result, place: Place, started: float) -> Result:
        """z with its time, its media and its round. `started`: by the monotonic clock, in s."""
        return replace(
            z,
            latency_s=time.monotonic() - started,
            media=opened(z, self.task),
            round=place.round,
        )

    def _record(self, place: Place, u: SubTask, z: Result, **more: Any) -> None:
        if z.trace_summary:
            more["trace_summary"] = z.trace_summary
        self.recorder.emit(
            "result",
            place._replace(step=LAST),
            {"latency_s": z.latency_s},
            status=z.status,
            answer=z.answer,
            summary=z.summary,
            cost_usd=z.cost_usd,
            error=z.error,
            cause=z.cause,
            media=z.media,
            steps=z.steps,
            subtask=u.id,
            **more,
        )

    def _environment(self, place: Place, p: Placed) -> Environment:
        """What one sub-agent can access. Parallel sub-tasks share no mutable state."""
        chat = self.chat.copy()
        self._chats.append(chat)
        return Environment(
            task=self.task,
            backend=p.backend,
            pool=self.pool,
            chat=chat,
            tape=self.tape,
            purse=p.purse,
            folder=self.tape.path.parent / "work" / place.folder,
            allow_hosts=self.options.allow_hosts,
            unsafe_code=self.options.unsafe_code,
            repo=self.repo,
            texts=self.texts,
        )

    def agent(self, u: SubTask) -> AgentFunction:
        """The sub-agent that does a sub-task. Raises ConfigError if there is none of this name."""
        if u.agent not in self._agents:
            self._agents[u.agent] = _chosen(u.agent, AGENTS, f"sub-task {u.id}: agent")
        return self._agents[u.agent]

    def _check(self, u: SubTask) -> None:
        """Raises ConfigError if a sub-task names a sub-agent or a tool that does not exist."""
        self.agent(u)
        for name in u.tools or ():
            if name not in self.tools:
                known = ", ".join(self.tools)
                raise ConfigError(
                    f"sub-task {u.id}: {name!r} is not a tool of this run; it has {known}"
                )

    def interrupt(self, error: BaseException) -> None:
        """Start no further sub-task, and wait until the calls in flight are on the tape: they are
        paid for. An interrupt does not wait long.
        """
        self.executor.shutdown(wait=False, cancel_futures=True)
        if isinstance(error, KeyboardInterrupt | EndOfRun):
            self.tape.wait_for_calls(GRACE_S)
            return
        if self.tape.in_flight:
            self.recorder.notify("an error; waiting for the calls in flight")
        self.tape.wait_for_calls(self.options.timeout_s)


def _startable(waiting: Mapping[Place, Placed], running: Iterable[str]) -> list[Place]:
    """The waiting sub-tasks that need no other one that is waiting or running."""
    unended = set(running)
    unended.update(p.subtask.id for p in waiting.values())
    found = []
    for place, p in waiting.items():
        if unended.isdisjoint(p.subtask.needs):
            found.append(place)
    return found


def _chosen(
    name: object, shipped: Mapping[str, AgentFunction], flag: str
) -> AgentFunction:
    """The sub-agent that an option or a SubTask names. Raises ConfigError."""
    if isinstance(name, str) and name in shipped:
        return shipped[name]
    found: SubAgent = user_code.chosen(name, shipped, SubAgent, flag)
    return guarded(found.run)


def shared(context: str, question: str) -> str:
    """What sub-agents read next to the context written for them: C_t, and the question (App. B.3).
    The question is "" for small models, which would answer it instead of their task.
    """
    texts = []
    if context:
        texts.append(say("notes", "found", context=quoted_whole(context)))
    if question:
        texts.append(say("notes", "whole_question", question=question))
    return "\n\n".join(texts)


def insert_outputs(u: SubTask, ended: Mapping[str, Result]) -> SubTask:
    """`u` with each ${id} replaced by the output of its need `id`. A ${id} inside an output is not
    replaced.
    """
    outputs = {id: _output(id, ended[id]) for id in u.needs if id in ended}

    def insert(text: str) -> str:
        return INSERT.sub(lambda found: outputs.get(found[1], found[0]), text)

    return replace(u, instruction=insert(u.instruction), context=insert(u.context))


def _output(id: str, z: Result) -> str:
    """Summary and answer. (The summary of a reasoning agent is its whole reply.)"""
    if z.summary and z.error and not z.answer:
        return say("notes", "partial_need", id=id, error=z.error, summary=z.summary)
    text = z.summary if z.answer in z.summary else f"{z.summary}\n{z.answer}".strip()
    return text or say("notes", "failed_need", id=id, error=z.error)


def runs_code(options: Options) -> bool:
    """Whether code of models can run on this machine. Raises ConfigError if it cannot but must."""
    if options.unsafe_code or not sandbox.trouble():
        return True
    if options.agent == "mini-swe":
        raise ConfigError(f"--agent mini-swe: {sandbox.missing()}")
    warn = logging.getLogger("orchestra").warning
    warn("the code tool is not offered: %s", sandbox.missing())
    return False
