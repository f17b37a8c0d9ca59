"""How a recorded run ended and what it cost: the first thing that every view of a run shows.

Calls, tokens and cost come from the tape, which holds what was paid for. So a run that was killed
has them, too.
"""

from __future__ import annotations

import fcntl
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from orchestra.ending import Ending
from orchestra.money import add_usd, assumed_usd
from orchestra.runtime import jsonl, outside, tape_file, trajectory
from orchestra.runtime.completion import amount, url_of, usage_of
from orchestra.runtime.run_folder import Manifest, read_manifest
from orchestra.runtime.trajectory import Event
from orchestra.vocabulary import Backend, ConfigError

RUNNING = Ending("interrupted", why="it is still running", finished=False)
NO_WORD = Ending(
    "interrupted",
    "signal",
    "the process was killed, or the disk was full: it could not say why it ended",
    finished=False,
)
MOST_UNANSWERED = 10_000  # attempts of one exchange
Row = Mapping[str, Any]  # an exchange on the tape


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
    """A run in one row."""

    question: str
    method: str
    model: str
    ending: Ending
    answer: str
    totals: Totals
    rounds: int
    failed_subtasks: int
    latency_s: float | None  # None: the run could not say
    # Of the newest call that this run made, since 1970. The calls that a fork kept are older.
    date_s: float

    @property
    def reused_calls(self) -> int:
        return self.totals.reused_calls

    @property
    def saved_usd(self) -> float | None:
        return self.totals.saved_usd


def summary(folder: Path) -> Summary:
    """The run in a folder. Raises ConfigError and TapeMiss if it is damaged."""
    manifest = read_manifest(folder)
    events = trajectory.read_if_sound(folder / "trajectory.jsonl")
    rows = tape_file.exchanges(folder / "tape.jsonl")
    return summarized(folder, manifest, events, rows)


def summarized(
    folder: Path, manifest: Manifest, events: Sequence[Event], rows: Iterable[Row]
) -> Summary:
    """The run in a folder whose manifest and events have been read. `rows`: those of its tape."""
    end = trajectory.ended(events)
    prices = Prices(manifest)
    totals = Totals()
    rounds = 0
    date_s = 0.0
    for row in rows:
        totals = totals.plus(prices.of(row))
        rounds = max(rounds, tape_file.round_of(row["call"]))
        timing = row.get("timing")
        began_s = timing.get("began_s") if isinstance(timing, dict) else None
        if tape_file.is_time(began_s) and "kept" not in row:
            date_s = max(date_s, began_s)
    return Summary(
        question=manifest.question,
        method=str(manifest.options.method),
        model=manifest.pool.main,
        ending=ending_in(folder, end),
        answer=end["answer"] if end else "",
        totals=totals,
        rounds=rounds,
        failed_subtasks=trajectory.failed_subtasks(events),
        latency_s=end.get("timing", {}).get("latency_s") if end else None,
        date_s=date_s or (folder / "run.json").stat().st_mtime,
    )


def totals_in(folder: Path, manifest: Manifest) -> Totals:
    """What the calls on the tape of a run cost."""
    return Prices(manifest).total(tape_file.exchanges(folder / "tape.jsonl"))


def ending_in(folder: Path, end: Event | None) -> Ending:
    """How the run in a folder ended; `end` is its end row, if it could write one."""
    if end is not None:
        return trajectory.ending_of_row(end)
    return RUNNING if is_running(folder) else NO_WORD


def is_running(folder: Path) -> bool:
    """Whether a process writes to the tape of this run."""
    try:
        with outside.opened(folder / "tape.jsonl", jsonl.MAX_BYTES) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except (OSError, ConfigError):  # a pipe, too
        return False
    return False


class Prices:
    """What the exchanges of a run cost: by the prices of its pool, or as its endpoint reported."""

    def __init__(self, manifest: Manifest) -> None:
        self._starts = [old.before for old in manifest.earlier]
        self._rates = [Rates(settings) for settings in manifest.all_settings]

    def _rates_of(self, call: str) -> Rates:
        """Those of the round of a call: a fork may have changed the pool."""
        return self._rates[bisect_right(self._starts, tape_file.round_of(call))]

    def total(self, rows: Iterable[Row]) -> Totals:
        total = Totals()
        for row in rows:
            total = total.plus(self.of(row))
        return total

    def of(self, row: Row) -> Totals:
        """What one exchange cost, with its attempts that got no answer."""
        total = self._of(row)
        if not row.get("reused"):
            return total
        return replace(total, reused_calls=total.calls, saved_usd=total.cost_usd)

    def backend_of(self, row: Row) -> Backend | None:
        """The backend that answered a chat exchange."""
        return self._rates_of(row["call"]).backend_of(row["request"])

    def _of(self, row: Row) -> Totals:
        outcome = row["failure"] if "failure" in row else row["answer"]
        unanswered = outcome.get("unanswered") if isinstance(outcome, dict) else None
        if type(unanswered) is not int or not 0 <= unanswered <= MOST_UNANSWERED:
            return Totals()  # a local tool
        most_usd = amount(outcome.get("most_usd"))
        rates = self._rates_of(row["call"])
        assumed = Totals(1, 0, assumed_usd(rates.has_budget, most_usd))
        total = Totals()
        for _ in range(unanswered):
            total = total.plus(assumed)
        if "failure" in row:
            return total
        match row["request"]["kind"]:
            case "chat":
                data = outcome.get("data")
                return total.plus(rates.of_chat(row["request"], data, assumed))
            case "transcription":
                return total.plus(Totals(1, 0, most_usd))
            case _:
                return total


class Rates:
    """The prices of one pool."""

    def __init__(self, settings: Manifest) -> None:
        self.has_budget = settings.options.budget_usd is not None
        self._backends: dict[tuple[str, str], Backend] = {}
        models = [backend.model for backend in settings.pool.backends]
        for backend in reversed(settings.pool.backends):  # the first of a name counts
            self._backends[url_of(backend), backend.model] = backend
            if models.count(backend.model) == 1:
                self._backends["", backend.model] = backend  # wherever it was served

    def of_chat(self, request: Row, data: object, assumed: Totals) -> Totals:
        backend = self.backend_of(request)
        if backend is None or not isinstance(data, dict):
            return Totals(1, 0, None)
        usage = usage_of(data, backend)
        cost_usd = usage.cost_usd if usage.is_known else assumed.cost_usd
        return Totals(1, usage.tokens, cost_usd)

    def backend_of(self, request: Row) -> Backend | None:
        """The backend that a chat request went to. A model of "" is the only one of an endpoint."""
        url = str(request.get("url"))
        model = str(request.get("model"))
        for place in ((url, model), (url, ""), ("", model), ("", "")):
            if place in self._backends:
                return self._backends[place]
        return None
