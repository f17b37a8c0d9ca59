"""A run folder may be a stranger's: what it names of its user's is used only where the user of this
program names it again.

    tools         files of Python that a replay or a resume loads
    mcp           commands that a resume starts
    allow_hosts   internal hosts that a resume fetches from
    keys          a resume sends them to the addresses of the user's own pool alone
"""

from __future__ import annotations

import contextlib
import shlex
from dataclasses import dataclass, replace
from pathlib import Path

from orchestra.log import printable
from orchestra.pool import Pool
from orchestra.pool_file import from_environment
from orchestra.run_folder import Manifest
from orchestra.vocabulary import ConfigError


@dataclass(frozen=True)
class Named:
    """What the user names beside a run folder."""

    tools: tuple[str, ...] = ()  # as FILE.py:FUNCTION, wherever the file lies now
    mcp: tuple[str, ...] = ()
    allow_hosts: tuple[str, ...] = ()
    pool: Pool | None = None  # None: that of the environment


def checked(manifest: Manifest, named: Named, resumed: bool) -> Manifest:
    """The manifest with its tools from the user's own files. Raises ConfigError for what the folder
    alone, or the user alone, names.
    """
    options = manifest.options
    files = {Path(spec).name: spec for spec in named.tools}
    tools = tuple(files.get(Path(spec).name, spec) for spec in options.tools)
    sides = [("--tools", tools, named.tools)]
    if resumed:
        sides.append(("--mcp", options.mcp, named.mcp))
        sides.append(("--allow-host", options.allow_hosts, named.allow_hosts))
        _check_keys(manifest.pool, named.pool)
    theirs = {f"{flag} {shlex.quote(one)}" for flag, stored, _ in sides for one in stored}
    ours = {f"{flag} {shlex.quote(one)}" for flag, _, given in sides for one in given}
    if lacking := " ".join(sorted(theirs - ours)):
        said = "the run uses what its user gave it; look at it, and if you trust it, add"
        raise ConfigError(f"{said} {printable(lacking)}")
    if unknown := " ".join(sorted(ours - theirs)):
        raise ConfigError(f"{unknown}: the run was started without; leave it out")
    return replace(manifest, options=replace(options, tools=tools))


def _check_keys(theirs: Pool, ours: Pool | None) -> None:
    """Raises ConfigError where a key would go to an address that the user did not name for it."""
    keyed = [b for b in theirs.backends if b.api_key_env]
    if keyed and ours is None:
        with contextlib.suppress(ConfigError):  # no endpoint: no address is named
            ours = from_environment(None)
    known = {(b.base_url, b.api_key_env) for b in ours.backends} if ours else set()
    for b in keyed:
        if (b.base_url, b.api_key_env) not in known:
            where = printable(f"backend {b.name}: {b.api_key_env} would go to {b.base_url}")
            advice = "give the --backends FILE or the OPENAI_BASE_URL of the run if you trust it"
            raise ConfigError(f"{where}, which your pool does not name; {advice}")
