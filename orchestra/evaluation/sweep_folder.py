"""The folder of a sweep: sweep.json has its settings, rows.jsonl a line for each question as it
ends. If a question has several lines, the last one is valid.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired

from pydantic import ConfigDict, Field, FiniteFloat, ValidationError, with_config
from typing_extensions import TypedDict

from orchestra.contracts import adapter
from orchestra.evaluation.answering import FREE, Earlier, Plan
from orchestra.evaluation.questions import QuestionRow
from orchestra.runtime import jsonl, outside
from orchestra.runtime.run_folder import name_of, write_whole
from orchestra.vocabulary import ConfigError

Settings = dict[str, Any]  # of a sweep, as sweep.json has them
MAX_BYTES = 16 << 20  # of sweep.json
PLAIN_NAME = r"^[^/\x00]*[^/\x00.][^/\x00]*$"  # of a folder: a path cannot lead out
Figure = Annotated[FiniteFloat, Field(ge=0, lt=1e12)]


@with_config(ConfigDict(extra="allow", strict=True))
class _Settings(TypedDict):
    method: str
    model: str
    judge: str | None
    reuse: NotRequired[str | None]  # the name of another sweep


@with_config(ConfigDict(extra="allow", strict=True))
class _Row(TypedDict):
    """A line of rows.jsonl, as far as it is read again."""

    id: str
    level: str
    category: str
    right: NotRequired[str]
    status: Literal["done", "failed", "starved"]
    why: NotRequired[str]
    judge: NotRequired[bool | None]
    judge_usd: NotRequired[Figure | None]
    run: Annotated[str, Field(pattern=PLAIN_NAME)]


@with_config(ConfigDict(extra="allow", strict=True))
class _DoneRow(_Row):
    answer: str
    exact: bool
    match: bool
    cost_usd: Figure | None
    latency_s: Figure
    calls: Figure
    resumed: bool
    reused_calls: NotRequired[Figure]
    saved_usd: NotRequired[Figure | None]


@with_config(ConfigDict(extra="allow", strict=True))
class _OtherRow(_Row):
    cost_usd: NotRequired[Figure | None]


def rows_of(folder: Path) -> list[QuestionRow]:
    """All rows of a sweep, the oldest first. Raises ConfigError."""
    rows: list[QuestionRow] = []
    file = folder / "rows.jsonl"
    for row in jsonl.read(file):
        kind: Any = _DoneRow if row.get("status") == "done" else _OtherRow
        _check(kind, row, f"{file}, row {len(rows) + 1}")
        rows.append(row)
    return rows


def _check(kind: Any, row: object, where: str) -> None:
    """Raises ConfigError."""
    try:
        adapter(kind).validate_python(row)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        name = ".".join(map(str, first["loc"]))[:80]
        problem = " ".join(f"{name}: {first['msg']}".split())[:200]
        raise ConfigError(f"{where} is damaged ({problem})") from None


def newest(rows: Iterable[QuestionRow]) -> dict[Any, QuestionRow]:
    """The valid row of each question, by its id."""
    return {row.get("id"): row for row in rows}


def earlier_sweep(folder: Path) -> Earlier:
    """The sweep of --reuse. Raises ConfigError."""
    settings_of(folder)
    outside.check(folder / "runs")
    runs = {
        row["id"]: outside.member(folder / "runs", row["run"])
        for row in newest(rows_of(folder)).values()
    }
    return Earlier(name_of(folder), runs)


def earlier_rows(plan: Plan, data: Path, with_budget: bool) -> list[QuestionRow]:
    """The rows of earlier sweeps into the same folder; writes sweep.json if there was none. Raises
    ConfigError if their settings were different.
    """
    text = json.dumps(_settings(plan, data, with_budget), indent=1, default=list)
    file = plan.out / "sweep.json"
    (plan.out / "runs").mkdir(parents=True, exist_ok=True)
    for folder in (plan.out, plan.out / "runs"):
        outside.check(folder)
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
        "reuse": plan.reuse.name if plan.reuse else None,
        **plan.options.model_dump(exclude={*FREE}),
    }


def settings_of(folder: Path) -> Settings:
    """The settings of a sweep, from sweep.json. Raises ConfigError."""
    file = folder / "sweep.json"
    try:
        with outside.opened(file, MAX_BYTES) as data:
            settings = outside.parsed(data.read())
    except (OSError, ValueError):
        raise ConfigError(
            f"{file} is missing or damaged; is {folder} a sweep?"
        ) from None
    _check(dict[str, Any], settings, str(file))
    options = settings.get("options", {})  # where earlier versions put some of them
    _check(dict[str, Any], options, str(file))
    agent = settings.get("sub_agent", "react")  # as earlier versions called it
    before_seams = {"agent": agent, "memory": "evidence", "scheduler": "utility"}
    found = {**before_seams, **settings, **options}
    _check(_Settings, found, str(file))
    return found
