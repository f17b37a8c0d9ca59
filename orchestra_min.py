#!/usr/bin/env python3
"""Orchestra-o1 on one small kernel: Algorithm 1 of arXiv 2606.13707, and its three modes.

    python orchestra_min.py "What is the UTC time?" clock.png speech.wav
    python orchestra_min.py --replay fixtures/runs/equinox

As a library:

    pool = Pool((Backend("main", "gpt-5", "https://api.openai.com/v1", "OPENAI_API_KEY"),), "main")
    outcome = orchestrate("Which city is this?", ["clock.png"], pool)
    print(outcome.answer, outcome.cost_usd, outcome.run)

Read `Run.solve` first: it is the loop. What can be plugged on, all of it as plain objects in
`Parts`; the kernel loads nothing by name:

    method    decides, places and remembers           Method, kernel/method.py
    agents    do a sub-task                           (job) -> Result, kernel/job.py
    tools     act outside                             @tool, kernel/tool.py
    sources   know what an exchange brings            (kind, call, key, nth), kernel/tape.py
    redact    takes secrets out of what is written    (json) -> json, kernel/tape.py
    send      makes one attempt of a call             (url, body, secret, timeout_s), kernel/http.py
    listeners see each event                          (event) -> None, kernel/folder.py
"""

from __future__ import annotations

if __name__ == "__main__":
    # Before the imports, which take time: a signal may come meanwhile.
    from importlib import import_module

    import_module("orchestra.__main__").start()  # does not return

import re
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from importlib import import_module
from itertools import count
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from orchestra import methods as shipped
from orchestra.kernel.chat import Chat
from orchestra.kernel.folder import (
    LAST_STEP,
    Ending,
    Event,
    Listener,
    Manifest,
    Options,
    Recorder,
    begin,
    decision_row,
    first_difference,
    read_events,
    read_manifest,
)
from orchestra.kernel.job import FAILURES, Agent, Job, has_worked
from orchestra.kernel.memory import best_supported_answer, opened
from orchestra.kernel.method import Method
from orchestra.kernel.money import Ledger, Purse, add_usd, reserve_usd
from orchestra.kernel.placing import Graph, Placed, ready, refine, waiting
from orchestra.kernel.prompts import explained, say, without_marks
from orchestra.kernel.tape import (
    EndOfRun,
    Mode,
    Redact,
    Source,
    Tape,
    TapeMiss,
    redact_keys,
)
from orchestra.kernel.tool import Environment, Tool, of_user
from orchestra.kernel.vocabulary import (
    FINISH,
    INVALID,
    Backend,
    BudgetExceeded,
    Complete,
    ConfigError,
    ContextExceeded,
    Decision,
    Delegate,
    EndpointError,
    Evidence,
    Messages,
    ModelMistake,
    Place,
    Pool,
    Reply,
    Result,
    RunEndpointError,
    State,
    Step,
    SubTask,
    Task,
)

if TYPE_CHECKING:
    from orchestra.kernel.http import Send

__all__ = [
    "Backend",
    "Options",
    "Outcome",
    "Parts",
    "Pool",
    "orchestrate",
    "replay",
    "resume",
]

DECISION_ATTEMPTS = 3  # to get a usable decision in one round
WAKE_S = 0.5  # a Ctrl-C that comes just before the main thread waits does not wake it
INSERT = re.compile(r"\$\{([\w:]+)\}")
GRACE_S = 2.0  # after an interrupt, for calls in flight to reach the tape
Ended = SimpleQueue[tuple[Place, Result | BaseException]]
Folder = str | Path


@dataclass(frozen=True)
class Parts:
    """What a run is made of. `later`: other parts from a round on, as in a fork whose first rounds
    are kept with the settings that they had.
    """

    task: Task
    pool: Pool
    options: Options
    method: Method
    tools: Mapping[str, Tool]
    agents: Mapping[str, Agent]
    sources: Sequence[Source] = ()
    listeners: Sequence[Listener] = ()
    redact: Redact | None = None
    send: Send | None = None  # by_requests
    later: Mapping[int, Parts] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """How a run ended. `cost_usd` is that of the whole run, None: some price is unknown; `paid_usd`
    is the part of it that this process paid.
    """

    answer: str
    ending: Ending
    rounds: int
    calls: int = 0
    tokens: int = 0
    cost_usd: float | None = 0.0
    paid_usd: float | None = 0.0
    latency_s: float = 0.0
    run: Path = Path()
    events: Sequence[Event] = field(repr=False, default=())

    @property
    def state(self) -> str:
        """answered, fallback or stopped."""
        return self.ending.state

    @property
    def fallback(self) -> bool:
        """Whether the answer is a fallback; a run without an answer has none."""
        return self.ending.state == "fallback"

    @property
    def failed_subtasks(self) -> int:
        results = [event for event in self.events if event["event"] == "result"]
        return sum(event["status"] == "failed" for event in results)


class NothingAffordable(Exception):
    """The budget cannot cover another sub-task. A decision may still be affordable."""


class Run:
    """The state of one run, and the loop."""

    def __init__(
        self, parts: Parts, tape: Tape, recorder: Recorder, threads: int | None = None
    ) -> None:
        self.tape = tape
        self.recorder = recorder
        self.later = parts.later
        self.task = parts.task
        self.graph = Graph()  # G_t
        self.history: tuple[Evidence, ...] = ()  # H_t
        self.context = ""  # C_t
        self.purse = Purse()  # B_t
        self.refused_answers: list[ModelMistake] = []  # they could not end the run
        self.too_long: set[str] = (
            set()
        )  # the backends that some prompt was too long for
        self.executor = ThreadPoolExecutor(
            threads or parts.options.parallel, thread_name_prefix="sub-agent"
        )
        self.use(parts)

    def use(self, parts: Parts) -> None:
        """Work with these parts until others are used."""
        options = parts.options
        self.parts = parts
        self.pool = parts.pool
        self.options = options
        self.method = parts.method
        self.rounds = options.rounds or parts.method.rounds  # T_max
        self.capabilities = {
            name: t.capabilities for name, t in parts.tools.items()
        }  # psi(g)
        self.purse.limit_usd = options.budget_usd
        ledger = Ledger(options.budget_usd, self.purse.spent_usd)
        notify = self.recorder.notify
        limits = options.timeout_s, options.patience_s
        self.chat = Chat(self.tape, ledger, *limits, parts.send, notify, self.too_long)

    # ---- Algorithm 1 -----------------------------------------------------------------------------

    def solve(self) -> Outcome:
        """Algorithm 1. Raises EndpointError if the main agent's endpoint fails."""
        t = 0
        unusable = ""  # why the program took the last decision
        try:
            for t in self.round_numbers():
                y_t = self.decide(t)  # Eq. 1-3
                if isinstance(y_t, Complete):
                    return self.outcome(y_t.answer, t, Ending("answered"))
                z_t = self.carry_out(t, y_t)  # Eq. 5-21
                if z_t and (y_t.final or (y_t.answers and z_t[-1].answer)):
                    return self.outcome_of(t, y_t, z_t[-1])
                unusable = y_t.fallback
            why = f"no round was left: --rounds {self.rounds}"
            if unusable:
                why = f"{why}; the main agent's last reply was unusable: {unusable}"
            return self.last_chance(t, "replies" if unusable else "rounds", why)
        except NothingAffordable as error:
            return self.last_chance(t, "budget", str(error))
        except ModelMistake as mistake:
            why = (
                f"no decision of the main agent was accepted in {DECISION_ATTEMPTS} "
                f"attempts; it was told: {explained(mistake)}"
            )
            return self.fallback(t, "replies", why)
        except BudgetExceeded as error:
            return self.fallback(t, "budget", str(error))
        except ContextExceeded as error:
            return self.fallback(t, error.cause, str(error))

    def round_numbers(self) -> Iterator[int]:
        """1 ... T_max. In a fork, some round begins to work with other parts."""
        for t in count(1):
            self.enter(t)
            if t > self.rounds:
                return
            yield t

    def enter(self, t: int) -> None:
        if t in self.later:
            self.use(self.later[t])

    def outcome_of(self, t: int, y_t: Delegate, z: Result) -> Outcome:
        """The outcome of a run that ends with a sub-task: its answer, or a fallback."""
        answer = z.answer or best_supported_answer(self.history)
        if z.status == "done" and answer and not y_t.fallback:
            return self.outcome(answer, t, Ending("answered"))
        if y_t.fallback:
            why = "no reply of the main agent was usable, so the program chose the last sub-task"
            return self.fallback(t, "replies", why, answer)
        why = z.error or "the agent finished without an answer"
        if z.answer and not z.error:
            why = f"the last sub-task called its own answer {z.status}"
        return self.fallback(t, z.cause or "sub-task", why, answer)

    def last_chance(self, t: int, cause: str, why: str) -> Outcome:
        """One more decision, if it can be paid, and the outcome: a fallback in any case."""
        answer = ""
        self.enter(t + 1)
        try:
            y_t = self.decide(t + 1, last_chance=True)
            if isinstance(y_t, Complete):
                answer = y_t.answer
            else:
                z_t = self.carry_out(t + 1, y_t)
                answer = z_t[-1].answer if z_t else ""
        except ModelMistake:
            why = f"{why}; asked for an answer, the main agent gave none"
        except (NothingAffordable, BudgetExceeded):
            why = f"{why}; the budget does not cover a last decision"
        except ContextExceeded as error:
            why = f"{why}; {error}"
        return self.fallback(t, cause, why, answer)

    def fallback(self, t: int, cause: str, why: str, last_answer: str = "") -> Outcome:
        """A fallback with the first of these answers that is not empty: the last one; the newest
        that was refused although evidence was there; the best supported one; the newest guess.
        """
        kept = [mistake.answer for mistake in self.refused_answers if mistake.seen]
        guesses = [
            mistake.answer for mistake in self.refused_answers if not mistake.seen
        ]
        supported = best_supported_answer(self.history)
        answers = [last_answer, *kept[-1:], supported, *guesses[-1:]]
        answer = next((answer for answer in answers if answer), "")
        return self.outcome(
            answer, t, Ending("fallback" if answer else "stopped", cause, why)
        )

    def outcome(self, answer: str, t: int, ending: Ending) -> Outcome:
        if self.too_long:
            names = ", ".join(sorted(self.too_long))
            told = (
                f"prompts exceeded the context length of {names}, and their oldest parts were "
                "shortened; a longer context length of the server, or fewer --steps, avoids it"
            )
            ending = replace(ending, why="; ".join(filter(None, [ending.why, told])))
        ending = replace(ending, why=without_marks(ending.why))
        purse = self.purse
        costs = add_usd(*purse.costs), add_usd(*purse.paid)
        return Outcome(answer, ending, t, purse.calls, purse.tokens, *costs)

    # ---- a decision ------------------------------------------------------------------------------

    def decide(self, t: int, last_chance: bool = False) -> Decision:
        """y_t, merged into G_t. An unusable decision is shown to the main agent with its error.
        Raises ModelMistake after DECISION_ATTEMPTS, BudgetExceeded or EndpointError.
        """
        s_t = self.state(t)
        mistake = ""
        for number in range(1, DECISION_ATTEMPTS):
            try:
                return self.attempt(s_t, number, mistake, last_chance)
            except ModelMistake as error:
                # It is not offered again if it was refused, or if the same mistake was made twice.
                if error.wanted and (error.answer or explained(error) == mistake):
                    s_t = replace(s_t, refused=(*s_t.refused, error.wanted))
                mistake = explained(error)
        return self.attempt(s_t, DECISION_ATTEMPTS, mistake, last_chance)

    def state(self, t: int) -> State:
        """s_t, Eq. 1 and 21."""
        return State(
            task=self.task,
            context=self.context,
            history=self.history,
            backends=self.pool.names,
            tools=tuple(self.parts.tools),
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

        def ask(messages: Messages, *rest: Any, **named: Any) -> Reply:
            reply = self.chat(
                self.pool[self.pool.main], messages, purse, *rest, **named
            )
            replies.append(reply)
            return reply

        try:
            with self.tape.call(Place(s_t.round, 0, number)):
                y_t = self.method.decide(s_t, ask, mistake, last_chance)  # Eq. 3
            y_t = self.returned("decide", y_t, Decision)
            if isinstance(y_t, Delegate):
                y_t = self.merged(y_t)
            elif not y_t.answer.strip():
                raise ModelMistake("empty_answer", wanted="complete")
        except ModelMistake as error:
            if error.answer:
                self.refused_answers.append(error)
            self.recorder.decision(s_t, number, replies, mistake=explained(error))
            raise
        except (BudgetExceeded, EndpointError) as error:
            if replies:  # Eq. 22 makes two calls, and the second one failed
                self.recorder.decision(s_t, number, replies, mistake=str(error))
            raise
        finally:
            self.purse.join(purse)
        self.recorder.decision(s_t, number, replies, decision=decision_row(y_t))
        return y_t

    def merged(self, y_t: Delegate) -> Delegate:
        """y_t with the run's own agent for each sub-task that names none; G_{t+1} has it, Eq. 9.
        Raises ModelMistake.
        """
        agent = self.options.agent
        subtasks = tuple(replace(u, agent=u.agent or agent) for u in y_t.subtasks)
        y_t = replace(y_t, subtasks=subtasks)
        try:
            self.graph = refine(Graph() if y_t.whole_graph else self.graph, y_t)
        except ModelMistake as mistake:
            mistake.wanted = "delegate"
            raise
        return y_t

    # ---- a delegation ----------------------------------------------------------------------------

    def carry_out(self, t: int, y_t: Delegate) -> list[Result]:
        """Z_t: run a batch of the ready set, or a whole graph. Raises NothingAffordable; but if
        later parts begin with the next round, it returns nothing: they may have another budget.
        """
        try:
            u_t = self.place(t, y_t)  # Eq. 5-12
        except NothingAffordable:
            if t + 1 in self.later:
                return []
            raise
        z_t = self.execute(t, u_t)  # Eq. 13-15
        for p, z in zip(u_t, z_t, strict=True):  # in submission order
            self.graph = self.graph.with_result(p.subtask.id, z)
            history = self.method.remember(self.history, p.subtask, z)  # Eq. 19
            self.history = self.returned("remember", history, tuple)
            self.purse.join(p.purse)  # Eq. 21
        limit = self.options.context_tokens or self.method.context_tokens
        about = self.task.question, self.history, limit
        self.context = self.returned(
            "context", self.method.context(*about), str
        )  # Eq. 20
        return z_t

    def returned(self, name: str, value: Any, kind: Any) -> Any:
        """What a function of the method has returned. Raises TypeError for another kind."""
        if not isinstance(value, kind):
            where = f"{type(self.method).__name__}.{name}"
            raise TypeError(f"{where} returned {value!r:.80}, not {kind}")
        return value

    def place(self, t: int, y_t: Delegate) -> list[Placed]:
        """U_t, Eq. 12: the batch, with backends, tools and shares of B_t. If a decision follows,
        the main agent's reserve is not part of it. Raises NothingAffordable.
        """
        candidates = y_t.subtasks if y_t.whole_graph else ready(self.graph)
        k_max = None if y_t.whole_graph else self.options.k_max or len(candidates)
        left_usd = self.purse.left_usd
        if left_usd is not None and t <= self.rounds and not y_t.final:
            left_usd -= reserve_usd(self.pool[self.pool.main], left_usd)
        if left_usd is not None and left_usd < 0:  # a call cost more than it may
            raise NothingAffordable(f"budget exhausted: {-left_usd:.6f} USD over it")
        backends = self.pool.backends
        try:
            placed = self.method.place(
                candidates, self.task, backends, self.capabilities, k_max, left_usd
            )
        except BudgetExceeded as error:
            raise NothingAffordable(str(error)) from None
        left_out = {u.id for u in candidates} - {p.subtask.id for p in placed}
        if left_out:
            ids = ", ".join(u.id for u in candidates if u.id in left_out)
            reason = "--k-max" if len(placed) == k_max else "the budget covers no more"
            self.recorder.notify(f"r{t}: waiting for a later round: {ids} ({reason})")
        return placed

    def execute(self, t: int, u_t: Sequence[Placed]) -> list[Result]:
        """Z_t = AsyncExecute(u_1, ..., u_K), Eq. 15: each sub-task starts in a thread of its own as
        soon as its needs have ended. The results are in submission order.
        """
        held = {Place(t, j): p for j, p in enumerate(u_t, 1)}
        self.check(held)
        running: dict[Place, str] = {}
        ended: dict[str, Result] = {}
        just_ended: Ended = SimpleQueue()  # an interrupt leaves no lock of it locked
        while held or running:
            unended = {p.subtask.id for p in held.values()} | set(running.values())
            for place, p in list(held.items()):
                if unended.isdisjoint(p.subtask.needs):
                    del held[place]
                    running[place] = p.subtask.id
                    job = self.job(place, p, ended)
                    self.executor.submit(self.work, job, just_ended)
            try:
                place, z = just_ended.get(timeout=WAKE_S)
            except Empty:
                continue
            if isinstance(z, BaseException):
                raise z
            ended[running.pop(place)] = z
        return [ended[p.subtask.id] for p in u_t]

    def check(self, placed: Mapping[Place, Placed]) -> None:
        """Raises ConfigError for an agent or a tool that does not exist."""
        for place, p in placed.items():
            u = p.subtask
            if u.agent not in self.parts.agents:
                known = ", ".join(filter(None, self.parts.agents))
                raise ConfigError(
                    f"{place}: {u.agent!r} is not a sub-agent; one of {known}"
                )
            for name in u.tools or ():
                if name not in self.parts.tools:
                    known = ", ".join(self.parts.tools)
                    problem = f"{name!r} is not a tool of this run; it has {known}"
                    raise ConfigError(f"{place}: {problem}")

    def job(self, place: Place, p: Placed, ended: Mapping[str, Result]) -> Job:
        """The sub-task with what it reads next to its own context, and its environment."""
        u = with_outputs(p.subtask, ended)
        share_usd = p.purse.limit_usd
        self.recorder.emit("subtask", place, subtask=vars(u), share_usd=share_usd)
        contexts = [u.context, *self.method.also_read(self.task, self.context)]
        u = replace(u, context="\n\n".join(text for text in contexts if text))
        folder = self.tape.path.parent / "work" / f"r{place.round}-t{place.subtask}"
        env = Environment(
            task=self.task,
            backend=p.backend,
            pool=self.pool,
            chat=self.chat.copy(),
            tape=self.tape,
            purse=p.purse,
            folder=folder,
            options=self.options,
            depends_on=partial(of_user, self.parts.agents[u.agent], self.task),
        )

        def on_step(at: Place, step: Step) -> None:
            self.recorder.emit("step", at, **vars(step), spent_usd=env.purse.spent_usd)

        return Job(u, env, self.parts.tools, place, self.options.steps, on_step)

    def work(self, job: Job, just_ended: Ended) -> None:
        """zeta and z of a sub-task, Eq. 13-14, in its thread. What fails, fails alone."""
        began_s = time.monotonic()
        try:
            try:
                z = self.parts.agents[job.u.agent](job)
            except RunEndpointError as failure:
                if has_worked(job.trace):
                    self.show(job, job.unreported("", failure.cause), began_s)
                raise
            except FAILURES as failure:
                reason = (
                    explained(failure)
                    if isinstance(failure, ModelMistake)
                    else str(failure)
                )
                z = job.unreported(reason, failure.cause)
            just_ended.put((job.place, self.show(job, z, began_s)))
        except BaseException as error:  # raised again where the run waits for it
            just_ended.put((job.place, error))

    def show(self, job: Job, z: Result, began_s: float) -> Result:
        """z with what the program measures, as an event, too."""
        latency_s = time.monotonic() - began_s
        z = replace(
            z, latency_s=latency_s, media=opened(z, self.task), round=job.place.round
        )
        names = ("status", "answer", "summary", "cost_usd", "error", "cause", "media")
        row = {name: getattr(z, name) for name in names}
        row |= {"steps": len(z.trace), "subtask": job.u.id}
        self.recorder.emit(
            "result", job.place._replace(step=LAST_STEP), latency_s, **row
        )
        return z


def with_outputs(u: SubTask, ended: Mapping[str, Result]) -> SubTask:
    """`u` with each ${id} replaced by the output of its need `id`, if that ran in the same round:
    of earlier rounds C_t tells. A ${id} inside an output is not replaced.
    """
    if not u.needs:
        return u
    outputs = {id: output_of(id, ended[id]) for id in u.needs if id in ended}

    def insert(text: str) -> str:
        return INSERT.sub(lambda found: outputs.get(found[1], found[0]), text)

    return replace(u, instruction=insert(u.instruction), context=insert(u.context))


def output_of(id: str, z: Result) -> str:
    """What a sub-task that needs this one reads: its summary and answer, or its error."""
    if z.summary and z.error and not z.answer:
        return say("notes", "partial_need", id=id, error=z.error, summary=z.summary)
    text = z.summary if z.answer in z.summary else f"{z.summary}\n{z.answer}".strip()
    return text or say("notes", "failed_need", id=id, error=z.error)


# ---- record, replay, resume ----------------------------------------------------------------------


def orchestrate(
    question: str,
    media: Sequence[Any] = (),
    pool: Pool | None = None,
    options: Options | None = None,
    out: Folder | None = None,
    listeners: Iterable[Listener] = (),
    cancelled: threading.Event | None = None,
    more: Mapping[str, Any] | None = None,
    **given: Any,
) -> Outcome:
    """Answer a question and record everything in the folder `out` (runs/<time> by default).

    `media`: paths, or (modality, path). `given`: objects in place of what the options name, see
    `parts_of`. `more`: what a layer keeps in run.json. If another thread sets `cancelled`, no
    further call starts and the run ends with Cancelled.

    Raises ConfigError before anything is paid, EndpointError if the main agent's endpoint fails,
    DiskFull. The folder keeps everything that was paid for.
    """
    if pool is None:
        raise ConfigError(
            "a run needs a pool: Pool((Backend(name, model, base_url),), name)"
        )
    options = with_defaults(options or Options(), given.get("method"))
    more = {"code": shipped.can_run_code(options), **(more or {})}
    files = shipped.check_media(media)
    folder = Path(out) if out else Path(f"runs/{datetime.now():%Y%m%d-%H%M%S-%f}"[:-3])
    redact = given.get("redact") or redact_keys(b.api_key_env for b in pool.backends)
    manifest = Manifest(question, (), pool, options, more)
    manifest = begin(folder, manifest, files, redact)
    try:
        parts = parts_of(manifest, folder, listeners=tuple(listeners), **given)
    except BaseException:
        shutil.rmtree(folder)  # a mistake of the user leaves no folder
        raise
    return run(parts, folder, manifest, "record", cancelled=cancelled)


def replay(
    folder: Folder,
    listeners: Iterable[Listener] = (),
    parallel: int | None = None,
    **given: Any,
) -> Outcome:
    """Run again from the tape, offline. Pass `parallel` to change the number of threads. If the run
    used your own Python, pass the same objects again (`parts_of`).

    Raises TapeMiss at the first difference, ConfigError.
    """
    folder = Path(folder)
    manifest = read_manifest(folder)
    parts = parts_of(manifest, folder, listeners=tuple(listeners), **given)
    return play(parts, folder, manifest, parallel, read_events(folder))


def play(
    parts: Parts,
    folder: Path,
    manifest: Manifest,
    threads: int | None,
    recorded: Sequence[Event],
) -> Outcome:
    """Run again from the tape. Raises TapeMiss at the first difference, also from the events that
    are recorded.
    """
    again = run(parts, folder, manifest, "replay", threads)
    if recorded and recorded[-1]["event"] == "end" and recorded[-1]["finished"]:
        difference = first_difference(recorded, again.events)
        if difference:
            problem = f"the replay differs from the record: {difference}"
            raise TapeMiss(f"{folder}: {problem}")
    return again


def resume(
    folder: Folder,
    pool: Pool | None = None,
    listeners: Iterable[Listener] = (),
    cancelled: threading.Event | None = None,
    parallel: int | None = None,
    **given: Any,
) -> Outcome:
    """Continue a run, paying only for calls that are not on its tape. If none is missing, nothing
    is paid. `pool`: where its models are served now. The rest is as for `replay`.

    Raises TapeMiss if the run has its answer and would now send another request.
    """
    folder = Path(folder)
    manifest = read_manifest(folder)
    if pool is not None:
        manifest = replace(manifest, pool=pool)
    if given.get("options"):
        manifest = replace(manifest, options=given.pop("options"))
    given["listeners"] = tuple(listeners)
    recorded = read_events(folder)
    if recorded and recorded[-1].get("state") == "answered":
        try:
            parts = parts_of(manifest, folder, **given)
            return play(parts, folder, manifest, parallel, recorded)
        except TapeMiss as miss:
            if miss.differs:
                raise
    parts = parts_of(manifest, folder, **given)
    return run(parts, folder, manifest, "resume", threads=parallel, cancelled=cancelled)


def with_defaults(options: Options, method: Any = None) -> Options:
    """The options with the names of the default method and sub-agent, and the method's L_ctx."""
    name, agent = options.method or shipped.METHOD, options.agent or shipped.AGENT
    own = method or shipped.method_class(options)
    limit = options.context_tokens or getattr(
        own, "context_tokens", Method.context_tokens
    )
    return replace(options, method=name, agent=agent, context_tokens=limit)


def parts_of(
    manifest: Manifest,
    folder: Path,
    method: Callable[[Pool, Mapping[str, Tool], Options], Method] | None = None,
    agents: Mapping[str, Agent] | None = None,
    tools: Mapping[str, Tool] | None = None,
    change: Callable[[Parts, Manifest], Parts] | None = None,
    **hooks: Any,
) -> Parts:
    """The parts of the run that a run.json describes.

    `method` makes the method, in place of the shipped one that the options name. `agents` by name
    and `tools` by name are added to the shipped ones. `hooks`: sources, listeners, redact, send.
    `change` has the last word on the parts. Raises ConfigError.
    """
    task = manifest.task(folder)
    options = manifest.options
    found = {
        **shipped.tools_for(task, manifest.more.get("code", True)),
        **(tools or {}),
    }
    for name in found:
        if name in (FINISH, INVALID):
            raise ConfigError(f"a tool cannot have the name {name}")
    made = (method or shipped.make_method)(manifest.pool, found, options)
    made.accept(task)
    by_name = shipped.Agents({**made.agents, **(agents or {})})
    parts = Parts(task, manifest.pool, options, made, found, by_name, **hooks)
    return change(parts, manifest) if change else parts


def run(
    parts: Parts,
    folder: Path,
    manifest: Manifest,
    mode: Mode,
    threads: int | None = None,
    cancelled: threading.Event | None = None,
) -> Outcome:
    """Run Algorithm 1 in a folder that has its run.json. Whatever ends it, the folder has an end
    row, no further call starts, and those in flight are recorded.
    """
    redact = parts.redact or redact_keys(b.api_key_env for b in parts.pool.backends)
    tape = Tape(folder / "tape.jsonl", mode, parts.sources, redact, cancelled)
    recorder = Recorder(None if mode == "replay" else folder, parts.listeners, redact)
    row = manifest.row()
    recorder.emit(
        "run", (0,), **{key: value for key, value in row.items() if key != "v"}
    )
    current = Run(parts, tape, recorder, threads)
    try:
        outcome = current.solve()
    except BaseException as error:
        current.executor.shutdown(wait=False, cancel_futures=True)
        is_interrupt = isinstance(error, KeyboardInterrupt | EndOfRun)
        tape.close(GRACE_S if is_interrupt else parts.options.timeout_s)
        rounds = max(event["at"][0] for event in recorder.events)
        recorder.end(ending_of(error), "", rounds, current.purse)
        raise
    current.executor.shutdown(wait=False)  # each sub-task has ended
    tape.close()
    recorder.end(outcome.ending, outcome.answer, outcome.rounds, current.purse)
    latency_s = time.monotonic() - recorder.began_s
    return replace(outcome, run=folder, latency_s=latency_s, events=recorder.events)


def ending_of(error: BaseException) -> Ending:
    """How a run ended that an error has stopped."""
    cause = getattr(error, "cause", "bug")
    if cause == "signal" or isinstance(error, KeyboardInterrupt):
        return Ending("interrupted", "signal", "interrupted", finished=False)
    why = f"{type(error).__name__}: {error}" if cause == "bug" else str(error)
    return Ending("stopped", cause, why, finished=False)


def main(words: Sequence[str] | None = None) -> int:
    """The command, which is a layer above this file. Returns its exit code."""
    command = import_module("orchestra.command").main
    return int(command(sys.argv[1:] if words is None else words))
