#!/usr/bin/env python3
"""Orchestra-o1 on one small kernel: Algorithm 1, and the commands around it.

    python orchestra_min.py "What is the UTC time?" --image clock.png --audio speech.wav
    python orchestra_min.py --replay fixtures/runs/equinox

As a library:

    from orchestra_min import orchestrate
    trajectory = orchestrate("Which city is this?", [("image", "clock.png")])
    print(trajectory.answer, trajectory.cost_usd, trajectory.run)
"""

from __future__ import annotations

import sys

if sys.version_info < (3, 11):  # noqa: UP036  a checkout can be started with any Python
    sys.stderr.write("needs Python 3.11 or newer\n")
    sys.exit(2)

import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from orchestra import methods
from orchestra.agents import class_for, runs_code, shared
from orchestra.agents import workdir as workdirs
from orchestra.matching import Placed, decision_reserve_usd, place
from orchestra.memory import best_supported_answer, compress, summarize
from orchestra.money import Purse
from orchestra.runtime import command_line, run_folder, trajectory
from orchestra.runtime import pool as pools
from orchestra.runtime.chat import Chat
from orchestra.runtime.openai_api import with_model
from orchestra.runtime.options import Options
from orchestra.runtime.pool import Pool
from orchestra.runtime.prompts import WORDING, explained
from orchestra.runtime.run_folder import Manifest
from orchestra.runtime.secrets import Secrets
from orchestra.runtime.tape import Mode, Tape, TapeMiss
from orchestra.runtime.trajectory import Listener, Recorder, Trajectory
from orchestra.schedule import Graph, ready, refine, waiting
from orchestra.seams import ATTEMPTS, Messages
from orchestra.toolkit import Environment, Tool
from orchestra.tools import media as media_files
from orchestra.tools import sandbox
from orchestra.tools.own import own_tools
from orchestra.tools.shipped import tools_for
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

PROGRAMS = (
    "evaluate",
    "report",
    "masbench",
    "curate",
    "optimize_prompt",
)  # orchestra-min NAME
Files = Sequence[Any]  # paths, or (modality, path)
Folder = str | Path
Tools = Mapping[str, Tool]


class Run:
    """Algorithm 1 of arXiv 2606.13707 on one task."""

    def __init__(
        self,
        manifest: Manifest,
        tape: Tape,
        recorder: Recorder,
        own: Tools,
        threads: int | None,
    ) -> None:
        self.folder = tape.path.parent
        self.task, self.tape, self.recorder = manifest.task(self.folder), tape, recorder
        self.options = o = manifest.options
        self.repo = Path(manifest.workdir) if manifest.workdir else None
        self.chat = Chat(tape, o.timeout_s, o.patience_s, recorder.notify)
        backends = tuple(with_model(self.chat, b) for b in manifest.pool.backends)
        self.pool = manifest.pool.with_(backends=backends)
        self.tools = {**tools_for(self.task, manifest.code), **own}
        self.orchestrator = methods.make(o, self.pool, self.tools)
        self.once = self.orchestrator.rounds == 1  # the method makes one decision
        self.rounds = 1 if self.once else o.rounds or self.orchestrator.rounds
        agents = class_for(o)
        self.sub_agents = agents(
            self.task, o, self.environment, self.tools, recorder, threads
        )
        self.graph = Graph()  # G_t
        self.history: tuple[Evidence, ...] = ()  # H_t
        self.context = ""  # C_t
        self.purse = Purse(o.budget_usd)  # B_t
        self.kept = self.guess = (
            ""  # refused answers: not sure enough (Eq. 22); without evidence
        )
        self.why = ""  # the reason of a fallback

    def answer(self) -> tuple[str, bool, int]:
        """Algorithm 1: the answer, whether it is a fallback, and the rounds it took."""
        t = 0
        try:
            for t in range(1, self.rounds + 1):
                y_t = self.decide(t)  # Eq. 1-3
                if isinstance(y_t, Complete):
                    return y_t.answer, False, t
                try:
                    z = self.carry_out(t, y_t)[-1]  # Eq. 5-21
                except BudgetExceeded as error:  # a decision may still be affordable
                    self.why = str(error)
                    break
                if y_t.drain and (z.answer or self.once):  # nothing is left to do
                    self.why = y_t.fallback or z.error
                    answer = z.answer or best_supported_answer(self.history)
                    return (
                        answer,
                        bool(y_t.fallback) or z.status != "done" or not answer,
                        t,
                    )
            y_t = self.decide(t + 1, last_chance=True)
            self.why = self.why or "no round was left"
            last = y_t if isinstance(y_t, Complete) else self.carry_out(t + 1, y_t)[-1]
            self.kept = last.answer or self.kept
        except ModelMistake as error:
            self.why = f"no usable decision: {explained(error)}"
        except BudgetExceeded as error:
            self.why = str(error)
        return self.kept or best_supported_answer(self.history) or self.guess, True, t

    def decide(self, t: int, last_chance: bool = False) -> Decision:
        """y_t, merged into G_t. An unusable decision is shown to the main agent with its error.

        Raises the last ModelMistake of ATTEMPTS, BudgetExceeded or EndpointError.
        """
        s_t, mistake = self.state(t), ""
        for attempt in range(1, ATTEMPTS):
            try:
                return self.attempt(s_t, attempt, mistake, last_chance)
            except ModelMistake as error:
                mistake = explained(error)
        return self.attempt(s_t, ATTEMPTS, mistake, last_chance)

    def state(self, t: int) -> State:
        """s_t, Eq. 1 and 21."""
        return State(
            self.task, self.context, self.history, self.pool.names, tuple(self.tools), t,
            self.rounds, self.purse.left_usd, waiting(self.graph),
        )  # fmt: skip

    def attempt(
        self, s_t: State, number: int, mistake: str, last_chance: bool
    ) -> Decision:
        """One attempt at y_t, paid from B_t and recorded."""
        replies, purse = list[Reply](), Purse(self.purse.left_usd)

        def ask(messages: Messages, *how: Any, **also: Any) -> Reply:
            replies.append(
                self.chat(self.pool[self.pool.main], messages, purse, *how, **also)
            )
            return replies[-1]

        try:
            with self.tape.call(f"r{s_t.round}", "main", f"a{number}"):
                y_t = self.orchestrator.decide(s_t, ask, mistake, last_chance)  # Eq. 3
            if isinstance(y_t, Delegate):
                self.graph = refine(Graph() if y_t.drain else self.graph, y_t)
        except ModelMistake as error:
            self.kept = str(error.values.get("kept", self.kept))
            self.guess = str(error.values.get("guess", self.guess))
            self.recorder.decision(s_t, number, replies, mistake=explained(error))
            raise
        except (BudgetExceeded, EndpointError) as error:
            if replies:  # Eq. 22 makes two calls, and the second one failed
                self.recorder.decision(s_t, number, replies, mistake=str(error))
            raise
        finally:
            self.purse.join(purse)
        self.recorder.decision(
            s_t, number, replies, decision=trajectory.decision_row(y_t)
        )
        return y_t

    def carry_out(self, t: int, y_t: Delegate) -> list[Result]:
        """Z_t of a delegation: of a batch of the ready set, or of a whole graph."""
        u_t = self.place(t, y_t)  # Eq. 5-12
        q = self.task.question
        shares, full = self.orchestrator.shares_context, self.options.prompts == "full"
        shared_context = shared(self.context, q if full else "") if shares else ""
        z_t = self.sub_agents.execute(t, u_t, shared_context)  # Eq. 13-15
        for p, z in zip(u_t, z_t, strict=True):  # in submission order
            self.graph = self.graph.with_result(p.subtask.id, z)
            self.history += (summarize(t, p.subtask, z, self.task),)  # Eq. 19
            self.purse.join(p.purse)  # Eq. 21
        self.context = compress(
            q, self.history, WORDING, self.options.context_tokens
        )  # Eq. 20
        return z_t

    def place(self, t: int, y_t: Delegate) -> list[Placed]:
        """U_t, Eq. 12: the batch of the ready set, with backends, tools and shares of B_t."""
        left = self.purse.left_usd
        last = t > self.rounds or (y_t.drain and self.once)  # no decision follows
        if left is not None and not last:
            left -= decision_reserve_usd(self.pool[self.pool.main], left)
        psi = {name: tool.capabilities for name, tool in self.tools.items()}
        v_t = y_t.subtasks if y_t.drain else ready(self.graph)
        k_max = None if y_t.drain else self.options.parallel
        return place(v_t, self.task, self.pool.backends, psi, k_max, left)

    def environment(self, placed: Placed, name: str) -> Environment:
        return Environment(
            self.task, placed.backend, self.pool, self.chat.copy(), self.tape,
            placed.purse, self.folder / "work" / name, self.options.allow_hosts,
            self.options.unsafe_code, self.repo,
        )  # fmt: skip


# ---- run, replay, resume -------------------------------------------------------------------------


def orchestrate(
    question: str,
    media: Files = (),
    pool: Pool | Folder | None = None,
    options: Options | None = None,
    out: Folder | None = None,
    listeners: Iterable[Listener] = (),
    workdir: Folder | None = None,
    cancelled: threading.Event | None = None,
) -> Trajectory:
    """Answer a question and record everything in the folder `out` (runs/<time> by default).

    `media`: paths, or (modality, path). `pool`: a Pool or a pool file; None: from the environment.
    `workdir`: a git repository; mini-SWE sub-agents work on a copy, and their diff is written to
    `out`/changes.diff. If another thread sets `cancelled`, no further call starts and the run ends
    with Cancelled.

    Raises ConfigError before anything is paid, EndpointError if the main agent's endpoint fails,
    TapeWriteError if the disk is full. The folder keeps everything that was paid for.
    """
    pool, options = pools.choose(pool), options or Options()
    files, repo = (
        media_files.check(media),
        Path(workdir).absolute() if workdir else None,
    )
    secrets = run_folder.check(question, pool, options)
    media_files.check_engines([modality for modality, _ in files], pool)
    code = runs_code(options)
    workdirs.check(repo, bool(files))
    with run_folder.begun(Path(out) if out else run_folder.default_path()) as folder:
        copies = media_files.copy_into(folder, files)
        if repo:
            workdirs.copy_into(folder, repo, Recorder(None, listeners).notify)
        row: Any = {
            "question": secrets.text(question),
            "media": copies,
            "workdir": str(repo or ""),
        }
        manifest = Manifest(pool=pool, options=options, code=code, **row)
        manifest.write(folder)
        return _run(folder, manifest, "record", listeners, secrets, None, cancelled)


def replay(
    folder: Folder, listeners: Iterable[Listener] = (), **given: Any
) -> Trajectory:
    """The same run again from its tape, without network. `given`: `parallel`; also `tools` and
    `method` if the run uses Python files of the user.

    Raises TapeMiss at the first difference, ConfigError.
    """
    folder = Path(folder)
    manifest = run_folder.named_again(folder, run_folder.read_manifest(folder), given)
    past = trajectory.read(folder / "trajectory.jsonl")
    again = _run(folder, manifest, "replay", listeners, threads=given.get("parallel"))
    difference = trajectory.ended(past) and trajectory.first_difference(
        past, again.events
    )
    if difference:
        raise TapeMiss(f"{folder}: the replay differs from the record: {difference}")
    return again


def resume(
    folder: Folder,
    from_round: int | None = None,
    out: Folder | None = None,
    listeners: Iterable[Listener] = (),
    pool: Pool | Folder | None = None,
    cancelled: threading.Event | None = None,
    **given: Any,
) -> Trajectory:
    """Continue a run, paying only for calls that are not on its tape. With `from_round`: write a
    fork to `out` that keeps the rounds before `from_round`.

    A run folder may come from someone else, so the caller names the endpoints again (`pool`; None:
    those of the environment) and, in `given`, tools, method, mcp, allow_hosts, workdir and
    unsafe_code. Those that only the folder names are not used. `given` may also have parallel,
    timeout_s and patience_s. `cancelled` and the exceptions are those of `orchestrate`.
    """
    folder, stored = Path(folder), run_folder.read_manifest(Path(folder))
    named = run_folder.named_again(folder, stored, given, pools.choose(pool))
    secrets = run_folder.check(named.question, named.pool, named.options)
    media_files.check_engines([m.modality for m in named.media], named.pool)
    if named.code and not runs_code(named.options):
        raise ConfigError(f"{folder}: the run may run code; {sandbox.missing()}")
    how = secrets, given.get("parallel"), cancelled
    if from_round is None:
        end = trajectory.ended(trajectory.read(folder / "trajectory.jsonl"))
        mode: Mode = "replay" if end and not end.get("fallback", True) else "resume"
        return _run(folder, named, mode, listeners, *how)
    with run_folder.begun(Path(out) if out else run_folder.default_path()) as target:
        run_folder.fork(folder, target, from_round, stored)
        workdirs.write_changes(target)
        return _run(target, named, "resume", listeners, *how)


def _run(
    folder: Path,
    manifest: Manifest,
    mode: Mode,
    listeners: Iterable[Listener],
    secrets: Secrets | None = None,
    threads: int | None = None,
    cancelled: threading.Event | None = None,
) -> Trajectory:
    with (
        closing(Tape(folder / "tape.jsonl", mode, secrets, cancelled)) as tape,
        closing(Recorder(None if mode == "replay" else folder, listeners)) as recorder,
        own_tools(manifest.options.tools, manifest.options.mcp, tape) as own,
    ):
        run = Run(manifest, tape, recorder, own, threads)
        recorder.emit(
            "run", (0,), **run_folder.read_manifest(folder).row()
        )  # as it is stored
        try:
            answer, fallback, rounds = run.answer()
        except BaseException as error:
            if not isinstance(error, EndpointError):  # other runs may share `cancelled`
                tape.cancelled.set()  # start no further call
            run.sub_agents.interrupt()
            raise
        run.sub_agents.executor.shutdown()
        return recorder.end(folder, answer, fallback, rounds, run.purse, run.why)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Returns the exit code; see --help."""
    words = sys.argv[1:] if argv is None else argv
    program = words[0].replace("-", "_") if words else ""
    if program in PROGRAMS:  # programs of their own, above this one
        code: int = import_module(f"orchestra.{program}").main(words[1:])
        return code
    return command_line.run(words, orchestrate, replay, resume, methods.make)


def command() -> NoReturn:
    """`main` as a process, which does not wait for threads that wait for an endpoint."""
    os._exit(main())


recorded = partial(
    run_folder.recorded, orchestrate, replay, resume
)  # see run_folder.recorded

if __name__ == "__main__":
    command()
