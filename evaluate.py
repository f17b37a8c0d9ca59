#!/usr/bin/env python3
"""Which method, which model, at what cost: many questions at once, scored and compared.

    python evaluate.py run --data FILE --method react --out sweeps/react
    python evaluate.py report sweeps/react sweeps/orchestra-o1
    python evaluate.py masbench --axis depth --value 2..12 --n 10 --out depth.jsonl

Each question has a run folder of its own, OUT/runs/<id>, which replays and resumes like any other.
OUT/rows.jsonl gets a line for each question as it ends; OUT/sweep.json holds what they share.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import logging
import math
import os
import signal
import statistics
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, wait
from dataclasses import replace
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import orchestrators
from evaluation import masbench
from evaluation.questions import (
    JUDGE_SHARE,
    Plan,
    Question,
    Row,
    Tell,
    answered,
    begun,
    files_of,
    load,
    write,
)
from orchestra.vocabulary import Backend, ConfigError
from runtime import command_line, jsonl
from runtime import pool as pools
from runtime.console import table
from runtime.log import printable, usd
from runtime.pool import Pool
from runtime.run_folder import read_manifest

MOST = 256  # questions in flight, with --workers auto
GRACE_S = 3.0  # after Ctrl-C: how long calls in flight may take to reach their tape
RUN_FLAGS: dict[str, tuple[str, Any, str]] = {
    "data": ("FILE", Path, "questions: JSON or JSON lines; see docs/evaluate.md"),
    "media": ("DIR", Path, "where the media of the questions are (default: beside FILE)"),
    "out": ("DIR", Path, "folder of this sweep; run it again for what is missing or failed"),
    "level": ("A,B", str, "only these levels"),
    "category": ("A,B", str, "only these categories"),
    "limit": ("N", int, "only the first N"),
    "workers": ("N|auto", str, "questions in flight (auto: as many as the endpoint keeps up with)"),
    "budget": ("USD", float, "spending limit of the whole sweep, the judge included"),
    "executor": ("URL", str, "dask://HOST:PORT or ray://HOST:PORT: answer on other machines"),
    "judge": ("NAME", str, "a backend, or a model at the same endpoint, that checks the answers"),
}

# ---- a sweep -------------------------------------------------------------------------------------


class Crew:
    """How many questions are in flight. `auto`: one more with each question whose calls took at
    most 1.5 times as long as those of the first questions; half as many at a rate limit.
    """

    def __init__(self, workers: str) -> None:
        if workers != "auto" and not (workers.isdecimal() and 0 < int(workers) <= MOST):
            raise ConfigError(f"--workers {workers}: needs auto, or a number from 1 to {MOST}")
        self.auto, self.allowed = workers == "auto", 4 if workers == "auto" else int(workers)
        self.started = self.cut_at = 0
        self.paces: list[float] = []  # seconds a call, of the first questions

    def limited(self, number: int) -> None:
        if self.auto and number > self.cut_at:  # one that started before the last cut does not cut
            self.allowed, self.cut_at = max(1, self.allowed // 2), self.started

    def ended(self, row: Row) -> None:
        if self.auto and row["status"] == "done" and row["calls"] and not row["resumed"]:
            pace = row["latency_s"] / row["calls"]
            self.paces += [pace] if len(self.paces) < 8 else []
            if pace <= 1.5 * statistics.median(self.paces):
                self.allowed = min(MOST, self.allowed + 1)


class Funds:
    """The budget of a sweep. A question starts with a share that is reserved for it; what it did
    not spend goes back. A failed one keeps its share, because what it spent is not known.
    """

    def __init__(self, total_usd: float | None, rows: Iterable[Row]) -> None:
        self.total_usd, self.reserved = total_usd, dict[str, float]()
        self.spent: dict[str, float] = {}  # by run folder
        for row in rows:
            self.book(row)

    def book(self, row: Row) -> None:
        if row.get("cost_usd") is not None:
            self.spent[row["run"]] = row["cost_usd"] + (row.get("judge_usd") or 0.0)
            self.reserved.pop(row["id"], None)

    def share(self, id: str, running: int, allowed: int, held_usd: float | None) -> float | None:
        """At least what the dearest question cost, or what an earlier sweep gave this one; inf
        without a budget; None: not while others run. The first one alone shows what one costs.
        """
        if self.total_usd is None:
            return math.inf
        left = self.total_usd - sum(self.spent.values()) - sum(self.reserved.values())
        share = held_usd or max(left / max(allowed - running, 1), 0.0, *self.spent.values())
        if not 0 < share <= left or (running and not self.spent):
            return None
        self.reserved[id] = share
        return share


def held_usd(q: Question, plan: Plan) -> float | None:
    """The share that an earlier sweep gave to a question which it did not finish."""
    folder = plan.folder(q)
    limit = read_manifest(folder).options.budget_usd if begun(folder) else None
    return limit and limit / (1 - JUDGE_SHARE if plan.judge else 1)


def earlier_rows(plan: Plan, data: Path, budgeted: bool) -> list[Row]:
    """The newest row of each question, of earlier sweeps into the same folder. Raises ConfigError
    where those were of another kind.
    """
    row = {"data": hashlib.sha256(data.read_bytes()).hexdigest(), "budget": budgeted}
    row |= {"method": plan.options.method, "model": plan.pool.main}
    row |= {"judge": plan.judge and plan.judge.model, "options": plan.options.model_dump()}
    row |= {"backends": [backend.model for backend in plan.pool.backends]}
    text = json.dumps(row, indent=1, default=list)
    (plan.out / "runs").mkdir(parents=True, exist_ok=True)
    file = plan.out / "sweep.json"
    held = json.loads(file.read_text() if file.exists() else text)
    if other := [key for key, value in json.loads(text).items() if held.get(key) != value]:
        raise ConfigError(f"{plan.out} holds a sweep with other {other[0]}; use another --out")
    file.write_text(text)
    return list({r["id"]: r for r in jsonl.read(plan.out / "rows.jsonl")}.values())


def sweep(
    questions: Iterable[Question],
    plan: Plan,
    executor: Executor,
    crew: Crew,
    funds: Funds,
    tell: Tell,
) -> Iterator[Row]:
    """The row of each question as it ends, after it is on disk."""
    cancelled, local = threading.Event(), isinstance(executor, ThreadPoolExecutor)
    with tempfile.NamedTemporaryFile(dir=plan.out) as mark:
        shared = local or executor.submit(os.path.exists, mark.name).result()
    file = jsonl.Appender(plan.out / "rows.jsonl")
    running: dict[Future[Row], Question] = {}
    waiting = sorted(questions, key=lambda q: not begun(plan.folder(q)))

    def note(q: Question, number: int, message: str) -> None:
        tell(f"{q.id}: {message}")
        if "status 429" in message:
            crew.limited(number)

    def start(q: Question, share: float) -> None:
        crew.started += 1
        told = (partial(note, q, crew.started), cancelled) if local else ()
        files = None if shared else files_of(q, plan)
        running[executor.submit(answered, q, plan, share, files, *told)] = q

    try:
        while waiting or running:
            while waiting and len(running) < crew.allowed:
                q = waiting[0]
                share = funds.share(q.id, len(running), crew.allowed, held_usd(q, plan))
                if share is None:
                    break
                start(waiting.pop(0), share)
            if not running:
                tell(f"the budget is used up: {len(waiting)} questions were not started")
                return
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                row = row_of(q := running.pop(future), future)
                write(row.pop("files", {}), plan.out)
                for message in row.pop("notices", ()):
                    note(q, crew.started, message)
                funds.book(row)
                crew.ended(row)
                file.append(json.dumps(row, ensure_ascii=False))
                yield row
    finally:
        cancelled.set()
        wait(running, timeout=GRACE_S)
        file.unlock()


def row_of(q: Question, future: Future[Row]) -> Row:
    """The row of a question that ended; an error of ours or the loss of its workers is one too."""
    error = future.exception()
    if error is None:
        return future.result()
    if not isinstance(error, Exception):
        raise error
    why = f"{type(error).__name__}: {error}"
    about = {"id": q.id, "level": q.level, "category": q.category, "run": q.name}
    return {**about, "status": "failed", "why": why}


# ---- where questions are answered ----------------------------------------------------------------


class RayExecutor(Executor):
    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        import ray

        future: Future[Any] = ray.remote(fn).remote(*args, **kwargs).future()
        return future


@contextlib.contextmanager
def executor_at(url: str) -> Iterator[Executor]:
    """Threads of this process, or the cluster of --executor. Raises ConfigError."""
    kind, _, address = url.partition("://")
    try:
        if kind == "dask":
            from distributed import Client

            with Client(address, timeout=10) as client:
                yield client.get_executor(pure=False)
        elif kind == "ray":
            import ray

            with ray.init(url):
                yield RayExecutor()
        elif url:
            raise ConfigError(f"--executor {url}: needs dask://HOST:PORT or ray://HOST:PORT")
        else:
            yield ThreadPoolExecutor(MOST, thread_name_prefix="question")
    except ImportError as error:
        raise ConfigError(f"--executor {url}: {error}; pip install 'orchestra-min[eval]'") from None


# ---- the tables ----------------------------------------------------------------------------------


def wilson(right: int, n: int, z: float = 1.96) -> tuple[float, float]:
    """The 95 % interval of a proportion."""
    p, zz = right / max(n, 1), z * z / max(n, 1)
    half = z * math.sqrt(p * (1 - p) / max(n, 1) + zz / max(n, 1) / 4)
    return max(0.0, (p + zz / 2 - half) / (1 + zz)), min(1.0, (p + zz / 2 + half) / (1 + zz))


def mcnemar(only_a: int, only_b: int) -> float:
    """The exact two-sided p-value, from the questions that one of two methods alone got right."""
    n = only_a + only_b
    return min(1.0, 2 * sum(math.comb(n, k) for k in range(min(only_a, only_b) + 1)) / 2**n)


def figures(rows: Sequence[Row], score: str) -> dict[str, Any]:
    """Accuracy with its interval, cost and latency. A failed row counts as wrong."""
    right, n = sum(bool(row.get(score)) for row in rows), len(rows)
    done = [row for row in rows if row["status"] == "done"]
    costs = [row["cost_usd"] for row in done]
    times = [row["latency_s"] for row in done if not row["resumed"]]
    return {
        "n": n, "accuracy": right / max(n, 1), "interval": wilson(right, n), "failed": n - len(done),
        "cost_usd": None if None in costs else sum(costs),
        "latency_s": statistics.median(times) if times else None,
    }  # fmt: skip


def report(folders: Sequence[Path], score: str) -> dict[str, Any]:
    """Figures by method: overall, by score, level and category; and each pair of methods."""
    methods: dict[str, Any] = {}
    right: dict[str, dict[str, bool]] = {}
    for folder in folders:
        if not (folder / "rows.jsonl").is_file():
            raise ConfigError(f"{folder} is not the folder of a sweep (no rows.jsonl)")
        rows = list({row["id"]: row for row in jsonl.read(folder / "rows.jsonl")}.values())
        about = json.loads((folder / "sweep.json").read_text())
        name = f"{about['method']} {about['model']}"
        name = name if name not in methods else f"{name} {folder.name}"
        own = score or ("judge" if about["judge"] else "match")
        right[name] = {row["id"]: bool(row.get(own)) for row in rows}
        methods[name] = {"score": own, "overall": figures(rows, own)}
        methods[name] |= {s: figures(rows, s)["accuracy"] for s in ("exact", "match", "judge")}
        for key in ("level", "category"):
            values = dict.fromkeys(row[key] for row in rows)
            parts = {v: [row for row in rows if row[key] == v] for v in values}
            methods[name][key] = {v: figures(part, own) for v, part in parts.items()}
    pairs = []
    for a, b in combinations(right, 2):
        both = right[a].keys() & right[b].keys()
        only = [sum(right[x][i] > right[y][i] for i in both) for x, y in ((a, b), (b, a))]
        pairs.append(
            {
                "a": a,
                "b": b,
                "n": len(both),
                "only_a": only[0],
                "only_b": only[1],
                "p": mcnemar(*only),
            }
        )
    return {"methods": methods, "mcnemar": pairs}


def shown(f: dict[str, Any]) -> str:
    low, high = (f"{100 * end:.0f}" for end in f["interval"])
    cost = "-" if f["cost_usd"] is None else f"${f['cost_usd']:.2f}"
    time = "-" if f["latency_s"] is None else f"{f['latency_s']:.1f}s"
    return f"{100 * f['accuracy']:.1f} [{low}-{high}] n={f['n']} {cost} {time}"


def print_report(found: dict[str, Any]) -> None:
    """Tables in the shape of Table 1 and Figures 4 to 6 of arXiv 2606.13707."""
    print("accuracy in %, its 95 % interval, questions, cost, median latency\n")
    for key in ("level", "category"):
        values = sorted({v for m in found["methods"].values() for v in m[key]})
        rows = [{"part": v} for v in (*values, "overall")]
        for name, m in found["methods"].items():
            for row in rows:
                f = {**m[key], "overall": m["overall"]}.get(row["part"])
                row[name.replace(" ", "/")] = f and shown(f)
        print(table(" ".join([*rows[-1]]), rows), end="\n\n")
    rows = [{"method": name, **m, **m["overall"]} for name, m in found["methods"].items()]
    print(table("method score exact match judge failed", rows), end="\n\n")
    if found["mcnemar"]:
        print(table("a b n only_a only_b p", found["mcnemar"]))


# ---- the command line ----------------------------------------------------------------------------


@contextlib.contextmanager
def progress(rows: list[Row], total: int, scored: str) -> Iterator[tuple[Any, Tell]]:
    """`show(row)` and `tell(text)`: lines on standard error above a bar with the accuracy, the cost
    and the time left.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    console = Console(stderr=True, markup=False, emoji=False, highlight=False, soft_wrap=True)
    columns = BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}", markup=False)
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("", total=total, completed=len(rows))

        def tell(text: str) -> None:
            console.print(printable(text)[:200])

        def show(row: Row) -> None:
            rows.append(row)
            right = sum(bool(r.get(scored)) for r in rows)
            bar.update(task, advance=1)
            left_s = bar.tasks[0].time_remaining
            cost = usd(sum(r.get("cost_usd") or 0.0 for r in rows))
            text = f"{100 * right / len(rows):.1f} % right, {cost}, {left_s or 0:.0f} s left"
            bar.update(task, description=text)
            mark = "failed" if row["status"] == "failed" else "right" if row[scored] else "wrong"
            tell(f"{row['id']} {mark}: {row.get('answer') or row['why']!r} | {text}")

        yield show, tell


def run(a: argparse.Namespace, rest: list[str]) -> int:
    """A sweep. Returns 1 if a question failed or was not started."""
    of_run = command_line.parse(["--question", "?", *rest])
    for name in (
        "image",
        "audio",
        "video",
        "workdir",
        "compare",
        "replay",
        "resume",
        "runs",
        "out",
    ):
        if getattr(of_run, name):
            raise ConfigError(f"--{name}: is no flag of evaluate.py run")
    crew, pool = (
        Crew(a.workers or "auto"),
        pools.choose(of_run.backends, of_run.model, of_run.perception),
    )
    pool, judge = with_judge(pool, a.judge, of_run.backends)
    pools.check(pool, a.budget)
    orchestrators.make(of_run.options, pool, {})
    plan = Plan(a.out, pool, of_run.options, judge)
    questions = chosen(a, load(a.data, a.media))
    rows = earlier_rows(plan, a.data, a.budget is not None)
    funds, done = Funds(a.budget, rows), {r["id"] for r in rows if r["status"] == "done"}
    kept = [row for row in rows if row["id"] in done]
    left = [q for q in questions if q.id not in done]
    logging.getLogger("orchestra").setLevel(logging.ERROR)
    with (
        executor_at(a.executor or "") as executor,
        progress(kept, len(kept) + len(left), "judge" if judge else "match") as (show, tell),
    ):
        for row in sweep(left, plan, executor, crew, funds, tell):
            show(row)
    failed = len(left) - sum(row["status"] == "done" for row in kept[len(done) :])
    return int(failed > 0)


def with_judge(pool: Pool, name: str | None, file: Path | None) -> tuple[Pool, Backend | None]:
    """The pool with the judge's backend in it, so that its key and price are checked."""
    if name is None:
        return pool, None
    if name not in pool.names and file:
        raise ConfigError(f"--judge {name}: not in {file}; one of {', '.join(pool.names)}")
    if name in pool.names:
        return pool, pool[name]
    judge = replace(pool[pool.main], name=name, model=name)
    return pool, judge


def chosen(a: argparse.Namespace, questions: list[Question]) -> list[Question]:
    """Those of --level, --category and --limit whose media exist; the others are named."""
    for key in ("level", "category"):
        if wanted := getattr(a, key):
            names = [name.strip().lower() for name in wanted.split(",")]
            known = sorted({getattr(q, key) for q in questions})
            questions = [q for q in questions if getattr(q, key).lower() in names]
            if not questions:
                raise ConfigError(
                    f"--{key} {wanted}: no question has it; {a.data} has {', '.join(known)}"
                )
    questions = questions[: a.limit]
    lost = {q.id: [m.path for m in q.media if not Path(m.path).is_file()] for q in questions}
    for id, paths in lost.items():
        if paths:
            print(f"question {id} is skipped: {', '.join(paths)} missing", file=sys.stderr)
    kept = [q for q in questions if not lost[q.id]]
    if not kept:
        raise ConfigError(
            f"no question has all its media under {a.media or a.data.parent}; see --media"
        )
    return kept


def parser() -> argparse.ArgumentParser:
    about, no = str(__doc__).partition("\n")[0], {"allow_abbrev": False}
    p = command_line.OneLineParser(prog="evaluate.py", description=about, **no)
    commands = p.add_subparsers(dest="command", required=True)
    also = "and the flags of a run, as --method, --model, --backends, --rounds (orchestra_min.py --help)"
    one = commands.add_parser("run", help="answer and score questions", epilog=also, **no)
    for flag, (metavar, kind, text) in RUN_FLAGS.items():
        one.add_argument(
            f"--{flag}", metavar=metavar, type=kind, help=text, required=flag in ("data", "out")
        )
    two = commands.add_parser("report", help="tables of sweeps, by level and category", **no)
    two.add_argument("folders", metavar="DIR", type=Path, nargs="+", help="--out of a sweep")
    two.add_argument(
        "--score", choices=("exact", "match", "judge"), help="default: judge, where there is one"
    )
    two.add_argument("--json", action="store_true", help="the same as one JSON object")
    three = commands.add_parser("masbench", help="write problems along an axis of MASBENCH", **no)
    three.add_argument("--axis", choices=masbench.AXES, required=True)
    three.add_argument("--value", metavar="V|V..W", default="2..12", help="2 to 12 (2..12)")
    three.add_argument(
        "--n", metavar="N", type=int, default=10, help="problems for each value (10)"
    )
    three.add_argument("--seed", metavar="N", type=int, default=0, help="(0)")
    three.add_argument("--out", metavar="FILE", type=Path, required=True)
    return p


def main(argv: Sequence[str] | None = None) -> int:
    """Exit codes: 0, 1 where a question failed or was not started, 2 usage, 130 interrupted."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends like Ctrl-C
    a = argparse.Namespace()
    try:
        a, rest = parser().parse_known_args(argv)
        if a.command == "run":
            return run(a, rest)
        if rest:
            raise ConfigError(f"unknown argument {rest[0]} (see --help)")
        if a.command == "report":
            found = report(a.folders, a.score)
            print(json.dumps(found)) if a.json else print_report(found)
        else:
            masbench.write(a.out, a.axis, a.value, a.n, a.seed)
    except (ConfigError, jsonl.TapeWriteError, OSError) as error:
        print(f"evaluate.py: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; the same command goes on with what is left", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    status = main()
    os._exit(status)  # threads that wait for an endpoint must not hold the exit
