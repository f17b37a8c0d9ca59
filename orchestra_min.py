#!/usr/bin/env python3
"""Orchestra-o1 over one small kernel: Algorithm 1, and the command line around it. Read this first.

    python orchestra_min.py --question "What is the UTC time?" --image clock.png --audio speech.wav
    python orchestra_min.py --replay fixtures/runs/equinox

As a library:

    from orchestra_min import orchestrate
    trajectory = orchestrate("Which city is this?", [("image", "clock.png")])
    print(trajectory.answer, trajectory.cost_usd, trajectory.run)
"""

from __future__ import annotations

import gc
import signal

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # nothing to keep yet: end at once
    gc.disable()  # what is imported stays: to look through it takes a tenth of the start
    from orchestra.command_line import parse

    ARGUMENTS = parse()  # --help and usage errors answer before the heavy imports

import contextlib
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import orchestrators
from orchestra import comparison, console, openings, run_folder, trajectory
from orchestra.backends import Chat
from orchestra.log import Log
from orchestra.main_agent import MainAgent
from orchestra.matching import Placed, decision_reserve_usd, place, place_whole
from orchestra.memory import best_supported_answer, compress, summarize
from orchestra.money import Ledger
from orchestra.pool import Pool
from orchestra.replay import Mode, Tape, TapeMiss, TapeWriteError
from orchestra.run_folder import Manifest, Options
from orchestra.schedule import Graph, refine, waiting
from orchestra.trajectory import Listener, Recorder, Trajectory
from orchestra.trust import Named
from orchestra.turns import long_turns
from orchestra.vocabulary import (
    BudgetExceeded,
    Complete,
    ConfigError,
    Decision,
    Delegate,
    EndpointError,
    Evidence,
    Modality,
    ModelMistake,
    Result,
    State,
)
from subagents import SubAgents
from tools import Environment, Tool, all_tools, engines, tools_for
from tools.own import own_tools


class Run:
    """Algorithm 1 of arXiv 2606.13707 on one task."""

    def __init__(
        self,
        manifest: Manifest,
        tape: Tape,
        recorder: Recorder,
        folder: Path,
        threads: int,
        own: Mapping[str, Tool],
    ) -> None:
        self.task, self.pool, self.options = manifest.task, manifest.pool, manifest.options
        self.tape, self.folder, self.chat = tape, folder, Chat(tape, self.options.timeout_s)
        self.tools = {**tools_for(self.task), **own}
        self.graph = Graph()  # G_t
        self.history: tuple[Evidence, ...] = ()  # H_t
        self.context = ""  # C_t
        self.ledger = Ledger(self.options.budget_usd)  # B_t
        self.why = ""  # what ended the run before its time
        self.orchestrator = orchestrators.make(self.options, self.pool, self.tools)
        once = self.orchestrator.rounds == 1  # the method decides once, whatever is asked for
        self.rounds = 1 if once else self.options.rounds or self.orchestrator.rounds
        self.main = MainAgent(self.orchestrator, self.pool, self.chat, self.ledger, recorder)
        self.sub_agents = SubAgents(
            self.environment, self.tools, recorder, self.options.steps, threads
        )

    def answer(self) -> tuple[str, bool, int]:
        """Algorithm 1: the answer, whether it is a fallback, and the rounds it took."""
        t = 0
        try:
            for t in range(1, self.rounds + 1):
                y_t = self.main.decide(self.state(t), self.refine)  # Eq. 1-3
                if isinstance(y_t, Complete):
                    return y_t.answer, False, t
                z_t = self.carry_out(t, y_t)  # Eq. 5-21
                if y_t.drain and z_t[-1].answer:
                    return z_t[-1].answer, bool(y_t.fallback) or z_t[-1].status == "blocked", t
            y_t = self.main.decide(self.state(t + 1), self.refine, last_chance=True)
            if isinstance(y_t, Complete):
                return y_t.answer, True, t
            z_t = self.carry_out(t + 1, y_t)
            return z_t[-1].answer or best_supported_answer(self.history), True, t
        except ModelMistake:  # no usable decision
            return best_supported_answer(self.history), True, t
        except BudgetExceeded as error:
            self.why = f"the money ended: {error}"
            return best_supported_answer(self.history), True, t

    def state(self, t: int) -> State:
        """s_t, Eq. 1 and 21."""
        return State(
            task=self.task,
            context=self.context,
            history=self.history,
            backends=self.pool.names,
            tools=tuple(self.tools),
            round=t,
            rounds=self.rounds,
            budget_usd=self.ledger.budget_usd,
            waiting=waiting(self.graph),
        )

    def refine(self, y_t: Decision) -> None:
        """G_{t+1}. Raises ModelMistake for an impossible graph."""
        if isinstance(y_t, Delegate):
            self.graph = refine(self.graph, y_t)

    def carry_out(self, t: int, y_t: Delegate) -> list[Result]:
        """Z_t of what was delegated: a batch of the ready set, or a whole graph by dataflow."""
        u_t = self.place(y_t)  # Eq. 5-12
        run = self.sub_agents.drain if y_t.drain else self.sub_agents.execute
        z_t = run(t, u_t)  # Eq. 13-15
        self.remember(t, u_t, z_t)  # Eq. 19-21
        return z_t

    def place(self, y_t: Delegate) -> list[Placed]:
        """U_t, Eq. 12: the batch of the ready set, with backends, tools and shares of the money."""
        left = self.ledger.budget_usd
        if left is not None:
            left -= decision_reserve_usd(self.pool[self.pool.main], left)
        capabilities = {name: tool.capabilities for name, tool in self.tools.items()}
        backends, k_max = self.pool.candidates(y_t.subtasks), self.options.parallel
        if y_t.drain:
            return place_whole(y_t.subtasks, self.task, backends, capabilities, left)
        found = self.context if self.orchestrator.shares_context else ""
        return place(self.graph, self.task, backends, capabilities, k_max, left, found)

    def environment(self, placed: Placed, name: str) -> Environment:
        folder = self.folder / "work" / name
        return Environment(
            self.task, placed.backend, self.pool, self.chat, self.tape, placed.purse, folder,
            self.options.allow_hosts,
        )  # fmt: skip

    def remember(self, t: int, u_t: Sequence[Placed], z_t: Sequence[Result]) -> None:
        """H_{t+1}, C_{t+1} and B_{t+1}, in submission order."""
        for p, z in zip(u_t, z_t, strict=True):
            self.graph = self.graph.with_result(p.subtask.id, z)
            self.history += (summarize(t, p.subtask, z, self.task),)  # Eq. 19
            self.ledger.book(p.purse)  # Eq. 21
        self.context = compress(self.task.question, self.history, self.options.context_tokens)


# ---- a run, from its folder and back -------------------------------------------------------------

NOTHING = Named()


def orchestrate(
    question: str,
    media: Sequence[tuple[Modality, str | Path]] = (),
    pool: Pool | None = None,
    options: Options | None = None,
    out: str | Path | None = None,
    listeners: Sequence[Listener] = (),
    workdir: str | Path | None = None,
    cancelled: threading.Event | None = None,
) -> Trajectory:
    """Answer a question, recording everything into the folder `out` (runs/<time> by default).

    `pool` None: from OPENAI_BASE_URL and OPENAI_API_KEY. `workdir`: a repository that mini-SWE
    sub-agents change a copy of; `out`/changes.diff is what they changed. `cancelled`, once set by
    another thread, lets no further call start and ends the run with Cancelled. Raises ConfigError
    before anything is paid, EndpointError when the main agent's endpoint fails, TapeWriteError when
    the disk is full; the folder then holds all that was paid for.
    """
    pool, options = openings.asked(pool, options, workdir, bool(media))
    engines.check([modality for modality, _ in media], pool)
    with openings.new(question, media, pool, options, out, workdir) as (folder, manifest):
        return _run(folder, manifest, "record", None, listeners, cancelled)


def compare(
    methods: Sequence[str],
    question: str,
    media: Sequence[tuple[Modality, str | Path]] = (),
    pool: Pool | None = None,
    options: Options | None = None,
    out: str | Path | None = None,
    workdir: str | Path | None = None,
    side_by_side: bool = False,
) -> dict[str, Trajectory | EndpointError]:
    """The question by each method, in turn or side by side, each in its own folder under `out`.

    Each has the whole budget: with a share of it, none would be measured at what it can do. One
    whose endpoint fails, fails alone. Raises as `orchestrate` does otherwise; what was finished is
    in comparison.Interrupted (Ctrl-C) and comparison.Misconfigured (a ConfigError).
    """
    pool, options = openings.asked(pool, options, workdir, bool(media))
    for method in methods:  # what one of them can not do is said before anything is paid
        orchestrators.make(replace(options, method=method), pool, all_tools())
    folder = Path(out) if out else run_folder.default_path()
    was_there = folder.exists()
    run_folder.create(folder)

    def one(method: str, cancelled: threading.Event) -> Trajectory:
        own, at = replace(options, method=method), folder / method
        code = workdir if method == "aorchestra" else None
        return orchestrate(question, media, pool, own, at, (), code, cancelled)

    try:
        return comparison.run(methods, one, side_by_side)
    finally:
        if not was_there:
            with contextlib.suppress(OSError):  # some run is in it
                folder.rmdir()


def replay(
    folder: str | Path,
    parallel: int | None = None,
    listeners: Sequence[Listener] = (),
    named: Named = NOTHING,
) -> Trajectory:
    """The same run again from its tape, without network; `named`: the user's own tools of the run.

    Raises TapeMiss where anything differs, ConfigError where a stranger's tool is not named.
    """
    folder = Path(folder)
    with openings.played(folder, named) as (manifest, recorded):
        again = _run(folder, manifest, "replay", parallel, listeners)
    if recorded and (difference := trajectory.first_difference(recorded, again.events)):
        raise TapeMiss(f"{folder}: the replay differs from the record: {difference}")
    return again


def resume(
    folder: str | Path,
    parallel: int | None = None,
    timeout_s: float | None = None,
    from_round: int | None = None,
    out: str | Path | None = None,
    listeners: Sequence[Listener] = (),
    named: Named = NOTHING,
) -> Trajectory:
    """Go on with a run, paying only for what its tape does not hold.

    With `from_round`: in the new folder `out`, which keeps the rounds before it. `named`: the
    user's own tools, servers, hosts and keys in the run. Raises as `orchestrate` does, and
    ConfigError where one of them in a stranger's run is not named.
    """
    opened = openings.resumed(Path(folder), from_round, out, timeout_s, named)
    with opened as (at, manifest):
        engines.check([m.modality for m in manifest.task.media], manifest.pool)
        return _run(at, manifest, "resume", parallel, listeners)


def _run(
    folder: Path,
    manifest: Manifest,
    mode: Mode,
    threads: int | None,
    listeners: Sequence[Listener],
    cancelled: threading.Event | None = None,
) -> Trajectory:
    with contextlib.ExitStack() as stack:
        threads = threads or manifest.options.parallel
        stack.enter_context(long_turns(threads))
        tape = Tape(folder / "tape.jsonl", mode, cancelled)
        stack.callback(tape.close)
        file = None
        if mode != "replay":
            file, log = folder / "trajectory.jsonl", Log(folder / "log.txt")
            stack.callback(log.close)
            listeners = (log, *listeners)
        recorder = Recorder(file, tuple(listeners))
        stack.callback(recorder.close)
        recorder.emit("run", (0,), **run_folder.stored_row(folder))
        own = stack.enter_context(own_tools(manifest.options.tools, manifest.options.mcp, tape))
        run = Run(manifest, tape, recorder, folder, threads, own)
        try:
            answer, fallback, rounds = run.answer()
        except BaseException:
            tape.cancelled.set()  # start no further call
            run.sub_agents.interrupt()
            raise
        run.sub_agents.executor.shutdown()
        return recorder.end(folder, answer, fallback, rounds, run.ledger, run.why)


# ---- the command line ----------------------------------------------------------------------------

EXIT_CODES: dict[type[BaseException], int] = {
    ConfigError: 2,
    TapeWriteError: 2,
    TapeMiss: 3,
    EndpointError: 4,
    KeyboardInterrupt: 130,
}


def main(arguments: Any) -> int:
    """Run one command. Returns the exit code; see --help."""
    gc.freeze()
    gc.enable()
    for stop in (signal.SIGINT, signal.SIGTERM):  # both end what the run started, MCP servers too
        signal.signal(stop, signal.default_int_handler)
    console.open_streams()
    a = arguments
    stored = a.resume or a.replay
    folder = stored if stored and not a.from_round else a.out or run_folder.default_path()
    try:
        if a.compare:
            asked = console.asked(a)
            results = compare(a.compare, *asked, folder, a.workdir, a.side_by_side)
            return console.report_all(results, folder, a)
        with console.listeners(a) as shown:
            if a.replay:
                result = replay(folder, a.parallel, shown, console.named(a))
            elif a.resume:
                how = a.parallel, a.timeout, a.from_round, folder, shown, console.named(a)
                result = resume(stored, *how)
            else:
                result = orchestrate(*console.asked(a), folder, shown, a.workdir)
        return console.report(result, a)
    except tuple(EXIT_CODES) as error:
        partly = comparison.Interrupted | comparison.Misconfigured
        if isinstance(error, partly) and error.finished:
            console.report_all(error.finished, folder, a)
        console.tell(f"orchestra_min.py: {console.failure(error, folder, a)}")
        return next(code for kind, code in EXIT_CODES.items() if isinstance(error, kind))


if __name__ == "__main__":
    status = main(ARGUMENTS)
    os._exit(status)  # threads that wait for an endpoint must not hold the exit
