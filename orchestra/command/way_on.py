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
from orchestra.command.flags import MOST, MOST_S
from orchestra.command.terminal import KEYS, PROGRAM
from orchestra.kernel.attempts import NO_QUOTA, REFUSED_MEDIA
from orchestra.kernel.folder import (
    Ending,
    Event,
    Manifest,
    Options,
    read_events,
    read_manifest,
)
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
OTHER_MODEL = "with another model"  # purposes
CODED = "mini-swe", "replies"  # nobody was done, as a rule for lack of steps
TO_SEE = "to see what happened"
Step = tuple[str, str]  # a purpose, and the command for it
ASK_S = 2.0  # for a list of models, after a failure
SCRIPT = Path(orchestra_min.__file__)
NEEDED = re.compile(r"needs USD (\d+\.\d+)")  # of a budget that is exhausted


def advice_on(why: str, failed: Backend | None, served: Sequence[str] = ()) -> str:
    """What to do about an endpoint that failed: that of a backend, which serves these models."""
    if "timed out" in why:
        return "--timeout waits longer"
    if REFUSED_MEDIA.search(why):
        return "the model takes none; another may, or a library reads text and speech"
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
            listed = served_models(failed, ASK_S)[:LISTED]
            served = [name for name in listed if name != failed.model]
    return advice_on(str(error), failed, served), served


class Again(NamedTuple):
    """What resumes a run: the folder, the flags that a resume needs again, and OPENAI_BASE_URL, if
    that is part of it. `to_add`: flags that the user must add; `is_own`: the user has named all
    else on this command line.
    """

    run: Path
    flags: Sequence[object] = ()
    url: str = ""
    to_add: Sequence[str] = ()
    is_own: bool = False

    def command(self, *more: object) -> str:
        """The command, with further words."""
        where = f"OPENAI_BASE_URL={shlex.quote(self.url)} " if self.url else ""
        return where + command(["resume", self.run, *self.flags, *more])

    def step(self, purpose: str, command: str) -> Step:
        """The step, with what must be added to its command; a fork chooses what it reuses anew."""
        missing = ["--model NAME"] * (
            purpose == OTHER_MODEL and "--model" not in command
        )
        is_fork = "--from-round" in command
        more = [flag for flag in self.to_add if not (is_fork and flag[:7] == "--reuse")]
        added = " ".join([*missing, *more])
        return f"{purpose}{added and f', adding {added}'}", command


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
    return Again(folder, flags, url, is_own=True)


def again_as_stored(run: Path, stored: Manifest) -> Again:
    """The same, as far as run.json says it. The folder may come from someone else: the command
    names no file, no program and no endpoint but one of this machine. The user adds them.
    """
    from orchestra.command.trust import to_add

    file = stored.more.get("pool_file")
    pool = [f"--backends {shlex.quote(str(file))}"] if file else []
    url = stored.pool[stored.pool.main].base_url
    is_here = not file and urlsplit(url).hostname in ("127.0.0.1", "localhost", "::1")
    return Again(run, url=url if is_here else "", to_add=[*pool, *to_add(run, stored)])


def again_after_replay(run: Path, a: argparse.Namespace, stored: Manifest) -> Again:
    """The same of a replay, whose command line named Python of the user at most."""
    theirs, ours = again_as_stored(run, stored), again(run, a)
    named = {flag for flag in ours.flags if str(flag)[:2] == "--"}
    to_add = [flag for flag in theirs.to_add if flag.split()[0] not in named]
    return theirs._replace(flags=(*theirs.flags, *ours.flags), to_add=to_add)


def next_steps(
    run: Again, stored: Manifest, ending: Ending, rounds: int, model: str = ""
) -> Iterator[Step]:
    """What to do after a run. `model`: one that its endpoint serves."""
    if ending.state == "running":
        return
    events = read_events(run.run)
    is_refused = REFUSED_MEDIA.search(ending.why)
    refused = ending.why if is_refused else _refused_media(events)
    if refused:
        yield run.step(*_with_model(run, ""))
        yield run.step(*_with_a_library(run, stored.pool, refused))
    elif not ending.finished:
        yield run.step(*_to_continue(run, stored, ending, model))
    for purpose, resume in _to_vary(run, stored, ending, rounds, events):
        yield run.step(purpose, resume)
    yield to_see(run.run)


def _to_continue(
    run: Again, stored: Manifest, ending: Ending, model: str
) -> tuple[str, str]:
    """How a run goes on that an error has stopped."""
    options, why = stored.options, ending.why
    if ": status 404" in why:
        return _with_model(run, model)
    if ": status 429" in why and NO_QUOTA not in why:
        patience_s = 2 * options.patience_s or 60
        longer = run.command("--option", f"patience_s={patience_s:g}")
        return "to continue and wait longer", longer
    if "timed out" in why:
        timeout_s = min(2 * options.timeout_s, MOST_S)
        longer = run.command("--timeout", f"{timeout_s:g}")
        return "to continue and wait longer", longer
    return "to continue", run.command()


def _to_vary(
    run: Again,
    stored: Manifest,
    ending: Ending,
    rounds: int,
    events: Sequence[Event],
) -> Iterator[tuple[str, str]]:
    """The forks that may help a run that ended early, or changed nothing."""
    options = stored.options
    fork = partial(run.command, "--from-round")
    broken = _failed_tools(events, stored)
    if ending.state == "answered":
        is_coding = (run.run / "workdir.git").exists()
        if is_coding and not (run.run / "changes.diff").exists():
            yield "to try again", fork(1)
        if broken:
            yield f"{broken} failed in it; once corrected", fork(1)
        return
    larger = ("--budget", _larger(options, ending))
    if ending.cause == "rounds":
        more = ["--rounds", min(2 * (options.rounds or rounds), MOST)]
        more += larger if "the budget does not cover" in ending.why else ()
        yield "for more rounds, those so far are kept", fork(rounds + 1, *more)
    if ending.cause == "steps" or (options.agent, ending.cause) == CODED:
        steps = min(2 * options.steps, MOST)
        yield "for more steps, all paid again", fork(1, "--steps", steps)
    if ending.cause == "budget" and options.budget_usd is not None:
        yield "with a larger budget", fork(max(rounds, 1), *larger)
    if broken and ending.cause in ("tools", "replies", "sub-task"):
        yield f"once {broken} is corrected", fork(1)
    elif ending.cause in ("replies", "sub-task"):
        if (options.method or METHOD) == METHOD and "prompts" not in options.more:
            yield "with prompts for small models", fork(1, "--prompts", "small")
        others = [name for name in stored.pool.names if name != stored.pool.main]
        yield _with_model(run, (others or [""])[0])


def _refused_media(events: Sequence[Event]) -> str:
    """The first error of a sub-task whose endpoint takes no pictures or sound; "" for none."""
    errors = (e["error"] for e in events if e["event"] == "result")
    return next((error for error in errors if REFUSED_MEDIA.search(error)), "")


def _failed_tools(events: Sequence[Event], stored: Manifest) -> str:
    """The tools of the user that failed in a run."""
    theirs = {
        str(spec).rpartition(":")[2] for spec in stored.options.more.get("tools", ())
    }
    failed = {e["action"] for e in events if e["event"] == "step" and e["failed"]}
    return " and ".join(sorted(failed & theirs))


def _with_model(run: Again, name: str) -> tuple[str, str]:
    """The step to another model, which the user must name if none is known."""
    named = ("--model", name) if name else ()
    return OTHER_MODEL, run.command("--from-round", 1, *named)


def _with_a_library(run: Again, pool: Pool, why: str) -> tuple[str, str]:
    """The step that reads pictures or sound on this machine, where an endpoint refuses them. A pool
    file is made only of the endpoint that the user has named.
    """
    kind = "audio" if "audio" in why else "image"
    engine = f'{kind} = {{ engine = "local" }}'
    read = "hear speech" if kind == "audio" else "read only the text in images"
    if not run.is_own or not run.url:
        fork = run._replace(url="").command("--from-round", 1)
        has_file = "--backends" in " ".join(map(str, [*run.to_add, *run.flags]))
        lacking = "" if has_file else ", adding --backends FILE"
        how = f"with {engine} in [engines] of a pool file (docs/models.md)"
        return f"to {read} here, {how}{lacking}", fork
    b = pool[pool.main]
    rows = ["[[backend]]", f"name = {json.dumps(b.name)}"]
    rows += [f"model = {json.dumps(b.model)}", f"base_url = {json.dumps(run.url)}"]
    if os.environ.get("OPENAI_API_KEY"):
        rows.append('api_key_env = "OPENAI_API_KEY"')
    made = shlex.join(["printf", r"%s\n", *rows, "[engines]", engine])
    file = "pool-local.toml"
    resume = run._replace(url="").command("--from-round", 1, "--backends", file)
    package = "faster_whisper" if kind == "audio" else "rapidocr"
    first = f"{install('local')} && " * (find_spec(package) is None)
    return f"to {read} here", f"{first}{made} > {file} && {resume}"


def to_see(folder: Path) -> Step:
    """The step that makes the page of a run, or the pages of a folder."""
    return TO_SEE, command(["report", folder])


def _larger(options: Options, ending: Ending) -> str:
    """Twice the budget, or more where the next call needs more."""
    budget_usd = options.budget_usd or 0.0
    needed = NEEDED.search(ending.why)
    next_usd = float(needed[1]) if needed else 0.0
    return f"{max(2 * budget_usd, budget_usd + 4 * next_usd):.2g}"


def command(words: Iterable[object]) -> str:
    """A command of this program that can be copied. A path is never taken for a flag."""
    words = [
        f"./{w}" if isinstance(w, Path) and str(w)[:1] == "-" else w for w in words
    ]
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
