"""How a recorded run ended and what it cost: the first thing that every view of a run shows.

Calls, tokens and cost come from the tape, so a run that was killed has them, too.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestra.command.outside import damage_is_one_line
from orchestra.kernel.folder import (
    Ending,
    Event,
    Manifest,
    manifest_of,
    read_events,
    read_manifest,
)
from orchestra.kernel.money import Bill, Ledger, Purse, add_usd
from orchestra.kernel.tape import Exchange, Failure, exchanges
from orchestra.kernel.vocabulary import Backend, Pool
from orchestra.methods import METHOD

RUNNING = Ending("running", finished=False)
KILLED = Ending(
    "interrupted",
    "signal",
    "the process was killed, or the disk was full",
    finished=False,
)


@dataclass(frozen=True)
class Totals:
    """What calls cost, as a purse counts it: a call is an attempt that may be billed. None is an
    unknown cost. `reused_calls` of them come from another run: they cost `saved_usd` at the prices
    of this run, and nobody paid them. The others cost `paid_usd`.
    """

    calls: int = 0
    tokens: int = 0
    cost_usd: float | None = 0.0
    paid_usd: float | None = 0.0
    reused_calls: int = 0
    saved_usd: float | None = 0.0


@dataclass(frozen=True)
class Summary:
    """A run in one row. `date_s`: when it made its newest call, in seconds since 1970. `latency_s`
    None: the run could not say. `origin`: the run that it is a fork of, and what its user replaced.
    """

    question: str
    method: str
    model: str
    ending: Ending
    answer: str
    totals: Totals
    rounds: int
    failed_subtasks: int
    latency_s: float | None
    date_s: float
    origin: str = ""


def summary(folder: Path) -> Summary:
    """The run in a folder. Raises ConfigError if it is damaged."""
    manifest = read_manifest(folder)
    events = newest_events(folder)
    return summarize(folder, manifest, events, exchanges(folder / "tape.jsonl"))


def summarize(
    folder: Path, manifest: Manifest, events: Sequence[Event], tape: Sequence[Exchange]
) -> Summary:
    """The summary of a run whose files have been read."""
    end = events[-1] if events and events[-1]["event"] == "end" else None
    results = [event for event in events if event["event"] == "result"]
    dates_s = [exchange.began_s for exchange in tape if not exchange.kept]
    with damage_is_one_line(folder):
        return Summary(
            question=manifest.question,
            method=manifest.options.method or METHOD,
            model=manifest.pool.main,
            ending=ending_of(folder, end),
            answer=end["answer"] if end else "",
            totals=totals_of(manifest, tape),
            rounds=end["rounds"] if end else max((x.round for x in tape), default=0),
            failed_subtasks=sum(event["status"] == "failed" for event in results),
            latency_s=end["timing"].get("latency_s") if end else None,
            date_s=max(dates_s, default=0.0) or (folder / "run.json").stat().st_mtime,
            origin=origin_of(manifest),
        )


def origin_of(manifest: Manifest) -> str:
    """As in "fork of city from round 2; its user replaced r2"; "" for a run of its own."""
    parent = manifest.more.get("parent", "")
    if not parent:
        return ""
    places = ", ".join(manifest.more.get("what_if", ()))
    return f"fork of {parent}" + f"; its user replaced {places}" * bool(places)


def newest_events(folder: Path) -> list[Event]:
    """The events of a run since it was resumed last: a resume plays the earlier ones again."""
    events = read_events(folder)
    begins = [n for n, event in enumerate(events) if event["event"] == "run"]
    return events[begins[-1] :] if begins else events


def ending_of(folder: Path, end: Event | None) -> Ending:
    """How the run in a folder ended; `end`: its end row, if it could write one."""
    if end is not None:
        why = end["why"]
        if (folder / "workdir.git").exists() and not (folder / "changes.diff").exists():
            told = "no file of --workdir was changed"
            why = "; ".join(filter(None, [why.rstrip("."), told]))
        return Ending(end["state"], end["cause"], why, end["finished"])
    return RUNNING if is_running(folder) else KILLED


def is_running(folder: Path) -> bool:
    """Whether a process writes to the tape of this run."""
    path = folder / "tape.jsonl"
    if not path.is_file():
        return False
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


# ---- what the calls cost -------------------------------------------------------------------------


def totals_of(manifest: Manifest, tape: Iterable[Exchange]) -> Totals:
    """What some calls of a run cost together."""
    purse = Purse()
    reused = Purse()
    for exchange in tape:
        part = _booked(manifest, exchange)
        purse.join(part)
        if exchange.reused:
            reused.join(part)
    return Totals(
        calls=purse.calls,
        tokens=purse.tokens,
        cost_usd=add_usd(*purse.costs),
        paid_usd=add_usd(*purse.paid),
        reused_calls=reused.calls,
        saved_usd=add_usd(*reused.costs),
    )


def totals_in(folder: Path) -> Totals:
    """What the calls of the run in a folder cost. Raises ConfigError."""
    return totals_of(read_manifest(folder), exchanges(folder / "tape.jsonl"))


def _booked(manifest: Manifest, exchange: Exchange) -> Purse:
    """One exchange, with its attempts that got no answer, as the run charged it to a purse."""
    settings = settings_in(manifest, exchange.round)
    outcome = exchange.outcome
    purse = Purse(settings.options.budget_usd)
    value = vars(outcome) if isinstance(outcome, Failure) else outcome.value
    if not isinstance(value, dict) or "unanswered" not in value:
        return purse  # a local tool
    backend = backend_of(exchange, settings.pool) or Backend("", "", "")
    bill = Bill(Ledger(), purse, backend, value.get("most_usd"))
    bill.played = exchange.reused != ""
    if "bill" in exchange.request:
        bill.assumed_usd = exchange.request["bill"]["assumed_usd"]
    bill.charge(value["unanswered"], value.get("data"))
    return purse


def backend_of(exchange: Exchange, pool: Pool) -> Backend | None:
    """The backend that a request went to. Tapes of earlier versions do not name it: then the one at
    its address, or the only one with its model, which may be served elsewhere now.
    """
    request = exchange.request
    name = request.get("bill", {}).get("backend")
    if name in pool.names:
        return pool[name]
    url = str(request.get("url")).removesuffix("/chat/completions")
    same = [b for b in pool.backends if b.model in (request.get("model"), "")]
    there = [backend for backend in same if backend.base_url.rstrip("/") == url]
    return next(iter(there or same[: len(same) == 1]), None)


def settings_in(manifest: Manifest, round: int) -> Manifest:
    """The manifest with the settings of a round: a fork may have changed them."""
    for earlier in manifest.more.get("earlier", ()):
        if round < earlier["before"]:
            return manifest_of({**manifest.row(), **earlier})
    return manifest
