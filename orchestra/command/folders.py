"""Folders of many runs, which may come from someone else: what is in them, and their rows."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from orchestra.command.outside import check_values, entries_of, lines_of
from orchestra.kernel.vocabulary import ConfigError

DEPTH = 3  # of a run folder in a folder: SWEEP/runs/ID


def rows(path: Path, most_bytes: int) -> Iterator[dict[str, Any]]:
    """The JSON objects of a JSONL file, which may be missing; not a last line that was cut off.
    Raises ConfigError.
    """
    if not os.path.lexists(path):
        return
    for number, line in enumerate(lines_of(path, most_bytes), 1):
        if not line.strip():
            continue
        check_values(path, line)
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            if not line.endswith(b"\n"):
                return
            row = None
        if not isinstance(row, dict):
            raise ConfigError(f"{path}, line {number} is not a JSON object; remove it")
        yield row


def runs_in(folder: Path) -> list[Path]:
    """The run folders in a folder, a sweep or a folder of sweeps. Raises ConfigError, OSError."""
    found: list[Path] = []
    folders = [folder]
    for _ in range(DEPTH):
        entries = [entry for here in folders for entry in entries_of(here, deep=False)]
        inside = [Path(e.path) for e in entries if e.is_dir(follow_symlinks=False)]
        runs = [here for here in inside if os.path.lexists(here / "run.json")]
        folders = [here for here in inside if here not in runs]
        found += runs
    return sorted(found)
