"""Many questions at once: how many in parallel, what each may spend, where they are answered."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import statistics
import tempfile
import threading
from collections.abc import Generator, Iterable, Iterator
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

from orchestra.evaluation import questions
from orchestra.evaluation.questions import Plan, Question, Row, Tell, begun
from orchestra.money import add_usd
from orchestra.runtime import tape
from orchestra.runtime.run_folder import read_manifest, write_whole
from orchestra.runtime.trajectory import usd
from orchestra.vocabulary import ConfigError

MOST = 256  # questions in flight
GRACE_S = 3.0  # after Ctrl-C: how long calls in flight may take to reach their tape


class Workers:
    """How many questions may be in flight: `allowed`. With `auto`, it grows by one after each
    question whose calls took at most 1.5 times as long as those of the first eight, and halves at a
    rate limit.
    """

    def __init__(self, workers: str) -> None:
        if workers != "auto" and not (workers.isdecimal() and 0 < int(workers) <= MOST):
            raise ConfigError(
                f"--workers {workers}: needs auto, or a number from 1 to {MOST}"
            )
        self.auto, self.allowed = (
            workers == "auto",
            4 if workers == "auto" else int(workers),
        )
        self.started = self.cut_at = 0
        self.paces: list[float] = []  # seconds a call, of the first questions

    def limited(self, number: int) -> None:
        """The question that was the `number`-th to start met a rate limit. If it started before
        the last cut, that cut was for the same limit.
        """
        if self.auto and number > self.cut_at:
            self.allowed, self.cut_at = max(1, self.allowed // 2), self.started

    def ended(self, row: Row) -> None:
        if self.auto and row["status"] == "done" and not row["resumed"]:
            pace = row["latency_s"] / max(row["calls"], 1)
            self.paces += [pace] if len(self.paces) < 8 else []
            if pace <= 1.5 * statistics.median(self.paces):
                self.allowed = min(MOST, self.allowed + 1)


class Budget:
    """The budget of a sweep. A question starts with a share, which is reserved for it; what it does
    not spend is returned. The share of a failed question stays reserved, because its cost is not
    known, and so does that of a run that an earlier sweep did not finish.
    """

    def __init__(
        self, total_usd: float | None, plan: Plan, rows: Iterable[Row]
    ) -> None:
        self.total_usd, self.plan, self.least_usd = total_usd, plan, 0.0
        self.spent, self.shares = (
            dict[str, float](),
            dict[str, float](),
        )  # by folder; by question
        for row in rows:
            self.book(row)
        for folder in (plan.out / "runs").iterdir():
            if folder.name not in self.spent:
                self.shares[folder.stem] = self._reserved_usd(folder)

    def _reserved_usd(self, folder: Path) -> float:
        """The share of a run that was begun: its budget, which a resume keeps."""
        return (
            read_manifest(folder).options.budget_usd if begun(folder) else None
        ) or 0.0

    def book(self, row: Row) -> None:
        cost = add_usd(row.get("cost_usd"), row.get("judge_usd", 0.0))
        if cost is not None:
            self.spent[row["run"]] = cost
            share = self.shares.pop(row["run"].partition(".")[0], 0.0)
            starved = row["status"] == "starved"
            self.least_usd = max(self.least_usd, 2 * share if starved else cost)

    def share(self, q: Question, free: int, alone: bool) -> float | None:
        """What a question may spend; inf without a budget. At least the cost of the most expensive
        question so far; a run that was begun keeps its budget. None: it cannot start now, because
        the money does not cover a share, or because the first question runs alone.
        """
        if self.total_usd is None:
            return math.inf
        kept = self.shares.pop(q.name, 0.0)
        left = self.total_usd - sum(self.spent.values()) - sum(self.shares.values())
        held = min(
            self._reserved_usd(self.plan.folder(q)), left
        )  # rounding may make it more
        enough = alone and left > self.least_usd / 2  # a share may be twice the need
        share = held or max(
            left / free, min(self.least_usd, left) if enough else self.least_usd
        )
        fits = 0 < share <= left and (alone or bool(self.spent))
        self.shares[q.name] = share if fits else kept
        return share if fits else None


def earlier_rows(plan: Plan, data: Path, budget: bool) -> list[Row]:
    """The rows of earlier sweeps into the same folder. Raises ConfigError if their settings were
    different.
    """
    about = {
        "data": hashlib.sha256(data.read_bytes()).hexdigest(),
        "with_budget": budget,
    }
    about |= {
        "model": plan.pool.main,
        "backends": [(b.name, b.model) for b in plan.pool.backends],
    }
    about |= {"judge": plan.judge and plan.judge.model, "world": plan.world}
    about |= plan.options.model_dump(exclude={*questions.FREE})
    text, file = json.dumps(about, indent=1, default=list), plan.out / "sweep.json"
    (plan.out / "runs").mkdir(parents=True, exist_ok=True)
    if not file.exists():
        write_whole(file, text)
    held = settings_of(plan.out)
    if other := [
        key for key, value in json.loads(text).items() if held.get(key) != value
    ]:
        raise ConfigError(
            f"{plan.out} is a sweep with another {other[0]}; use another --out"
        )
    return list(tape.read(plan.out / "rows.jsonl"))


def settings_of(folder: Path) -> Row:
    """The settings of a sweep, from sweep.json. Raises ConfigError."""
    file = folder / "sweep.json"
    try:
        about: Row = json.loads(file.read_text())
    except (OSError, ValueError):
        raise ConfigError(
            f"{file} is missing or damaged; is {folder} a sweep?"
        ) from None
    return {**about, **about.get("options", {})}  # where earlier versions put them


def sweep(
    todo: list[Question],
    plan: Plan,
    at: Executor,
    workers: Workers,
    budget: Budget,
    tell: Tell,
) -> Generator[Row, None, None]:
    """Answer the questions. Yields the row of each one as it ends, after it was written to disk."""
    cancelled, local = threading.Event(), isinstance(at, ThreadPoolExecutor)
    with tempfile.NamedTemporaryFile(dir=plan.out) as mark:
        shared = local or at.submit(os.path.exists, mark.name).result()
    file, running = (
        tape.Appender(plan.out / "rows.jsonl"),
        dict[Future[Row], Question](),
    )
    waiting = sorted(todo, key=lambda q: not begun(plan.folder(q)))

    def note(q: Question, number: int, message: str) -> None:
        tell(f"{q.id}: {message}")
        if "status 429" in message:
            workers.limited(number)

    try:
        while waiting or running:
            while waiting and (free := workers.allowed - len(running)) > 0:
                share = budget.share(waiting[0], free, not running)
                if share is None:
                    break
                q, workers.started = waiting.pop(0), workers.started + 1
                files = None if shared else questions.files_of(q, plan)
                here = (partial(note, q, workers.started), cancelled) if local else ()
                running[at.submit(questions.answered, q, plan, share, files, *here)] = q
            if not running:
                need = f"the next one may need {usd(budget.least_usd)}"
                tell(
                    f"budget exhausted: {len(waiting)} questions were not started; {need}"
                )
                break
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                row = row_of(q := running.pop(future), future)
                questions.write(row.pop("files", {}), plan.out)
                for message in row.pop("notices", ()):
                    note(q, workers.started, message)
                budget.book(row)
                workers.ended(row)
                file.append(json.dumps(row, ensure_ascii=False))
                if row["status"] == "starved":
                    waiting.append(q)  # again, with a larger share
                else:
                    yield row
    finally:
        cancelled.set()
        wait(running, timeout=GRACE_S)
        file.unlock()


def row_of(q: Question, future: Future[Row]) -> Row:
    """The row of a question that ended. An exception, such as a lost worker, gives a failed row."""
    error = future.exception()
    if not isinstance(error, Exception):
        return future.result()  # raises KeyboardInterrupt, which ends the sweep
    return {**q.row, "run": q.name, "why": f"{type(error).__name__}: {error}"}


# ---- where questions are answered ----------------------------------------------------------------


class RayExecutor(Executor):
    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        import ray

        return ray.remote(fn).remote(*args, **kwargs).future()


@contextlib.contextmanager
def executor_at(url: str) -> Iterator[Executor]:
    """Threads of this process, or the cluster of --executor. Raises ConfigError."""
    kind, _, address = url.partition("://")
    if kind not in ("", "dask", "ray"):
        raise ConfigError(
            f"--executor {url}: needs dask://HOST:PORT or ray://HOST:PORT"
        )
    cluster: Any = contextlib.nullcontext()
    executor: Executor = RayExecutor()
    try:
        if kind == "dask":
            import distributed

            cluster = distributed.Client(address, timeout=10)  # type: ignore[no-untyped-call]
            executor = cluster.get_executor(pure=False)
        elif kind == "ray":
            import ray

            cluster = ray.init(url)
        else:
            executor = ThreadPoolExecutor(MOST, thread_name_prefix="question")
    except (ImportError, OSError, ValueError) as error:
        hint = (
            f"pip install {error.name}"
            if isinstance(error, ImportError)
            else "is it running?"
        )
        raise ConfigError(f"--executor {url}: {error}; {hint}") from None
    with cluster:
        yield executor
