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

import sys

from orchestra.command_line import parse

ARGUMENTS = (
    parse() if __name__ == "__main__" else None
)  # --help and usage errors answer before the heavy imports

import contextlib
import json
import os
import threading
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import orchestrators
from orchestra import pool as pools
from orchestra import run_folder, trajectory
from orchestra.backends import Chat, Message, Purse, Reply, add_usd
from orchestra.memory import best_supported_answer, compress, summarize
from orchestra.pool import Pool
from orchestra.progress import Log, Progress
from orchestra.replay import Mode, Tape, TapeMiss, TapeWriteError
from orchestra.run_folder import Manifest, Options
from orchestra.schedule import Graph, Placed, decision_reserve_usd, place, refine, waiting
from orchestra.trajectory import Event, Listener, Recorder
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
    Step,
    Task,
)  # fmt: skip
from subagents import react
from tools import Environment, all_tools

ATTEMPTS = 3  # a decision that can not be used is told back this often in one round
GRACE_S = 1.0  # after Ctrl-C: how long calls in flight may still reach the tape


@dataclass(frozen=True)
class Trajectory:
    """What a run came to. `fallback`: the main agent never completed; the answer is what the
    evidence supports.
    """

    answer: str
    fallback: bool
    rounds: int
    calls: int
    cost_usd: float | None  # the whole run's; None: some price is unknown
    paid_usd: float | None  # of it, paid by this invocation
    latency_s: float
    run: Path
    events: list[Event] = field(repr=False, default_factory=list)


class Run:
    """Algorithm 1 of arXiv 2606.13707 on one task."""

    def __init__(
        self, manifest: Manifest, tape: Tape, recorder: Recorder, folder: Path, threads: int
    ) -> None:
        self.task, self.pool, self.options = manifest.task, manifest.pool, manifest.options
        self.tape, self.recorder, self.folder = tape, recorder, folder
        self.chat = Chat(tape, self.options.timeout_s)
        self.tools = all_tools()
        self.orchestrator = orchestrators.make(
            self.options.method, self.pool, self.tools, self.options.stop_threshold
        )
        self.executor = ThreadPoolExecutor(threads, thread_name_prefix="sub-agent")
        self.in_flight: list[Future[Result]] = []
        self.counting = threading.Lock()
        self.budget_usd = self.options.budget_usd  # B_t
        self.cost_usd: float | None = 0.0
        self.paid_usd: float | None = 0.0
        self.calls = 0

    def answer(self) -> tuple[str, bool, int]:
        """Algorithm 1: the answer, whether it is a fallback, and the rounds it took."""
        graph, history, context, t = Graph(), tuple[Evidence, ...](), "", 0
        try:
            for t in range(1, self.options.rounds + 1):
                decision, graph = self.decide(
                    self.state(t, context, history, graph), graph
                )  # y_t, Eq. 1-3; G_t
                if isinstance(decision, Complete):
                    return decision.answer, False, t
                placed = self.place(graph)  # U_t, Eq. 5-12
                results = self.execute(t, placed)  # Z_t, Eq. 13-15
                graph = graph.with_results(
                    {p.subtask.id: z for p, z in zip(placed, results, strict=True)}
                )
                new = (
                    summarize(t, p.subtask, z, self.media_seen(z))
                    for p, z in zip(placed, results, strict=True)
                )
                history = (*history, *new)  # Eq. 19
                context = compress(
                    self.task.question, history, self.options.context_tokens
                )  # Eq. 20
            decision, _ = self.decide(
                self.state(t + 1, context, history, graph), graph, last_chance=True
            )
            return decision.answer if isinstance(decision, Complete) else "", True, t
        except (
            BudgetExceeded,
            ModelMistake,
        ):  # no money for a call, or no usable decision in ATTEMPTS replies
            return best_supported_answer(history), True, t

    def state(self, t: int, context: str, history: tuple[Evidence, ...], graph: Graph) -> State:
        names = self.pool.names, tuple(self.tools)
        return State(
            self.task,
            context,
            history,
            *names,
            t,
            self.options.rounds,
            self.budget_usd,
            waiting(graph),
        )

    def decide(
        self, state: State, graph: Graph, last_chance: bool = False
    ) -> tuple[Decision, Graph]:
        """y_t, and G_t refined by it. Raises ModelMistake after ATTEMPTS of them, BudgetExceeded,
        EndpointError.
        """
        mistake = ""
        for attempt in range(1, ATTEMPTS + 1):
            replies: list[Reply] = []
            started = time.monotonic()
            try:
                with self.tape.logical_call(f"r{state.round}", "main", f"a{attempt}"):
                    decision = self.orchestrator.decide(
                        state, partial(self.ask, replies), mistake, last_chance
                    )  # Eq. 3
                refined = refine(graph, decision) if isinstance(decision, Delegate) else graph
            except ModelMistake as error:
                mistake = str(error)
                self.note(state, attempt, replies, started, mistake=mistake)
            else:
                self.note(
                    state, attempt, replies, started, decision=trajectory.decision_content(decision)
                )
                return decision, refined
        raise ModelMistake(mistake)

    def ask(
        self, replies: list[Reply], messages: list[Message], schema: Any, logprobs: bool
    ) -> Reply:
        """One call of the main agent, paid from B_t."""
        purse = Purse(self.budget_usd)
        try:
            replies.append(self.chat(self.pool[self.pool.main], messages, purse, schema, logprobs))
        finally:
            self.account(purse)
        return replies[-1]

    def note(
        self, state: State, attempt: int, replies: list[Reply], started: float, **outcome: Any
    ) -> None:
        seen = {k: v for k, v in asdict(state).items() if k != "task"}
        cost_usd = add_usd(*(r.cost_usd for r in replies))
        timing = {"latency_s": time.monotonic() - started}
        self.recorder.emit(
            "decision",
            (state.round, 0, attempt),
            timing,
            state=seen,
            reply=replies[-1].text,
            cost_usd=cost_usd,
            **outcome,
        )

    def place(self, graph: Graph) -> list[Placed]:
        """U_t of Eq. 12: the batch of the ready set, with backends, tools and shares of the money."""
        left = self.budget_usd
        if left is not None:
            left -= decision_reserve_usd(self.pool[self.pool.main], left)
        capabilities = {name: tool.capabilities for name, tool in self.tools.items()}
        return place(
            graph, self.task, self.pool.backends, capabilities, self.options.parallel, left
        )

    def execute(self, t: int, placed: Sequence[Placed]) -> list[Result]:
        """Z_t = AsyncExecute(u_1, ..., u_K), Eq. 15: side by side, results in submission order."""
        for j, p in enumerate(placed, 1):
            self.recorder.emit(
                "subtask", (t, j, 0), subtask=asdict(p.subtask), allowance_usd=p.allowance_usd
            )
        self.in_flight = [
            self.executor.submit(self.sub_agent, t, j, p) for j, p in enumerate(placed, 1)
        ]
        ended, _ = wait(self.in_flight, return_when=FIRST_EXCEPTION)
        for future in ended:
            future.result()  # what ends the run ends it now
        return [future.result() for future in self.in_flight]

    def sub_agent(self, t: int, j: int, p: Placed) -> Result:
        """zeta and z of one sub-task, Eq. 13-14, in a worker thread and an environment of its own."""
        purse = Purse(p.allowance_usd)
        folder = self.folder / "work" / f"r{t}-t{j}"
        env = Environment(self.task, p.backend, self.pool, self.chat, self.tape, purse, folder)
        started = time.monotonic()

        def on_step(number: int, step: Step) -> None:
            self.recorder.emit("step", (t, j, number), subtask=p.subtask.id, **asdict(step))

        z = react.run(p.subtask, env, self.tools, (f"r{t}", f"t{j}"), self.options.steps, on_step)
        z = replace(z, latency_s=time.monotonic() - started)
        self.account(purse)
        outcome = {k: v for k, v in asdict(z).items() if k not in ("trace", "latency_s")}
        self.recorder.emit(
            "result",
            (t, j, trajectory.LAST),
            {"latency_s": z.latency_s},
            subtask=p.subtask.id,
            **outcome,
        )
        return z

    def account(self, purse: Purse) -> None:
        """Count a purse once, Eq. 21: B_{t+1} = B_t - sum of c."""
        with self.counting:
            self.calls += purse.calls
            self.cost_usd = add_usd(self.cost_usd, purse.spent_usd)
            self.paid_usd = add_usd(self.paid_usd, purse.paid_usd)
            if self.budget_usd is not None:
                self.budget_usd -= purse.spent_usd or 0.0  # Eq. 21

    def media_seen(self, z: Result) -> tuple[str, ...]:
        """The files that a sub-agent's tools opened with success."""
        opened = {
            str(v).rpartition("/")[2]
            for s in z.trace
            if not s.failed
            for v in s.params.values()
            if isinstance(v, str)
        }
        return tuple(m.name for m in self.task.media if m.name in opened)

    def interrupt(self) -> None:
        """Start no further call; let those in flight reach the tape for a moment."""
        self.tape.cancelled.set()
        wait(self.in_flight, timeout=GRACE_S)
        self.executor.shutdown(wait=False, cancel_futures=True)


# ---- a run, from its folder and back -------------------------------------------------------------


def orchestrate(
    question: str,
    media: Sequence[tuple[Modality, str | Path]] = (),
    pool: Pool | None = None,
    options: Options | None = None,
    out: str | Path | None = None,
    listeners: Sequence[Listener] = (),
) -> Trajectory:
    """Answer a question, recording everything into the folder `out` (runs/<time> by default).

    `pool` None: from OPENAI_BASE_URL and OPENAI_API_KEY. Raises ConfigError before anything is
    paid, EndpointError when
    the main agent's endpoint fails, TapeWriteError when the disk is full; the folder then holds all
    that was paid.
    """
    options = options or Options()
    pool = pool or pools.from_environment(None)
    pools.check(pool, options.budget_usd)
    if not question.strip():
        raise ConfigError("the question is empty")
    files = run_folder.check_media([(modality, Path(path)) for modality, path in media])
    folder = run_folder.create(Path(out) if out else run_folder.default_path())
    with run_folder.removed_if_unused(folder), run_folder.locked(folder):
        task = Task(
            question.encode("utf-8", "replace").decode(), run_folder.import_media(folder, files)
        )
        manifest = Manifest(task, pool, options)
        run_folder.write_manifest(folder, manifest)
        return _run(folder, manifest, "record", options.parallel, listeners)


def replay(
    folder: str | Path, parallel: int | None = None, listeners: Sequence[Listener] = ()
) -> Trajectory:
    """The same run again from its tape, without network. Raises TapeMiss where anything differs,
    and says where.
    """
    folder = Path(folder)
    manifest = run_folder.read_manifest(folder)
    with run_folder.locked(folder, shared=True):
        again = _run(folder, manifest, "replay", parallel or manifest.options.parallel, listeners)
        recorded = trajectory.read(folder / "trajectory.jsonl")
    if (
        recorded
        and recorded[-1]["event"] == "end"
        and (difference := trajectory.first_difference(recorded, again.events))
    ):
        raise TapeMiss(f"{folder}: the replay differs from the record: {difference}")
    return again


def resume(
    folder: str | Path,
    parallel: int | None = None,
    from_round: int | None = None,
    out: str | Path | None = None,
    listeners: Sequence[Listener] = (),
) -> Trajectory:
    """Go on with a run, paying only for what its tape does not hold; with `from_round`, in a new
    folder from there on.
    """
    folder = Path(folder)
    manifest = run_folder.read_manifest(folder)
    pools.check(manifest.pool, manifest.options.budget_usd)
    if from_round is not None:
        source, folder = folder, run_folder.create(Path(out) if out else run_folder.default_path())
        with run_folder.locked(source, shared=True):
            run_folder.fork(source, folder, from_round)
        manifest = run_folder.read_manifest(folder)
    run_folder.check_space(folder)
    with run_folder.locked(folder):
        return _run(folder, manifest, "resume", parallel or manifest.options.parallel, listeners)


def _run(
    folder: Path, manifest: Manifest, mode: Mode, threads: int, listeners: Sequence[Listener]
) -> Trajectory:
    started = time.monotonic()
    with contextlib.ExitStack() as stack:
        tape = stack.enter_context(contextlib.closing(Tape(folder / "tape.jsonl", mode)))
        written = None if mode == "replay" else folder / "trajectory.jsonl"
        log = (
            ()
            if mode == "replay"
            else (stack.enter_context(contextlib.closing(Log(folder / "log.txt"))),)
        )
        recorder = stack.enter_context(contextlib.closing(Recorder(written, (*log, *listeners))))
        recorder.emit("run", (0,), **run_folder.manifest_row(manifest))
        run = Run(manifest, tape, recorder, folder, threads)
        try:
            answer, fallback, rounds = run.answer()
        except BaseException:
            run.interrupt()
            raise
        run.executor.shutdown()
        latency_s = time.monotonic() - started
        end = {
            "answer": answer,
            "fallback": fallback,
            "rounds": rounds,
            "calls": run.calls,
            "cost_usd": run.cost_usd,
        }
        recorder.emit("end", (rounds + 2,), {"latency_s": latency_s}, **end)
        return Trajectory(
            **end, paid_usd=run.paid_usd, latency_s=latency_s, run=folder, events=recorder.events
        )


# ---- the command line ----------------------------------------------------------------------------


def main(arguments: Any) -> int:
    """Run one command. Returns the exit code; see --help."""
    stored = arguments.resume or arguments.replay
    out = arguments.out or (
        None if stored and not arguments.from_round else run_folder.default_path()
    )
    folder = out or stored
    listeners = (Progress(),) if sys.stderr.isatty() and not arguments.quiet else ()
    try:
        with contextlib.ExitStack() as stack:
            for listener in listeners:
                stack.enter_context(contextlib.closing(listener))
            if arguments.replay:
                result = replay(arguments.replay, arguments.parallel, listeners)
            elif arguments.resume:
                result = resume(
                    arguments.resume, arguments.parallel, arguments.from_round, out, listeners
                )
            else:
                result = _ask(arguments, out, listeners)
        return _report(result, arguments)
    except ConfigError as error:
        return _fail(2, str(error))
    except TapeMiss as error:
        return _fail(3, str(error))
    except TapeWriteError as error:
        return _fail(2, str(error), folder)
    except EndpointError as error:
        return _fail(4, str(error), folder)
    except KeyboardInterrupt:
        return _fail(130, "interrupted", folder if not arguments.replay else None)


def _ask(arguments: Any, out: Path, listeners: Sequence[Listener]) -> Trajectory:
    question = sys.stdin.read() if arguments.question == "-" else arguments.question
    pool = pools.choose(arguments.backends, arguments.model, arguments.perception)
    options = Options(
        arguments.method, arguments.rounds, arguments.steps, arguments.parallel or 8, arguments.budget,
        arguments.timeout, arguments.stop_threshold,
    )  # fmt: skip
    media = [(m, path) for m in ("image", "audio", "video") for path in getattr(arguments, m)]
    return orchestrate(question, media, pool, options, out, listeners)


def _report(result: Trajectory, arguments: Any) -> int:
    if arguments.json:
        keys = ("answer", "fallback", "cost_usd", "paid_usd", "calls", "rounds", "latency_s", "run")
        row = {k: getattr(result, k) for k in keys}
        print(
            json.dumps(
                {**row, "answer": result.answer or None, "run": str(result.run)}, ensure_ascii=False
            )
        )
    elif result.answer:
        print(result.answer)
    if result.cost_usd is None and not arguments.quiet:
        print("cost unknown: the pool has no price for a model that was used", file=sys.stderr)
    if result.fallback:
        said = (
            "a fallback answer, from the evidence gathered"
            if result.answer
            else "no answer: nothing was found out"
        )
        print(f"{said}; see {result.run}/log.txt", file=sys.stderr)
    return 1 if result.fallback else 0


def _fail(code: int, message: str, folder: Path | None = None) -> int:
    print(f"orchestra_min.py: {message}", file=sys.stderr)
    if folder and (folder / "run.json").exists():
        print(
            f"everything paid for is kept; go on with: python orchestra_min.py --resume {folder}",
            file=sys.stderr,
        )
    return code


if __name__ == "__main__":
    status = main(ARGUMENTS)
    sys.stdout.flush()
    os._exit(status)  # threads that wait for an endpoint must not hold the exit
