"""What the page shows of a folder of runs: a row for each, and what two runs are compared by."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from orchestra.evaluation.questions import QuestionRow
from orchestra.evaluation.sweep_folder import scored_rows
from orchestra.page.run_data import (
    Exchange,
    Recorded,
    RunRow,
    damaged_is_one_line,
    got_from,
    outcome_row,
)
from orchestra.runtime import console, outside
from orchestra.runtime.summary import Prices
from orchestra.runtime.tape_file import key_of
from orchestra.runtime.trajectory import describe
from orchestra.vocabulary import ConfigError

SCORES = (
    "omnigaia",
    "judge",
    "gaia",
    "match",
    "exact",
)  # of a sweep; the first that a row has counts
LINES = 12  # of the first decision
LINE_CHARS = 300
ScoreRow = dict[str, Any]  # the question of a run: category, level, right answer, score


def run_folders(folder: Path) -> list[Path]:
    """The run folders in a folder. Raises ConfigError if there is none."""
    runs = outside.runs_in(folder, depth=3)
    if not runs:
        raise ConfigError(
            f"{folder}: is not a run folder and holds none; give RUN or DIR"
        )
    return runs


def short_row(run: Recorded) -> RunRow:
    """A run in a row of the table. `outline`: its calls as two runs are compared by them."""
    prices = Prices(run.manifest)
    with damaged_is_one_line(run.folder):
        return {
            **outcome_row(run),
            "first": list(_first_decision(run)),
            "outline": [_outlined(exchange, prices) for exchange in run.exchanges],
        }


def _first_decision(run: Recorded) -> Iterator[str]:
    """The first decision and its sub-tasks, a line each."""
    kinds = ("decision", "subtask")
    events = [e for e in run.events if e["event"] in kinds and e["at"][0] == 1]
    for event in events[:LINES]:
        yield describe(event)[:LINE_CHARS]


def _outlined(exchange: Exchange, prices: Prices) -> list[Any]:
    """A call: its place, who was asked, its cost, and hashes of the request and of what came."""
    request = exchange["request"]
    got = json.dumps(got_from(exchange), sort_keys=True)
    asked = str(request.get("model") or request["kind"])
    return [
        exchange["call"],
        asked,
        prices.of(exchange).cost_usd,
        key_of(request)[:6],
        zlib.crc32(got.encode("utf-8", "replace")) % 10**6,
    ]


# ---- sweeps --------------------------------------------------------------------------------------


def scores_in(folder: Path) -> dict[str, ScoreRow]:
    """The scores of each run, from the rows.jsonl of sweeps; by the path of the run."""
    found: dict[str, ScoreRow] = {}
    for sweep in [folder, *outside.folders_in(folder)]:
        try:
            rows = scored_rows(sweep).values()
        except (ConfigError, OSError) as error:
            console.tell(f"left out: {error}")
            continue
        for row in rows:
            run = sweep / "runs" / row["run"]
            name = run.relative_to(folder).as_posix()
            found[name] = {**_scored(row), "why": row.get("why", "")}
    return found


def without_run(name: str, scored: ScoreRow) -> RunRow:
    """The row of a question that failed before its run began."""
    return {**scored, "name": name, "state": "unfinished"}


def _scored(row: QuestionRow) -> ScoreRow:
    scores = [row[key] for key in SCORES if row.get(key) is not None]
    return {
        "expected": row.get("right"),
        "category": row.get("category"),
        "level": row.get("level"),
        "right": scores[0] if scores else False,
        "unfinished": row.get("status") != "done",
    }
