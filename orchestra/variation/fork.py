"""A fork: a new run that keeps the first rounds of another one, and changes what comes after them.

    run_fork(Path("runs/city"), Path("runs/large"), from_round=2, options={"steps": 9})

The rounds before `from_round` are kept as they were, with their settings and their rows of the
tape. From there on the new settings hold. If something is named, the fork reuses what is equal in
the later rounds of its run (reuse.py): all of it, if it has the value that it had. If nothing is
named, the later rounds are made anew. In run.json a fork has

    parent      the run that it varies, and from which round on
    from_round  the first round that it does not keep
    earlier     the settings of the kept rounds: [{"before": 2, "pool", "options", "code"}]
    what_if     what is replaced, by its place (what_if.py)
    reuse       the names of the runs whose answers it takes
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestra.kernel.folder import (
    Manifest,
    Options,
    pool_row,
    read_events,
    read_manifest,
    write_manifest,
)
from orchestra.kernel.tape import Exchange, Source, TapeMiss, exchanges
from orchestra.kernel.vocabulary import ConfigError, Place, Pool
from orchestra.report.totals import settings_in
from orchestra.variation import what_if as what_ifs
from orchestra.variation.reuse import answers_of, name_of
from orchestra_min import Outcome, Parts, parts_of, resume

NOT_NAMED = ("timeout_s", "patience_s", "tools", "mcp", "allow_hosts", "unsafe_code")
NO_END = 1 << 30  # a round after every other
COPIED = ("media", "workdir", "workdir.git")
# The objects that the names in the options of a run.json stand for: those of `parts_of`
Resolve = Callable[[Manifest], Mapping[str, Any]]
Change = Callable[[Parts, Manifest], Parts]


# ---- a fork is written ---------------------------------------------------------------------------


def write_fork(
    folder: Path,
    out: Path,
    from_round: int | None = None,
    what_if: Mapping[str, Any] | None = None,
    pool: Pool | None = None,
    options: Mapping[str, Any] | None = None,
    reuse: Sequence[Path] = (),
    more: Mapping[str, Any] | None = None,
) -> list[Path]:
    """Write a fork of the run in `folder` to the new folder `out`. Returns the runs that it reuses.

    `options`: those that are named; `pool`: the models from now on, and where the stored ones are
    served now; `more`: what else run.json has. Without `from_round`, the rounds before the first
    place of `what_if` are kept. Raises ConfigError.
    """
    stored = read_manifest(folder)
    named = dict(options or {})
    rows = dict(what_if or {})
    what_ifs.check_places(rows, read_events(folder))
    start = _first_round(folder, from_round, rows)
    now = _with_options(replace(stored, pool=pool or stored.pool), named)
    is_changed = _settings(now) != _settings(stored)
    is_named = is_changed or bool(rows) or not named.keys() <= {*NOT_NAMED}
    reused = [*dict.fromkeys([*[folder] * is_named, *reuse])]
    before = settings_in(stored, start - 1)
    earlier = [old for old in stored.more.get("earlier", ()) if old["before"] < start]
    if start > 1 and _settings(now) != _settings(before):
        settings = {"pool": pool_row(before.pool), "options": before.options.row()}
        earlier.append(
            {"before": start, **settings, "code": before.more.get("code", True)}
        )
    kept = stored.more.get("what_if", {}).items()
    rows |= {place: row for place, row in kept if _round(place) < start}
    about = {
        "parent": f"{name_of(folder)} from round {start}",
        "from_round": start,
        "earlier": earlier,
        "what_if": rows,
        "reuse": [name_of(run) for run in reused],
    }
    what_ifs.replaced(rows)
    _copy(
        folder, out, start, replace(now, more={**stored.more, **(more or {}), **about})
    )
    return reused


def _first_round(
    folder: Path, from_round: int | None, what_if: Mapping[str, Any]
) -> int:
    """The first round that is not kept: by default that of the first place of --what-if."""
    rounds = {text: _round(text) for text in what_if}
    start = min(rounds.values()) if from_round is None else from_round
    for text, round in rounds.items():
        if round < start:
            problem = f"round {round} is kept; use --from-round {round}"
            raise ConfigError(f"--what-if {text}: {problem}")
    rounds_made = [exchange.round for exchange in exchanges(folder / "tape.jsonl")]
    events = read_events(folder)
    for event in events:  # a decision of --what-if is not on the tape
        if event["event"] == "decision":
            rounds_made.append(event["at"][0])
    last = max([1, *rounds_made])
    ended = events[-1:]
    if ended and ended[0].get("state") in ("fallback", "stopped"):
        last = max(last, ended[0]["rounds"])  # it could not be paid
    if not 1 <= start <= last:
        problem = f"the run in {folder} has rounds 1 to {last}"
        raise ConfigError(f"--from-round {start}: {problem}")
    return start


def _round(place: str) -> int:
    return what_ifs.place_of(place).round


def _with_options(manifest: Manifest, named: Mapping[str, Any]) -> Manifest:
    options = Options.of(**{**manifest.options.row(), **named})
    return replace(manifest, options=options)


def _settings(manifest: Manifest) -> Any:
    """What makes a difference for a run: not the places of models, nor the limits of time."""
    options = replace(manifest.options, timeout_s=0.0, patience_s=0.0)
    return without_addresses(manifest.pool), options


def without_addresses(pool: Pool) -> Pool:
    """A pool, wherever its models are served."""
    backends = (replace(b, base_url="", api_key_env="") for b in pool.backends)
    return replace(pool, backends=tuple(backends))


def has_models_of(pool: Pool, other: Pool) -> bool:
    """Whether a pool has all backends of another one, wherever they are served."""
    ours = without_addresses(pool).backends
    return all(backend in ours for backend in without_addresses(other).backends)


def _copy(source: Path, out: Path, start: int, manifest: Manifest) -> None:
    """Copy the rounds before `start`; run.json comes last. Raises ConfigError."""
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise ConfigError(f"{out} is not an empty folder; give another --out")
    folders = [source / name for name in COPIED]
    for folder in (source / "work").glob("r*-t*"):
        place = Place.parse(folder.name.replace("-", "/"))
        if place is not None and place.round < start:
            folders.append(folder)
    try:
        out.mkdir(parents=True, exist_ok=True)
        for folder in folders:
            if folder.is_dir():
                shutil.copytree(folder, out / folder.relative_to(source), symlinks=True)
        with (out / "tape.jsonl").open("w", encoding="utf-8", errors="replace") as file:
            for exchange in exchanges(source / "tape.jsonl"):
                if exchange.round < start:
                    kept = replace(exchange, kept=True, reused=name_of(source))
                    file.write(f"{kept.line()}\n")
        write_manifest(out, manifest)
    except OSError as error:  # of shutil, too
        shutil.rmtree(out, ignore_errors=True)
        raise ConfigError(f"{source} cannot be copied to {out} ({error})") from None


# ---- a fork runs ---------------------------------------------------------------------------------


def run_fork(
    folder: Path,
    out: Path,
    from_round: int | None = None,
    what_if: Mapping[str, Any] | None = None,
    pool: Pool | None = None,
    options: Mapping[str, Any] | None = None,
    reuse: Sequence[Path] = (),
    more: Mapping[str, Any] | None = None,
    resolve: Resolve | None = None,
    **how: Any,
) -> Outcome:
    """Write a fork (`write_fork`) and run it. `how`: that of `resume`, with the objects of the run;
    `resolve`: the same of each of its settings, where they differ. A mistake of the user before the
    first call leaves no folder.
    """
    reused = write_fork(folder, out, from_round, what_if, pool, options, reuse, more)
    how["sources"] = [answers_of(*reused), *how.get("sources", ())]
    how["change"] = change_of(out, resolve, how)
    try:
        return resume(out, pool=pool, **how)
    except ConfigError:
        if all(exchange.kept for exchange in exchanges(out / "tape.jsonl")):
            shutil.rmtree(out)
        raise


def change_of(
    folder: Path, resolve: Resolve | None = None, given: Mapping[str, Any] | None = None
) -> Change:
    """The `change` of a replay or a resume that does what run.json says: other settings in the
    rounds that a fork keeps, and what is replaced. It goes around the `change` in `given`.
    """
    names = ("method", "agents", "tools", "change")
    objects = {name: value for name, value in (given or {}).items() if name in names}

    def change(parts: Parts, manifest: Manifest) -> Parts:
        inner = objects.get("change")
        parts = inner(parts, manifest) if inner else parts
        found = what_ifs.replaced(manifest.more.get("what_if", {}))
        starts: dict[int, Parts] = {}
        for start, settings in each_settings(manifest):
            made = parts
            if settings is not manifest:
                own = resolve(settings) if resolve else {}
                made = parts_of(settings, folder, **{**objects, **own})
            starts[start] = made
        ends = [*starts][1:] + [NO_END]
        for (start, made), end in zip(starts.items(), ends, strict=True):
            here = {t: y_t for t, y_t in found.decisions.items() if start <= t < end}
            starts[start] = what_ifs.replace_in(made, replace(found, decisions=here))
        hooks = {name: getattr(parts, name) for name in ("listeners", "redact", "send")}
        first, later = starts.pop(1), starts
        sources = [refuse_before(manifest.more.get("from_round", 0)), *parts.sources]
        return replace(
            first,
            later={start: replace(made, **hooks) for start, made in later.items()},
            sources=sources,
            **hooks,
        )

    return change


def refuse_before(from_round: int) -> Source:
    """A kept round is never paid again: a request of it that is not on the tape ends the run."""

    def refuse(kind: str, call: str, key: str, times: int) -> Exchange | None:
        place = Place.parse(call)
        if place is not None and place.round < from_round:
            raise TapeMiss(
                f"{call}: round {place.round} is kept, and now makes another request"
            )
        return None

    return refuse


# ---- the settings of a fork ----------------------------------------------------------------------


def each_settings(manifest: Manifest) -> list[tuple[int, Manifest]]:
    """The first round of each settings of a fork, and the run.json with them, in order. Raises
    ConfigError if earlier settings would hold in a round that is not kept: there they would reach
    endpoints that nobody has named again.
    """
    try:
        befores = [int(row["before"]) for row in manifest.more.get("earlier", ())]
        is_kept = max(befores, default=0) <= manifest.more.get("from_round", 0)
    except (LookupError, TypeError, ValueError) as error:
        raise ConfigError(f"run.json is damaged: earlier: {error}") from None
    if befores != sorted({*befores}) or not is_kept:
        raise ConfigError(
            "run.json is damaged: earlier: not the settings of kept rounds"
        )
    ends = [*befores, NO_END]
    starts = zip([1, *befores], ends, strict=True)
    return [(start, settings_in(manifest, end - 1)) for start, end in starts]
