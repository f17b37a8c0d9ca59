"""What a fork changes: its run.json, made of that of its run and of what is given now.

The rounds before `from_round` are kept as they were, with their settings and their rows of the
tape. From there on the new settings hold. If a setting is named, the fork reuses what is equal in
the later rounds of its run (reuse.py): all of it, if the setting has the value that it had. If none
is named, the later rounds are made anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from orchestra.runtime import pool as pools
from orchestra.runtime import trajectory, what_if
from orchestra.runtime.options import GIVEN_AGAIN, Options, check_use, is_permission
from orchestra.runtime.permission import TIMES, comparable
from orchestra.runtime.pool import Pool
from orchestra.runtime.reuse import names_of
from orchestra.runtime.run_folder import Earlier, Manifest, name_of
from orchestra.vocabulary import ConfigError, Place


class Fork(NamedTuple):
    """A fork before it starts: its run.json, what is given again for it (permission.py), and the
    endpoints that are named now.
    """

    manifest: Manifest
    given: Mapping[str, Any]
    served: Pool


def fork_of(
    folder: Path,
    stored: Manifest,
    from_round: int | None,
    replaced: Mapping[str, Any],
    given: Mapping[str, Any],
    pool: Pool | Path | str | None = None,
    model: str | None = None,
    perception: str | None = None,
) -> Fork:
    """A fork of the run in a folder. `replaced`: --what-if. `given`: options, `reuse` and
    `workdir`. Raises ConfigError.
    """
    kinds = [m.modality for m in stored.media]
    now = pools.perceiving(_pool(stored.pool, pool, model), perception, kinds)
    named = {k: given[k] for k in Options.model_fields if given.get(k) is not None}
    options = _options(stored.options, named)
    is_named = any(not is_permission(k, value) for k, value in named.items())
    is_varied = is_named or bool(replaced or model or perception)
    is_varied = is_varied or options != stored.options or now != stored.pool
    reuse = [folder] if is_varied else []
    reuse += given.get("reuse", ())
    start = _first_round(folder, from_round, replaced)
    fields = {
        "options": options,
        "pool": now,
        "code": stored.code or options.unsafe_code,
        "parent": f"{name_of(folder)} from round {start}",
        "from_round": start,
        "earlier": _earlier(stored, start, options, now),
        "what_if": _kept(stored, start) | dict(replaced),
        "reuse": names_of(reuse),
        "only": "",
    }
    again = {k: v for k, v in named.items() if k in GIVEN_AGAIN}
    again |= {"workdir": given.get("workdir"), "reuse": reuse}
    is_served = model is None or model in stored.pool.names
    return Fork(
        manifest=stored.model_copy(update=fields),
        given=again,
        served=pools.choose(pool, None if is_served else model),
    )


def _earlier(
    stored: Manifest, start: int, options: Options, pool: Pool
) -> tuple[Earlier, ...]:
    """The settings of the rounds before `start`, if they differ from the new ones."""
    earlier = [old for old in stored.earlier if old.before < start]
    before = stored.in_round(start - 1)
    is_new = options != before.options or pool != before.pool
    if start > 1 and is_new:
        old = {"pool": before.pool, "options": before.options, "code": before.code}
        earlier.append(Earlier(before=start, **old))
    return tuple(earlier)


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


def _pool(stored: Pool, given: Pool | Path | str | None, model: str | None) -> Pool:
    """The pool of a fork: the stored one, with another main model if it has that; a pool that is
    given and has other backends replaces it. Raises ConfigError.
    """
    if given is None and model is None:
        return stored
    if model in stored.names:
        return stored.with_(main=model)
    if model:
        return pools.choose(given, model)
    named = pools.choose(given)
    known = {b.name: b for b in named.backends}
    is_same = all(_is_same(b, known.get(b.name)) for b in stored.backends)
    if is_same:
        return stored
    main = stored.main if stored.main in known else named.main
    return named.with_(main=main)


def _is_same(b: Any, other: Any) -> bool:
    """Whether two backends are the same, wherever they are served."""
    if other is None:
        return False
    where = {"base_url": b.base_url, "api_key_env": b.api_key_env}
    return bool(vars(other) | where == vars(b))
