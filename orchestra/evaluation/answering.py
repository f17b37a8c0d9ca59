"""One question, answered in a run folder of its own, and scored.

Everything here is a function of its arguments, so a question can be answered in a thread, in
another process or on another machine.
"""

from __future__ import annotations

import math
import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from orchestra import methods as shipped
from orchestra.command.names import LISTED, objects, redact_of
from orchestra.evaluation.questions import Key, Question, QuestionRow
from orchestra.evaluation.scores import scores_of
from orchestra.kernel.folder import Event, Options, read_events, read_manifest
from orchestra.kernel.tape import Source
from orchestra.kernel.vocabulary import (
    ConfigError,
    EndpointError,
    Place,
    Pool,
)
from orchestra.report.totals import Totals, totals_in
from orchestra.variation.reuse import answers_of
from orchestra_min import Outcome, ending_of, orchestrate, resume


@dataclass(frozen=True)
class Earlier:
    """The sweep of --reuse: its name, and the valid run of each question and repeat."""

    name: str
    runs: Mapping[Key, Path]


@dataclass(frozen=True)
class Plan:
    """What all questions of a sweep share."""

    out: Path
    pool: Pool
    options: Options
    reuse: Earlier | None = None

    @property
    def names(self) -> QuestionRow:
        """What its rows say of the sweep."""
        return {"method": self.options.method, "model": self.pool.main}

    def reused(self, q: Question) -> Path | None:
        """The run of the same question in the sweep of --reuse."""
        return self.reuse.runs.get(q.key) if self.reuse else None

    def attempts(self, q: Question) -> list[Path]:
        """The run folders of a question that were begun, the oldest first: 7, 7.2, 7.3."""
        found = []
        folder = self.out / "runs" / q.name
        while begun(folder):
            found.append(folder)
            folder = _next(folder)
        return found

    def folder(self, q: Question) -> Path:
        """The folder of a question's newest run, which goes on; or of the next one, if that is
        over.
        """
        attempts = self.attempts(q)
        if not attempts:
            return self.out / "runs" / q.name
        return _next(attempts[-1]) if _is_over(attempts[-1]) else attempts[-1]


def _next(folder: Path) -> Path:
    number = int(folder.suffix[1:] or 1)
    return folder.with_name(f"{folder.stem}.{number + 1}")


def begun(folder: Path) -> bool:
    """Whether a run in this folder may have made a call."""
    tape = folder / "tape.jsonl"
    is_complete = (folder / "run.json").exists()
    return is_complete and tape.is_file() and tape.stat().st_size > 0


def _is_over(folder: Path) -> bool:
    """Whether a run has ended so that only another one can give an answer that counts: its share of
    the budget was too small, or a sub-task failed at a rate limit.
    """
    events = read_events(folder)
    if not events or events[-1]["event"] != "end" or not events[-1]["finished"]:
        return False
    return events[-1]["cause"] == "budget" or _limited(events) != ""


@dataclass(frozen=True)
class Watch:
    """What the sweep sees of a question while it is answered: messages about calls."""

    notify: Callable[[str], None] = lambda message: None
    cancelled: threading.Event | None = None

    def listen(self, event: Event) -> None:
        if event["event"] == "notice":
            self.notify(event["message"])


def answer(
    q: Question,
    plan: Plan,
    share_usd: float = math.inf,
    watch: Watch | None = None,
) -> QuestionRow:
    """Answer and score one question, continuing its run folder if there is one. Returns its row.

    Without `watch`, the row has the messages. The status is "failed" if an
    endpoint failed, a file cannot be used or a rate limit outlasted the patience, and "starved" if
    the share was too small.
    """
    notices: list[str] = []
    watch = watch or Watch(notices.append)
    folder = plan.folder(q)
    row: QuestionRow = {**q.row, **plan.names, "resumed": begun(folder)}
    row["run"] = folder.name
    attempt = _Attempt(q, plan, share_usd, watch)
    try:
        outcome = attempt.run(folder)
        row |= _fields_of(outcome)
        row |= attempt.score(outcome)
    except (EndpointError, ConfigError, OSError) as error:
        ending = ending_of(error)
        row |= {"state": ending.state, "cause": ending.cause}
        row |= {"why": " ".join(ending.why.split())}
    row |= vars(totals_in(folder) if begun(folder) else Totals())
    return {**row, "notices": notices}


def _fields_of(outcome: Outcome) -> QuestionRow:
    """The outcome of a run, as a part of a row."""
    names = ("answer", "state", "rounds", "failed_subtasks", "fallback", "latency_s")
    fields = {name: getattr(outcome, name) for name in names}
    return {**fields, "cause": outcome.ending.cause, "why": outcome.ending.why}


@dataclass(frozen=True)
class _Attempt:
    """An attempt to answer a question."""

    q: Question
    plan: Plan
    share_usd: float  # what it may spend; inf without a budget
    watch: Watch

    def run(self, folder: Path) -> Outcome:
        """The run of the question: a new one, or the one in the folder, which goes on."""
        options = self.plan.options
        goes_on = begun(folder)
        if not goes_on:
            shutil.rmtree(folder, ignore_errors=True)  # killed before its first call
        redact = redact_of(self.plan.pool, options.more)
        listed = read_manifest(folder).more.get(LISTED) if goes_on else None
        log = folder / "log.txt"
        with objects(options, log, redact, listed) as (given, more):
            given |= {
                "pool": self.plan.pool,
                "listeners": (self.watch.listen,),
                "cancelled": self.watch.cancelled,
                "redact": redact,
                "sources": self._sources(folder),
            }
            if goes_on:
                return resume(folder, **given)
            media = shipped.check_media(self.q.media)
            if not given["sources"]:
                shipped.check_engines(media, self.plan.pool)
            if self.share_usd < math.inf:
                options = replace(options, budget_usd=self.share_usd)
            given |= {"options": options, "out": folder, "more": more}
            return orchestrate(self.q.question, media, **given)

    def _sources(self, folder: Path) -> list[Source]:
        """Whose answers are taken: those of earlier attempts, and of the sweep of --reuse."""
        attempts = self.plan.attempts(self.q)
        runs = [*reversed(attempts), self.plan.reused(self.q)]
        return [answers_of(run) for run in runs if run and run != folder and begun(run)]

    # ---- its scores ----

    def score(self, outcome: Outcome) -> QuestionRow:
        """Status and scores of a run that ended."""
        limited = _limited(outcome.events)
        if limited:
            return {"cause": "rate limit", "why": f"rate limit in {limited}"}
        if self.share_usd < math.inf and outcome.ending.cause == "budget":
            return {"status": "starved"}
        scores = scores_of(outcome.answer, self.q.accepted, self.q.question)
        return {**scores, "status": "done"}


def _limited(events: Sequence[Event]) -> str:
    """The place of the first sub-task that failed at a rate limit; "" if none did."""
    for event in events:
        failed = event["event"] == "result" and event["status"] == "failed"
        if failed and event.get("cause") == "rate limit":
            round, subtask, _ = event["at"]
            return str(Place(round, subtask))
    return ""
