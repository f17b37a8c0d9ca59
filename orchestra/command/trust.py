"""What only a command line allows. A run folder may come from someone else, so nothing that it
names is loaded, started, reached or read, unless the user names it again.

For a replay these are the Python files of the run. For a resume they are also its MCP servers,
internal hosts, repository, unsafe code, runs to reuse, endpoints and keys.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestra.command.names import LISTED, objects, short_name
from orchestra.command.redact import Redact
from orchestra.kernel.folder import Manifest, Options
from orchestra.kernel.vocabulary import ConfigError, Pool

Resolve = Callable[[Manifest], dict[str, Any]]
PYTHON = ("method", "agent")  # options that may name Python of the user


def objects_again(
    a: argparse.Namespace,
    folder: Path,
    stored: Manifest,
    stack: ExitStack,
    redact: Redact,
    options: Options | None = None,
) -> tuple[dict[str, Any], Resolve]:
    """What the names in run.json stand for, if they are named again: `given` of a replay or resume,
    and the same for each of the settings of a fork. `options`: those of a new fork, which may name
    more. Raises ConfigError.
    """
    settings = [stored]
    if stored.more.get("earlier"):
        from orchestra.variation.fork import each_settings

        settings = [manifest for _, manifest in each_settings(stored)]
    named = dict(a.set)
    if a.workdir:
        named["workdir"] = str(a.workdir)
    named["reuse"] = [run.resolve().name for run in a.reuse]
    resumed = a.resume is not None
    where = check_named_again(
        folder, settings, named, resumed, may_add=options is not None
    )
    known: dict[str, dict[str, Any]] = {}

    def resolve(manifest: Manifest) -> dict[str, Any]:
        key = repr(manifest.options)
        if key not in known:
            listed = manifest.more.get(LISTED, {})
            unlisted = [
                name
                for name in manifest.options.more.get("mcp", ())
                if name not in listed
            ]
            if unlisted:
                problem = "the run has no list of its tools; start a new run"
                raise ConfigError(f"--mcp {unlisted[0]}: {problem}")
            named = objects(manifest.options, folder / "mcp.log", redact, listed, where)
            given, _ = stack.enter_context(named)
            known[key] = given
        return dict(known[key])

    given = resolve(replace(stored, options=options or stored.options))
    return given, resolve


def check_named_again(
    folder: Path,
    settings: Sequence[Manifest],
    given: Mapping[str, Any],
    resumed: bool,
    may_add: bool = False,
) -> dict[str, str]:
    """Python files as they are named now, by their short names. `settings`: the run.json of each
    part of the run; `given`: options, and the keys of run.json, of this command line. `may_add`:
    also what the run does not use. Raises ConfigError that lists the flags to add.
    """
    theirs: dict[str, str] = {}
    for manifest in settings:
        theirs |= _permissions(manifest, resumed)
    now = replace(settings[-1], options=Options.of(**given), more=given)
    ours = dict(_permissions(now, resumed))
    unknown = [flag for flag in ours if flag not in theirs]
    if unknown and not may_add:
        problem = f"the run in {folder} does not use it; leave it out"
        raise ConfigError(f"{unknown[0]}: {problem}")
    missing = {flag: spec for flag, spec in theirs.items() if flag not in ours}
    if missing:
        flags = " ".join(_flags(folder, missing))
        raise ConfigError(f"{folder} needs your permission again: add {flags}")
    return {short_name(spec): spec for spec in ours.values() if spec}


def to_add(folder: Path, stored: Manifest) -> list[str]:
    """The flags that a resume needs besides those that name models."""
    return list(_flags(folder, dict(_permissions(stored, resumed=True))))


def _permissions(manifest: Manifest, resumed: bool) -> Iterator[tuple[str, str]]:
    """Each permission as its flag, and the Python that it names, if so."""
    options = manifest.options
    for tool in options.more.get("tools", ()):
        yield _flag("--tools", short_name(tool)), tool
    for name in PYTHON:
        spec = getattr(options, name)
        if ":" in spec:
            yield _flag(f"--{name}", short_name(spec)), spec
    if not resumed:
        return
    for name, flag in (("mcp", "--mcp"), ("allow_hosts", "--allow-host")):
        for value in options.more.get(name, ()):
            yield _flag(flag, value), ""
    if options.more.get("unsafe_code"):
        yield "--unsafe-code", ""
    if manifest.more.get("workdir"):
        yield _flag("--workdir", str(Path(manifest.more["workdir"]).absolute())), ""
    for run in manifest.more.get("reuse", ()):
        yield _flag("--reuse", run), ""


def _flag(flag: str, value: str) -> str:
    return f"{flag} {shlex.quote(value)}"


def _flags(folder: Path, missing: Mapping[str, str]) -> Iterator[str]:
    """The flags to add to the command, with the paths that files had, if they are still there. All
    runs of --reuse are in one flag.
    """
    runs = []
    for flag, spec in missing.items():
        name, _, value = flag.partition(" ")
        if name == "--reuse":
            there = folder.resolve().parent / Path(*shlex.split(value)).name
            runs.append(
                str(there) if (there / "run.json").is_file() else f"PATH/TO/{value}"
            )
        elif spec and Path(spec.rpartition(":")[0]).is_file():
            yield _flag(name, spec)
        else:
            yield flag
    if runs:
        yield _flag("--reuse", ",".join(runs))


def reached(folder: Path, stored: Pool, named: Pool) -> Pool:
    """The stored pool, where the pool that is named now serves it: a server may have moved. Raises
    ConfigError for a backend that is not there.
    """
    addresses = {(b.base_url.rstrip("/"), b.api_key_env) for b in named.backends}
    moved = {b.name: b for b in named.backends}
    if len(stored.backends) == len(named.backends) == 1:
        moved = {stored.main: named.backends[0]}  # it may have no name but "main"
    backends = []
    for b in stored.backends:
        if (b.base_url.rstrip("/"), b.api_key_env) not in addresses:
            if b.name not in moved:
                key = f" with the key in {b.api_key_env}" if b.api_key_env else ""
                advice = (
                    "if you trust it, name it in --backends FILE or by OPENAI_BASE_URL"
                )
                raise ConfigError(f"{folder} calls {b.base_url}{key}: {advice}")
            now = moved[b.name]
            b = replace(b, base_url=now.base_url, api_key_env=now.api_key_env)
        backends.append(b)
    return replace(stored, backends=tuple(backends))
