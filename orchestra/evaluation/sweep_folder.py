"""The folder of a sweep: sweep.json has its settings, rows.jsonl a line for each question as it
ends. If a question has several lines, the last one is valid.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from orchestra.evaluation.answering import FREE, Plan
from orchestra.evaluation.questions import QuestionRow
from orchestra.runtime import jsonl
from orchestra.runtime.run_folder import write_whole
from orchestra.vocabulary import ConfigError

Settings = dict[str, Any]  # of a sweep, as sweep.json has them


def rows_of(folder: Path) -> list[QuestionRow]:
    """All rows of a sweep, the oldest first."""
    return list(jsonl.read(folder / "rows.jsonl"))


def newest(rows: Iterable[QuestionRow]) -> dict[Any, QuestionRow]:
    """The valid row of each question, by its id."""
    return {row.get("id"): row for row in rows}


def earlier_rows(plan: Plan, data: Path, with_budget: bool) -> list[QuestionRow]:
    """The rows of earlier sweeps into the same folder; writes sweep.json if there was none. Raises
    ConfigError if their settings were different.
    """
    text = json.dumps(_settings(plan, data, with_budget), indent=1, default=list)
    file = plan.out / "sweep.json"
    (plan.out / "runs").mkdir(parents=True, exist_ok=True)
    if not file.exists():
        write_whole(file, text)
    stored = settings_of(plan.out)
    for key, value in json.loads(text).items():
        if stored.get(key) != value:
            raise ConfigError(
                f"{plan.out} is a sweep with another {key}; use another --out"
            )
    return rows_of(plan.out)


def _settings(plan: Plan, data: Path, with_budget: bool) -> Settings:
    return {
        "data": hashlib.sha256(data.read_bytes()).hexdigest(),
        "with_budget": with_budget,
        "model": plan.pool.main,
        "backends": [(b.name, b.model) for b in plan.pool.backends],
        "judge": None if plan.judge is None else plan.judge.model,
        "world": plan.world,
        **plan.options.model_dump(exclude={*FREE}),
    }


def settings_of(folder: Path) -> Settings:
    """The settings of a sweep, from sweep.json. Raises ConfigError."""
    file = folder / "sweep.json"
    try:
        settings: Settings = json.loads(file.read_text())
    except (OSError, ValueError):
        raise ConfigError(
            f"{file} is missing or damaged; is {folder} a sweep?"
        ) from None
    options = settings.get("options", {})  # where earlier versions put some of them
    agent = settings.get("sub_agent", "react")  # as earlier versions called it
    before_seams = {"agent": agent, "memory": "evidence", "scheduler": "utility"}
    return {**before_seams, **settings, **options}
