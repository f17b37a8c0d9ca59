"""One question, answered in a run folder of its own, and scored.

Everything here is a function of its arguments, so a question can be answered in a thread, in
another process or on another machine.
"""

from __future__ import annotations

import json
import math
import shutil
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from orchestra.ending import ending_of
from orchestra.evaluation.judge import RULES, verdict
from orchestra.evaluation.questions import Key, Question, QuestionRow
from orchestra.evaluation.scores import exact, matches
from orchestra.minigaia.agent import WorldAgent
from orchestra.money import Purse
from orchestra.runtime import outside
from orchestra.runtime.chat import Chat
from orchestra.runtime.options import Options
from orchestra.runtime.pool import Pool
from orchestra.runtime.run_folder import MAX_MEDIA_BYTES, name_of
from orchestra.runtime.secrets import Secrets
from orchestra.runtime.tape import Tape
from orchestra.runtime.tape_file import exchanges
from orchestra.runtime.trajectory import (
    Event,
    Trajectory,
    ended,
    ending_of_row,
    is_finished,
    read_if_sound,
)
from orchestra.runtime.user_code import spec_of
from orchestra.vocabulary import (
    Backend,
    BudgetExceeded,
    ConfigError,
    EndpointError,
    Place,
)
from orchestra_min import orchestrate, resume

Files = dict[str, bytes]  # by their path in a folder
REUSED = "reuse"  # the folder of the reused run, for a worker that shares no disk
MOST_BYTES = max(MAX_MEDIA_BYTES.values())  # of a file that travels to a worker
FREE = "timeout_s", "patience_s"  # options that may change when a sweep goes on


class Notice(NamedTuple):
    """A message about a call, and the HTTP status that it is about: 429 for a rate limit, 408 if
    the call timed out, 0 if there is none.
    """

    message: str
    status: int


OnNotice = Callable[[Notice], None]


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
    judge: Backend | None = None
    world: bool = False  # MiniGAIA's world plays the sub-agents
    reuse: Earlier | None = None
    shard: str | None = None  # i/n: every n-th question

    @property
    def names(self) -> QuestionRow:
        """What its rows say of the sweep."""
        return {"method": spec_of(self.options.method), "model": self.pool.main}

    def reused(self, q: Question) -> Path | None:
        """The run of the same question in the sweep of --reuse."""
        return self.reuse.runs.get(q.key) if self.reuse else None

    def folder(self, q: Question) -> Path:
        """The newest run folder of a question: 7, or 7.2 if it was begun again. If its run ended
        because its share of the budget was too small: the next one.
        """
        newest = self.out / "runs" / q.name
        while begun(_next(newest)):
            newest = _next(newest)
        end = ended(read_if_sound(newest / "trajectory.jsonl"))
        starved = end is not None and ending_of_row(end).cause == "budget"
        return _next(newest) if starved else newest


def _attempt_number(folder: Path) -> int:
    return int(folder.suffix[1:] or 1)


def _next(folder: Path) -> Path:
    return folder.with_name(f"{folder.stem}.{_attempt_number(folder) + 1}")


def begun(folder: Path) -> bool:
    """Whether a run in this folder may have made a call. A fork has its run.json last."""
    tape = folder / "tape.jsonl"
    is_complete = (folder / "run.json").exists()
    return is_complete and tape.is_file() and tape.stat().st_size > 0


def answered(
    q: Question,
    plan: Plan,
    share_usd: float = math.inf,
    files: Files | None = None,
    on_notice: OnNotice | None = None,
    cancelled: threading.Event | None = None,
) -> QuestionRow:
    """Answer and score one question, continuing its run folder if there is one. Returns its row.

    `files`: the result of `files_of`, for a worker that shares no disk; the row then has the files
    of the run. `on_notice` is called with each retry; without it, the notices are in the row. The
    status is "failed" if an endpoint failed, a file cannot be used or a rate limit outlasted the
    patience, and "starved" if the share was too small.
    """
    if files is not None:
        return _elsewhere(q, plan, share_usd, files)
    notices: list[Notice] = []
    folder = plan.folder(q)
    row: QuestionRow = {**q.row, **plan.names, "resumed": begun(folder)}
    row["run"] = folder.name
    attempt = _Attempt(
        q=q,
        plan=plan,
        share_usd=share_usd,
        on_notice=notices.append if on_notice is None else on_notice,
        cancelled=cancelled,
    )
    try:
        run = attempt.run(folder)
        row |= _fields_of(run)
        row |= attempt.scored(run)
    except BudgetExceeded as error:  # of the judge
        row |= {"status": "starved", "why": str(error)}
    except (EndpointError, ConfigError, OSError) as error:
        ending = ending_of(error)
        row |= {"state": ending.state, "cause": ending.cause, "cost_usd": None}
        row |= {"why": " ".join(ending.why.split())}
    return {**row, "notices": notices}


def _fields_of(run: Trajectory) -> QuestionRow:
    """The outcome of a run, as a part of a row."""
    fields = {**vars(run), "run": Path(run.run).name, "fallback": run.fallback}
    del fields["events"]
    return fields


@dataclass(frozen=True)
class _Attempt:
    """An attempt to answer a question."""

    q: Question
    plan: Plan
    share_usd: float  # what it may spend; inf without a budget
    on_notice: OnNotice
    cancelled: threading.Event | None

    # ---- the run ----

    def run(self, folder: Path) -> Trajectory:
        """The run of the question: a new one, a resumed one, or a fork of one that ended, from the
        round in which a rate limit outlasted the patience.
        """
        if not begun(folder):
            return self._begin(folder)
        past = read_if_sound(folder / "trajectory.jsonl")
        limited = _limited(past)
        end = ended(past)
        if limited is None or end is None or not is_finished(past):
            return self._resume(folder)
        in_last_round = limited.round == end["rounds"]
        if end["fallback"] and in_last_round:  # a resume retries its failed calls
            return self._resume(folder)
        return self._fork(folder, limited.round, past[0]["options"]["budget_usd"])

    def _begin(self, folder: Path) -> Trajectory:
        shutil.rmtree(folder, ignore_errors=True)  # killed before its first call
        options = self._options()
        if self.share_usd < math.inf:
            options = options.with_(budget_usd=self.share_usd)
        return orchestrate(
            self.q.question,
            self.q.media,
            options=options,
            out=folder,
            pool=self.plan.pool,
            listeners=(self._listen,),
            cancelled=self.cancelled,
            **self._reuse(),
        )

    def _reuse(self) -> dict[str, Any]:
        """The argument that names the run whose answers are taken; none without --reuse."""
        run = self.plan.reused(self.q)
        return {"reuse": [run]} if run else {}

    def _resume(
        self, folder: Path, from_round: int | None = None, out: Path | None = None
    ) -> Trajectory:
        return resume(
            folder,
            from_round,
            out,
            pool=self.plan.pool,
            listeners=(self._listen,),
            cancelled=self.cancelled,
            **self._options().again(),
            **self._reuse(),
        )

    def _options(self) -> Options:
        """Those of the plan; with --world, the sub-agent knows the facts of the question."""
        if not self.plan.world:
            return self.plan.options
        return self.plan.options.with_(agent=WorldAgent(self.q.facts))

    def _fork(
        self, folder: Path, from_round: int, budget_usd: float | None
    ) -> Trajectory:
        """A fork has the budget of its run. If the share is smaller, the question begins anew."""
        target = _next(folder)
        shutil.rmtree(target, ignore_errors=True)  # killed while it was copied
        needed_usd = (budget_usd or 0.0) * (1 - 1e-9)
        if self.share_usd < needed_usd:
            return self._begin(target)
        return self._resume(folder, from_round, target)

    def _listen(self, event: Event) -> None:
        if event["event"] == "notice":
            self.on_notice(Notice(event["message"], event.get("status", 0)))

    # ---- its scores ----

    def scored(self, run: Trajectory) -> QuestionRow:
        """Status and scores of a run that ended. Raises EndpointError and BudgetExceeded of the
        judge.
        """
        limited = _limited(run.events)
        if limited is not None:
            return {"cause": "rate limit", "why": f"rate limit in {limited}"}
        if self.share_usd < math.inf and run.cause == "budget":
            return {"status": "starved"}
        given = run.answer.strip()
        row: QuestionRow = {
            "exact": exact(given, self.q.accepted),
            "match": matches(given, self.q.accepted, self.q.question),
        }
        purse = Purse(self._left_usd(run))
        if self.plan.judge is not None:
            row["judge"] = self._verdict(run, given, self.plan.judge, purse)
        return {**row, "judge_usd": purse.spent_usd, "status": "done"}

    def _left_usd(self, run: Trajectory) -> float | None:
        """What the run left of the share; None without a budget."""
        if self.share_usd == math.inf:
            return None
        return self.share_usd - (run.cost_usd or 0.0)

    def _verdict(
        self, run: Trajectory, given: str, judge: Backend, purse: Purse
    ) -> bool | None:
        """The judge's verdict; its calls are on a tape of their own in the run folder."""
        options = self.plan.options
        file = Path(run.run) / "judge.jsonl"
        earlier = self.plan.reused(self.q)
        if earlier and not file.exists():
            _copy_answers(earlier / "judge.jsonl", file)
        secrets = Secrets([judge.api_key_env])
        with closing(Tape(file, "resume", secrets, self.cancelled)) as tape:
            chat = Chat(tape, options.timeout_s, options.patience_s)
            chat.notify = lambda message, status: self.on_notice(
                Notice(message, status)
            )
            what = self.q.question, self.q.accepted, given
            return verdict(RULES["judge"], *what, judge, chat, purse)


def _copy_answers(source: Path, target: Path) -> None:
    """Begin a tape with the answers on another one. Raises ConfigError."""
    name = name_of(source.parent)
    with outside.written(target) as copied:
        for row in exchanges(source):
            if "answer" in row:
                line = json.dumps({**row, "reused": name}, ensure_ascii=False)
                copied.write(f"{line}\n".encode("utf-8", "replace"))


def _limited(events: Sequence[Event]) -> Place | None:
    """The first sub-task that failed at a rate limit; None if none did."""
    for event in events:
        failed = event["event"] == "result" and event["status"] == "failed"
        if failed and event.get("cause") == "rate limit":
            round, subtask, _ = event["at"]
            return Place(round, subtask)
    return None


# ---- a worker that shares no disk ----------------------------------------------------------------


def files_of(q: Question, plan: Plan) -> Files:
    """The files that a question needs: those of its run folder, its media, and the reused run."""
    media = {path.lstrip("/"): Path(path).read_bytes() for _, path in q.media}
    files = _files_in(plan.folder(q), "runs") | media
    reused = plan.reused(q)
    return files | _files_in(reused, REUSED) if reused else files


def _files_in(folder: Path, top: str) -> Files:
    """The plain files in a folder, which may come from someone else: no links, which programs may
    leave, too. Raises ConfigError.
    """
    found = {}
    for path in outside.files_in(folder):
        with outside.opened(path, MOST_BYTES) as file:
            found[f"{top}/{path.relative_to(folder.parent)}"] = file.read()
    return found


def write(files: Mapping[str, bytes], folder: Path) -> None:
    """Write files to their paths in a folder."""
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with outside.written(path) as file:
            file.write(data)


def _elsewhere(q: Question, plan: Plan, share_usd: float, files: Files) -> QuestionRow:
    """Answer a question in a scratch folder. The row has the files of its run."""
    with tempfile.TemporaryDirectory() as scratch:
        top = Path(scratch)
        write(files, top)
        media = tuple((kind, f"{top}{path}") for kind, path in q.media)
        here = q.model_copy(update={"media": media})
        there = replace(plan, out=top)
        reused = plan.reused(q)
        if plan.reuse and reused:
            runs = {q.key: top / REUSED / reused.name}
            there = replace(there, reuse=replace(plan.reuse, runs=runs))
        row = answered(here, there, share_usd)
        return {**row, "files": _files_in(top / "runs" / row["run"], "runs")}
