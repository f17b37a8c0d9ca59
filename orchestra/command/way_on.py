"""What ended a run, as a row and in one line, and how to go on with it."""

from __future__ import annotations

import argparse
import contextlib
import shlex
import shutil
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import orchestra_min
from orchestra.command.terminal import KEYS, PROGRAM
from orchestra.kernel.attempts import REFUSED_MEDIA
from orchestra.kernel.folder import read_manifest
from orchestra.kernel.vocabulary import EndpointError
from orchestra_min import Outcome, ending_of

ADVICE = {  # by the status of an endpoint that failed; 0: no answer came
    0: "is the server running, and is its address right (most end in /v1)?",
    401: "check the key: OPENAI_API_KEY, or the variable of api_key_env in the pool file",
    403: "the key has no access",
    404: "check base_url (most end in /v1) and the model's name",
    413: "if it takes no pictures or sound, name a library in [engines] of the pool file",
    429: "--option patience_s=S waits longer",
}
SCRIPT = Path(orchestra_min.__file__)


def advice_on(error: EndpointError) -> str:
    """What to do about an endpoint that failed."""
    if "timed out" in str(error):
        return "--timeout waits longer"
    if REFUSED_MEDIA.search(str(error)):
        return "name another engine in [engines] of the pool file, and start again with --reuse"
    return ADVICE.get(error.status, "see the endpoint's log")


def resume_command(folder: Path, a: argparse.Namespace) -> str:
    """The command with each permission that a resume needs again."""
    words = ["resume", str(folder.absolute())]
    for flag, path in (("--backends", a.backends), ("--workdir", a.workdir)):
        words += [flag, str(path.absolute())] if path else []
    reused = [*a.reuse]
    if (
        a.resume and a.resume.absolute() != folder.absolute()
    ):  # a fork may reuse its run
        is_reused = a.resume.resolve().name in read_manifest(folder).more.get(
            "reuse", ()
        )
        reused = [a.resume, *reused] if is_reused else reused
    if reused:
        words += ["--reuse", ",".join(str(run.absolute()) for run in reused)]
    for flag, name in (("--method", a.method), ("--agent", a.agent)):
        words += [flag, _absolute(name)] if ":" in (name or "") else []
    for tool in a.tools or ():
        words += ["--tools", _absolute(tool)]
    for flag, values in (("--mcp", a.mcp), ("--allow-host", a.allow_host)):
        for value in values or ():
            words += [flag, value]
    words += ["--unsafe-code"] if a.unsafe_code else []
    return command(words)


def stored_command(run: Path, *more: object) -> str:
    """The command that resumes a run, as far as its run.json says what it needs; `more`: further
    words. The folder may come from someone else: no pool file in it is named, and no endpoint but
    one of this machine.
    """
    stored = read_manifest(run)
    words = ["resume", run]
    file = Path(str(stored.more.get("pool_file", "")))
    url = stored.pool[stored.pool.main].base_url
    if file.is_absolute():
        is_theirs = file.resolve().is_relative_to(run.resolve())
        pool = () if is_theirs else ("--backends", file)
        return command([*words, *pool, *more])
    is_here = urlsplit(url).hostname in ("127.0.0.1", "localhost", "::1")
    where = f"OPENAI_BASE_URL={shlex.quote(url)} " if is_here else ""
    return f"{where}{command([*words, *more])}"


def with_more(outcome: Outcome) -> Iterator[str]:
    """What may help a run that ended early."""
    options = read_manifest(outcome.run).options
    twice = {
        "rounds": ("--rounds", 2 * max(options.rounds or outcome.rounds, 1)),
        "budget": ("--budget", f"{2 * (options.budget_usd or 0.0):g}"),
    }
    cause = outcome.ending.cause
    if cause in twice:
        fork = "--from-round", 1, "--reuse", outcome.run, *twice[cause]
        told = "with twice as much in all, reusing the calls that stay equal"
        yield f"{told}: {stored_command(outcome.run, *fork)}"
    if cause == "replies":
        small = "--method orchestra-o1 --prompts small, or --method react"
        yield f"a small model may do better with {small}"


def command(words: Iterable[object]) -> str:
    """A command of this program that can be copied."""
    program = [PROGRAM] if shutil.which(PROGRAM) else [sys.executable, str(SCRIPT)]
    return shlex.join([*program, *map(str, words)])


def _absolute(spec: str) -> str:
    """FILE.py:NAME with the whole path; package.module:NAME as it is."""
    where, _, name = spec.rpartition(":")
    return f"{Path(where).absolute()}:{name}" if where.endswith(".py") else spec


def row_of_error(error: BaseException, run: Path | None) -> dict[str, Any]:
    """The same of a run that an error has ended; `run` None: there is none."""
    ending = ending_of(error)
    row: dict[str, Any] = dict.fromkeys(KEYS)
    row |= {"state": ending.state, "cause": ending.cause, "why": why_of(error)}
    row |= {"fallback": False, "failed_subtasks": 0}
    if run is not None:
        with contextlib.suppress(Exception):  # the folder may be damaged
            from orchestra.report.totals import summary

            seen = summary(run)
            figures = {"rounds": seen.rounds, "failed_subtasks": seen.failed_subtasks}
            row |= {**vars(seen.totals), **figures, "run": str(run)}
    return row


def why_of(error: BaseException) -> str:
    """What went wrong, in one line."""
    if isinstance(error, MemoryError):
        return "this machine has no memory left"
    if isinstance(error, RuntimeError) and "start new thread" in str(error):
        return "this machine starts no more threads: use a smaller --parallel"
    if isinstance(error, OSError):
        parts = [error.filename, error.strerror]
        return ": ".join(str(part) for part in parts if part) or str(error)
    return ending_of(error).why
