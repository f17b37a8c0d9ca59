#!/usr/bin/env python3
"""Orchestra-o1 over one small kernel: Algorithm 1, and the commands around it. Read this first.

    python orchestra_min.py "What is the UTC time?" --image clock.png --audio speech.wav
    python orchestra_min.py --replay fixtures/runs/equinox

As a library:

    from orchestra_min import orchestrate
    trajectory = orchestrate("Which city is this?", [("image", "clock.png")])
    print(trajectory.answer, trajectory.cost_usd, trajectory.run)
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import orchestrators
from orchestra.main_agent import Ask, decide
from orchestra.matching import Placed, decision_reserve_usd, materialize, place, with_shares
from orchestra.memory import best_supported_answer, compress, summarize
from orchestra.money import Purse, add_usd
from orchestra.schedule import Graph, refine, waiting
from orchestra.vocabulary import (
    BudgetExceeded,
    Complete,
    ConfigError,
    Decision,
    Delegate,
    EndpointError,
    Evidence,
    ModelMistake,
    Reply,
    Result,
    State,
)
from runtime import command_line, console, run_folder, trajectory
from runtime import pool as pools
from runtime.chat import Chat
from runtime.pool import Pool
from runtime.prompts import WORDING, say, told
from runtime.run_folder import Manifest, MediaRow, Options
from runtime.secrets import Secrets
from runtime.tape import Cancelled, Mode, Tape, TapeMiss, TapeWriteError
from runtime.trajectory import Listener, Recorder, Trajectory
from subagents import SubAgents
from subagents import workdir as workdirs
from tools import Environment, Tool, engines, tools_for
from tools import media as media_files
from tools.own import own_tools

Files = Sequence[Any]  # paths, or (modality, path)


class Run:
    """Algorithm 1 of arXiv 2606.13707 on one task."""

    def __init__(
        self,
        folder: Path,
        manifest: Manifest,
        tape: Tape,
        recorder: Recorder,
        threads: int,
        own: Mapping[str, Tool],
    ) -> None:
        self.task, self.options, self.folder = manifest.task(folder), manifest.options, folder
        self.tape, self.recorder = tape, recorder
        o = self.options
        self.chat = Chat(tape, o.timeout_s, o.patience_s, recorder.notify)
        backends = tuple(self.chat.with_model(b) for b in manifest.pool.backends)
        self.pool = manifest.pool.with_(backends=backends)
        self.tools = {**tools_for(self.task), **own}
        self.orchestrator = orchestrators.make(o, self.pool, self.tools)
        once = self.orchestrator.rounds == 1  # the method decides once
        self.rounds = 1 if once else o.rounds or self.orchestrator.rounds
        self.sub_agents = SubAgents(self.environment, self.tools, recorder, o.steps, threads)
        self.graph = Graph()  # G_t
        self.history: tuple[Evidence, ...] = ()  # H_t
        self.context = ""  # C_t
        self.purse = Purse(o.budget_usd)  # B_t
        self.why = ""  # what ended the run early

    def answer(self) -> tuple[str, bool, int]:
        """Algorithm 1: the answer, whether it is a fallback, and the rounds it took."""
        t = 0
        try:
            for t in range(1, self.rounds + 1):
                y_t = self.decide(t)  # Eq. 1-3
                if isinstance(y_t, Complete):
                    return y_t.answer, False, t
                z_t = self.carry_out(t, y_t)  # Eq. 5-21
                if y_t.drain and z_t[-1].answer:
                    return z_t[-1].answer, bool(y_t.fallback) or z_t[-1].status != "done", t
            y_t = self.decide(t + 1, last_chance=True)
            if isinstance(y_t, Complete):
                return y_t.answer, True, t
            z_t = self.carry_out(t + 1, y_t)
            return z_t[-1].answer or best_supported_answer(self.history), True, t
        except ModelMistake as error:
            self.why = f"no usable decision: {told(error)}"
        except BudgetExceeded as error:
            self.why = str(error)
        return best_supported_answer(self.history), True, t

    def decide(self, t: int, last_chance: bool = False) -> Decision:
        """y_t of the orchestrator, accepted into G_t and recorded."""
        state = self.state(t)
        asking, note = partial(self.asking, t), partial(self.note, state)
        return decide(self.orchestrator, state, asking, self.accept, told, note, last_chance)

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
            budget_usd=self.purse.left_usd,
            waiting=waiting(self.graph),
        )

    def asking(self, t: int, attempt: int, replies: list[Reply]) -> Ask:
        """The main agent's calls of one attempt, paid from B_t."""

        def ask(*arguments: Any, **how: Any) -> Reply:
            (messages, *rest), purse = arguments, Purse(self.purse.left_usd)
            try:
                with self.tape.call(f"r{t}", "main", f"a{attempt}"):
                    replies.append(
                        self.chat(self.pool[self.pool.main], messages, purse, *rest, **how)
                    )
            finally:
                self.purse.join(purse)
            return replies[-1]

        return ask

    def accept(self, y_t: Decision) -> None:
        """G_{t+1}. Raises ModelMistake for an impossible graph."""
        if isinstance(y_t, Delegate):
            self.graph = refine(self.graph, y_t)

    def note(self, s: State, attempt: int, replies: Sequence[Reply], **outcome: Any) -> None:
        """One attempt of a decision in the trajectory."""
        if "decision" in outcome:
            outcome["decision"] = trajectory.decision_row(outcome["decision"])
        self.recorder.emit(
            "decision", (s.round, 0, attempt), rounds=s.rounds, context=s.context,
            budget_usd=s.budget_usd, waiting=s.waiting, reply=replies[-1].text if replies else "",
            cost_usd=add_usd(*(r.cost_usd for r in replies)), **outcome,
        )  # fmt: skip

    def carry_out(self, t: int, y_t: Delegate) -> list[Result]:
        """Z_t of what was delegated: a batch of the ready set, or a whole graph."""
        u_t = self.place(y_t)  # Eq. 5-12
        run = self.sub_agents.drain if y_t.drain else self.sub_agents.execute
        z_t = run(t, u_t)  # Eq. 13-15
        for p, z in zip(u_t, z_t, strict=True):  # in submission order
            self.graph = self.graph.with_result(p.subtask.id, z)
            self.history += (summarize(t, p.subtask, z, self.task),)  # Eq. 19
            self.purse.join(p.purse)  # Eq. 21
        limit = self.options.context_tokens
        self.context = compress(self.task.question, self.history, WORDING, limit)  # Eq. 20
        return z_t

    def place(self, y_t: Delegate) -> list[Placed]:
        """U_t, Eq. 12: the batch of the ready set, with backends, tools and shares of B_t."""
        left = self.purse.left_usd
        if left is not None:
            left -= decision_reserve_usd(self.pool[self.pool.main], left)
        psi = {name: tool.capabilities for name, tool in self.tools.items()}
        backends = self.pool.backends
        if y_t.drain:
            nodes = [materialize(u, self.task, backends, psi) for u in y_t.subtasks]
            return with_shares(nodes, left)
        shares = self.context and self.orchestrator.shares_context
        found = say("notes", "found", context=self.context) if shares else ""
        return place(self.graph, self.task, backends, psi, self.options.parallel, left, found)

    def environment(self, placed: Placed, name: str) -> Environment:
        return Environment(
            self.task, placed.backend, self.pool, replace(self.chat, refused=set()), self.tape,
            placed.purse, self.folder / "work" / name, self.options.allow_hosts,
        )  # fmt: skip


# ---- a run, from its folder and back -------------------------------------------------------------


def orchestrate(
    question: str,
    media: Files = (),
    pool: Pool | str | Path | None = None,
    options: Options | None = None,
    out: str | Path | None = None,
    listeners: Iterable[Listener] = (),
    workdir: str | Path | None = None,
    cancelled: threading.Event | None = None,
) -> Trajectory:
    """Answer a question, recording everything into the folder `out` (runs/<time> by default).

    `media`: paths, or (modality, path). `pool`: a Pool or a pool file; None: from the environment.
    `workdir`: a repository that mini-SWE sub-agents change a copy of; `out`/changes.diff is what
    they changed. `cancelled`, once set by another thread, lets no further call start and ends the
    run with Cancelled.

    Raises ConfigError before anything is paid, EndpointError when the main agent's endpoint fails,
    TapeWriteError when the disk is full; the folder then holds all that was paid for.
    """
    options = options or Options()
    pool = pools.load(Path(pool)) if isinstance(pool, str | Path) else pool
    pool = pool or pools.from_environment()
    files = media_files.check(media)
    pools.check(pool, options.budget_usd)
    engines.check([modality for modality, _ in files], pool)
    if workdir:
        workdirs.check(Path(workdir), bool(files))
    question, secrets = _clean(question, pool, options)
    folder = Path(out) if out else run_folder.default_path()
    with run_folder.begun(folder):
        copies = media_files.copy_into(folder, files)
        rows = tuple(MediaRow(modality=m.modality, name=m.name, sha256=m.sha256) for m in copies)
        if workdir:
            workdirs.copy_into(folder, Path(workdir))
        manifest = Manifest(question=question, media=rows, pool=pool, options=options)
        manifest.write(folder)
        return _run(folder, manifest, "record", listeners, secrets=secrets, cancelled=cancelled)


def replay(
    folder: str | Path,
    parallel: int | None = None,
    listeners: Iterable[Listener] = (),
    tools: Sequence[Any] = (),
    method: str = "",
) -> Trajectory:
    """The same run again from its tape, without network. `tools`, `method`: the user's own files
    that the run uses.

    Raises TapeMiss where anything differs, ConfigError.
    """
    folder = Path(folder)
    manifest = run_folder.read_manifest(folder)
    manifest = run_folder.named_again(folder, manifest, tools, method)
    recorded = trajectory.read(folder / "trajectory.jsonl")
    finished = bool(recorded) and recorded[-1]["event"] == "end"
    try:
        again = _run(folder, manifest, "replay", listeners, parallel)
    except TapeMiss as miss:
        hint = "" if finished else f"; the run was not finished: --resume {folder} continues it"
        raise TapeMiss(f"{miss}{hint}") from None
    if finished and (difference := trajectory.first_difference(recorded, again.events)):
        raise TapeMiss(f"{folder}: the replay differs from the record: {difference}")
    return again


def resume(
    folder: str | Path,
    parallel: int | None = None,
    timeout_s: float | None = None,
    from_round: int | None = None,
    out: str | Path | None = None,
    listeners: Iterable[Listener] = (),
    pool: Pool | None = None,
    tools: Sequence[Any] = (),
    mcp: Sequence[str] = (),
    allow_hosts: Sequence[str] = (),
    method: str = "",
    patience_s: float | None = None,
) -> Trajectory:
    """Continue a run, paying only for what its tape does not hold. With `from_round`: in the new
    folder `out`, which keeps the rounds before it.

    A run folder may come from someone else, so endpoints with their keys (`pool`; None: those of
    the environment), tools, MCP servers and internal hosts are used only if they are named here.
    Raises as `orchestrate` does.
    """
    folder = Path(folder)
    manifest = run_folder.read_manifest(folder)
    named = run_folder.named_again(
        folder, manifest, tools, method, mcp, allow_hosts, pool or pools.from_environment()
    )
    pools.check(named.pool, named.options.budget_usd)
    engines.check([m.modality for m in named.media], named.pool)
    given = {"timeout_s": timeout_s, "patience_s": patience_s}
    named = named.replaced(**{k: v for k, v in given.items() if v is not None})
    _, secrets = _clean(named.question, named.pool, named.options)
    if from_round is None:
        return _run(folder, named, "resume", listeners, parallel, secrets)
    target = Path(out) if out else run_folder.default_path()
    with run_folder.begun(target):
        run_folder.fork(folder, target, from_round, manifest)
        return _run(target, named, "resume", listeners, parallel, secrets)


def recorded(
    question: str,
    media: Files = (),
    out: str | Path = "",
    pool: Pool | str | Path | None = None,
    options: Options | None = None,
    record_mode: Literal["none", "once", "rewrite"] = "once",
    tools: Sequence[Any] = (),
) -> Trajectory:
    """For tests: replays the run in `out` if it is of this very question, media and options, and
    records it if there is none; `record_mode` none never records, rewrite always does.

    Raises ConfigError where `out` holds another run, or none and none may be recorded.
    """
    folder, options = Path(out), options or Options(tools=tuple(tools))
    stored = (folder / "run.json").is_file()
    if record_mode == "rewrite" and stored:
        run_folder.clear(folder)
    if record_mode == "rewrite" or (record_mode == "once" and not stored):
        return orchestrate(question, media, pool, options, folder)
    manifest = run_folder.read_manifest(folder)
    rows = [(modality, run_folder.sha256_of(path)) for modality, path in media_files.check(media)]
    wanted = question.strip(), rows, run_folder.comparable(options)
    held = [(m.modality, m.sha256) for m in manifest.media]
    if wanted != (manifest.question.strip(), held, run_folder.comparable(manifest.options)):
        raise ConfigError(f"{folder} is the record of another question, media or options")
    return replay(folder, tools=options.tools, method=options.method)


def compare(
    methods: Sequence[str],
    question: str,
    media: Files = (),
    pool: Pool | None = None,
    options: Options | None = None,
    out: str | Path | None = None,
    workdir: str | Path | None = None,
    side_by_side: bool = False,
    listeners: Iterable[Listener] = (),
    outcomes: dict[str, Trajectory | EndpointError] | None = None,
) -> dict[str, Trajectory | EndpointError]:
    """The question by each method, in turn or in parallel, each in its own folder under `out` and
    with the whole budget. A method whose endpoint fails, fails alone. Raises as `orchestrate` does;
    `outcomes`, filled as methods finish, then holds those that did.
    """
    options, outcomes = options or Options(), {} if outcomes is None else outcomes
    folder = Path(out) if out else run_folder.default_path()
    cancelled = {method: threading.Event() for method in methods}

    def one(method: str) -> None:
        kept = {k: getattr(options, k) for k in Options.model_fields}
        own, code = (
            Options(**{**kept, "method": method}),
            workdir if method == "aorchestra" else None,
        )
        how = listeners, code, cancelled[method]
        try:
            outcomes[method] = orchestrate(question, media, pool, own, folder / method, *how)
        except EndpointError as error:
            outcomes[method] = error

    executor = ThreadPoolExecutor(len(methods) if side_by_side else 1)
    try:
        for future in [executor.submit(one, method) for method in methods]:
            future.result()
    except BaseException:
        for event in cancelled.values():
            event.set()
        raise
    finally:
        executor.shutdown(cancel_futures=True)
    return {method: outcomes[method] for method in methods}


def _clean(question: str, pool: Pool, options: Options) -> tuple[str, Secrets]:
    """The question without secrets, and those of this run: the pool's keys, and the variables that
    --mcp names. Raises ConfigError for an empty question, and for a key in a command.
    """
    if not question.strip():
        raise ConfigError("the question is empty; give it a text")
    secrets = Secrets([b.api_key_env for b in pool.backends] + run_folder.variables(options.mcp))
    if any(secrets.text(command) != command for command in options.mcp):
        raise ConfigError(
            "--mcp: has a key in it; name its variable instead, in single quotes: '$KEY'"
        )
    return secrets.text(question), secrets


def _run(
    folder: Path,
    manifest: Manifest,
    mode: Mode,
    listeners: Iterable[Listener],
    threads: int | None = None,
    secrets: Secrets | None = None,
    cancelled: threading.Event | None = None,
) -> Trajectory:
    with contextlib.ExitStack() as stack:
        tape = Tape(folder / "tape.jsonl", mode, secrets, cancelled)
        stack.callback(tape.close)
        file = None
        if mode != "replay":
            file, log = folder / "trajectory.jsonl", console.Log(folder / "log.txt")
            stack.callback(log.close)
            listeners = (log, *listeners)
        recorder = Recorder(file, listeners)
        stack.callback(recorder.close)
        recorder.emit("run", (0,), **run_folder.read_manifest(folder).row())
        own = stack.enter_context(own_tools(manifest.options.tools, manifest.options.mcp, tape))
        threads = threads or manifest.options.parallel
        run = Run(folder, manifest, tape, recorder, threads, own)
        try:
            answer, fallback, rounds = run.answer()
        except BaseException:
            tape.cancelled.set()  # start no further call
            run.sub_agents.interrupt()
            raise
        run.sub_agents.executor.shutdown()
        return recorder.end(folder, answer, fallback, rounds, run.purse, run.why)


# ---- the command line ----------------------------------------------------------------------------

EXIT_CODES: dict[type[BaseException], int] = {
    ConfigError: 2,
    TapeWriteError: 2,
    TapeMiss: 3,
    EndpointError: 4,
    KeyboardInterrupt: 130,
    Cancelled: 130,
}


def main(argv: list[str] | None = None) -> int:
    """Run one command. Returns the exit code; see --help."""
    a: Any = None
    folder, done = Path(), dict[str, Trajectory | EndpointError]()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends like Ctrl-C
    try:
        a = command_line.parse(argv)
        if a.quiet:
            logging.getLogger("orchestra").setLevel(logging.ERROR)
        if a.runs:
            return console.list_runs(a.runs)
        stored = a.resume if a.from_round is None else None
        folder = a.replay or stored or a.out or run_folder.default_path()
        with contextlib.redirect_stdout(sys.stderr), console.listeners(a) as shown:
            result = _command(a, folder, shown, done)
        return console.report_all(done, a) if a.compare else console.report(result, a)
    except tuple(EXIT_CODES) as error:
        if done:
            console.report_all(done, a)
        line = console.failure(error, folder, a, tuple(done)) if a else str(error)
        console.tell_error(line, argv, done)
        return next(code for kind, code in EXIT_CODES.items() if isinstance(error, kind))


def _command(a: Any, folder: Path, shown: tuple[Listener, ...], done: dict[str, Any]) -> Any:
    o = a.options
    if a.replay:
        return replay(folder, a.given.get("parallel"), shown, o.tools, a.given.get("method", ""))
    if a.resume:
        pool = pools.load(a.backends) if a.backends else None
        how = {k: getattr(o, k) for k in ("parallel", "timeout_s", "patience_s") if k in a.given}
        return resume(
            a.resume, from_round=a.from_round, out=folder, listeners=shown, pool=pool,
            tools=o.tools, mcp=o.mcp, allow_hosts=o.allow_hosts,
            method=a.given.get("method", ""), **how,
        )  # fmt: skip
    question, pool = command_line.question(a), pools.choose(a.backends, a.model, a.perception)
    files = [(m, path) for m in ("image", "audio", "video") for path in getattr(a, m)]
    if a.compare:
        return compare(
            a.methods, question, files, pool, o, folder, a.workdir, a.side_by_side, shown, done
        )
    return orchestrate(question, files, pool, o, folder, shown, a.workdir)


if __name__ == "__main__":
    status = main()
    os._exit(status)  # threads that wait for an endpoint must not hold the exit
