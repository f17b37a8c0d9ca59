"""The sub-agents of a run: each sub-task in a thread and an environment of its own (Eq. 13-15).

A style of executor is one function `run(u, env, tools, call, steps, on_step) -> Result`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import asdict, replace

from orchestra.matching import Placed
from orchestra.prompts import say
from orchestra.trajectory import LAST, Recorder, plain
from orchestra.vocabulary import Result, Step, SubTask
from subagents import experts, mini_swe, react, reasoning
from subagents.executor import Run
from tools import Environment, Tool

STYLES: dict[str, Run] = {
    "react": react.run,
    "single": react.run,
    "mini-swe": mini_swe.run,
    "look": experts.look,
    "cot": reasoning.cot,
    "sc": reasoning.self_consistency,
    "debate": reasoning.debate,
    "reflexion": reasoning.reflexion,
    "search-loop": reasoning.search,
    "answer": experts.answer,
    "enhance_reasoning": experts.enhance_reasoning,
    "search": experts.search,
    "worker": experts.worker,
    "search-worker": experts.search_worker,
}  # by SubTask.agent
GRACE_S = 1.0  # after an interrupt: how long calls in flight may still reach the tape


class SubAgents:
    """The thread pool of a run. `environment(placed, name)` makes the environment of a sub-task."""

    def __init__(
        self,
        environment: Callable[[Placed, str], Environment],
        tools: Mapping[str, Tool],
        recorder: Recorder,
        steps: int,
        threads: int,
    ) -> None:
        self.environment, self.tools, self.recorder = environment, tools, recorder
        self.steps = steps
        self.executor = ThreadPoolExecutor(threads, thread_name_prefix="sub-agent")
        self.in_flight: list[Future[Result]] = []

    def execute(self, t: int, placed: Sequence[Placed]) -> list[Result]:
        """Z_t = AsyncExecute(u_1, ..., u_K), Eq. 15: side by side, results in submission order."""
        for j, p in enumerate(placed, 1):
            self._announce(t, j, p)
        self.in_flight = [self.executor.submit(self._one, t, j, p) for j, p in enumerate(placed, 1)]
        ended, _ = wait(self.in_flight, return_when=FIRST_EXCEPTION)
        for future in ended:
            future.result()  # what ends the run ends it now
        return [future.result() for future in self.in_flight]

    def drain(self, t: int, placed: Sequence[Placed]) -> list[Result]:
        """Z_t of a whole graph by dataflow: a node starts the moment its last need has ended, so
        the graph takes its critical path. A failed node's dependants see its error.
        """
        ended: dict[str, Result] = {}
        running: dict[Future[Result], str] = {}
        unstarted = dict(enumerate(placed, 1))
        while unstarted or running:
            for j, p in list(unstarted.items()):
                if ended.keys() >= set(p.subtask.needs):
                    ready = replace(unstarted.pop(j), subtask=insert_answers(p.subtask, ended))
                    self._announce(t, j, ready)
                    running[self.executor.submit(self._one, t, j, ready)] = p.subtask.id
            self.in_flight = list(running)
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                ended[running.pop(future)] = future.result()
        return [ended[p.subtask.id] for p in placed]

    def _announce(self, t: int, j: int, p: Placed) -> None:
        row = asdict(p.subtask, dict_factory=plain)
        self.recorder.emit("subtask", (t, j, 0), subtask=row, allowance_usd=p.purse.limit_usd)

    def _one(self, t: int, j: int, p: Placed) -> Result:
        """zeta and z of sub-task j, Eq. 13-14."""
        started = time.monotonic()
        id = p.subtask.id

        def on_step(number: int, step: Step) -> None:
            self.recorder.emit("step", (t, j, number), subtask=id, **asdict(step))

        env = self.environment(p, f"r{t}-t{j}")
        run = STYLES[p.subtask.agent]
        z = run(p.subtask, env, self.tools, (f"r{t}", f"t{j}"), self.steps, on_step)
        z = replace(z, latency_s=time.monotonic() - started)
        content = {k: v for k, v in asdict(z).items() if k not in ("trace", "latency_s")}
        timing = {"latency_s": z.latency_s}
        self.recorder.emit("result", (t, j, LAST), timing, subtask=id, **content)
        return z

    def interrupt(self) -> None:
        """Let the calls in flight reach the tape for a moment; wait for none after it."""
        wait(self.in_flight, timeout=GRACE_S)
        self.executor.shutdown(wait=False, cancel_futures=True)


def insert_answers(u: SubTask, ended: Mapping[str, Result]) -> SubTask:
    """`u` with ${id} replaced by what the need `id` answered: once, whatever an answer contains."""

    def outcome(z: Result, id: str) -> str:
        return z.answer or z.summary or say("notes", "failed_need", id=id, error=z.error)

    said = {id: outcome(ended[id], id) for id in u.needs}
    inserted = re.sub(r"\$\{([\w:]+)\}", lambda found: said.get(found[1], found[0]), u.instruction)
    return replace(u, instruction=inserted)
