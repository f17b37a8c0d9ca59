"""Answer many questions, score the answers and compare methods by accuracy and cost.

    orchestra-min evaluate run --data FILE --method react --out sweeps/react
    orchestra-min evaluate report sweeps/react sweeps/orchestra-o1
    orchestra-min masbench --axis depth --value 2..12 --n 10 --out depth.jsonl

Each question has a run folder of its own, OUT/runs/<id>, which replays and resumes like any other.
OUT/rows.jsonl gets a line for each question as it ends; OUT/sweep.json has their settings.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import math
import signal
import statistics
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

from orchestra import methods
from orchestra.evaluation import questions
from orchestra.evaluation.questions import Plan, Question, Row
from orchestra.evaluation.sweep import (
    Budget,
    Workers,
    earlier_rows,
    executor_at,
    settings_of,
    sweep,
)
from orchestra.minigaia import agent as world
from orchestra.money import add_usd
from orchestra.runtime import command_line, console, tape
from orchestra.runtime import pool as pools
from orchestra.runtime.trajectory import printable, usd
from orchestra.tools.media import check
from orchestra.vocabulary import ConfigError

WIDTH = 100  # of a table cell, at most
OF_ONE_RUN = (
    "image audio video workdir compare replay resume from_round runs out json quiet"
)
FLAGS: dict[str, tuple[Any, str]] = {  # of `run`, besides those of a single run
    "data": (Path, "questions: JSON or JSON lines; see docs/evaluate.md"),
    "out": (Path, "folder of this sweep; run it again for what is missing or failed"),
    "media": (
        Path,
        "where the media of the questions are (default: the folder of DATA)",
    ),
    "level": (str, "only these levels: A,B"),
    "category": (str, "only these categories: A,B"),
    "limit": (int, "only the first LIMIT"),
    "workers": (str, "questions in flight; auto adapts to the endpoint (auto)"),
    "budget": (float, "spending limit of the whole sweep in USD, the judge included"),
    "executor": (str, "dask://HOST:PORT or ray://HOST:PORT: answer on other machines"),
    "judge": (
        str,
        "a backend, or another model at the main endpoint, that checks the answers",
    ),
}

# ---- the tables ----------------------------------------------------------------------------------


def wilson(right: int, n: int, z: float = 1.96) -> tuple[float, float]:
    """The 95 % interval of a proportion; n > 0."""
    p, zz = right / n, z * z / n
    half = z * math.sqrt(p * (1 - p) / n + zz / n / 4)
    low, high = (p + zz / 2 - half) / (1 + zz), (p + zz / 2 + half) / (1 + zz)
    return max(0.0, low), min(1.0, high)  # rounding may pass them


def mcnemar(only_a: int, only_b: int) -> float:
    """The exact two-sided p-value, from the numbers of questions that only one method got right."""
    n = only_a + only_b
    tail = sum(math.comb(n, k) for k in range(min(only_a, only_b) + 1))
    return float(min(1.0, 2 * tail / 2**n))


def figures(rows: Sequence[Row], score: str) -> dict[str, Any]:
    """Accuracy with its interval, cost and latency. A failed row counts as wrong."""
    right, done = (
        sum(bool(r.get(score)) for r in rows),
        [r for r in rows if r["status"] == "done"],
    )
    whole = [r["latency_s"] for r in done if not r["resumed"]]
    return {
        "n": len(rows), "failed": len(rows) - len(done), "accuracy": right / len(rows),
        "interval": wilson(right, len(rows)), "cost_usd": add_usd(*(r["cost_usd"] for r in done)),
        "unjudged": sum(r.get("judge", 0) is None for r in done),
        "latency_s": statistics.median(whole) if whole else None,
    }  # fmt: skip


def report(folders: Iterable[Path], score: str | None) -> dict[str, Any]:
    """The figures of each sweep, and McNemar's test for each pair of them. Raises ConfigError."""
    sweeps = [(folder, settings_of(folder)) for folder in folders]
    unjudged = [folder for folder, about in sweeps if not about["judge"]]
    if score == "judge" and unjudged:
        raise ConfigError(f"--score judge: {unjudged[0]} was run without --judge")
    score = score or ("match" if unjudged else "judge")
    methods, right = dict[str, Row](), dict[str, dict[Any, bool]]()
    for folder, about in sweeps:
        rows = [*{row["id"]: row for row in tape.read(folder / "rows.jsonl")}.values()]
        if not rows:
            raise ConfigError(f"{folder} has no rows yet")
        name = "_".join(f"{about['method']}/{about['model']}".split())
        name = "_".join(f"{name}/{folder}".split()) if name in methods else name
        right[name] = {
            (row["id"], row.get("right")): bool(row.get(score)) for row in rows
        }
        methods[name] = method_row(rows, score, bool(about["judge"]))
    pairs = []
    for a, b in combinations(methods, 2):
        both = (
            right[a].keys() & right[b].keys()
        )  # the same question with the same right answer
        only_a, only_b = (
            sum(right[x][i] > right[y][i] for i in both) for x, y in ((a, b), (b, a))
        )
        figure = {
            "n": len(both),
            "only_a": only_a,
            "only_b": only_b,
            "p": mcnemar(only_a, only_b),
        }
        pairs.append({"a": a, "b": b, **figure})
    return {"methods": methods, "mcnemar": pairs}


def method_row(rows: Sequence[Row], score: str, judged: bool) -> Row:
    """Figures of one method: overall, by score, level and category."""
    found: Row = {"score": score, "overall": figures(rows, score)}
    for kind in ("exact", "match", "judge") if judged else ("exact", "match"):
        found[kind] = figures(rows, kind)["accuracy"]
    for key in ("level", "category"):
        parts = {
            value: [r for r in rows if r[key] == value]
            for value in {r[key] for r in rows}
        }
        order = sorted(
            parts, key=lambda value: value.zfill(9) if value.isdigit() else value
        )
        found[key] = {value: figures(parts[value], score) for value in order}
    return found


def print_report(found: dict[str, Any]) -> None:
    """Tables in the shape of Table 1 and Figures 4 to 6 of arXiv 2606.13707."""
    tables = [
        "accuracy in %, 95 % interval, questions, cost without the judge's, median latency"
    ]
    for key in ("level", "category"):
        rows: dict[str, Row] = {
            p: {key: p} for m in found["methods"].values() for p in m[key]
        }
        for name, method in found["methods"].items():
            for part, f in {**method[key], "overall": method["overall"]}.items():
                low, high = f["interval"]
                accuracy = (
                    f"{100 * f['accuracy']:.1f} [{100 * low:.0f}-{100 * high:.0f}]"
                )
                cell = f"{accuracy} n={f['n']} {usd(f['cost_usd'])} "
                cell += "-" if f["latency_s"] is None else f"{f['latency_s']:.1f} s"
                rows.setdefault(part, {key: part})[name] = cell
        tables.append(
            console.table(" ".join([key, *found["methods"]]), rows.values(), WIDTH)
        )
    rows = {
        name: {"method": name, **m, **m["overall"]}
        for name, m in found["methods"].items()
    }
    columns = "method score exact match judge unjudged failed"
    tables.append(console.table(columns, rows.values(), WIDTH))
    if found["mcnemar"]:
        tables.append(console.table("a b n only_a only_b p", found["mcnemar"], WIDTH))
    console.put("\n\n".join(tables))


# ---- the command line ----------------------------------------------------------------------------


def run(a: argparse.Namespace, rest: list[str]) -> int:
    """A sweep. Returns 1 if a question failed or was not started."""
    of_run = command_line.parse(["--question", "?", *rest])
    if wrong := [name for name in OF_ONE_RUN.split() if getattr(of_run, name)]:
        raise ConfigError(
            f"--{wrong[0].replace('_', '-')}: is for a single run; leave it out"
        )
    for name in ("limit", "budget"):
        if (given := getattr(a, name)) is not None and not 0 < given < math.inf:
            raise ConfigError(f"--{name} {given}: needs a number above 0")
    workers, options = Workers(a.workers or "auto"), of_run.options
    asked = chosen(a, questions.load(a.data, a.media))
    media = [modality for q in asked for modality, _ in q.media]
    pool = pools.choose(of_run.backends, of_run.model, of_run.perception, media)
    pools.check(pool, a.budget)
    methods.make(options, pool, {})
    judge = a.judge and replace(pool[pool.main], name=a.judge, model=a.judge)
    if judge and judge.name in pool.names:
        judge = pool[judge.name]
    elif judge and a.budget is not None:
        raise ConfigError(
            f"--judge {a.judge}: --budget needs its price; add it to --backends FILE"
        )
    if a.world:
        world.check(options.method, asked)
        nobody = {
            kind: pools.Engine("endpoint", pool.main) for kind in ("image", "audio")
        }
        pool = pool.with_(
            engines=nobody
        )  # no file is analysed, so no local engine is needed
    plan = Plan(a.out, pool, options, judge, a.world)
    with executor_at(a.executor or "") as executor:
        past = earlier_rows(plan, a.data, a.budget is not None)
        rows = {row["id"]: row for row in past}  # the newest of each question
        left = [q for q in asked if rows.get(q.id, {}).get("status") != "done"]
        done = [
            row for q in asked if (row := rows.get(q.id)) and row["status"] == "done"
        ]
        budget, began, before = (
            Budget(a.budget, plan, past),
            time.monotonic(),
            len(done),
        )
        with contextlib.closing(
            sweep(left, plan, executor, workers, budget, tell)
        ) as ended:
            for row in ended:
                done.append(row)
                right = f"{len(done)} of {len(asked)}, {sum(map(is_right, done))} right"
                each_s = (time.monotonic() - began) / (len(done) - before)
                spent = usd(sum(budget.spent.values()))
                left_s = f"{each_s * (len(asked) - len(done)):.0f} s left"
                tell(f"{right}, {spent}, {left_s} | {described(row)}")
    return int(sum(row["status"] == "done" for row in done) < len(asked))


def chosen(a: argparse.Namespace, asked: list[Question]) -> list[Question]:
    """The questions of --level, --category and --limit, with the modality of each file. Those whose
    media cannot be read are listed and left out.
    """
    for key in ("level", "category"):
        if names := [
            name.strip().lower() for name in (getattr(a, key) or "").split(",") if name
        ]:
            known = ", ".join(sorted({getattr(q, key) for q in asked} - {""})) or "none"
            asked = [q for q in asked if getattr(q, key).lower() in names]
            if not asked:
                raise ConfigError(f"--{key}: no question has it; {a.data} has {known}")
    readable = []
    for q in asked[: a.limit]:
        try:
            media = tuple((modality, str(path)) for modality, path in check(q.media))
            readable.append(q.model_copy(update={"media": media}))
        except ConfigError as error:
            console.tell(f"question {q.id} is skipped: {error}")
    if not readable:
        raise ConfigError("no question is left; see --media and --limit")
    return readable


def is_right(row: Row) -> bool:
    return bool(row.get("judge", row.get("match")))  # a failed row has neither


def described(row: Row) -> str:
    """The row of a question as one line."""
    if row["status"] == "failed":
        return f"{row['id']} failed: {row['why']}"
    outcome = "right" if is_right(row) else "wrong"
    return f"{row['id']} {outcome}: {row['answer'] or row['why']!r}"


def tell(line: str) -> None:
    """One line on standard error."""
    console.tell(printable(line)[:200])


def parser() -> argparse.ArgumentParser:
    p = command_line.OneLineParser(prog="orchestra-min evaluate", allow_abbrev=False)
    commands = p.add_subparsers(dest="command", required=True)
    also = "and the flags of a run: --method, --model, --backends ...; see orchestra-min --help"
    one = commands.add_parser("run", help="answer and score questions", epilog=also)
    for flag, (kind, text) in FLAGS.items():
        one.add_argument(
            f"--{flag}", type=kind, help=text, required=flag in ("data", "out")
        )
    one.add_argument(
        "--world", action="store_true", help="MiniGAIA: sub-agents are not models"
    )
    two = commands.add_parser("report", help="tables of sweeps, by level and category")
    two.add_argument(
        "folders", metavar="DIR", type=Path, nargs="+", help="--out of a sweep"
    )
    two.add_argument(
        "--score", choices=("exact", "match", "judge"), help="(judge, else match)"
    )
    two.add_argument("--json", action="store_true", help="the same as one JSON object")
    return p


def main(argv: Sequence[str]) -> int:
    """Exit codes: 0, 1 where a question failed or was not started, 2 usage, 130 interrupted."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends like Ctrl-C
    logging.getLogger("orchestra").setLevel(logging.ERROR)

    def work() -> int | None:
        a, rest = parser().parse_known_args(argv)
        if a.command == "run":
            return run(a, rest)
        if rest:
            raise ConfigError(f"{rest[0]}: unknown argument (see --help)")
        found = report(a.folders, a.score)
        print(json.dumps(found)) if a.json else print_report(found)
        return None

    return command_line.ended("orchestra-min evaluate", work)
