"""The command: train what is missing, then print the table and draw the curves.

    python -m orchestra.training.lab                                everything, about 2 CPU hours
    python -m orchestra.training.lab --quick                        one seed, in 10 minutes
    python -m orchestra.training.lab --out fixtures/lab --table     the table of what is complete

After a stop, the same command continues. OUT/table.md and OUT/curves.svg are written after each
result. --arms and --seeds choose what is trained; each of --jobs processes uses one core.
"""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from orchestra.command.flags import OneLineParser
from orchestra.command.programs import run_program
from orchestra.kernel.tape import Appender
from orchestra.kernel.vocabulary import ConfigError
from orchestra.training.installed import exit_unless_installed
from orchestra.training.options import add_flags, from_flags

if TYPE_CHECKING:  # torch is imported when something is trained
    from orchestra.training.lab.plan import Plan


PROGRAM = "orchestra.training.lab"
SEEDS, QUICK_SEEDS = 5, 1
QUICK_ARMS = ("longer", "da", "outcome", "outcome_few", "perfect")
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1


def flags_parser() -> OneLineParser:
    from orchestra.training.lab.plan import Plan

    parser = OneLineParser(
        prog=f"python -m {PROGRAM}",
        description="DA-GRPO against imitation and outcome rewards; see docs/training.md.",
        allow_abbrev=False,
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="(runs/lab, -quick)")
    parser.add_argument("--quick", action="store_true", help="one seed, small budgets")
    parser.add_argument("--seeds", type=int, metavar="N", help="(5; 1 with --quick)")
    parser.add_argument(
        "--jobs", type=int, default=CORES, help="processes (%(default)s)"
    )
    parser.add_argument("--arms", metavar="A,B", help="what to train (all)")
    parser.add_argument("--table", action="store_true", help="train nothing")
    add_flags(parser, Plan)
    return parser


def plan_of(flags: Namespace) -> Plan:
    """The plan of the flags: what they give, else that of --quick or the whole laboratory."""
    from orchestra.training.lab.plan import QUICK, Plan

    given = {name: getattr(flags, name) for name in Plan.model_fields if name in flags}
    chosen = QUICK.model_dump() if flags.quick else {}
    return from_flags(Plan, chosen | given)


def arms_of(flags: Namespace) -> list[str]:
    """The names of --arms and those that they need. Raises ConfigError for one that does not
    exist.
    """
    from orchestra.training.lab.order import EVERY, with_needs

    names = list(QUICK_ARMS if flags.quick else EVERY)
    if flags.arms is not None:
        names = flags.arms.split(",")
    unknown = [name for name in names if name not in EVERY]
    if unknown:
        problem = f"{', '.join(unknown)} does not exist"
        raise ConfigError(f"--arms: {problem}; choose of {', '.join(EVERY)}")
    return with_needs(names)


def run(arguments: Sequence[str] | None) -> None:
    from orchestra.training.lab.order import run_all
    from orchestra.training.lab.results import Lab
    from orchestra.training.lab.table import table
    from orchestra.training.lab.work import report, train

    flags = flags_parser().parse_args(arguments)
    names = arms_of(flags)
    out = flags.out or Path("runs/lab-quick" if flags.quick else "runs/lab")
    lab = Lab(out, plan_of(flags))
    if flags.table and not lab.results():
        raise ConfigError(f"--out {out}: has no results")
    if not flags.table:
        lab.begin()
        lock = Appender(out / "lock")
        lab.fixed()
        seeds = flags.seeds or (QUICK_SEEDS if flags.quick else SEEDS)
        run_all(names, seeds, flags.jobs, partial(train, lab.out, lab.plan))
        lock.unlock()
        report(lab)
    print(table(lab.results()), end="")


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    return run_program(PROGRAM, lambda: run(arguments))


if __name__ == "__main__":
    exit_unless_installed(PROGRAM, "torch", "transformers", "peft")
    sys.exit(main())
