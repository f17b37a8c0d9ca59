"""`evaluate run`: a sweep from its flags, as a single run has its own."""

from __future__ import annotations

import argparse
import contextlib
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestra.command import pool_file, words
from orchestra.command.names import objects, redact_of
from orchestra.command.redact import Redact
from orchestra.evaluation import gaia, questions
from orchestra.evaluation.answering import Plan
from orchestra.evaluation.choosing import chosen, redacted, repeated
from orchestra.evaluation.executors import MOST, executor_at
from orchestra.evaluation.progress import Progress, tell
from orchestra.evaluation.sweep import Budget, sweep
from orchestra.evaluation.sweep_folder import MOST_REPEATS, earlier_rows, earlier_sweep
from orchestra.kernel.folder import Options
from orchestra.kernel.vocabulary import ConfigError, Pool
from orchestra_min import with_defaults

WORKERS = 8
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
    "ids": (str, "only these questions: A,B"),
    "level": (str, "only these levels: A,B"),
    "category": (str, "only these categories: A,B"),
    "limit": (int, "only the first LIMIT"),
    "repeat": (int, "answer each question REPEAT times (1)"),
    "workers": (int, f"questions in flight, at most {MOST} ({WORKERS})"),
    "budget": (float, "spending limit of the whole sweep in USD"),
    "reuse": (
        Path,
        "another sweep: of its run of the same question, take the answers to equal "
        "requests, and pay only for the rest",
    ),
    "executor": (str, "dask://HOST:PORT or ray://HOST:PORT: answer on other machines"),
}
REQUIRED = "data", "out"
METAVARS = {Path: "PATH", int: "N", float: "USD", str: "TEXT"}
SWITCHES = {
    "extend": "ask more questions or repeats than the sweep in OUT did",
}


def add_flags(p: argparse.ArgumentParser) -> None:
    """The flags of `run`; those of a single run are read by `run` itself."""
    for flag, (kind, text) in FLAGS.items():
        how: dict[str, Any] = {"metavar": METAVARS[kind], "required": flag in REQUIRED}
        p.add_argument(f"--{flag}", type=kind, help=text, **how)
    for flag, text in SWITCHES.items():
        p.add_argument(f"--{flag}", action="store_true", help=text)


def run(a: argparse.Namespace, rest: Sequence[str]) -> int:
    """A sweep. Returns 1 if a question failed or was not started."""
    of_run = words.of_runs(rest)
    _check_flags(a)
    a.data = gaia.data_file(a.data)
    asked = chosen(a, questions.load(a.data, a.media))
    plan = plan_of(a.out, of_run, a.budget)
    reuse = earlier_sweep(a.reuse) if a.reuse else None
    plan = replace(plan, reuse=reuse)
    redact = redact_of(plan.pool, plan.options.more)
    asked = repeated(redacted(asked, redact.text), a.repeat or 1)
    with executor_at(a.executor or "") as executor:
        with_budget = a.budget is not None
        past = earlier_rows(plan, asked, a.data, with_budget, a.extend)
        budget = Budget(a.budget, plan, past)
        progress = Progress(asked, past, budget)
        say = print_nothing if of_run.quiet else tell
        if progress.done:
            say(f"{progress.done} of {len(asked)} were answered before")
        rows = sweep(progress.todo, plan, executor, a.workers or WORKERS, budget, say)
        with contextlib.closing(rows):
            for row in rows:
                say(progress.after(row))
    say(progress.next_step(a.out))
    return 0 if progress.all_done else 1


def print_nothing(line: str) -> None:
    """With --quiet."""


def _check_flags(a: argparse.Namespace) -> None:
    """Raises ConfigError for a flag whose value is wrong."""
    for name in ("limit", "budget", "repeat", "workers"):
        given = getattr(a, name)
        if given is not None and not 0 < given < math.inf:
            raise ConfigError(f"--{name} {given}: needs a number above 0")
    for name, most in (("repeat", MOST_REPEATS), ("workers", MOST)):
        if (getattr(a, name) or 1) > most:
            raise ConfigError(f"--{name} {getattr(a, name)}: needs at most {most}")
    if a.reuse and a.reuse.resolve() == a.out.resolve():
        raise ConfigError(f"--reuse {a.reuse}: is this sweep; give another --out")


def plan_of(
    out: Path, of_run: argparse.Namespace, budget_usd: float | None = None
) -> Plan:
    """The models and options of a sweep into OUT. Raises ConfigError, EndpointError."""
    options = _with_defaults(of_run.options)
    return Plan(out, checked_pool(of_run.backends, of_run.model, budget_usd), options)


def _with_defaults(options: Options) -> Options:
    """The options with the defaults of the method. MCP servers are not started yet. Raises
    ConfigError if Python of the user cannot be loaded.
    """
    more = {name: value for name, value in options.more.items() if name != "mcp"}
    with objects(replace(options, more=more), Path(), Redact([])) as (given, _):
        return with_defaults(options, given.get("method"))


def checked_pool(
    backends: Path | None, model: str | None, budget_usd: float | None
) -> Pool:
    """The pool of --backends, or of the environment, with the model of each backend. Raises
    ConfigError, EndpointError.
    """
    pool = pool_file.named(backends, model)
    pool_file.check(pool, budget_usd, Redact(pool_file.keys_of([pool])))
    return pool_file.with_models(pool)
