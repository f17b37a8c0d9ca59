"""The sub-agents of a run: each sub-task has its own thread and environment (Eq. 13-15).

A style of executor is one function `run(job) -> Result`.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import partial

from orchestra.agents import experts, mini_swe, react, reasoning
from orchestra.agents.job import Job, Style
from orchestra.matching import Placed
from orchestra.memory import opened
from orchestra.runtime.options import Options
from orchestra.runtime.prompts import quoted_whole, say
from orchestra.runtime.trajectory import LAST, Recorder
from orchestra.toolkit import Environment, Tool
from orchestra.tools import sandbox
from orchestra.vocabulary import ConfigError, Result, Step, SubTask, Task

STYLES: dict[str, Style] = {  # by SubTask.agent
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
    "enhance_reasoning": experts.enhance_reasoning,
    "search": experts.search,
}
GRACE_S = 1.0  # after an interrupt, for running calls to be recorded


@dataclass
class SubAgents:
    """The thread pool of a run. `environment(placed, name)` makes the environment of a sub-task."""

    task: Task
    options: Options
    environment: Callable[[Placed, str], Environment]
    tools: Mapping[str, Tool]
    recorder: Recorder
    threads: int | None

    def __post_init__(self) -> None:
        threads = self.threads or self.options.parallel
        self.executor = ThreadPoolExecutor(threads, thread_name_prefix="sub-agent")
        self.in_flight: list[Future[Result]] = []

    def execute(
        self, t: int, placed: Sequence[Placed], shared_context: str = ""
    ) -> list[Result]:
        """Z_t = AsyncExecute(u_1, ..., u_K), Eq. 15: in parallel, results in submission order.
        `shared_context`: what each of them reads next to its own context.

        In a graph, a node starts when the last of its needs has ended, so the graph takes the time
        of its critical path. A node that needs a failed one reads its error.
        """
        ended: dict[str, Result] = {}
        running: dict[Future[Result], str] = {}
        waiting, ids = dict(enumerate(placed, 1)), {p.subtask.id for p in placed}
        while waiting or running:
            for j, p in list(waiting.items()):
                if ended.keys() >= ids & set(p.subtask.needs):
                    ready = replace(
                        waiting.pop(j), subtask=insert_outputs(p.subtask, ended)
                    )
                    running[self._start(t, j, ready, shared_context)] = p.subtask.id
            self.in_flight = list(running)
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                ended[running.pop(future)] = future.result()
        return [ended[p.subtask.id] for p in placed]

    def _start(self, t: int, j: int, p: Placed, shared_context: str) -> Future[Result]:
        row, share_usd = vars(p.subtask), p.purse.limit_usd
        self.recorder.emit("subtask", (t, j, 0), subtask=row, share_usd=share_usd)
        context = "\n\n".join(
            part for part in (p.subtask.context, shared_context) if part
        )
        u = replace(p.subtask, context=context)
        return self.executor.submit(self._run, t, j, replace(p, subtask=u))

    def _run(self, t: int, j: int, p: Placed) -> Result:
        """zeta and z of sub-task j, Eq. 13-14."""
        started = time.monotonic()

        def on_step(number: int, step: Step) -> None:
            self.recorder.emit("step", (t, j, number), **vars(step))

        env = self.environment(p, f"r{t}-t{j}")
        job = Job(
            p.subtask, env, self.tools, (f"r{t}", f"t{j}"), self.options.steps, on_step
        )
        z = self.style(p.subtask)(job)
        z = replace(z, latency_s=time.monotonic() - started)
        row = {
            k: getattr(z, k)
            for k in ("status", "answer", "summary", "cost_usd", "error")
        }
        row |= {"media": opened(z, env.task), "subtask": p.subtask.id}
        self.recorder.emit("result", (t, j, LAST), {"latency_s": z.latency_s}, **row)
        return z

    def style(self, u: SubTask) -> Style:
        """The executor of a sub-task."""
        return STYLES[u.agent]

    def interrupt(self) -> None:
        """Give the calls in flight a moment to be recorded, and do not wait longer."""
        wait(self.in_flight, timeout=GRACE_S)
        self.executor.shutdown(wait=False, cancel_futures=True)


def class_for(o: Options) -> type[SubAgents]:
    """The class of a run's sub-agents; with MiniGAIA's facts in the options, its world's."""
    if not o.facts:
        return SubAgents
    from orchestra.evaluation.world import WorldAgents

    return WorldAgents


def shared(context: str, question: str) -> str:
    """What sub-agents read next to the context written for them: C_t, and the question (App. B.3).
    The question is "" for small models, which would answer it instead of their task.
    """
    texts = [say("notes", "found", context=quoted_whole(context))] if context else []
    texts += [say("notes", "whole_question", question=question)] if question else []
    return "\n\n".join(texts)


def insert_outputs(u: SubTask, ended: Mapping[str, Result]) -> SubTask:
    """`u` with each ${id} replaced by the output of its need `id`: summary and answer. (The summary
    of a reasoning agent is its whole reply.) A ${id} inside an output is not replaced.
    """

    def output(id: str) -> str:
        z = ended[id]
        text = (
            z.summary if z.answer in z.summary else f"{z.summary}\n{z.answer}".strip()
        )
        return text or say("notes", "failed_need", id=id, error=z.error)

    found = {id: output(id) for id in u.needs if id in ended}
    insert = partial(re.sub, r"\$\{([\w:]+)\}", lambda m: found.get(m[1], m[0]))
    return replace(u, instruction=insert(u.instruction), context=insert(u.context))


def runs_code(options: Options) -> bool:
    """Whether code of models can run on this machine. Raises ConfigError if it cannot but must."""
    if options.unsafe_code or not sandbox.trouble():
        return True
    if options.sub_agent == "mini-swe":
        raise ConfigError(f"--sub-agent mini-swe: {sandbox.missing()}")
    logging.getLogger("orchestra").warning(
        "the code tool is not offered: %s", sandbox.missing()
    )
    return False
