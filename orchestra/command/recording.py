"""What a command pays for: a new run, a resume, a fork. All is checked before it starts."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import orchestra.command.names as names
import orchestra.command.outside as outside
import orchestra.command.pool_file as pool_file
import orchestra.command.terminal as terminal
import orchestra.command.trust as trust
import orchestra.command.words as words
import orchestra_min
from orchestra import methods as shipped
from orchestra.command.log import logged_in
from orchestra.command.redact import Redact
from orchestra.command.status import status_line
from orchestra.command.terminal import interruption
from orchestra.command.way_on import command
from orchestra.kernel.folder import Manifest, Options, read_manifest
from orchestra.kernel.vocabulary import ConfigError, Pool
from orchestra_min import Outcome

Began = Callable[
    [Path, Redact], object
]  # is told the folder and what redacts its texts


def record(a: argparse.Namespace, began: Began) -> Outcome:
    """The run of a command line. Raises ConfigError before anything is paid."""
    with ExitStack() as stack:
        if a.resume is None:
            return _new_run(a, began, stack)
        if a.from_round is None and not a.what_if:
            return _resume(a, began, stack)
        return _fork(a, began, stack)


def default_folder() -> Path:
    """runs/<time to the millisecond>"""
    return Path("runs") / f"{datetime.now():%Y%m%d-%H%M%S-%f}"[:-3]


def _new_run(a: argparse.Namespace, began: Began, stack: ExitStack) -> Outcome:
    media = shipped.check_media(a.files)
    pool, redact = _pool(a, a.budget)
    if not a.reuse:  # what was seen and heard may all be recorded
        shipped.check_engines(media, pool)
    folder = a.out or default_folder()
    if (folder / "run.json").exists():
        advice = f"give another --out, or continue it: {command(['resume', folder])}"
        raise ConfigError(f"{folder} has a run; {advice}")
    options = a.options
    given = _at_shell(a, folder, options, bool(media))
    sources, reused = _answers(a.reuse)
    pool = pool_file.with_models(pool, a.set.get("timeout_s", pool_file.LIST_S))
    named = names.objects(options, folder / "mcp.log", redact)
    objects, more = stack.enter_context(named)
    has_own_message = getattr(objects.get("method"), "needs_sandbox", False)
    if not (a.quiet or has_own_message or shipped.can_run_code(options)):
        terminal.tell(sandbox_missing())
    more = {**more, **reused}
    more |= _named_files(a)
    began(folder, redact)
    with _listening(a, folder, redact) as how:
        given = {
            **how,
            **given,
            **objects,
            "sources": sources,
            "redact": redact,
            "more": more,
        }
        return orchestra_min.orchestrate(
            a.question, media, pool, options, folder, **given
        )


def _resume(a: argparse.Namespace, began: Began, stack: ExitStack) -> Outcome:
    folder = a.resume
    stored = _stored(folder)
    named, redact = _pool(a)
    pool = trust.reached(folder, stored.pool, named)
    _tell_moved(stored.pool, pool)
    given, resolve = trust.objects_again(a, folder, stored, stack, redact)
    if stored.more.get("code", True) and not shipped.can_run_code(stored.options):
        raise ConfigError(f"{folder}: the run may run code; {sandbox_missing()}")
    given |= changes(a, folder, stored, resolve, given)
    own = words.own_options(stored.options, a.option)
    for name in own.keys() - {"patience_s"}:
        raise ConfigError(f"--option {name}: is stored in {folder}; leave it out")
    times = {name: {**a.set, **own}.get(name) for name in ("timeout_s", "patience_s")}
    set_again = {name: value for name, value in times.items() if value is not None}
    options = replace(stored.options, **set_again)
    sources, _ = _answers(a.reuse)
    began(folder, redact)
    with _listening(a, folder, redact) as how:
        how |= {**given, "sources": sources, "redact": redact, "options": options}
        return orchestra_min.resume(folder, pool, parallel=a.parallel, **how)


def _fork(a: argparse.Namespace, began: Began, stack: ExitStack) -> Outcome:
    from orchestra.variation import fork, what_if

    stored = _stored(a.resume)
    named, redact = _pool(a)
    pool = _pool_of_fork(a, stored.pool, named)
    short = {
        names.short_name(spec): spec for spec in stored.options.more.get("tools", ())
    }
    changed = dict(a.set)
    if "tools" in changed:  # a file may have moved
        changed["tools"] = [short.get(names.short_name(t), t) for t in changed["tools"]]
    changed |= words.own_options(
        Options.of(**{**stored.options.row(), **changed}), a.option
    )
    options = Options.of(**{**stored.options.row(), **changed})
    pool_file.check(pool, options.budget_usd, redact)
    trusted = replace(stored, more={**stored.more, "reuse": ()})  # a fork names its own
    given, resolve = trust.objects_again(a, a.resume, trusted, stack, redact, options)
    folder = a.out or default_folder()
    given |= _at_shell(a, folder, options, bool(stored.media))
    began(folder, redact)
    with _listening(a, folder, redact) as how:
        how |= {**given, "redact": redact, "resolve": resolve}
        how["reuse"] = [a.resume, *a.reuse] if a.model else a.reuse
        how |= {"what_if": what_if.given(a.what_if), "pool": pool, "options": changed}
        how["more"] = _named_files(a)
        return fork.run_fork(a.resume, folder, a.from_round, **how)


def _pool_of_fork(a: argparse.Namespace, stored: Pool, named: Pool) -> Pool:
    """The models from now on: those of the run, with another main one if it has that; or another
    pool, if one is named that differs in more than its addresses. A pool file also says which
    engines and experts there are from now on. Raises ConfigError.
    """
    from orchestra.variation.fork import has_models_of

    if a.model in stored.names:
        return replace(trust.reached(a.resume, stored, named), main=a.model)
    same = has_models_of(named, stored) and has_models_of(stored, named)
    if a.model or (a.backends and not same):
        kept = stored.main in named.names and not a.model
        return pool_file.with_models(
            replace(named, main=stored.main if kept else named.main)
        )
    pool = trust.reached(a.resume, stored, named)
    if a.backends:
        pool = replace(pool, engines=named.engines, experts=named.experts)
    return pool


def sandbox_missing() -> str:
    """Why there is no sandbox, and what to do."""
    from orchestra.tools.sandbox import missing

    return missing()


# ---- what they need ------------------------------------------------------------------------------


def _stored(folder: Path) -> Manifest:
    """The run.json of a folder that may come from someone else. Raises ConfigError."""
    outside.check_run(folder)
    return read_manifest(folder)


def _pool(
    a: argparse.Namespace, budget_usd: float | None = None
) -> tuple[Pool, Redact]:
    """The pool that is named now, and what redacts its keys. Raises ConfigError."""
    pool = pool_file.named(a.backends, a.model)
    redact = names.redact_of(pool, {**a.options.more, "mcp": a.mcp or ()})
    pool_file.check(pool, budget_usd, redact)
    return pool, redact


def _named_files(a: argparse.Namespace) -> dict[str, str]:
    """What run.json has of the files that a command line names."""
    files = {"workdir": a.workdir, "pool_file": a.backends}
    return {name: str(path.absolute()) for name, path in files.items() if path}


def _answers(runs: Sequence[Path]) -> tuple[list[Any], dict[str, Any]]:
    """The sources of --reuse, and what run.json says of them. Raises ConfigError."""
    if not runs:
        return [], {}
    from orchestra.variation.reuse import answers_of, name_of

    for run in runs:
        outside.check_run(run)
    return [answers_of(*runs)], {"reuse": [name_of(run) for run in runs]}


def _at_shell(
    a: argparse.Namespace, folder: Path, options: Options, has_media: bool
) -> dict[str, Any]:
    """What gives mini-SWE sub-agents their shell. Raises ConfigError."""
    if options.agent != "mini-swe":
        if a.workdir:
            raise ConfigError("--workdir: needs --agent mini-swe")
        return {}
    from orchestra.coding import at_shell

    at_shell.check(options, a.workdir, has_media)
    return {"change": at_shell.change_of(folder, a.workdir, terminal.tell)}


def changes(
    a: argparse.Namespace,
    folder: Path,
    stored: Manifest,
    resolve: trust.Resolve,
    given: Mapping[str, Any],
) -> dict[str, Any]:
    """What changes the parts of a run again, as its run.json says: a shell, or what varies it."""
    found: dict[str, Any] = {}
    if stored.options.agent == "mini-swe":
        from orchestra.coding import at_shell

        found = {"change": at_shell.change_of(folder, a.workdir)}
    if any(stored.more.get(name) for name in ("earlier", "what_if", "parent")):
        from orchestra.variation import fork

        found = {"change": fork.change_of(folder, resolve, {**given, **found})}
    return found


@contextmanager
def _listening(
    a: argparse.Namespace, folder: Path, redact: Redact
) -> Iterator[dict[str, Any]]:
    """The listeners of a run, and what ends it."""
    interruption.running.append(folder)
    if not a.quiet and sys.stderr.isatty():
        live = command(["report", folder, "--live"])
        terminal.tell(f"{folder}; its page while it runs: {live}")
    shows = terminal.progress(a, redact.text, status_line)
    with shows as shown, logged_in(folder, redact.text) as log:
        yield {"listeners": (log, *shown), "cancelled": interruption.cancelled}
    interruption.running.remove(folder)


def _tell_moved(stored: Pool, now: Pool) -> None:
    """Tell the user which backends are called elsewhere than in the recording."""
    for old, new in zip(stored.backends, now.backends, strict=True):
        if old.base_url != new.base_url:
            terminal.tell(
                f"{new.name} is called at {new.base_url}, not at {old.base_url}"
            )
