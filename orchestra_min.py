#!/usr/bin/env python3
"""Orchestra-o1 on one small kernel: Algorithm 1, and the commands around it.

    python orchestra_min.py "What is the UTC time?" --image clock.png --audio speech.wav
    python orchestra_min.py --replay fixtures/runs/equinox
    python orchestra_min.py report fixtures/runs/equinox

As a library:

    from orchestra_min import orchestrate
    trajectory = orchestrate("Which city is this?", [("image", "clock.png")])
    print(trajectory.answer, trajectory.cost_usd, trajectory.run)

Read `Run.answer` first: it is the loop.
"""

from __future__ import annotations

import sys

if sys.version_info < (3, 11):  # noqa: UP036  a checkout can be started with any Python
    sys.stderr.write("needs Python 3.11 or newer\n")
    sys.exit(2)

if __name__ == "__main__":
    # Before the imports, which take time: a signal may come meanwhile.
    from orchestra.command import command

    command()  # does not return

import argparse
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import (
    AbstractContextManager,
    ExitStack,
    closing,
    contextmanager,
    nullcontext,
    suppress,
)
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from orchestra import contracts, methods
from orchestra.agents import workdir as workdirs
from orchestra.agents.executor import SubAgents, runs_code, shared
from orchestra.ending import (
    LARGER_BUDGET,
    UNUSABLE,
    Ending,
    ending_of,
    exhausted,
    not_answered,
    unusable,
    wrong_with,
)
from orchestra.matching import Placed, batch_budget_usd, place
from orchestra.memory import EvidenceMemory, best_supported_answer
from orchestra.money import Ledger, Purse
from orchestra.runtime import (
    command_line,
    console,
    forking,
    permission,
    run_folder,
    trajectory,
    user_code,
    what_if,
)
from orchestra.runtime import pool as pools
from orchestra.runtime.chat import Chat
from orchestra.runtime.interruption import of_process as interruption
from orchestra.runtime.jsonl import TapeWriteError
from orchestra.runtime.openai_api import with_model
from orchestra.runtime.options import Options
from orchestra.runtime.pool import Pool
from orchestra.runtime.progress import progress
from orchestra.runtime.prompts import WORDING, explained
from orchestra.runtime.reuse import Reused, names_of
from orchestra.runtime.run_folder import Manifest, Only
from orchestra.runtime.secrets import Secrets
from orchestra.runtime.summary import totals_in
from orchestra.runtime.tape import Cancelled, Mode, Tape, TapeMiss
from orchestra.runtime.trajectory import Listener, Recorder, Trajectory
from orchestra.runtime.what_if import Replaced, check_decision
from orchestra.schedule import Graph, ready, refine, waiting
from orchestra.seams import Memory, Messages, Scheduler
from orchestra.toolkit import Tool
from orchestra.tools import media as media_files
from orchestra.tools import sandbox
from orchestra.tools.own import own_tools
from orchestra.tools.shipped import tools_for
from orchestra.vocabulary import (
    BudgetExceeded,
    Cause,
    Complete,
    ConfigError,
    Decision,
    Delegate,
    EndOfRun,
    EndpointError,
    Evidence,
    ModelMistake,
    NotInstalled,
    Place,
    RefusedAnswer,
    Reply,
    Result,
    State,
    SubTask,
)

DECISION_ATTEMPTS = 3  # to get a usable decision in one round
MEMORIES = {"evidence": EvidenceMemory(WORDING)}  # --memory
SCHEDULERS = {"utility": SimpleNamespace(place=place)}  # --scheduler
# Programs of their own, above this one: `orchestra-min NAME ...` runs orchestra/NAME.py
PROGRAMS = (
    "evaluate",
    "report",
    "explain",
    "diff",
    "masbench",
    "curate",
    "optimize_prompt",
    "texts",
)
Files = Sequence[Any]  # paths, or (modality, path)
Folder = str | Path
Tools = Mapping[str, Tool]
OwnTools = Callable[[Sequence[Any], Sequence[str]], Tools]  # of --tools and --mcp


# ---- Algorithm 1 ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """What came of a run whose method came to its end."""

    answer: str
    rounds: int
    ending: Ending


def early(answer: str, cause: Cause, why: str) -> Ending:
    """How a run ended whose main agent did not complete it."""
    return Ending("fallback" if answer else "stopped", cause, why)


def after_refusal(s_t: State, mistake: ModelMistake, before: str) -> State:
    """s_t for the next attempt in a round. `before`: the mistake that the main agent was told of.

    The action is not offered again if it was refused as such, or if the model made the same mistake
    twice: the next prompt would be the same word for word, and so would the reply.
    """
    is_repeated = explained(mistake) == before
    if mistake.action and (isinstance(mistake, RefusedAnswer) or is_repeated):
        return replace(s_t, refused=(*s_t.refused, mistake.action))
    return s_t


class NothingAffordable(Exception):
    """The budget cannot cover another sub-task. A decision may still be affordable."""


class Run:
    """Algorithm 1 of arXiv 2606.13707 on one task."""

    def __init__(
        self,
        manifest: Manifest,
        tape: Tape,
        recorder: Recorder,
        own: OwnTools,
        threads: int | None,
        shared: Ledger | None = None,
    ) -> None:
        """Raises ConfigError, and EndpointError if a backend must be asked for its model."""
        self.manifest = manifest
        self.tape = tape
        self.recorder = recorder
        self.own = own
        self.threads = threads
        self.shared = shared  # with other runs
        self.task = manifest.task(tape.path.parent)
        self.replaced = Replaced(manifest.what_if)
        self.graph = Graph()  # G_t
        self.history: tuple[Evidence, ...] = ()  # H_t
        self.context = ""  # C_t
        self.purse = Purse()  # B_t
        self.refused_answers: list[RefusedAnswer] = []
        self.set_up(manifest.in_round(1))

    def set_up(self, settings: Manifest) -> None:
        """Use these settings from now on: a fork has others than the rounds that it keeps."""
        options = settings.options
        self.settings = settings
        self.options = options
        self.tape.frozen = settings != self.manifest
        self.purse.limit_usd = options.budget_usd
        self.chat = Chat(
            self.tape,
            timeout_s=options.timeout_s,
            patience_s=options.patience_s,
            ledger=Ledger(options.budget_usd, self.purse.spent_usd, self.shared),
            notify=self.recorder.notify,
        )
        backends = tuple(with_model(self.chat, b) for b in settings.pool.backends)
        self.pool = settings.pool.with_(backends=backends)
        own = self.own(options.tools, options.mcp)
        self.tools = {**tools_for(self.task, settings.code), **own}
        self.capabilities = {  # psi(g)
            name: tool.capabilities for name, tool in self.tools.items()
        }
        self.orchestrator = methods.make(options, self.pool, self.tools)
        self.memory: Memory = user_code.chosen(
            options.memory, MEMORIES, Memory, "--memory"
        )
        self.scheduler: Scheduler = user_code.chosen(
            options.scheduler, SCHEDULERS, Scheduler, "--scheduler"
        )
        self.sub_agents = self.make_sub_agents()
        self.rounds = options.rounds or self.orchestrator.rounds  # T_max
        self.check_what_if()

    def check_what_if(self) -> None:
        """Raises ConfigError if a decision of the user's cannot be carried out."""
        tools = tuple(self.tools)
        agents = self.sub_agents.names
        for t, y_t in self.replaced.decisions.items():
            if self.manifest.in_round(t) == self.settings:
                flag = f"--what-if r{t}"
                check_decision(flag, y_t, self.pool.sub_models, tools, agents)

    def make_sub_agents(self) -> SubAgents:
        repo = self.manifest.workdir
        return SubAgents(
            task=self.task,
            options=self.options,
            pool=self.pool,
            tools=self.tools,
            chat=self.chat,
            tape=self.tape,
            recorder=self.recorder,
            repo=Path(repo) if repo else None,
            threads=self.threads,
            replaced=self.replaced,
        )

    def outcome(self) -> Outcome:
        """What came of Algorithm 1. After an error no further call starts, and those in flight are
        recorded.
        """
        try:
            outcome = self.answer()
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt | EndOfRun):
                self.tape.cancelled.set()
            self.tape.close()  # start no further call; other runs may share `cancelled`
            self.sub_agents.interrupt(error)
            if isinstance(error, SystemExit):
                call = f"sys.exit({error.code!r})"
                problem = f"Python of the user ended the program ({call})"
                raise ConfigError(problem) from error
            if isinstance(error, NotInstalled):
                raise ConfigError(str(error)) from None
            raise
        self.sub_agents.executor.shutdown()
        return outcome

    def answer(self) -> Outcome:
        """Algorithm 1."""
        t = 0
        try:
            for t in self.numbers():
                y_t = self.decide(t)  # Eq. 1-3
                if isinstance(y_t, Complete):
                    return Outcome(y_t.answer, rounds=t, ending=Ending("answered"))
                z_t = self.carry_out(t, y_t)  # Eq. 5-21
                if z_t and (y_t.final or (y_t.answers and z_t[-1].answer)):
                    return self.answered(t, y_t, z_t[-1])
            why = f"no round was left: --rounds allows {self.rounds}"
            return self.last_chance(t, "rounds", why)
        except NothingAffordable as error:
            return self.last_chance(t, "budget", f"{error}; {LARGER_BUDGET}")
        except (ModelMistake, BudgetExceeded) as error:
            return self.ended_early(t, error)

    def numbers(self) -> Iterator[int]:
        """The numbers of the rounds. Before each of them, its settings are set up."""
        for t in count(1):
            self.enter(t)
            if t > self.rounds:
                return
            yield t

    def enter(self, t: int) -> None:
        """Set up the settings of round t; a fork makes no call in the rounds that it keeps."""
        settings = self.manifest.in_round(t)
        if settings != self.settings:
            self.sub_agents.executor.shutdown()
            self.set_up(settings)
        self.tape.frozen = t < self.manifest.from_round

    def answered(self, t: int, y_t: Delegate, z: Result) -> Outcome:
        """The outcome of a run that a sub-task has answered."""
        answer = z.answer or best_supported_answer(self.history)
        if y_t.fallback:
            ending = early(answer, "replies", UNUSABLE)
        elif z.status == "done" and answer:
            ending = Ending("answered")
        else:
            ending = early(answer, z.cause or "sub-task", not_answered(z))
        return Outcome(answer, rounds=t, ending=ending)

    def last_chance(self, t: int, cause: Cause, why: str) -> Outcome:
        """One more decision, if it can be paid, and the outcome: a fallback in any case."""
        self.enter(t + 1)  # in a fork, it may follow a round that is kept
        try:
            y_t = self.decide(t + 1, last_chance=True)
            if isinstance(y_t, Complete):
                return self.fallback(t, cause, why, y_t.answer)
            z_t = self.carry_out(t + 1, y_t)
            return self.fallback(t, cause, why, z_t[-1].answer if z_t else "")
        except ModelMistake as error:
            wrong = wrong_with(error)
            return self.fallback(
                t, cause, f"{why}; the last reply is unusable: {wrong}"
            )
        except (NothingAffordable, BudgetExceeded):
            later = "the budget does not cover a last decision"
            return self.fallback(t, cause, f"{why}; {later}")

    def ended_early(self, t: int, error: ModelMistake | BudgetExceeded) -> Outcome:
        """The outcome of a run in which no decision was usable, or none could be paid."""
        why = f"{error}; {LARGER_BUDGET}"
        if isinstance(error, ModelMistake):
            why = unusable(error, DECISION_ATTEMPTS)
        return self.fallback(t, error.cause, why)

    def fallback(
        self, t: int, cause: Cause, why: str, last_answer: str = ""
    ) -> Outcome:
        """A fallback with the first of these answers that is not empty: the last one; the newest
        that was refused although evidence was there; the best supported one; the newest guess.
        """
        kept = [refused.answer for refused in self.refused_answers if refused.seen]
        guesses = [
            refused.answer for refused in self.refused_answers if not refused.seen
        ]
        supported = best_supported_answer(self.history)
        answers = [last_answer, *kept[-1:], supported, *guesses[-1:]]
        answer = next((answer for answer in answers if answer), "")
        return Outcome(answer, rounds=t, ending=early(answer, cause, why))

    # ---- a decision ------------------------------------------------------------------------------

    def decide(self, t: int, last_chance: bool = False) -> Decision:
        """y_t, merged into G_t. An unusable decision is shown to the main agent with its error.

        Raises ModelMistake after DECISION_ATTEMPTS, BudgetExceeded or EndpointError.
        """
        s_t = self.state(t)
        if t in self.replaced.decisions:
            return self.what_if(s_t, self.replaced.decisions[t])
        mistake = ""
        for number in range(1, DECISION_ATTEMPTS):
            try:
                return self.attempt(s_t, number, mistake, last_chance)
            except ModelMistake as error:
                s_t = after_refusal(s_t, error, before=mistake)
                mistake = explained(error)
        return self.attempt(s_t, DECISION_ATTEMPTS, mistake, last_chance)

    def what_if(self, s_t: State, y_t: Decision) -> Decision:
        """A decision of the user's, merged into G_t and recorded. Raises ConfigError."""
        place = Place(s_t.round, step=1)
        try:
            y_t = self.merged(y_t)
        except ModelMistake as error:
            problem = f"--what-if r{s_t.round}: {explained(error)}"
            raise ConfigError(problem) from None
        row = trajectory.decision_row(y_t)
        self.recorder.decision(s_t, place.step, (), decision=row, what_if=True)
        return y_t

    def state(self, t: int) -> State:
        """s_t, Eq. 1 and 21."""
        return State(
            task=self.task,
            context=self.context,
            history=self.history,
            backends=self.pool.sub_models,
            tools=tuple(self.tools),
            round=t,
            rounds=self.rounds,
            budget_usd=self.purse.left_usd,
            waiting=waiting(self.graph),
            capabilities=self.capabilities,
        )

    def attempt(
        self, s_t: State, number: int, mistake: str, last_chance: bool
    ) -> Decision:
        """One attempt at y_t, paid from B_t and recorded."""
        replies: list[Reply] = []
        purse = Purse(self.purse.left_usd)
        main = self.pool[self.pool.main]

        def ask(messages: Messages, *rest: Any, **named: Any) -> Reply:
            reply = self.chat(main, messages, purse, *rest, **named)
            replies.append(reply)
            return reply

        try:
            with self.tape.call(Place(s_t.round, step=number)):
                decide = self.orchestrator.decide
                value = decide(s_t, ask, mistake, last_chance)  # Eq. 3
            y_t = contracts.decision(value, f"--method {self.options.method}")
            y_t = self.merged(y_t)
        except ModelMistake as error:
            if isinstance(error, RefusedAnswer):
                self.refused_answers.append(error)
            self.recorder.decision(s_t, number, replies, mistake=explained(error))
            raise
        except (BudgetExceeded, EndpointError) as error:
            if replies:  # Eq. 22 makes two calls, and the second one failed
                self.recorder.decision(s_t, number, replies, mistake=str(error))
            raise
        finally:
            self.purse.join(purse)
        row = trajectory.decision_row(y_t)
        self.recorder.decision(s_t, number, replies, decision=row)
        return y_t

    def merged(self, y_t: Decision) -> Decision:
        """y_t, merged into G_t, with the run's --agent for each sub-task that names none. Raises
        ModelMistake.
        """
        if isinstance(y_t, Complete):
            return y_t
        default = user_code.name_of(self.options.agent)
        subtasks = (replace(u, agent=u.agent or default) for u in y_t.subtasks)
        y_t = replace(y_t, subtasks=tuple(subtasks))
        graph = Graph() if y_t.whole_graph else self.graph
        try:
            self.graph = refine(graph, y_t)
        except ModelMistake as mistake:
            mistake.action = "delegate"
            raise
        return y_t

    # ---- a delegation ----------------------------------------------------------------------------

    def carry_out(self, t: int, y_t: Delegate) -> list[Result]:
        """Run a batch of the ready set, or a whole graph. Returns Z_t: nothing if a fork gets
        another budget for the next round, and this one was not affordable. Raises
        NothingAffordable.
        """
        next_usd = self.manifest.in_round(t + 1).options.budget_usd
        try:
            u_t = self.place(t, y_t)  # Eq. 5-12
        except NothingAffordable:
            if next_usd == self.options.budget_usd:
                raise
            return []
        z_t = self.sub_agents.execute(t, u_t, self.shared_context())  # Eq. 13-15
        memory = f"--memory {user_code.spec_of(self.options.memory)}"
        for p, z in zip(u_t, z_t, strict=True):  # in submission order
            self.graph = self.graph.with_result(p.subtask.id, z)
            history = self.memory.remember(self.history, p.subtask, z)  # Eq. 19
            self.history = contracts.history(history, memory, checked=self.history)
            self.purse.join(p.purse)  # Eq. 21
        question = self.task.question
        limit = self.options.context_tokens
        context = self.memory.context(question, self.history, limit)  # Eq. 20
        self.context = contracts.context(context, memory)
        return z_t

    def shared_context(self) -> str:
        """What each sub-agent reads next to its own context, if the method shares it."""
        if not self.orchestrator.shares_context:
            return ""
        small = self.options.prompts == "small"
        return shared(self.context, "" if small else self.task.question)

    def place(self, t: int, y_t: Delegate) -> list[Placed]:
        """U_t, Eq. 12: the batch of the ready set, with backends, tools and shares of B_t. Raises
        NothingAffordable.
        """
        candidates = y_t.subtasks if y_t.whole_graph else ready(self.graph)
        k_max = None if y_t.whole_graph else self.options.parallel
        main = self.pool[self.pool.main]
        is_last = t > self.rounds
        left_usd = batch_budget_usd(self.purse.left_usd, y_t, is_last, main)
        if left_usd is not None and left_usd < 0:  # a call cost more than it may
            raise NothingAffordable(f"budget exhausted: {-left_usd:.6f} USD over it")
        pool = self.pool.for_subtasks(candidates)
        try:
            placed = self.scheduler.place(
                candidates, self.task, pool, self.capabilities, k_max, left_usd
            )
        except BudgetExceeded as error:
            raise NothingAffordable(str(error)) from None
        flag = f"--scheduler {user_code.spec_of(self.options.scheduler)}"
        batch = contracts.batch(placed, flag, candidates, pool, k_max, left_usd)
        self.tell_who_waits(t, candidates, batch)
        return batch

    def tell_who_waits(
        self, t: int, candidates: Sequence[SubTask], batch: Sequence[Placed]
    ) -> None:
        """Tell the user which sub-tasks could start but must wait, and for what."""
        placed = [p.subtask.id for p in batch]
        left_out = [u.id for u in candidates if u.id not in placed]
        if left_out:
            is_full = len(placed) == self.options.parallel
            reason = "--parallel" if is_full else "the budget covers no more"
            waiting = ", ".join(left_out)
            self.recorder.notify(
                f"r{t}: waiting for a later round: {waiting} ({reason})"
            )


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
    reuse: Sequence[Folder] = (),
    only: Only = "",
) -> Trajectory:
    """Answer a question and record everything in the folder `out` (runs/<time> by default).

    `media`: paths, or (modality, path). `pool`: a Pool or a pool file; None: from the environment.
    `workdir`: a git repository; mini-SWE sub-agents work on a copy, and their diff is written to
    `out`/changes.diff. If another thread sets `cancelled`, no further call starts and the run ends
    with Cancelled. `reuse`: runs whose answers to equal requests are taken; `only` those of "tools"
    or of "models".

    Raises ConfigError before anything is paid, EndpointError if the main agent's endpoint fails,
    TapeWriteError if the disk is full. The folder keeps everything that was paid for.
    """
    pool = pools.choose(pool)
    options = options or Options()
    files = media_files.check(media)
    repo = Path(workdir).absolute() if workdir else None
    secrets = run_folder.checked_secrets(question, pool, options)
    if not reuse:  # what was seen and heard may all be recorded
        media_files.check_engines([modality for modality, _ in files], pool)
    manifest = Manifest(
        question=secrets.text(question),
        pool=pool,
        options=options,
        code=runs_code(options),
        workdir=str(repo) if repo else "",
        reuse=names_of(reuse),
        only=only,
    )
    workdirs.check(repo, bool(files))
    run = partial(
        _run, secrets=secrets, cancelled=cancelled, reused=Reused(reuse, only)
    )
    with run_folder.begun(Path(out) if out else run_folder.default_path()) as folder:
        copies = media_files.copy_into(folder, files)
        if repo:
            workdirs.copy_into(folder, repo, Recorder(None, listeners).notify)
        manifest = manifest.with_(media=copies)
        manifest.write(folder)
        return run(folder, manifest, "record", listeners)


def replay(
    folder: Folder, listeners: Iterable[Listener] = (), **given: Any
) -> Trajectory:
    """Run again from the tape, offline. Pass `parallel` to change the number of threads. If the run
    used your own Python, pass `tools`, `method`, `agent`, `memory` and `scheduler` again.

    Raises TapeMiss at the first difference, ConfigError.
    """
    folder = Path(folder)
    stored = run_folder.read_manifest(folder)
    manifest = permission.named_again(folder, stored, given)
    past = trajectory.read(folder / "trajectory.jsonl")
    threads = given.get("parallel")
    again = _run(folder, manifest, "replay", listeners, threads=threads)
    if trajectory.is_finished(past):
        difference = trajectory.first_difference(past, again.events)
        if difference:
            problem = f"the replay differs from the record: {difference}"
            raise TapeMiss(f"{folder}: {problem}")
    return again


def resume(
    folder: Folder,
    from_round: int | None = None,
    out: Folder | None = None,
    listeners: Iterable[Listener] = (),
    pool: Pool | Folder | None = None,
    cancelled: threading.Event | None = None,
    perception: str | None = None,
    model: str | None = None,
    what_if: Mapping[str, Any] | None = None,
    shared: Ledger | None = None,
    **given: Any,
) -> Trajectory:
    """Continue a run, paying only for calls that are not on its tape. If none is missing, this is a
    replay. With `from_round`: write a fork to `out` that keeps the rounds before `from_round`.

    A run folder may come from someone else, so the caller names the endpoints again (`pool`; None:
    those of the environment) and, in `given`, tools, method, agent, memory, scheduler, mcp,
    allow_hosts, workdir, unsafe_code and reuse. Those that only the folder names are not used.
    `given` may also have parallel, timeout_s and patience_s. `perception`: "local" or "endpoint",
    who analyses images and sound from now on. `cancelled` and the exceptions are those of
    `orchestrate`.

    A fork may change any option (`given`), the `model` of the main agent, the pool, and, by
    `what_if`, decisions, results and observations (orchestra/runtime/what_if.py). It then reuses
    what equals an exchange of its run. `shared`: what this run and others may pay together, which
    no model reads; LimitReached ends the run before a call that it does not cover.
    """
    folder = Path(folder)
    stored = run_folder.read_manifest(folder)
    kinds = [m.modality for m in stored.media]
    if perception == "local":
        media_files.check_engines(kinds, pools.perceiving(stored.pool, perception))
    how = {"listeners": listeners, "cancelled": cancelled, "shared": shared}
    go_on = partial(_going_on, how)
    if from_round is not None or what_if:
        fork = forking.fork_of(
            folder, stored, from_round, what_if or {}, given, pool, model, perception
        )
        return _forked(folder, fork, out, go_on)
    if model:
        given["model"] = model  # which is refused
    now = pools.perceiving(stored.pool, perception, kinds)
    stored = stored.model_copy(update={"pool": now})
    named, run = go_on(folder, stored, given, _served(folder, pool))
    complete = None
    if perception:
        stored.write(folder)  # a replay needs the engines, too
    else:
        complete = _complete(folder, named, listeners, given.get("parallel"))
    return complete or run(folder)


def _served(folder: Path, pool: Pool | Folder | None) -> Pool:
    """The endpoints of a resume. Raises ConfigError if there are none."""
    try:
        return pools.choose(pool)
    except ConfigError:
        end = trajectory.ended(trajectory.read_if_sound(folder / "trajectory.jsonl"))
        is_answered = (
            end is not None and trajectory.ending_of_row(end).state == "answered"
        )
        if pool or not is_answered:
            raise
        advice = f"--replay {folder} shows it"
        raise ConfigError(f"{folder}: answered already; {advice}") from None


def _forked(
    folder: Path, fork: forking.Fork, out: Folder | None, go_on: Callable[..., Any]
) -> Trajectory:
    """Write a fork of a run to `out`, and run it."""
    methods.check(fork.manifest.options, fork.manifest.pool)
    named, run = go_on(folder, fork.manifest, fork.given, fork.served)
    out = Path(out or run_folder.default_path())
    with run_folder.begun(out, fork.manifest.from_round) as target:
        run_folder.fork(folder, target, named)
        workdirs.write_changes(target)
        result: Trajectory = run(target)
    return result


def _going_on(
    how: Mapping[str, Any],
    folder: Path,
    stored: Manifest,
    given: Mapping[str, Any],
    pool: Pool,
) -> tuple[Manifest, Callable[[Path], Trajectory]]:
    """The run.json of a resume or a fork with what is named again, and what starts it. `how`:
    listeners, `cancelled` and `shared`. Raises ConfigError.
    """
    named = permission.named_again(folder, stored, given, pool)
    notify = Recorder(None, how["listeners"]).notify
    permission.tell_moved(stored.pool, named.pool, notify)
    secrets = run_folder.checked_secrets(named.question, named.pool, named.options)
    if named.code and not runs_code(named.options):
        raise ConfigError(f"{folder}: the run may run code; {sandbox.missing()}")
    run = partial(
        _run,
        manifest=named,
        mode="resume",
        secrets=secrets,
        threads=given.get("parallel"),
        reused=Reused(given.get("reuse", ()), named.only),
        **how,
    )
    return named, run


def _complete(
    folder: Path,
    manifest: Manifest,
    listeners: Iterable[Listener],
    threads: int | None,
) -> Trajectory | None:
    """The run, if its tape holds all of it, up to the main agent's own answer; else None: the tape
    decides what is missing, not the trajectory. A damaged trajectory is written anew.

    Raises TapeMiss if the run had ended so, and would now send another request.
    """
    file = folder / "trajectory.jsonl"
    end = trajectory.ended(trajectory.read_if_sound(file))
    try:
        again = _run(folder, manifest, "replay", (), threads=threads)
    except EndpointError:
        again = None
    except TapeMiss as miss:
        if miss.differs and end is not None and not end["fallback"]:
            raise
        again = None
    if again is None or again.state != "answered":
        trajectory.set_aside_if_damaged(file)
        return None
    if end is None:
        trajectory.write(file, again.events)
    for event in again.events:
        for listener in listeners:
            listener(event)
    return again


def _run(
    folder: Path,
    manifest: Manifest,
    mode: Mode,
    listeners: Iterable[Listener],
    secrets: Secrets | None = None,
    threads: int | None = None,
    cancelled: threading.Event | None = None,
    reused: Reused | None = None,
    shared: Ledger | None = None,
) -> Trajectory:
    """Run Algorithm 1 in a folder that has its run.json. `threads`: in place of --parallel."""
    find = reused.find if reused else None
    with (
        closing(Tape(folder / "tape.jsonl", mode, secrets, cancelled, find)) as tape,
        closing(Recorder(None if mode == "replay" else folder, listeners)) as recorder,
        every_own_tool(manifest, tape) as own,
    ):
        is_new = mode == "record"  # its run.json has just been written
        stored = manifest if is_new else run_folder.read_manifest(folder)
        recorder.begin(stored.row())

        def stopped(error: BaseException) -> None:
            with suppress(TapeWriteError, TapeMiss, ConfigError, MemoryError):
                totals = totals_in(folder, manifest)
                used = totals.calls, totals.tokens, totals.cost_usd
                recorder.stopped(ending_of(error), *used)

        try:
            with interruption.ended_by(partial(stopped, Cancelled())):
                run = Run(manifest, tape, recorder, own, threads, shared)
                outcome = run.outcome()
        except BaseException as error:
            stopped(error)
            raise
        ended = recorder.end(
            folder=folder,
            ending=outcome.ending,
            answer=outcome.answer,
            rounds=outcome.rounds,
            purse=run.purse,
        )
    return with_savings(ended, folder, manifest)


def with_savings(ended: Trajectory, folder: Path, manifest: Manifest) -> Trajectory:
    """The outcome of a run, and what it has reused of other runs."""
    if not (manifest.reuse or manifest.parent):
        return ended
    totals = totals_in(folder, manifest)
    calls, usd = totals.reused_calls, totals.saved_usd
    return replace(ended, reused_calls=calls, saved_usd=usd)


@contextmanager
def every_own_tool(manifest: Manifest, tape: Tape) -> Iterator[OwnTools]:
    """The user's tools under each of the settings of a run."""
    opened: dict[Any, Tools] = {}
    with ExitStack() as stack:
        for settings in manifest.all_settings:
            named = settings.options.tools, settings.options.mcp
            if named not in opened:
                opened[named] = stack.enter_context(own_tools(*named, tape))
        yield lambda tools, mcp: opened[tools, mcp]


# ---- the command ---------------------------------------------------------------------------------


class Start(NamedTuple):
    """One run of a command: its name in a comparison, its folder, and how it starts."""

    name: str
    folder: Path
    run: Callable[..., Trajectory]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Returns the exit code; see --help."""
    words = sys.argv[1:] if argv is None else list(argv)
    program = words[0].replace("-", "_") if words else ""
    if program in PROGRAMS:
        code: int = import_module(f"orchestra.{program}").main(words[1:])
        return code
    command = Command(words)
    interruption.last_words = lambda: command.stopped(Cancelled())
    try:
        return command.run()
    except command_line.ENDS as error:
        return command.stopped(Cancelled() if interruption.requested else error)
    except Exception as error:  # a bug, here or in the user's Python
        if exhausted(error):
            return command.stopped(error)
        hint = command.way_on()
        if hint:
            error.add_note(f"What was paid for is kept; {hint}")
        raise


class Command:
    """The words of a command line, and the run of it that has started last."""

    def __init__(self, words: Sequence[str]) -> None:
        self.words = words
        self.args: argparse.Namespace | None = None  # if they cannot be read
        self.start = Start("", Path(), orchestrate)

    def run(self) -> int:
        """Returns the exit code."""
        self.args = args = command_line.parse(self.words)
        if args.runs:
            return console.list_runs(args.runs, args.json)
        ended: dict[str, console.Outcome] = {}
        with progress(args, console.tell) as listeners:
            for self.start in list(starts(args)):
                try:
                    with followed(self.start.folder, args.live):
                        ended[self.start.name] = self.start.run(listeners=listeners)
                except EndpointError as error:
                    if not args.compare:
                        raise
                    failed = console.Failed(error, self.start.folder)
                    ended[self.start.name] = failed  # the others still run
        code = console.report(ended, args)
        if args.compare and not args.quiet:
            tell_page(self.start.folder.parent)
        elif not args.quiet:
            tell_what_changed(args, self.start.folder)
        return code

    def stopped(self, error: BaseException) -> int:
        """Print what ended the command. Returns the exit code."""
        start = self.start
        message = console.failure(error, start.name, start.folder, self.args)
        refused = isinstance(error, ConfigError) and start.name == "resume"
        is_run = self.args is not None and not (self.args.replay or refused)
        is_run = is_run and start.name != ""
        folder = start.folder if is_run else None
        console.tell_error(error, message, self.words, folder)
        return command_line.exit_code(error)

    def way_on(self) -> str:
        """How to continue the run that has started last."""
        return console.way_on(self.start.name, self.start.folder, self.args)


def tell_what_changed(args: argparse.Namespace, folder: Path) -> None:
    """After a fork, or a run that reused another: what was reused and paid, and where they part."""
    is_fork = args.from_round is not None or args.what_if
    others = [args.resume] if is_fork else [*(args.reuse or ())]
    for before in others[:1]:
        for line in import_module("orchestra.diff").lines_of(before, folder):
            console.tell(line)


def tell_page(folder: Path) -> None:
    """Write the page of a comparison, and say where it is."""
    page = import_module("orchestra.report").write(folder, None, None)
    console.tell(f"one page of all: {page}")


def followed(folder: Path, live: bool) -> AbstractContextManager[None]:
    """With --live, a page that follows the run until the end of the block."""
    if not live:
        return nullcontext()
    page: AbstractContextManager[None] = import_module("orchestra.report").followed(
        folder, console.tell
    )
    return page


def starts(args: argparse.Namespace) -> Iterator[Start]:
    """The runs of a command. Raises ConfigError before the first one starts."""
    out = args.out or run_folder.default_path()
    if args.replay:
        yield Start("replay", args.replay, partial(replay, args.replay, **args.given))
    elif args.resume:
        is_fork = args.from_round is not None or args.what_if
        folder = out if is_fork else args.resume
        again = {
            "pool": args.backends,
            "perception": args.perception,
            "workdir": args.workdir,
            "reuse": args.reuse,
            "model": args.model,
            "what_if": what_if.given(args.what_if),
            **args.given,
        }
        run = partial(resume, args.resume, args.from_round, out, **again)
        yield Start("resume", folder, run)
    else:
        yield from new_runs(args, out)


def new_runs(args: argparse.Namespace, out: Path) -> Iterator[Start]:
    """A run for each method of a command. Raises ConfigError."""
    named: list[tuple[str, Path]] = []
    for kind in command_line.MEDIA:
        named += [(kind, path) for path in getattr(args, kind)]
    named += [("", path) for path in args.files]
    media = media_files.check(named)
    kinds = [kind for kind, _ in media]
    pool = pools.choose(args.backends, args.model, args.perception, kinds)
    for method in args.methods:
        folder = out / command_line.folder_name(method) if args.compare else out
        options = command_line.from_flags(Options, {**args.given, "method": method})
        methods.check(options, pool)  # raises ConfigError
        run = partial(
            orchestrate,
            args.question,
            media,
            pool=pool,
            options=options,
            out=folder,
            workdir=args.workdir,
            reuse=args.reuse,
            only=args.only or "",
        )
        yield Start(method, folder, run)
