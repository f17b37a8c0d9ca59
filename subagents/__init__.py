"""The sub-agents of a run: each sub-task in a thread and an environment of its own (Eq. 13-15).

A style of executor is one function `run(u, env, tools, call, steps, on_step) -> Result`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import asdict, replace

from orchestra.schedule import Placed
from orchestra.trajectory import LAST, Recorder
from orchestra.vocabulary import Result, Step
from subagents import react
from tools import Environment, Tool

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
            allowance = p.purse.limit_usd
            row = asdict(p.subtask)
            self.recorder.emit("subtask", (t, j, 0), subtask=row, allowance_usd=allowance)
        self.in_flight = [self.executor.submit(self._one, t, j, p) for j, p in enumerate(placed, 1)]
        ended, _ = wait(self.in_flight, return_when=FIRST_EXCEPTION)
        for future in ended:
            future.result()  # what ends the run ends it now
        return [future.result() for future in self.in_flight]

    def _one(self, t: int, j: int, p: Placed) -> Result:
        """zeta and z of sub-task j, Eq. 13-14."""
        started = time.monotonic()
        id = p.subtask.id

        def on_step(number: int, step: Step) -> None:
            self.recorder.emit("step", (t, j, number), subtask=id, **asdict(step))

        env = self.environment(p, f"r{t}-t{j}")
        z = react.run(p.subtask, env, self.tools, (f"r{t}", f"t{j}"), self.steps, on_step)
        z = replace(z, latency_s=time.monotonic() - started)
        content = {k: v for k, v in asdict(z).items() if k not in ("trace", "latency_s")}
        timing = {"latency_s": z.latency_s}
        self.recorder.emit("result", (t, j, LAST), timing, subtask=id, **content)
        return z

    def interrupt(self) -> None:
        """Let the calls in flight reach the tape for a moment; wait for none after it."""
        wait(self.in_flight, timeout=GRACE_S)
        self.executor.shutdown(wait=False, cancel_futures=True)
