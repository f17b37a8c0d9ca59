"""Answer many questions, score the answers and compare methods by accuracy and cost.

    orchestra-min evaluate run --data FILE --method react --out sweeps/react
    orchestra-min evaluate report sweeps/react sweeps/orchestra-o1
    orchestra-min evaluate run --data FILE --method react --out sweeps/edited --reuse sweeps/react
    orchestra-min evaluate score sweeps/react --scorer omnigaia --judge gpt-5
    orchestra-min evaluate run --data GAIA/2023/validation --method aorchestra --out sweeps/gaia
    orchestra-min evaluate submission sweeps/gaia --out submission.jsonl

Each question has a run folder of its own, OUT/runs/<id>, which replays and resumes like any other.
OUT/rows.jsonl gets a line for each question as it ends; OUT/sweep.json says what they were made of.
"""

from __future__ import annotations

import argparse
import json
import logging
from collections.abc import Sequence
from pathlib import Path

from orchestra.command import terminal
from orchestra.command.flags import OneLineParser
from orchestra.command.programs import run_program
from orchestra.evaluation import (
    comparison,
    gaia,
    running,
    scoring,
    tables,
)
from orchestra.evaluation.sweep_folder import SCORERS
from orchestra.kernel.vocabulary import ConfigError

PROGRAM = "orchestra-min evaluate"

# ---- the command line ----------------------------------------------------------------------------


def parser() -> argparse.ArgumentParser:
    p = OneLineParser(
        prog=PROGRAM,
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
        allow_abbrev=False,
    )
    commands = p.add_subparsers(dest="command", required=True)
    also = "and the flags of a run: --method, --model, --backends ...; see orchestra-min --help"
    runs = commands.add_parser("run", help="answer and score questions", epilog=also)
    running.add_flags(runs)
    reports = commands.add_parser(
        "report", help="tables of sweeps, by level and category"
    )
    reports.add_argument(
        "folders", metavar="DIR", type=Path, nargs="+", help="--out of a sweep"
    )
    reports.add_argument(
        "--score", choices=SCORERS, help="(judge if all have it, else match)"
    )
    reports.add_argument(
        "--replied", action="store_true", help="score replies as they are, never bare"
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
    submission = commands.add_parser(
        "submission", help="the answers of a sweep as a submission to GAIA"
    )
    submission.add_argument("folder", metavar="DIR", type=Path, help="--out of a sweep")
    submission.add_argument("--out", type=Path, required=True, help="file to write")
    return p


def report(a: argparse.Namespace) -> int:
    """The tables of sweeps, or one JSON object."""
    found = comparison.report(a.folders, a.score, a.replied)
    if a.json:
        terminal.put(json.dumps(found))
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
            return running.run(a, rest)
        if rest:
            raise ConfigError(f"{rest[0]}: unknown argument (see --help)")
        if a.command == "score":
            return scoring.score(a)
        if a.command == "submission":
            terminal.tell(f"{gaia.submit(a.folder, a.out)} answers are in {a.out}")
            return 0
        return report(a)

    return run_program(PROGRAM, work)
