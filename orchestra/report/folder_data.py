"""What the page shows of a folder of runs: a row for each, and what two runs are compared by."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from orchestra.command import folders, outside
from orchestra.command.outside import damage_is_one_line
from orchestra.command.terminal import describe, tell
from orchestra.kernel.tape import Exchange
from orchestra.kernel.vocabulary import ConfigError
from orchestra.report.run_data import Recorded, Row, asked_of, got_from, outcome_row
from orchestra.report.totals import totals_of

# Of a sweep; the first that a row has counts
SCORES = ("omnigaia", "judge", "match", "gaia", "exact")  # the first that a run has
LINES = 12  # of the first decision
LINE_CHARS = 300
ROWS_BYTES = 1 << 28  # of the rows of a sweep


def run_folders(folder: Path) -> list[Path]:
    """The run folders in a folder. Raises ConfigError if there is none."""
    found = folders.runs_in(folder)
    if not found:
        raise ConfigError(f"{folder} is not a run folder, and has none in it")
    return found


def short_row(run: Recorded) -> Row:
    """A run in a row of the table. `outline`: its calls as two runs are compared by them."""
    first = [
        e
        for e in run.events
        if e["event"] in ("decision", "subtask") and e["at"][0] == 1
    ]
    with damage_is_one_line(run.folder):
        row = outcome_row(run)
        return {
            **row,
            "why": "; ".join(filter(None, [row["origin"], row["why"]])),
            "first": [describe(event)[:LINE_CHARS] for event in first[:LINES]],
            "outline": [_outline(run, exchange) for exchange in run.tape],
        }


def _outline(run: Recorded, exchange: Exchange) -> list[Any]:
    """A call: its place, who was asked, its cost, and hashes of the request and of what came."""
    got = json.dumps(got_from(exchange), sort_keys=True)
    cost_usd = totals_of(run.manifest, [exchange]).cost_usd
    digest = zlib.crc32(got.encode("utf-8", "replace")) % 10**6
    return [exchange.call, asked_of(exchange), cost_usd, exchange.key[:6], digest]


# ---- sweeps --------------------------------------------------------------------------------------


def scores_in(folder: Path) -> dict[str, Row]:
    """The scores of each run, from the rows of sweeps; by the path of the run in the folder."""
    found: dict[str, Row] = {}
    for sweep in [folder, *(f for f in sorted(folder.iterdir()) if f.is_dir())]:
        try:
            for row in _scored_rows(sweep):
                run = outside.member(sweep / "runs", row.get("run"))
                found[run.relative_to(folder).as_posix()] = _scored(row)
        except (ConfigError, OSError) as error:
            tell(f"left out: {error}")
    return found


def _scored_rows(sweep: Path) -> Iterator[Row]:
    """The rows of a sweep, with the scores that its answers got later."""
    later: dict[tuple[Any, Any], Row] = {}
    for scorer in SCORES:
        for found in folders.rows(sweep / "scores" / f"{scorer}.jsonl", ROWS_BYTES):
            answer = found.get("run"), found.get("answer")
            later.setdefault(answer, {})[scorer] = found.get("score")
    for row in folders.rows(sweep / "rows.jsonl", ROWS_BYTES):
        is_done = row.get("status") == "done"
        yield {
            **row,
            **(later.get((row.get("run"), row.get("answer")), {}) if is_done else {}),
        }


def _scored(row: Row) -> Row:
    """The question of a run: category, level, right answer, score."""
    rules = [key for key in SCORES if row.get(key) is not None]
    return {
        "expected": row.get("right"),
        "category": row.get("category"),
        "level": row.get("level"),
        "right": row[rules[0]] if rules else False,
        "rule": rules[0] if rules else "",
        "unfinished": row.get("status") != "done",
        "why": row.get("why", ""),
    }
