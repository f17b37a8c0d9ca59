"""Answer many questions, score the answers and compare methods by accuracy and cost.

    orchestra-min evaluate run --data FILE --method react --out sweeps/react
    orchestra-min evaluate report sweeps/react sweeps/orchestra-o1
    orchestra-min evaluate run --data FILE --method react --out sweeps/edited --reuse sweeps/react
    orchestra-min evaluate score sweeps/react --scorer omnigaia --judge gpt-5
    orchestra-min evaluate merge sweeps/react-1 sweeps/react-2 --out sweeps/react
    orchestra-min evaluate run --data GAIA/2023/validation --method aorchestra --out sweeps/gaia
    orchestra-min evaluate submission sweeps/gaia --out submission.jsonl
    orchestra-min masbench --axis depth --value 2..12 --n 10 --out depth.jsonl

Each question has a run folder of its own, OUT/runs/<id>, which replays and resumes like any other.
OUT/rows.jsonl gets a line for each question as it ends; OUT/sweep.json says what they were made of.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from orchestra import methods
from orchestra.evaluation import comparison, gaia, merging, questions, scoring, tables
from orchestra.evaluation.answering import Plan
from orchestra.evaluation.choosing import chosen, redacted, repeated, shard_of
from orchestra.evaluation.executors import executor_at
from orchestra.evaluation.judge import judge_of
from orchestra.evaluation.progress import Progress, tell
from orchestra.evaluation.questions import Question
from orchestra.evaluation.sweep import Budget, sweep
from orchestra.evaluation.sweep_folder import (
    MOST_REPEATS,
    SCORERS,
    earlier_rows,
    earlier_sweep,
)
from orchestra.evaluation.workers import Workers
from orchestra.minigaia import agent as world
from orchestra.runtime import command_line, console
from orchestra.runtime import pool as pools
from orchestra.runtime.pool import Pool
from orchestra.runtime.run_folder import checked_secrets
from orchestra.vocabulary import ConfigError

PROGRAM = "orchestra-min evaluate"
OF_ONE_RUN = (
    "image",
    "audio",
    "video",
    "file",
    "workdir",
    "compare",
    "replay",
    "resume",
    "from_round",
    "runs",
    "out",
    "json",
    "quiet",
)
FLAGS: dict[str, tuple[Any, str]] = {  # of `run`, besides those of a single run
    "data": (
        Path,
        "questions: JSON, JSON lines, CSV, Parquet, or a folder of GAIA; see docs/evaluate.md",
    ),
    "out": (Path, "folder of this sweep; run it again for what is missing or failed"),
    "media": (
        Path,
        "where the media of the questions are (default: the folder of DATA)",
    ),
    "level": (str, "only these levels: A,B"),
    "category": (str, "only these categories: A,B"),
    "limit": (int, "only the first LIMIT"),
    "shard": (str, "i/n: only every n-th question, from the i-th on; see merge"),
    "repeat": (int, "answer each question REPEAT times (1)"),
    "workers": (str, "questions in flight; auto adapts to the endpoint (auto)"),
    "budget": (float, "spending limit of the whole sweep in USD, the judge included"),
    "reuse": (
        Path,
        "another sweep: of its run of the same question, take the answers to equal "
        "requests, and pay only for the rest",
    ),
    "executor": (str, "dask://HOST:PORT or ray://HOST:PORT: answer on other machines"),
    "judge": (
        str,
        "a backend, or another model at the main endpoint, that checks the answers",
    ),
}
REQUIRED = "data", "out"
SWITCHES = {
    "world": "MiniGAIA: sub-agents are not models",
    "extend": "ask more questions or repeats than the sweep in OUT did",
}

# ---- run -----------------------------------------------------------------------------------------


def run(a: argparse.Namespace, rest: list[str]) -> int:
    """A sweep. Returns 1 if a question failed or was not started."""
    of_run = command_line.parse(["--question", "?", *rest])
    _check_flags(a, of_run)
    workers = Workers(a.workers or "auto")
    a.data = gaia.data_file(a.data)
    asked = chosen(a, questions.load(a.data, a.media))
    plan = _plan(a, of_run, asked)
    secrets = checked_secrets("?", plan.pool, plan.options)
    asked = repeated(redacted(asked, secrets), a.repeat or 1)
    with executor_at(a.executor or "") as executor:
        with_budget = a.budget is not None
        past = earlier_rows(plan, asked, a.data, with_budget, a.extend)
        budget = Budget(a.budget, plan, past)
        progress = Progress(asked, past, budget)
        rows = sweep(progress.todo, plan, executor, workers, budget, tell)
        with contextlib.closing(rows):
            for row in rows:
                tell(progress.after(row))
    return 0 if progress.all_done else 1


def _check_flags(a: argparse.Namespace, of_run: argparse.Namespace) -> None:
    for name in OF_ONE_RUN:
        if getattr(of_run, name):
            flag = name.replace("_", "-")
            raise ConfigError(f"--{flag}: is for a single run; leave it out")
    for name in ("limit", "budget", "repeat"):
        given = getattr(a, name)
        if given is not None and not 0 < given < math.inf:
            raise ConfigError(f"--{name} {given}: needs a number above 0")
    if (a.repeat or 1) > MOST_REPEATS:
        raise ConfigError(f"--repeat {a.repeat}: needs at most {MOST_REPEATS}")
    if a.shard:
        shard_of(a.shard)
    if a.reuse and a.reuse.resolve() == a.out.resolve():
        raise ConfigError(f"--reuse {a.reuse}: is this sweep; give another --out")


def _plan(
    a: argparse.Namespace, of_run: argparse.Namespace, asked: Sequence[Question]
) -> Plan:
    """The models and options of the sweep. Raises ConfigError."""
    options = of_run.options
    modalities = [modality for q in asked for modality, _ in q.media]
    pool = pools.choose(of_run.backends, of_run.model, of_run.perception, modalities)
    pools.check(pool, a.budget)
    methods.make(options, pool, {})
    judge = judge_of(a.judge, pool, a.budget) if a.judge else None
    if a.world:
        world.check(options.method, asked)
        pool = _without_engines(pool)
    reuse = earlier_sweep(a.reuse) if a.reuse else None
    return Plan(
        a.out,
        pool,
        options,
        judge=judge,
        world=a.world,
        reuse=reuse,
        shard=a.shard,
    )


def _without_engines(pool: Pool) -> Pool:
    """No file is analysed in MiniGAIA's world, so no local engine is needed."""
    nobody = pools.Engine("endpoint", pool.main)
    return pool.with_(engines={"image": nobody, "audio": nobody})


# ---- the command line ----------------------------------------------------------------------------


def parser() -> argparse.ArgumentParser:
    p = command_line.OneLineParser(prog=PROGRAM, allow_abbrev=False)
    commands = p.add_subparsers(dest="command", required=True)
    also = "and the flags of a run: --method, --model, --backends ...; see orchestra-min --help"
    runs = commands.add_parser("run", help="answer and score questions", epilog=also)
    for flag, (kind, text) in FLAGS.items():
        runs.add_argument(f"--{flag}", type=kind, help=text, required=flag in REQUIRED)
    for flag, text in SWITCHES.items():
        runs.add_argument(f"--{flag}", action="store_true", help=text)
    reports = commands.add_parser(
        "report", help="tables of sweeps, by level and category"
    )
    _add_folders(reports)
    reports.add_argument(
        "--score", choices=SCORERS, help="(judge if all have it, else match)"
    )
    reports.add_argument(
        "--json", action="store_true", help="the same as one JSON object"
    )
    scorer = commands.add_parser(
        "score", help="score the answers of a sweep again, without answering again"
    )
    scorer.add_argument("folder", metavar="DIR", type=Path, help="--out of a sweep")
    for flag, how in scoring.FLAGS.items():
        scorer.add_argument(f"--{flag}", **how)
    merge = commands.add_parser("merge", help="make one sweep of all its shards")
    _add_folders(merge)
    merge.add_argument("--out", type=Path, required=True, help="folder of the sweep")
    submission = commands.add_parser(
        "submission", help="the answers of a sweep as a submission to GAIA"
    )
    submission.add_argument("folder", metavar="DIR", type=Path, help="--out of a sweep")
    submission.add_argument("--out", type=Path, required=True, help="file to write")
    return p


def _add_folders(p: argparse.ArgumentParser) -> None:
    p.add_argument(
        "folders", metavar="DIR", type=Path, nargs="+", help="--out of a sweep"
    )


def report(a: argparse.Namespace) -> int:
    """The tables of sweeps, or one JSON object."""
    found = comparison.report(a.folders, a.score)
    if a.json:
        print(json.dumps(found))
    else:
        tables.print_report(found)
    return 0


def main(argv: Sequence[str]) -> int:
    """Exit codes: 0, 1 where a question failed, was not started or has no verdict, 2 usage, 130
    interrupted.
    """
    logging.getLogger("orchestra").setLevel(logging.ERROR)

    def work() -> int:
        a, rest = parser().parse_known_args(argv)
        if a.command == "run":
            return run(a, rest)
        if rest:
            raise ConfigError(f"{rest[0]}: unknown argument (see --help)")
        if a.command == "score":
            return scoring.score(a)
        if a.command == "merge":
            return merging.merge(a.folders, a.out)
        if a.command == "submission":
            console.tell(f"{gaia.submit(a.folder, a.out)} answers are in {a.out}")
            return 0
        return report(a)

    return command_line.run_program(PROGRAM, work)
