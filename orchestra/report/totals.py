"""How a recorded run ended and what it cost: the first thing that every view of a run shows.

Calls, tokens and cost come from the tape, so a run that was killed has them, too.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from orchestra.command.outside import damage_is_one_line
from orchestra.kernel.folder import (
    Ending,
    Event,
    Manifest,
    manifest_of,
    read_events,
    read_manifest,
)
from orchestra.kernel.money import add_usd, assumed_usd, usage_of
from orchestra.kernel.tape import Exchange, Failure, exchanges
from orchestra.kernel.vocabulary import Backend, Pool
from orchestra.methods import METHOD

RUNNING = Ending("interrupted", why="it is still running", finished=False)
KILLED = Ending(
    "interrupted",
    "signal",
    "the process was killed, or the disk was full",
    finished=False,
)


@dataclass(frozen=True)
class Totals:
    """What calls cost, as a purse counts it: a call is an attempt that may be billed. `cost_usd`
    None: some price is unknown. `reused_calls` of them come from another run, which saved
    `saved_usd` of the cost.
    """

    calls: int = 0
    tokens: int = 0
    cost_usd: float | None = 0.0
    reused_calls: int = 0
    saved_usd: float | None = 0.0

    @property
    def paid_usd(self) -> float | None:
        if self.cost_usd is None or self.saved_usd is None:
            return None
        return self.cost_usd - self.saved_usd

    def plus(self, other: Totals) -> Totals:
        return Totals(
            calls=self.calls + other.calls,
            tokens=self.tokens + other.tokens,
            cost_usd=add_usd(self.cost_usd, other.cost_usd),
            reused_calls=self.reused_calls + other.reused_calls,
            saved_usd=add_usd(self.saved_usd, other.saved_usd),
        )


@dataclass(frozen=True)
class Summary:
    """A run in one row. `date_s`: when it made its newest call, in seconds since 1970. `latency_s`
    None: the run could not say.
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
            rounds=max((exchange.round for exchange in tape), default=0),
            failed_subtasks=sum(event["status"] == "failed" for event in results),
            latency_s=end["timing"].get("latency_s") if end else None,
            date_s=max(dates_s, default=0.0) or (folder / "run.json").stat().st_mtime,
        )


def newest_events(folder: Path) -> list[Event]:
    """The events of a run since it was resumed last: a resume plays the earlier ones again."""
    events = read_events(folder)
    begins = [n for n, event in enumerate(events) if event["event"] == "run"]
    return events[begins[-1] :] if begins else events


def ending_of(folder: Path, end: Event | None) -> Ending:
    """How the run in a folder ended; `end`: its end row, if it could write one."""
    if end is not None:
        return Ending(end["state"], end["cause"], end["why"], end["finished"])
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
    """What the calls on a tape cost together."""
    total = Totals()
    for exchange in tape:
        total = total.plus(cost_of(manifest, exchange))
    return total


def totals_in(folder: Path) -> Totals:
    """What the calls of the run in a folder cost. Raises ConfigError."""
    return totals_of(read_manifest(folder), exchanges(folder / "tape.jsonl"))


def cost_of(manifest: Manifest, exchange: Exchange) -> Totals:
    """What one exchange cost, with its attempts that got no answer."""
    settings = settings_in(manifest, exchange.round)
    outcome = exchange.outcome
    kind = exchange.request["kind"]
    if isinstance(outcome, Failure):
        value: Any = vars(outcome)
        kind = "failure"
    elif isinstance(outcome.value, dict) and "unanswered" in outcome.value:
        value = outcome.value
    else:
        return Totals()  # a local tool
    most_usd = value.get("most_usd")
    assumed = assumed_usd(settings.options.budget_usd is not None, most_usd)
    total = Totals()
    for _ in range(value["unanswered"]):
        total = total.plus(Totals(1, 0, assumed))
    if kind == "transcription":
        total = total.plus(Totals(1, 0, most_usd))
    elif kind == "chat":
        backend = backend_of(exchange, settings.pool)
        cost_usd, tokens = None, 0
        if backend is not None:
            cost_usd, tokens = usage_of(value["data"], backend, assumed)
        total = total.plus(Totals(1, tokens, cost_usd))
    if not exchange.reused:
        return total
    return replace(total, reused_calls=total.calls, saved_usd=total.cost_usd)


def backend_of(exchange: Exchange, pool: Pool) -> Backend | None:
    """The backend that a chat request went to; or the only one with its model, as the run may have
    been resumed where the model was served elsewhere.
    """
    url = str(exchange.request.get("url")).removesuffix("/chat/completions")
    model = exchange.request.get("model")
    for backend in pool.backends:
        if backend.base_url.rstrip("/") == url and backend.model in (model, ""):
            return backend
    elsewhere = [backend for backend in pool.backends if backend.model in (model, "")]
    return elsewhere[0] if len(elsewhere) == 1 else None


def settings_in(manifest: Manifest, round: int) -> Manifest:
    """The manifest with the settings of a round: a fork may have changed them."""
    for earlier in manifest.more.get("earlier", ()):
        if round < earlier["before"]:
            return manifest_of({**manifest.row(), **earlier})
    return manifest
