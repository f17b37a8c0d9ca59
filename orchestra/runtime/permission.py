"""What only a command line allows. A run folder may come from someone else, so nothing that it
names is loaded, started, reached or read, unless the user names it again.

For a replay these are the Python files of the run. For a resume they are also its MCP servers,
internal hosts, repository, unsafe code, endpoints and keys.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from orchestra.runtime.options import GIVEN_AGAIN, SEAMS, Options, flag_of
from orchestra.runtime.pool import Pool
from orchestra.runtime.reuse import names_of
from orchestra.runtime.run_folder import Manifest, is_begun
from orchestra.runtime.user_code import is_spec, name_of, spec_of
from orchestra.vocabulary import ConfigError

TIMES = ("timeout_s", "patience_s")  # given again without a permission


def named_again(
    folder: Path,
    manifest: Manifest,
    given: Mapping[str, Any],
    pool: Pool | None = None,
) -> Manifest:
    """The manifest with the options given now. `pool` is that of a resume. Raises ConfigError that
    lists the flags to add.
    """
    given = {name: value for name, value in given.items() if value is not None}
    repo = str(given.pop("workdir", ""))
    reuse = dict(
        zip(names_of(given.get("reuse", ())), given.pop("reuse", ()), strict=True)
    )
    fixed = given.keys() - {*GIVEN_AGAIN}
    if fixed:
        raise ConfigError(f"{flag_of(min(fixed))}: is stored in {folder}; leave it out")
    stored = manifest.options
    _check_seams(folder, stored, given)
    reached = manifest.pool
    if pool is not None:
        reached = _reached(folder, manifest.pool, pool)
    resumed = pool is not None
    now = Options(**{**_shipped(stored), **given})
    ours = dict(_permissions(now, repo, reuse, resumed))
    named = {name: name for name in manifest.reuse}
    theirs: dict[str, Any] = {}
    for settings in manifest.all_settings:
        theirs |= _permissions(settings.options, manifest.workdir, named, resumed)
    _check_same(folder, ours, theirs)
    earlier = []
    for old in manifest.earlier:
        earlier.append(old.with_(options=_given_again(old.options, given, ours)))
    fields = {
        "options": _given_again(stored, given, ours),
        "pool": reached,
        "earlier": tuple(earlier),
    }
    return manifest.model_copy(update=fields)


def _given_again(
    stored: Options, given: Mapping[str, Any], ours: Mapping[str, Any]
) -> Options:
    """The options with the user's Python and time limits as they are given now."""
    changed = {name: value for name, value in given.items() if name in TIMES}
    for name in SEAMS:
        if name in given and is_spec(spec_of(getattr(stored, name))):
            changed[name] = given[name]
    changed["tools"] = tuple(ours[_flag("tools", name_of(t))] for t in stored.tools)
    return stored.with_(**changed)


def _shipped(options: Options) -> dict[str, Any]:
    """The seams for which the options name something that the program ships."""
    chosen = {name: getattr(options, name) for name in SEAMS}
    return {name: value for name, value in chosen.items() if not is_spec(value)}


def _check_same(
    folder: Path, ours: Mapping[str, Any], theirs: Mapping[str, Any]
) -> None:
    """Raises ConfigError if the permissions given now are not those that the run needs."""
    unknown = [flag for flag in ours if flag not in theirs]
    if unknown:
        problem = f"the run in {folder} does not use it; leave it out"
        raise ConfigError(f"{unknown[0]}: {problem}")
    missing = [flag for flag in theirs if flag not in ours]
    if missing:
        flags = " ".join(_flags(folder, {flag: theirs[flag] for flag in missing}))
        raise ConfigError(f"{folder} needs your permission again: add {flags}")


def _check_seams(folder: Path, stored: Options, given: Mapping[str, Any]) -> None:
    """What the program ships stays as it is stored; the user's own may have moved."""
    for name in SEAMS:
        held = getattr(stored, name)
        new = given.get(name)
        if new is not None and not is_spec(spec_of(new)) and new != held:
            problem = f"the run in {folder} does not use it; leave it out"
            raise ConfigError(f"{flag_of(name)} {new}: {problem}")


def _reached(folder: Path, stored: Pool, named: Pool) -> Pool:
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
    return stored.with_(backends=tuple(backends))


def tell_moved(stored: Pool, now: Pool, tell: Callable[[str], None]) -> None:
    """Tell the user which backends are called elsewhere than in the recording."""
    for old, new in zip(stored.backends, now.backends, strict=True):
        if old.base_url != new.base_url:
            tell(f"{new.name} is called at {new.base_url}, not at {old.base_url}")


def comparable(options: Options) -> tuple[Any, ...]:
    """Options to compare: the user's Python by its names, and no budget, since a run replays under
    any.
    """
    files = sorted(flag for flag, _ in _permissions(options))
    names = {}
    for name in SEAMS:
        spec = spec_of(getattr(options, name))
        names[name] = "" if is_spec(spec) else spec  # the user's own are in `files`
    return files, options.with_(tools=(), budget_usd=None, **names)


def _permissions(
    options: Options,
    workdir: str = "",
    reuse: Mapping[str, object] = MappingProxyType({}),
    resumed: bool = False,
) -> Iterator[tuple[str, Any]]:
    """Each permission as its flag, and the value that it allows. Python files are known by their
    names, as they may have moved.
    """
    for tool in options.tools:
        yield _flag("tools", name_of(tool)), tool
    for name in SEAMS:
        value = getattr(options, name)
        if is_spec(spec_of(value)):
            yield _flag(name, name_of(value)), value
    if not resumed:
        return
    for name in ("mcp", "allow_hosts"):
        for value in getattr(options, name):
            yield _flag(name, value), value
    if options.unsafe_code:
        yield _flag("unsafe_code"), True
    if workdir:
        yield _flag("workdir", str(Path(workdir).absolute())), workdir
    for name, run in reuse.items():
        yield _flag("reuse", name), run


def _flag(name: str, value: str = "") -> str:
    return f"{flag_of(name)} {shlex.quote(value)}" if value else flag_of(name)


def _flags(folder: Path, missing: Mapping[str, Any]) -> Iterator[str]:
    """The flags to add to the command. All runs of --reuse are in one flag."""
    reused = []
    for flag, value in missing.items():
        if flag == _flag("reuse", str(value)):
            reused.append(_path_of_run(folder, str(value)))
        else:
            yield _with_path(flag, value)
    if reused:
        yield _flag("reuse", ",".join(reused))


def _path_of_run(folder: Path, name: str) -> str:
    """Where a run of this name is: next to the one that reuses it, or where only the user knows."""
    there = folder.resolve().parent / Path(name).name
    return str(there) if is_begun(there) else f"PATH/TO/{name}"


def _with_path(flag: str, value: object) -> str:
    """The flag of a Python file with the path that it had, if the file is still there."""
    spec = str(value)
    if not Path(spec.rpartition(":")[0]).is_file():
        return flag
    name = flag.partition(" ")[0]
    return f"{name} {shlex.quote(spec)}"
