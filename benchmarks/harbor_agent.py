"""AOrchestra with mini-SWE sub-agents as an agent of Harbor, the harness of Terminal-Bench, which also
has SWE-bench Verified (docs/harness.md):

    harbor run -p TASK --agent benchmarks.harbor_agent:HarborAgent --ak backends=pool.toml

This program calls the models; only commands of sub-agents run in the container of the task. The run
is in `agent/run` of the trial, and replays without a container:

    orchestra-min replay RUN --method orchestra.coding.at_shell:AtShell \
        --agent benchmarks.harbor_agent:at_work
"""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from pathlib import Path

from harbor.agents.base import BaseAgent
from harbor.models.agent.context import AgentContext

import orchestra
from orchestra.coding import mini_swe
from orchestra.coding.at_shell import AtShell
from orchestra.command import pool_file
from orchestra.command.redact import Redact
from orchestra.kernel.folder import Options
from orchestra.kernel.vocabulary import ConfigError
from orchestra.tools import execution
from orchestra_min import orchestrate

METHOD = "orchestra.coding.at_shell:AtShell"  # sub-agents have a shell and no tools
AGENT = "benchmarks.harbor_agent:at_work"
GRACE_S = 30.0  # after a command's limit, for an environment that does not keep it


class ContainerShell:
    """A mini-SWE sub-agent whose shell is in a container of Harbor; a replay needs none."""

    def __init__(self, environment=None, loop=None, timeout_s=120):
        self.environment = environment
        self.loop = loop  # of Harbor, where the environment is used
        self.timeout_s = timeout_s

    def run(self, job):
        return mini_swe.run_at(self.execute, job)

    def execute(self, env, command):
        if self.environment is None:
            raise ConfigError("the container of this run is gone; begin a new trial")
        begun = self.environment.exec(command, timeout_sec=self.timeout_s)
        future = asyncio.run_coroutine_threadsafe(begun, self.loop)
        try:
            done = future.result(self.timeout_s + GRACE_S)
        except (TimeoutError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and "timed out" not in str(error):
                raise
            return execution.observed("", "timeout", 0, self.timeout_s)
        output = f"{done.stdout or ''}{done.stderr or ''}".rstrip()
        return execution.observed(output, "end", done.return_code, self.timeout_s)


def at_work(job):
    """The sub-agent of a replay."""
    return ContainerShell().run(job)


class HarborAgent(BaseAgent):
    """`backends`: a pool file; `-m`: its main agent; `budget`: of a trial; `command_timeout`: in s."""

    def __init__(self, logs_dir, backends="", budget=None, command_timeout=120, **more):
        super().__init__(logs_dir, **more)
        file = Path(backends) if backends else None
        self.pool = pool_file.choose(file, self.model_name)
        pool_file.check(self.pool, budget, Redact(pool_file.keys_of([self.pool])))
        self.budget_usd = budget
        self.timeout_s = command_timeout

    @staticmethod
    def name():
        return "orchestra-min"

    def version(self):
        return orchestra.__version__

    async def setup(self, environment) -> None:
        pass

    async def run(self, instruction, environment, context: AgentContext) -> None:
        shell = ContainerShell(environment, asyncio.get_running_loop(), self.timeout_s)
        options = Options(method=METHOD, agent=AGENT, budget_usd=self.budget_usd)
        cancelled = threading.Event()
        how = {"pool": self.pool, "options": options, "cancelled": cancelled}
        how |= {"method": AtShell, "agents": {AGENT: shell.run}}
        run = partial(orchestrate, instruction, out=self.logs_dir / "run", **how)
        try:
            done = await asyncio.to_thread(run)
        finally:
            cancelled.set()  # Harbor stops an agent that takes too long
        context.cost_usd = done.cost_usd
        context.metadata = {"state": done.state, "answer": done.answer}
