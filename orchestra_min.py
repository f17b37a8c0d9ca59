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
import shutil
import signal
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import orchestrators
from orchestra.main_agent import ATTEMPTS, Messages
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
from runtime.jsonl import TapeWriteError
from runtime.log import Log
from runtime.openai_api import with_model
from runtime.options import Options, variables
from runtime.pool import Pool
from runtime.prompts import WORDING, quoted_whole, say, told
from runtime.run_folder import Manifest, MediaRow
from runtime.secrets import Secrets
from runtime.tape import Cancelled, Mode, Tape, TapeMiss
from runtime.trajectory import Listener, Recorder, Trajectory
from subagents import SubAgents
from subagents import workdir as workdirs
from tools import Environment, Tool, sandbox, tools_for
from tools import media as media_files
from tools.own import own_tools

Files = Sequence[Any]  # paths, or (modality, path)
Folder = str | Path
Outcome = console.Outcome


class Run:
    """Algorithm 1 of arXiv 2606.13707 on one task."""

    def __init__(
        self,
        folder: Path,
        manifest: Manifest,
        tape: Tape,
        recorder: Recorder,
        own: Mapping[str, Tool],
        threads: int | None,
    ) -> None:
        self.task, self.options, self.folder = manifest.task(folder), manifest.options, folder
        self.repo = Path(manifest.workdir) if manifest.workdir else None
        self.tape, self.recorder = tape, recorder
        o = self.options
        self.chat = Chat(tape, o.timeout_s, o.patience_s, recorder.notify)
        backends = tuple(with_model(self.chat, b) for b in manifest.pool.backends)
        self.pool = manifest.pool.with_(backends=backends)
        self.tools = {**tools_for(self.task, manifest.code), **own}
        self.orchestrator = orchestrators.make(o, self.pool, self.tools)
        once = self.orchestrator.rounds == 1  # the method decides once
        self.rounds = 1 if once else o.rounds or self.orchestrator.rounds
        self.sub_agents = SubAgents(
            self.environment, self.tools, recorder, o.steps, threads or o.parallel
        )
        self.graph = Graph()  # G_t
        self.history: tuple[Evidence, ...] = ()  # H_t
        self.context = ""  # C_t
        self.purse = Purse(o.budget_usd)  # B_t
        self.kept = ""  # the best answer so far that the main agent was not sure of, Eq. 22
        self.why = ""  # what ended the run early

    def answer(self) -> tuple[str, bool, int]:
        """Algorithm 1: the answer, whether it is a fallback, and the rounds it took."""
        t, answer = 0, ""
        try:
            for t in range(1, self.rounds + 1):
                y_t = self.decide(t)  # Eq. 1-3
                if isinstance(y_t, Complete):
                    return y_t.answer, False, t
                try:
                    z_t = self.carry_out(t, y_t)  # Eq. 5-21
                except BudgetExceeded as error:  # a decision may still be affordable
                    self.why = str(error)
                    break
                z = z_t[-1]
                if y_t.drain and (z.answer or self.orchestrator.rounds == 1):  # nothing is left
                    self.why, fallback = y_t.fallback or z.error, bool(y_t.fallback)
                    answer = z.answer or best_supported_answer(self.history)
                    return answer, fallback or z.status != "done", t
            y_t = self.decide(t + 1, last_chance=True)
            self.why = self.why or "no round was left"
            last = y_t if isinstance(y_t, Complete) else self.carry_out(t + 1, y_t)[-1]
            answer = last.answer
        except ModelMistake as error:
            self.why = f"no usable decision: {told(error)}"
        except BudgetExceeded as error:
            self.why = str(error)
        return answer or self.kept or best_supported_answer(self.history), True, t

    def decide(self, t: int, last_chance: bool = False) -> Decision:
        """y_t, accepted into G_t. An unusable one is shown back to the main agent.

        Raises the last ModelMistake of ATTEMPTS, BudgetExceeded or EndpointError.
        """
        s_t, mistake = self.state(t), ""
        for attempt in range(1, ATTEMPTS):
            try:
                return self.attempt(s_t, attempt, mistake, last_chance)
            except ModelMistake as error:
                mistake = told(error)
        return self.attempt(s_t, ATTEMPTS, mistake, last_chance)

    def state(self, t: int) -> State:
        """s_t, Eq. 1 and 21."""
        return State(
            self.task, self.context, self.history, self.pool.names, tuple(self.tools), t,
            self.rounds, self.purse.left_usd, waiting(self.graph),
        )  # fmt: skip

    def attempt(self, s_t: State, number: int, mistake: str, last_chance: bool) -> Decision:
        """One attempt of y_t, paid from B_t and recorded."""
        replies, purse = list[Reply](), Purse(self.purse.left_usd)

        def ask(messages: Messages, *how: Any, **also: Any) -> Reply:
            replies.append(self.chat(self.pool[self.pool.main], messages, purse, *how, **also))
            return replies[-1]

        try:
            with self.tape.call(f"r{s_t.round}", "main", f"a{number}"):
                y_t = self.orchestrator.decide(s_t, ask, mistake, last_chance)  # Eq. 3
            if isinstance(y_t, Delegate):
                self.graph = refine(Graph() if y_t.drain else self.graph, y_t)
        except ModelMistake as error:
            self.note(s_t, number, replies, mistake=told(error))
            self.kept = str(error.values.get("kept", self.kept))
            raise
        except (BudgetExceeded, EndpointError) as error:
            if replies:  # Eq. 22 asks twice: the first reply was paid for
                self.note(s_t, number, replies, mistake=str(error))
            raise
        finally:
            self.purse.join(purse)
        self.note(s_t, number, replies, decision=trajectory.decision_row(y_t))
        return y_t

    def note(self, s: State, attempt: int, replies: Sequence[Reply], **outcome: Any) -> None:
        """One attempt of a decision in the trajectory."""
        self.recorder.emit(
            "decision", (s.round, 0, attempt), rounds=s.rounds, budget_usd=s.budget_usd,
            waiting=s.waiting, reply=replies[-1].text if replies else "",
            cost_usd=add_usd(*(r.cost_usd for r in replies)), **outcome,
        )  # fmt: skip

    def carry_out(self, t: int, y_t: Delegate) -> list[Result]:
        """Z_t of what was delegated: a batch of the ready set, or a whole graph."""
        u_t = self.place(y_t)  # Eq. 5-12
        run = self.sub_agents.drain if y_t.drain else self.sub_agents.execute
        z_t = run(t, u_t, self.shared())  # Eq. 13-15
        for p, z in zip(u_t, z_t, strict=True):  # in submission order
            self.graph = self.graph.with_result(p.subtask.id, z)
            self.history += (summarize(t, p.subtask, z, self.task),)  # Eq. 19
            self.purse.join(p.purse)  # Eq. 21
        limit = self.options.context_tokens
        self.context = compress(self.task.question, self.history, WORDING, limit)  # Eq. 20
        return z_t

    def shared(self) -> str:
        """What each sub-agent reads beside the context that was written for it: C_t, and the
        question (App. B.3), which small models would answer instead of their task.
        """
        if not self.orchestrator.shares_context:
            return ""
        texts = [say("notes", "found", context=quoted_whole(self.context))] if self.context else []
        if self.options.prompts == "full":
            texts.append(say("notes", "whole_question", question=self.task.question))
        return "\n\n".join(texts)

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
        return place(self.graph, self.task, backends, psi, self.options.parallel, left)

    def environment(self, placed: Placed, name: str) -> Environment:
        return Environment(
            self.task, placed.backend, self.pool, replace(self.chat, refused=set()), self.tape,
            placed.purse, self.folder / "work" / name, self.options.allow_hosts,
            self.options.unsafe_code, self.repo,
        )  # fmt: skip


# ---- a run, from its folder and back -------------------------------------------------------------


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
    """Answer a question, recording everything into the folder `out` (runs/<time> by default).

    `media`: paths, or (modality, path). `pool`: a Pool or a pool file; None: from the environment.
    `workdir`: a git repository; mini-SWE sub-agents work on a copy, and their diff is written to
    `out`/changes.diff. `cancelled`, once set by another thread, lets no further call start and ends
    the run with Cancelled.

    Raises ConfigError before anything is paid, EndpointError when the main agent's endpoint fails,
    TapeWriteError when the disk is full; the folder then holds all that was paid for.
    """
    pool, options = pools.given(pool), options or Options()
    files, repo = media_files.check(media), Path(workdir).absolute() if workdir else None
    secrets = _check(question, [modality for modality, _ in files], pool, options)
    code = _runs_code(options)
    if repo:
        workdirs.check(repo, bool(files))
    with run_folder.begun(Path(out) if out else run_folder.default_path()) as folder:
        copies = media_files.copy_into(folder, files)
        if repo:
            workdirs.copy_into(folder, repo, Recorder(None, listeners).notify)
        rows = tuple(MediaRow(modality=m.modality, name=m.name, sha256=m.sha256) for m in copies)
        manifest = Manifest(
            question=secrets.text(question), media=rows, pool=pool, options=options, code=code,
            workdir=str(repo or ""),
        )  # fmt: skip
        manifest.write(folder)
        return _run(folder, manifest, "record", listeners, secrets, cancelled)


def replay(folder: Folder, listeners: Iterable[Listener] = (), **given: Any) -> Trajectory:
    """The same run again from its tape, without network. `given`: `parallel`; also `tools` and
    `method` if the run uses Python files of the user.

    Raises TapeMiss where anything differs, ConfigError.
    """
    folder = Path(folder)
    manifest = run_folder.named_again(folder, run_folder.read_manifest(folder), given)
    past = trajectory.read(folder / "trajectory.jsonl")
    finished = trajectory.ended(past)
    try:
        again = _run(folder, manifest, "replay", listeners, threads=given.get("parallel"))
    except TapeMiss as miss:
        hint = "" if finished else f"; the run was not finished: --resume {folder} continues it"
        raise TapeMiss(f"{miss}{hint}") from None
    if finished and (difference := trajectory.first_difference(past, again.events)):
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
    """Continue a run, paying only for what its tape does not hold. With `from_round`: write a fork
    to `out` that keeps the rounds before `from_round`.

    A run folder may come from someone else, so the caller repeats the endpoints (`pool`; None:
    those of the environment) and, in `given`, tools, method, mcp, allow_hosts, workdir and
    unsafe_code. What is only in the folder is not used. `given` may also have parallel, timeout_s
    and patience_s. `cancelled` and what is raised: as for `orchestrate`.
    """
    folder, stored = Path(folder), run_folder.read_manifest(Path(folder))
    named = run_folder.named_again(folder, stored, given, pools.given(pool))
    secrets = _check(named.question, [m.modality for m in named.media], named.pool, named.options)
    if named.code and not _runs_code(named.options):
        raise ConfigError(f"{folder}: the run may run code; {sandbox.missing()}")
    threads = given.get("parallel")
    how: dict[str, Any] = {"secrets": secrets, "cancelled": cancelled, "threads": threads}
    if from_round is None:
        end = trajectory.ended(trajectory.read(folder / "trajectory.jsonl"))
        mode: Mode = "replay" if end and not end["fallback"] else "resume"
        return _run(folder, named, mode, listeners, **how)
    with run_folder.begun(Path(out) if out else run_folder.default_path()) as target:
        run_folder.fork(folder, target, from_round, stored)
        workdirs.write_last(target)
        return _run(target, named, "resume", listeners, **how)


def recorded(
    question: str, media: Files = (), out: Folder = "", record_mode: str = "once", **how: Any
) -> Trajectory:
    """For tests: replays the run in `out` if it has this very question, media and options, and
    records it if there is none. `record_mode` "none" never records, "rewrite" always does. `how`:
    options and pool, as for `orchestrate`.

    Raises ConfigError where `out` holds another run, or none and none may be recorded.
    """
    folder, options = Path(out), how.get("options") or Options()
    exists = (folder / "run.json").is_file()
    if record_mode not in ("none", "once", "rewrite"):
        raise ConfigError(f"record mode {record_mode!r}: needs none, once or rewrite")
    if record_mode == "rewrite" and exists:  # the old run stays until the new one has ended
        new = folder.with_name(f"{folder.name}.new")
        again = orchestrate(question, media, out=new, **how)
        shutil.rmtree(folder)
        new.rename(folder)
        return replace(again, run=str(folder))
    if record_mode != "none" and not exists:
        return orchestrate(question, media, out=folder, **how)
    files = [(kind, run_folder.sha256_of(path)) for kind, path in media_files.check(media)]
    run_folder.check_same(folder, question, files, options)
    return replay(folder, tools=options.tools, method=options.method)


def compare(
    methods: Iterable[str],
    question: str,
    media: Files = (),
    options: Options | None = None,
    out: Folder | None = None,
    **how: Any,
) -> Iterator[tuple[str, Outcome]]:
    """Each method's outcome as it ends, each in its own folder under `out` and with the whole
    budget; `how` as for `orchestrate`. If the endpoint of one method fails, its outcome is the
    EndpointError; the others still run.
    """
    folder, how["pool"] = Path(out or run_folder.default_path()), pools.given(how.get("pool"))
    asked = {m: (options or Options()).with_(method=m) for m in methods}
    for own in asked.values():  # a mistake in one of them is found before the first is paid for
        orchestrators.make(own, how["pool"], {})
    for method, own in asked.items():
        target = folder / method.rpartition(":")[2]
        try:
            yield method, orchestrate(question, media, options=own, out=target, **how)
        except EndpointError as error:
            yield method, error


def _runs_code(options: Options) -> bool:
    """Whether code of models can run here. Raises ConfigError where it must."""
    if options.unsafe_code or sandbox.works():
        return True
    if options.sub_agent == "mini-swe":
        raise ConfigError(f"--sub-agent mini-swe: {sandbox.missing()}")
    logging.getLogger("orchestra").warning("the code tool is not offered: %s", sandbox.missing())
    return False


def _check(question: str, modalities: Iterable[Any], pool: Pool, options: Options) -> Secrets:
    """The secrets of a run: its pool's keys, and the variables that --mcp names. Raises ConfigError
    for what would fail after the first paid call.
    """
    if not question.strip():
        raise ConfigError("the question is empty; give it a text")
    pools.check(pool, options.budget_usd)
    media_files.check_engines(modalities, pool)
    secrets = Secrets([b.api_key_env for b in pool.backends] + variables(options.mcp))
    text = pool.model_dump_json()
    if secrets.text(text) != text:
        raise ConfigError("the pool has a key in it: name its variable in api_key_env")
    if any(secrets.text(command) != command for command in options.mcp):
        raise ConfigError("--mcp: has a key in it; name its variable in single quotes: '$MY_KEY'")
    return secrets


def _run(
    folder: Path,
    manifest: Manifest,
    mode: Mode,
    listeners: Iterable[Listener],
    secrets: Secrets | None = None,
    cancelled: threading.Event | None = None,
    threads: int | None = None,
) -> Trajectory:
    with contextlib.ExitStack() as stack:
        tape = Tape(folder / "tape.jsonl", mode, secrets, cancelled)
        stack.callback(tape.close)
        file = None
        if mode != "replay":
            file, log = folder / "trajectory.jsonl", Log(folder / "log.txt")
            stack.callback(log.close)
            listeners = (log, *listeners)
        recorder = Recorder(file, listeners)
        stack.callback(recorder.close)
        recorder.emit("run", (0,), **run_folder.read_manifest(folder).row())
        own = stack.enter_context(own_tools(manifest.options.tools, manifest.options.mcp, tape))
        run = Run(folder, manifest, tape, recorder, own, threads)
        try:
            answer, fallback, rounds = run.answer()
        except BaseException as error:
            if not isinstance(error, EndpointError):
                tape.cancelled.set()  # start no further call
            run.sub_agents.interrupt()
            raise
        run.sub_agents.executor.shutdown()
        return recorder.end(folder, answer, fallback, rounds, run.purse, run.why)


# ---- the command line ----------------------------------------------------------------------------

EXIT_CODES: dict[type[BaseException], int] = {
    ConfigError: 2, TapeWriteError: 2, OSError: 2, TapeMiss: 3, EndpointError: 4,
    KeyboardInterrupt: 130, Cancelled: 130,
}  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Returns the exit code; see --help."""
    argv = list(sys.argv[1:] if argv is None else argv)
    a, folder, done = None, Path(), dict[str, Outcome]()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends like Ctrl-C
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the shell: no file may get its number
            setattr(sys, name, Path(os.devnull).open("r+"))  # noqa: SIM115
    try:
        a = command_line.parse(argv)
        if a.runs:
            return console.list_runs(a.runs, a.json)
        if a.quiet:
            logging.getLogger("orchestra").setLevel(logging.ERROR)
        stored = a.replay or (a.resume if a.from_round is None else None)
        folder = stored or a.out or run_folder.default_path()
        with contextlib.redirect_stdout(sys.stderr), console.listeners(a) as shown:
            _command(a, folder, shown, done)
        return console.report(done, a)
    except tuple(EXIT_CODES) as error:
        if done and a:
            console.report(done, a)
        console.tell_error(console.failure(error, folder, a, done), argv, done)
        return next(code for kind, code in EXIT_CODES.items() if isinstance(error, kind))


def _command(a: Any, folder: Path, shown: tuple[Listener, ...], done: dict[str, Outcome]) -> None:
    """Puts the outcome into `done`, by method."""
    if a.replay:
        done["replay"] = replay(folder, shown, **a.given)
    elif a.resume:
        given = {**a.given, "workdir": a.workdir}
        done["resume"] = resume(a.resume, a.from_round, folder, shown, a.backends, **given)
    else:
        files = [(m, path) for m in ("image", "audio", "video") for path in getattr(a, m)]
        pool = pools.choose(a.backends, a.model, a.perception)
        asked, how = command_line.question(a), {"pool": pool, "workdir": a.workdir}
        if a.compare:
            done.update(compare(a.methods, asked, files, a.options, folder, listeners=shown, **how))
        else:
            done[a.methods[0]] = orchestrate(
                asked, files, options=a.options, out=folder, listeners=shown, **how
            )


if __name__ == "__main__":
    status = main()
    os._exit(status)  # threads that wait for an endpoint must not hold the exit
