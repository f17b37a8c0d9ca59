"""Answer many questions, score the answers and compare methods by accuracy and cost.

    orchestra-min evaluate run --data FILE --method react --out sweeps/react
    orchestra-min evaluate report sweeps/react sweeps/orchestra-o1
    orchestra-min evaluate run --data FILE --method react --out sweeps/edited --reuse sweeps/react
    orchestra-min evaluate run --data GAIA/2023/validation --method aorchestra --out sweeps/gaia
    orchestra-min evaluate submission sweeps/gaia --out submission.jsonl
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
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestra import methods
from orchestra.evaluation import comparison, gaia, questions
from orchestra.evaluation.answering import Plan
from orchestra.evaluation.executors import executor_at
from orchestra.evaluation.questions import Question, QuestionRow
from orchestra.evaluation.sweep import Budget, Workers, sweep
from orchestra.evaluation.sweep_folder import earlier_rows, earlier_sweep, newest
from orchestra.minigaia import agent as world
from orchestra.runtime import command_line, console
from orchestra.runtime import pool as pools
from orchestra.runtime.options import variables
from orchestra.runtime.pool import Pool
from orchestra.runtime.secrets import Secrets
from orchestra.runtime.trajectory import printable, usd
from orchestra.tools import media as media_files
from orchestra.vocabulary import Backend, ConfigError

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
        "questions: JSON or JSON lines, or a folder of GAIA; see docs/evaluate.md",
    ),
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

# ---- run -----------------------------------------------------------------------------------------


def run(a: argparse.Namespace, rest: list[str]) -> int:
    """A sweep. Returns 1 if a question failed or was not started."""
    of_run = command_line.parse(["--question", "?", *rest])
    _check_flags(a, of_run)
    workers = Workers(a.workers or "auto")
    a.data = gaia.data_file(a.data)
    asked = chosen(a, questions.load(a.data, a.media))
    plan = _plan(a, of_run, asked)
    asked = _redacted(asked, plan)
    with executor_at(a.executor or "") as executor:
        past = earlier_rows(plan, a.data, with_budget=a.budget is not None)
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
    for name in ("limit", "budget"):
        given = getattr(a, name)
        if given is not None and not 0 < given < math.inf:
            raise ConfigError(f"--{name} {given}: needs a number above 0")
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
    judge = _judge(a.judge, pool, a.budget) if a.judge else None
    if a.world:
        world.check(options.method, asked)
        pool = _without_engines(pool)
    reuse = earlier_sweep(a.reuse) if a.reuse else None
    return Plan(a.out, pool, options, judge=judge, world=a.world, reuse=reuse)


def _redacted(asked: Iterable[Question], plan: Plan) -> list[Question]:
    """The questions, their right answers without secrets: rows and the judge's tape have them."""
    names = [b.api_key_env for b in plan.pool.backends]
    secrets = Secrets(names + variables(plan.options.mcp))
    kept = []
    for q in asked:
        answer, *also = [secrets.text(text) for text in q.accepted]
        kept.append(q.model_copy(update={"answer": answer, "also": tuple(also)}))
    return kept


def _judge(name: str, pool: Pool, budget_usd: float | None) -> Backend:
    """A backend of the pool, or another model at the main endpoint. Raises ConfigError."""
    if name in pool.names:
        return pool[name]
    if budget_usd is not None:
        raise ConfigError(
            f"--judge {name}: --budget needs its price; add it to --backends FILE"
        )
    return replace(pool[pool.main], name=name, model=name)


def _without_engines(pool: Pool) -> Pool:
    """No file is analysed in MiniGAIA's world, so no local engine is needed."""
    nobody = pools.Engine("endpoint", pool.main)
    return pool.with_(engines={"image": nobody, "audio": nobody})


# ---- the questions of the command ----------------------------------------------------------------


def chosen(a: argparse.Namespace, asked: list[Question]) -> list[Question]:
    """The questions of --level, --category and --limit, with the modality of each file. Those whose
    media cannot be read are listed and left out.
    """
    for key in ("level", "category"):
        asked = _with_value(asked, key, getattr(a, key), a.data)
    readable: list[Question] = []
    for q in asked[: a.limit]:
        try:
            readable.append(_with_modalities(q))
        except ConfigError as error:
            console.tell(f"question {q.id} is skipped: {error}")
    if not readable:
        raise ConfigError("no question is left; see --media and --limit")
    return readable


def _with_value(
    asked: list[Question], key: str, values: str | None, data: Path
) -> list[Question]:
    """The questions with one of these levels or categories, A,B; all if there are none."""
    names = [name.strip().lower() for name in (values or "").split(",") if name]
    if not names:
        return asked
    found = [q for q in asked if getattr(q, key).lower() in names]
    if not found:
        known = {getattr(q, key) for q in asked} - {""}
        listed = ", ".join(sorted(known)) or "none"
        raise ConfigError(f"--{key}: no question has it; {data} has {listed}")
    return found


def _with_modalities(q: Question) -> Question:
    """Raises ConfigError for a file that is missing or cannot be read."""
    files = media_files.check(q.media)
    media = tuple((modality, str(path)) for modality, path in files)
    return q.model_copy(update={"media": media})


# ---- progress ------------------------------------------------------------------------------------


class Progress:
    """How far a sweep is. A question whose newest row failed is still to do."""

    def __init__(
        self, asked: Sequence[Question], past: Sequence[QuestionRow], budget: Budget
    ) -> None:
        rows = newest(past)
        self.done = [rows[q.id] for q in asked if _is_done(rows.get(q.id))]
        self.todo = [q for q in asked if not _is_done(rows.get(q.id))]
        self.asked = len(asked)
        self.budget = budget
        self.ended: list[QuestionRow] = []  # in this sweep
        self.began_s = time.monotonic()

    def after(self, row: QuestionRow) -> str:
        """One line about a question that has ended, and the sweep so far."""
        self.ended.append(row)
        rows = self.done + self.ended
        each_s = (time.monotonic() - self.began_s) / len(self.ended)
        left_s = each_s * (self.asked - len(rows))
        right = sum(map(is_right, rows))
        so_far = f"{len(rows)} of {self.asked}, {right} right"
        spent = usd(self.budget.spent_usd)
        return f"{so_far}, {spent}, {left_s:.0f} s left | {described(row)}"

    @property
    def all_done(self) -> bool:
        return sum(map(_is_done, self.done + self.ended)) == self.asked


def _is_done(row: QuestionRow | None) -> bool:
    return row is not None and row["status"] == "done"


def is_right(row: QuestionRow) -> bool:
    """By the judge, or else by `match`; a failed row has neither."""
    return bool(row.get("judge", row.get("match")))


def described(row: QuestionRow) -> str:
    """The row of a question as one line."""
    if row["status"] == "failed":
        return f"{row['id']} failed: {row['why']}"
    outcome = "right" if is_right(row) else "wrong"
    return f"{row['id']} {outcome}: {row['answer'] or row['why']!r}"


def tell(line: str) -> None:
    """One line on standard error."""
    console.tell(printable(line)[:200])


# ---- the command line ----------------------------------------------------------------------------


def parser() -> argparse.ArgumentParser:
    p = command_line.OneLineParser(prog=PROGRAM, allow_abbrev=False)
    commands = p.add_subparsers(dest="command", required=True)
    also = "and the flags of a run: --method, --model, --backends ...; see orchestra-min --help"
    runs = commands.add_parser("run", help="answer and score questions", epilog=also)
    for flag, (kind, text) in FLAGS.items():
        runs.add_argument(f"--{flag}", type=kind, help=text, required=flag in REQUIRED)
    runs.add_argument(
        "--world", action="store_true", help="MiniGAIA: sub-agents are not models"
    )
    reports = commands.add_parser(
        "report", help="tables of sweeps, by level and category"
    )
    reports.add_argument(
        "folders", metavar="DIR", type=Path, nargs="+", help="--out of a sweep"
    )
    reports.add_argument(
        "--score", choices=comparison.SCORES, help="(judge, else match)"
    )
    reports.add_argument(
        "--json", action="store_true", help="the same as one JSON object"
    )
    submission = commands.add_parser(
        "submission", help="the answers of a sweep as a submission to GAIA"
    )
    submission.add_argument("folder", metavar="DIR", type=Path, help="--out of a sweep")
    submission.add_argument("--out", type=Path, required=True, help="file to write")
    return p


def main(argv: Sequence[str]) -> int:
    """Exit codes: 0, 1 where a question failed or was not started, 2 usage, 130 interrupted."""
    logging.getLogger("orchestra").setLevel(logging.ERROR)

    def work() -> int:
        a, rest = parser().parse_known_args(argv)
        if a.command == "run":
            return run(a, rest)
        if rest:
            raise ConfigError(f"{rest[0]}: unknown argument (see --help)")
        if a.command == "submission":
            console.tell(f"{gaia.submit(a.folder, a.out)} answers are in {a.out}")
            return 0
        found = comparison.report(a.folders, a.score)
        if a.json:
            print(json.dumps(found))
        else:
            comparison.print_report(found)
        return 0

    return command_line.run_program(PROGRAM, work)
