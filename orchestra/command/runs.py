"""orchestra-min runs [DIR]: one row for each run in a folder. And rows as a table of plain text."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from orchestra.command.folders import DEPTH, runs_in
from orchestra.command.outside import check_run, damage_is_one_line
from orchestra.command.terminal import printable, put, tell
from orchestra.command.way_on import (
    TO_SEE,
    advice_for,
    again_as_stored,
    next_steps,
    to_see,
)
from orchestra.kernel.folder import read_manifest
from orchestra.kernel.vocabulary import ConfigError

LISTED = "run method state cost_usd date answer question"
CELL_CHARS = 40


def list_runs(folder: Path, as_json: bool) -> int:
    """Returns the exit code. Raises ConfigError."""
    if not folder.is_dir():
        is_first = folder == Path("runs") and not folder.exists()
        yet = "there are no runs yet: " if is_first else ""
        advice = "; of another folder: orchestra-min runs DIR" if is_first else ""
        raise ConfigError(f"{yet}{folder}: no such folder{advice}")
    runs = [folder] if (folder / "run.json").exists() else runs_in(folder)
    if not runs and not as_json:
        tell(f"{folder} has no runs in it, nor in folders up to {DEPTH} levels down")
        return 0
    rows = []
    for run in runs:
        name = run.name if run == folder else run.relative_to(folder).as_posix()
        try:
            check_run(run)
            with damage_is_one_line(run):
                rows.append({"run": name, **_row_of(run), "folder": str(run)})
        except (ConfigError, OSError) as error:
            rows.append({"run": name, "state": "damaged", "why": str(error)})
    rows.sort(key=lambda row: row.get("date_s", 0.0))
    if as_json:
        put(json.dumps(rows))
        return 0
    if len(rows) > 1:  # one page of all
        for row in rows:
            row["next"] = [s for s in row.get("next", ()) if s[0] != TO_SEE]
    put(table_with_why(LISTED, [*map(_shown, rows)]))
    if len(rows) > 1:
        tell(printable(": ".join(to_see(folder))))
    return 0


def _shown(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of the table. A damaged run has no cost; that of another may be unknown."""
    cost_usd = row.get("cost_usd", "-")
    return {**row, "cost_usd": "unknown" if cost_usd is None else cost_usd}


def _row_of(run: Path) -> dict[str, Any]:
    from orchestra.report.totals import summary

    stored = read_manifest(run)
    seen = summary(run)
    how = again_as_stored(run, stored)
    steps = next_steps(how, stored, seen.ending, seen.rounds)
    is_of_sweep = (run.resolve().parent.parent / "sweep.json").exists()
    date = time.strftime("%Y-%m-%d %H:%M", time.localtime(seen.date_s))
    return {
        "method": seen.method,
        "state": seen.ending.state,
        "why": seen.ending.why,
        "advice": advice_for(seen.ending, stored.pool),
        "answer": seen.answer,
        "cost_usd": seen.totals.cost_usd,
        "date": date,
        "date_s": seen.date_s,
        "question": seen.question,
        "origin": seen.origin,
        "next": [] if is_of_sweep else list(steps),
    }


def table(
    columns: str, rows: Iterable[Mapping[str, Any]], width: int = CELL_CHARS
) -> str:
    """Rows below a header. `width`: the most characters of a cell."""
    names = columns.split()
    lines = [[printable(name) for name in names]]
    for row in rows:
        texts = [_cell(row.get(name)) for name in names]
        lines.append([printable(" ".join(text.split()))[:width] for text in texts])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(_padded(line, widths) for line in lines)


def table_with_why(columns: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """One line for each run, and below it why it ended early."""
    head, *lines = table(columns, rows).splitlines()
    shown = [head]
    for row, line in zip(rows, lines, strict=True):
        shown.append(line)
        if row.get("origin"):
            shown.append(f"    {printable(row['origin'])}")
        if row["why"] not in ("", row["state"]):
            why = "; ".join(filter(None, [str(row["why"]), row.get("advice", "")]))
            shown.append(f"    why: {printable(' '.join(why.split()))}")
        shown += [f"    {printable(': '.join(step))}" for step in row.get("next", ())]
    return "\n".join(shown)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _padded(line: Sequence[str], widths: Sequence[int]) -> str:
    cells = [cell.ljust(width) for cell, width in zip(line, widths, strict=True)]
    return "  ".join(cells).rstrip()
