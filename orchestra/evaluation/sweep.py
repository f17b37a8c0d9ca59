"""Many questions at once: what each may spend, and which come next."""

from __future__ import annotations

import json
import math
import os
import re
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import (
    FIRST_COMPLETED,
    Executor,
    Future,
    ThreadPoolExecutor,
    wait,
)
from functools import partial
from pathlib import Path
from typing import Any

from orchestra.command.terminal import interruption, usd
from orchestra.evaluation import answering
from orchestra.evaluation.answering import Plan, Watch, begun
from orchestra.evaluation.questions import Question, QuestionRow
from orchestra.kernel.folder import read_manifest
from orchestra.kernel.money import add_usd
from orchestra.kernel.tape import Appender, Cancelled
from orchestra.kernel.vocabulary import ConfigError, EndpointError

POLL_S = 0.2  # between two looks at whether the sweep was interrupted
MOST_REFUSED = 3  # questions, before any other got an answer
REFUSED = re.compile(r"status 40[134]\b")  # which no other question would avoid
GRACE_S = 2.0  # after Ctrl-C: how long calls in flight may take to reach their tape
Tell = Callable[[str], None]  # shows a line


class Budget:
    """The budget of a sweep. A question starts with a share, which is reserved for its run; what it
    does not spend is returned. The share of a run that did not end stays reserved, because a resume
    goes on with it.
    """

    def __init__(
        self, total_usd: float | None, plan: Plan, rows: Iterable[QuestionRow]
    ) -> None:
        self.total_usd = total_usd
        self.plan = plan
        self.least_usd = 0.0  # the least share that a question starts with
        self.is_exhausted = False  # it covers no further question
        # In USD, by the name of the run folder
        self.paid: dict[str, float | None] = {}
        self.shares: dict[str, float] = {}
        self.ended: set[str] = set()  # the run folders whose run has ended
        for row in rows:
            self.book(row)
        for folder in (plan.out / "runs").iterdir():
            if folder.name not in self.ended:
                self.shares[folder.name] = self._reserved_usd(folder)

    @property
    def spent_usd(self) -> float | None:
        """What all runs were paid. What was reused was not."""
        return add_usd(*self.paid.values())

    def _reserved_usd(self, folder: Path) -> float:
        """The share of a run that was begun: its budget, which a resume keeps."""
        if not begun(folder):
            return 0.0
        return read_manifest(folder).options.budget_usd or 0.0

    def book(self, row: QuestionRow) -> None:
        """Count what a run was paid, and return the rest of its share if it has ended."""
        run = row["run"]
        self.paid[run] = row.get("paid_usd", 0.0)
        if "answer" not in row:
            return
        self.ended.add(run)
        share_usd = self.shares.pop(run, 0.0)
        cost_usd = row["cost_usd"] or 0.0
        needed_usd = 2 * share_usd if row["status"] == "starved" else cost_usd
        self.least_usd = max(self.least_usd, needed_usd)

    def share(self, q: Question, free: int, alone: bool) -> float | None:
        """What a question may spend, in USD; inf without a budget. A run that was begun keeps its
        budget. `free`: how many questions may start now; `alone`: none is in flight. None: it
        cannot start now, because the money does not cover a share, or because the first question
        runs alone.
        """
        if self.total_usd is None:
            return math.inf
        folder = self.plan.folder(q)
        others = {**self.paid, **self.shares}
        others.pop(folder.name, None)
        left_usd = self.total_usd - sum(usd or 0.0 for usd in others.values())
        reserved_usd = self._reserved_usd(folder)
        share_usd = min(reserved_usd, left_usd)  # rounding may make it more
        if share_usd == 0 or folder.name in self.ended:
            share_usd = max(share_usd, self._new_share_usd(left_usd, free, alone))
        may_start = alone or len(self.ended) > 0
        if not (may_start and 0 < share_usd <= left_usd):
            return None
        self.shares[folder.name] = share_usd
        return share_usd

    def _new_share_usd(self, left_usd: float, free: int, alone: bool) -> float:
        """At least the cost of the most expensive question so far."""
        needed_usd = self.least_usd
        if alone and left_usd > needed_usd / 2:  # a share may be twice the need
            needed_usd = min(needed_usd, left_usd)
        return max(left_usd / free, needed_usd)


def sweep(
    todo: list[Question],
    plan: Plan,
    at: Executor,
    workers: int,
    budget: Budget,
    tell: Tell,
) -> Generator[QuestionRow, None, None]:
    """Answer the questions. Yields the row of each one as it ends, after it was written to disk."""
    flight = _Flight(todo, plan, at, workers, budget, tell)
    file = Appender(plan.out / "rows.jsonl")
    refusals = _Refusals(len(todo))
    try:
        while flight.waiting or flight.running:
            if interruption.cancelled.is_set():
                raise Cancelled("interrupted")
            flight.start_all()
            if not flight.running:
                budget.is_exhausted = True
                tell(
                    f"budget exhausted: {len(flight.waiting)} questions were not started; "
                    f"the next one may need {usd(budget.least_usd)}"
                )
                break
            for q, row in flight.ended():
                paid_usd = budget.paid.get(row["run"])
                budget.book(row)
                is_starved = row["status"] == "starved"
                if not is_starved or budget.paid[row["run"]] != paid_usd:
                    file.append(json.dumps(row, ensure_ascii=False))
                if is_starved:
                    flight.waiting.append(q)  # again, with a larger share
                else:
                    yield row
                refusals.count(row)
    finally:
        flight.stop()
        file.unlock()


class _Refusals:
    """How many questions an endpoint has refused, as for a wrong key, before any got an answer."""

    def __init__(self, asked: int) -> None:
        self.left = min(MOST_REFUSED, asked)

    def count(self, row: QuestionRow) -> None:
        """Count a question that has ended. Raises EndpointError once there are too many."""
        if row["status"] != "failed" or row.get("tokens", 0) > 0:
            self.left = 0  # it refuses not all: nothing is counted any more
        if self.left == 0 or not REFUSED.search(row["why"]):
            return
        self.left -= 1
        if self.left == 0:
            problem = "once that is corrected, the same command goes on"
            if "status 404" in row["why"]:
                problem += "; another --model needs another --out"
            raise EndpointError(f"{row['why']}; {problem}")


class _Flight:
    """The questions of a sweep that wait, and those that run."""

    def __init__(
        self,
        todo: list[Question],
        plan: Plan,
        at: Executor,
        workers: int,
        budget: Budget,
        tell: Tell,
    ) -> None:
        self.plan = plan
        self.executor = at
        self.workers = workers
        self.budget = budget
        self.tell = tell
        self.cancelled = threading.Event()
        self.in_threads = isinstance(at, ThreadPoolExecutor)
        if not self.in_threads and not self._is_seen(plan.out):
            problem = "the workers of --executor do not see this folder"
            raise ConfigError(f"--out {plan.out}: {problem}; name one on a shared disk")
        self.running: dict[Future[QuestionRow], Question] = {}
        # Those that an earlier sweep began come first.
        self.waiting = deque(sorted(todo, key=lambda q: not begun(plan.folder(q))))

    def _is_seen(self, folder: Path) -> bool:
        """Whether the other machines have this folder, too."""
        with tempfile.NamedTemporaryFile(dir=folder) as mark:
            return self.executor.submit(os.path.exists, mark.name).result()

    def start_all(self) -> None:
        """Start as many questions as workers and budget allow."""
        while self.waiting:
            free = self.workers - len(self.running)
            if free <= 0:
                return
            alone = not self.running
            share_usd = self.budget.share(self.waiting[0], free, alone)
            if share_usd is None:
                return
            self._start(self.waiting.popleft(), share_usd)

    def _start(self, q: Question, share_usd: float) -> None:
        how: dict[str, Any] = {"share_usd": share_usd}
        if self.in_threads:  # elsewhere, messages come with the row
            how["watch"] = Watch(partial(self._note, q), self.cancelled)
        future = self.executor.submit(answering.answer, q, self.plan, **how)
        self.running[future] = q

    def ended(self) -> Iterator[tuple[Question, QuestionRow]]:
        """Wait for a question to end, for at most POLL_S. Yields all that have ended, with their
        rows.
        """
        some = wait(self.running, timeout=POLL_S, return_when=FIRST_COMPLETED).done
        for future in some:
            q = self.running.pop(future)
            row = _row_of(q, self.plan, future)
            for notice in row.pop("notices", ()):
                self._note(q, notice)
            yield q, row

    def _note(self, q: Question, notice: str) -> None:
        self.tell(f"{q.label}: {notice}")

    def stop(self) -> None:
        self.cancelled.set()
        wait(self.running, timeout=GRACE_S)


def _row_of(q: Question, plan: Plan, future: Future[QuestionRow]) -> QuestionRow:
    """The row of a question that ended. An exception, such as a lost worker, gives a failed row."""
    error = future.exception()
    if not isinstance(error, Exception):
        return future.result()  # raises KeyboardInterrupt, which ends the sweep
    why = f"{type(error).__name__}: {error}"
    return {**q.row, **plan.names, "run": q.name, "why": why}
