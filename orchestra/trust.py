"""A run folder may be a stranger's: what it names of its user's is used only where the user of this
program began that run, or names it again.

    tools         files of Python that a replay or a resume loads
    mcp           commands that a resume starts
    allow_hosts   internal hosts that a resume fetches from
    keys          a resume sends them to the addresses of the user's own pool alone

Whose a folder is, its `owner` file tells: the HMAC of run.json with a key that is kept once for
each user, in $XDG_STATE_HOME. Without that key every folder is a stranger's.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from orchestra.log import printable
from orchestra.pool import Pool
from orchestra.pool_file import from_environment
from orchestra.run_folder import Manifest, Options
from orchestra.secrets import restore, scrub
from orchestra.vocabulary import ConfigError

SENT = "OPENAI_CUSTOM_HEADERS", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID"  # by the openai client

KEY_BYTES = 32


@dataclass(frozen=True)
class Named:
    """What the user names beside a run folder."""

    tools: tuple[str, ...] = ()  # as FILE.py:FUNCTION, wherever the file lies now
    mcp: tuple[str, ...] = ()
    allow_hosts: tuple[str, ...] = ()
    pool: Pool | None = None  # None: that of the environment


def checked(folder: Path, manifest: Manifest, named: Named, resumed: bool) -> Manifest:
    """The manifest with its tools from where the user says they are. Raises ConfigError for what a
    stranger's folder alone, or the user alone, names.
    """
    options, trusted = manifest.options, own(folder)
    if not trusted:
        _check_links(folder)
    if resumed:
        _check_pool(folder, manifest.pool, named.pool, trusted)
    options = replace(options, tools=_found_again(options.tools, named.tools))
    theirs, ours = _flags(options, resumed), _flags(named, resumed)
    if not trusted and (lacking := " ".join(sorted(theirs - ours))):
        said = "the run is not yours and uses what its user gave it; if you trust it, add"
        raise ConfigError(f"{said} {printable(lacking)}")
    if unknown := " ".join(sorted(ours - theirs)):
        raise ConfigError(f"{unknown}: the run was started without; leave it out")
    if resumed:  # keys of the user's go where the user's own words send them
        mcp = tuple(map(restore, options.mcp)) if trusted else named.mcp
        options = replace(options, mcp=mcp)
    return replace(manifest, options=options)


def _found_again(tools: Sequence[str], given: Sequence[str]) -> tuple[str, ...]:
    """The tools of a run, those that the user gave from where their files lie now."""
    lie_at = {Path(spec).name: spec for spec in absolute(given)}
    return tuple(lie_at.get(Path(spec).name, spec) for spec in tools)


def _flags(given: Options | Named, resumed: bool) -> set[str]:
    """What is given of the user's, as the flags that give it: as they stand in run.json."""
    found = {"--tools": absolute(given.tools)}
    if resumed:
        found |= {"--mcp": tuple(map(scrub, given.mcp)), "--allow-host": given.allow_hosts}
    return {f"{flag} {shlex.quote(one)}" for flag, several in found.items() for one in several}


def _check_pool(folder: Path, theirs: Pool, ours: Pool | None, trusted: bool) -> None:
    """Raises ConfigError where a resume would reach what the user did not name."""
    if not trusted:
        _check_keys(theirs, ours)
    elif ours and ours.reached != theirs.reached:
        kept = f"differs from the pool in {folder}/run.json, which the run keeps"
        raise ConfigError(f"--backends: {kept}; leave it out")


def absolute(tools: Sequence[str]) -> tuple[str, ...]:
    """Tools, FILE.py:FUNCTION, as they are named from any folder."""
    return tuple(str(Path(spec).absolute()) for spec in tools)


def _check_links(folder: Path) -> None:
    """Raises ConfigError where the folder would have a file outside of it read, sent or written."""
    inside = folder.resolve()
    for parent, folders, files in os.walk(folder):
        for path in (Path(parent, name) for name in (*folders, *files)):
            with contextlib.suppress(OSError, RuntimeError):  # a loop leads nowhere
                if not path.is_symlink() or path.resolve().is_relative_to(inside):
                    continue
            raise ConfigError(f"{path}: the run is not yours and this leads out of it; take it out")


def _check_keys(theirs: Pool, ours: Pool | None) -> None:
    """Raises ConfigError where a key would go to an address that the user did not name for it."""
    more = any(os.environ.get(name) for name in SENT)
    keyed = [b for b in theirs.reached if b.api_key_env or more]
    if keyed and ours is None:
        with contextlib.suppress(ConfigError):  # no endpoint: no address is named
            ours = from_environment(None)
    known = {(b.base_url, b.api_key_env) for b in ours.reached} if ours else set()
    for b in keyed:
        if (b.base_url, b.api_key_env) not in known:
            what = b.api_key_env or "/".join(SENT)
            where = printable(f"backend {b.name}: {what} would go to {b.base_url}")
            advice = "give the --backends FILE or the OPENAI_BASE_URL of the run if you trust it"
            raise ConfigError(f"{where}, which your pool does not name; {advice}")


# ---- whose a folder is ---------------------------------------------------------------------------


def claim(folder: Path) -> None:
    """Mark a new run folder as this user's; where no key can be kept, it stays without a mark."""
    with contextlib.suppress(OSError, RuntimeError, ValueError):
        (folder / "owner").write_text(_mark(folder, _key(make=True)) + "\n", encoding="ascii")


def own(folder: Path) -> bool:
    """This user began the run, and its run.json is as it was written."""
    try:
        mark = (folder / "owner").read_text(encoding="ascii").strip()
        return hmac.compare_digest(mark, _mark(folder, _key()))
    except (OSError, RuntimeError, ValueError, TypeError):
        return False


def _mark(folder: Path, key: bytes) -> str:
    return hmac.new(key, (folder / "run.json").read_bytes(), "sha256").hexdigest()


def _key(make: bool = False) -> bytes:
    """The user's key. Raises OSError or ValueError where there is none, RuntimeError where there is
    no home.
    """
    state = Path(os.environ.get("XDG_STATE_HOME", ""))
    if not state.is_absolute():
        state = Path.home() / ".local" / "state"
    file = state / "orchestra-min" / "key"
    if make and not file.exists():
        _make_key(file)
    key = file.read_bytes()
    if len(key) != KEY_BYTES:
        raise ValueError(f"{file}: is damaged")
    return key


def _make_key(file: Path) -> None:
    """All of it or nothing; of runs that start together, one is first."""
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_name(f"key.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        with open(part, "xb", opener=lambda path, flags: os.open(path, flags, 0o600)) as new:
            new.write(secrets.token_bytes(KEY_BYTES))
            new.flush()
            os.fsync(new.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(part, file)
    finally:
        part.unlink(missing_ok=True)
