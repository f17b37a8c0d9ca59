"""What a fork changes: its run.json, made of that of its run and of what is given now.

The rounds before `from_round` are kept as they were, with their settings and their rows of the
tape. From there on the new settings hold. If anything is changed, the fork reuses what is equal in
the later rounds of its run (reuse.py); if nothing is, they are made anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestra.runtime import pool as pools
from orchestra.runtime import trajectory, what_if
from orchestra.runtime.options import Options, check_use
from orchestra.runtime.permission import TIMES, comparable
from orchestra.runtime.pool import Pool
from orchestra.runtime.reuse import names_of
from orchestra.runtime.run_folder import Earlier, Manifest
from orchestra.vocabulary import ConfigError, Place


def fork_of(
    folder: Path,
    stored: Manifest,
    from_round: int | None,
    pool: Pool,
    replaced: Mapping[str, Any],
    given: Mapping[str, Any],
) -> Manifest:
    """The run.json of a fork. Its `reuse` is that of the changes; more runs may be added. Raises
    ConfigError.
    """
    options = _options(stored.options, given)
    start = _first_round(folder, from_round, replaced)
    before = stored.in_round(start - 1)
    earlier = [e for e in stored.earlier if e.before < start]
    is_new = options != before.options or pool != before.pool
    if start > 1 and is_new:
        old = {"pool": before.pool, "options": before.options, "code": before.code}
        earlier.append(Earlier(before=start, **old))
    is_varied = bool(replaced) or options != stored.options or pool != stored.pool
    fields = {
        "options": options,
        "pool": pool,
        "code": stored.code or options.unsafe_code,
        "parent": f"{folder.resolve().name} from round {start}",
        "from_round": start,
        "earlier": tuple(earlier),
        "what_if": _kept(stored, start) | dict(replaced),
        "reuse": names_of([folder]) if is_varied else (),
        "only": "",
    }
    return stored.model_copy(update=fields)


def _options(stored: Options, given: Mapping[str, Any]) -> Options:
    """The options with those that are given now; the stored ones if nothing but the place of a file
    or a time limit differs.
    """
    options = stored.with_(**given)
    times = {name: getattr(stored, name) for name in TIMES}
    same_budget = options.budget_usd == stored.budget_usd
    if same_budget and comparable(options.with_(**times)) == comparable(stored):
        return stored
    check_use(given, (options.method,))
    return options


def _first_round(
    folder: Path, from_round: int | None, replaced: Mapping[str, Any]
) -> int:
    """The first round that is not kept: by default that of the first place of --what-if."""
    what_if.check_places(replaced, trajectory.read(folder / "trajectory.jsonl"))
    rounds = [what_if.place_of(text).round for text in replaced]
    start = from_round or min(rounds)
    for text, round in zip(replaced, rounds, strict=True):
        if round < start:
            problem = f"round {round} is kept; use --from-round {round}"
            raise ConfigError(f"--what-if {text}: {problem}")
    return start


def _kept(stored: Manifest, start: int) -> dict[str, Any]:
    """What --what-if replaced in the rounds that are kept."""
    kept = {}
    for text, row in stored.what_if.items():
        place = Place.parse(text)
        if place is not None and place.round < start:
            kept[text] = row
    return kept


def pool_of(stored: Pool, given: Pool | Path | str | None, model: str | None) -> Pool:
    """The pool of a fork: the stored one, with another main model if it has that; a pool that is
    given and has other backends replaces it. Raises ConfigError.
    """
    if model in stored.names:
        return stored.with_(main=model)
    if model:
        return pools.choose(given, model)
    named = pools.choose(given)
    known = {b.name: b for b in named.backends}
    is_same = all(_is_same(b, known.get(b.name)) for b in stored.backends)
    if given is None or is_same:
        return stored
    main = stored.main if stored.main in known else named.main
    return named.with_(main=main)


def _is_same(b: Any, other: Any) -> bool:
    """Whether two backends are the same, wherever they are served."""
    if other is None:
        return False
    where = {"base_url": b.base_url, "api_key_env": b.api_key_env}
    return bool(vars(other) | where == vars(b))
