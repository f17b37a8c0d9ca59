"""What ended a run, as a row and in one line, and how to go on with it."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from string import Template
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import orchestra_min
from orchestra import install
from orchestra.command.terminal import KEYS, PROGRAM
from orchestra.kernel.attempts import REFUSED_MEDIA
from orchestra.kernel.folder import Ending, Manifest, Options, read_manifest
from orchestra.kernel.vocabulary import Backend, EndpointError, Pool
from orchestra.methods import METHOD
from orchestra_min import ending_of

ADVICE = {  # by the status of an endpoint that failed; 0: no answer came
    0: "is the server running, and is its address right (most end in /v1)?",
    401: "check the key in ${key}",
    403: "the key in ${key} has no access",
    404: "check base_url (most end in /v1) and the model's name${served}",
    413: "if it takes no pictures or sound, name a library in [engines] of the pool file",
    429: "--option patience_s=S waits longer",
}
OTHER_MODEL = "with another model"  # a purpose
ASK_S = 2.0  # for a list of models, after a failure
SCRIPT = Path(orchestra_min.__file__)
NEEDED = re.compile(r"needs USD (\d+\.\d+)")  # of a budget that is exhausted


def advice_on(why: str, failed: Backend | None, served: Sequence[str] = ()) -> str:
    """What to do about an endpoint that failed: that of a backend, which serves these models."""
    if "timed out" in why:
        return "--timeout waits longer"
    if REFUSED_MEDIA.search(why):
        return "a library can read pictures and sound in its place (docs/models.md)"
    status = re.search(r": status (\d+)", why)
    advice = Template(ADVICE.get(int(status[1]) if status else 0, "see its log"))
    key = (failed.api_key_env if failed else "") or "OPENAI_API_KEY"
    listed = f"; it serves {', '.join(served)}" if served else ""
    return advice.substitute(key=key, served=listed)


def failed_backend(why: str, pool: Pool) -> Backend | None:
    """The backend that a failure is about."""
    return next((b for b in pool.backends if why.startswith(f"{b.name} at ")), None)


def advice_for(ending: Ending, pool: Pool) -> str:
    """What to do about the endpoint that stopped a run; "" if none did."""
    failed = failed_backend(ending.why, pool)
    return advice_on(ending.why, failed) if failed and ending.state == "stopped" else ""


def advice_now(error: EndpointError, run: Path | None) -> tuple[str, list[str]]:
    """The advice on the endpoint of a run that failed just now, and the models that it serves, if
    it refused one.
    """
    if run is None or not (run / "run.json").exists():
        return advice_on(str(error), None), []
    from orchestra.command.pool_file import LISTED, served_models

    served: list[str] = []
    failed = failed_backend(str(error), read_manifest(run).pool)
    if failed and error.status == 404:
        with contextlib.suppress(EndpointError):
            served = served_models(failed, ASK_S)[:LISTED]
    return advice_on(str(error), failed, served), served


class Again(NamedTuple):
    """What resumes a run: the folder, the flags that a resume needs again, and OPENAI_BASE_URL, if
    that is part of it. `to_add`: flags that the user must add.
    """

    run: Path
    flags: Sequence[object] = ()
    url: str = ""
    to_add: Sequence[str] = ()

    def command(self, *more: object) -> str:
        """The command, with further words."""
        where = f"OPENAI_BASE_URL={shlex.quote(self.url)} " if self.url else ""
        return where + command(["resume", self.run, *self.flags, *more])


def again(folder: Path, a: argparse.Namespace) -> Again:
    """What resumes the run of this command line: with each permission that a resume needs again."""
    flags: list[object] = []
    for flag, path in (("--backends", a.backends), ("--workdir", a.workdir)):
        flags += [flag, path] if path else []
    reused = [run for run in a.reuse if run != a.resume]
    if a.resume and a.resume.absolute() != folder.absolute():
        # A fork may reuse its run
        names = read_manifest(folder).more.get("reuse", ())
        reused = [a.resume, *reused] if a.resume.resolve().name in names else reused
    if reused:
        flags += ["--reuse", ",".join(map(str, reused))]
    for flag, name in (("--method", a.method), ("--agent", a.agent)):
        flags += [flag, name] if ":" in (name or "") else []
    for flag, values in (
        ("--tools", a.tools),
        ("--mcp", a.mcp),
        ("--allow-host", a.allow_host),
    ):
        for value in values or ():
            flags += [flag, value]
    flags += ["--unsafe-code"] if a.unsafe_code else []
    url = "" if a.backends else os.environ.get("OPENAI_BASE_URL", "").strip()
    return Again(folder, flags, url)


def again_as_stored(run: Path, stored: Manifest) -> Again:
    """The same, as far as run.json says it. The folder may come from someone else: no pool file in
    it is named, no program, and no endpoint but one of this machine.
    """
    from orchestra.command.trust import to_add

    added = to_add(run, stored)
    file = Path(str(stored.more.get("pool_file", "")))
    if file.is_absolute():
        is_theirs = file.resolve().is_relative_to(run.resolve())
        return Again(run, () if is_theirs else ("--backends", file), to_add=added)
    url = stored.pool[stored.pool.main].base_url
    is_here = urlsplit(url).hostname in ("127.0.0.1", "localhost", "::1")
    return Again(run, url=url if is_here else "", to_add=added)


def next_steps(
    run: Again, stored: Manifest, ending: Ending, rounds: int, model: str = ""
) -> Iterator[str]:
    """What to do after a run, each as `purpose: command`. `model`: one that its endpoint serves."""
    if ending.state == "running":
        return
    for purpose, resume in _ways_on(run, stored, ending, rounds, model):
        missing = ["--model NAME"] * (
            purpose == OTHER_MODEL and "--model" not in resume
        )
        to_add = " ".join([*missing, *run.to_add])
        yield f"{purpose}{to_add and f', adding {to_add}'}: {resume}"
    yield to_see(run.run)


def _ways_on(
    run: Again, stored: Manifest, ending: Ending, rounds: int, model: str
) -> Iterator[tuple[str, str]]:
    """The purposes and commands that go on with a run that ended early."""
    if ending.state == "answered":
        return
    options, why = stored.options, ending.why
    fork = partial(run.command, "--from-round")
    if REFUSED_MEDIA.search(why):
        yield _with_a_library(run, stored.pool)
    elif ": status 404" in why:
        yield _with_model(run, model)
    elif ": status 429" in why:
        patience_s = 2 * options.patience_s
        longer = run.command("--option", f"patience_s={patience_s:g}")
        yield "to continue and wait longer", longer
    elif "timed out" in why:
        longer = run.command("--timeout", f"{2 * options.timeout_s:g}")
        yield "to continue and wait longer", longer
    elif not ending.finished:
        yield "to continue", run.command()
    larger = ("--budget", _larger(options, ending))
    if ending.cause == "rounds":
        more = ["--rounds", 2 * (options.rounds or rounds)]
        more += larger if "the budget does not cover" in why else ()
        yield "for more rounds, those so far are kept", fork(rounds + 1, *more)
    if ending.cause == "steps":
        more = ["--steps", 2 * options.steps]
        yield "for more steps, all paid again", fork(1, *more)
    if ending.cause == "budget" and options.budget_usd is not None:
        yield "with a larger budget", fork(max(rounds, 1), *larger)
    if ending.cause in ("replies", "sub-task"):
        if (options.method or METHOD) == METHOD and "prompts" not in options.more:
            yield "with prompts for small models", fork(1, "--prompts", "small")
        others = [name for name in stored.pool.names if name != stored.pool.main]
        yield _with_model(run, (others or [""])[0])


def _with_model(run: Again, name: str) -> tuple[str, str]:
    """The step to another model, which the user must name if none is known."""
    named = ("--model", name) if name else ()
    return OTHER_MODEL, run.command("--from-round", 1, *named)


def _with_a_library(run: Again, pool: Pool) -> tuple[str, str]:
    """The step that reads pictures on this machine, where an endpoint refuses them. A pool file is
    made only of an endpoint that the user has named, or of one on this machine.
    """
    engine = 'image = { engine = "local" }'
    if "--backends" in run.flags or not run.url:
        resume = run.command("--from-round", 1)
        return f"with {engine} in [engines] of a pool file", resume
    b = pool[pool.main]
    rows = ["[[backend]]", f"name = {json.dumps(b.name)}"]
    rows.append(f"base_url = {json.dumps(run.url)}")
    rows += [f"api_key_env = {json.dumps(b.api_key_env)}"] * bool(b.api_key_env)
    made = shlex.join(["printf", r"%s\n", *rows, "[engines]", engine])
    resume = run._replace(url="").command("--from-round", 1, "--backends", "local.toml")
    first = f"{install('local')} && " * (find_spec("rapidocr") is None)
    return "to read pictures here", f"{first}{made} > local.toml && {resume}"


def to_see(folder: Path) -> str:
    """The step that makes the page of a run, or the pages of a folder."""
    return f"to see what happened: {command(['report', folder])}"


def _larger(options: Options, ending: Ending) -> str:
    """Twice the budget, or more where the next call needs more."""
    budget_usd = options.budget_usd or 0.0
    needed = NEEDED.search(ending.why)
    next_usd = float(needed[1]) if needed else 0.0
    return f"{max(2 * budget_usd, budget_usd + 4 * next_usd):.2g}"


def command(words: Iterable[object]) -> str:
    """A command of this program that can be copied."""
    program = [PROGRAM] if shutil.which(PROGRAM) else [sys.executable, str(SCRIPT)]
    return shlex.join([*program, *map(str, words)])


def row_of_error(error: BaseException, run: Path | None) -> dict[str, Any]:
    """The row of --json of a run that an error has ended; `run` None: there is none."""
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
