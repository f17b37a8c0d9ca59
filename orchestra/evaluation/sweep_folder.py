"""The folder of a sweep: sweep.json has its settings, rows.jsonl a line for each question as it
ends, scores/ what `evaluate score` found. If a question has several lines, the last one is valid.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired

from pydantic import ConfigDict, Field, FiniteFloat, ValidationError, with_config
from typing_extensions import TypedDict

from orchestra.contracts import adapter
from orchestra.evaluation.answering import Earlier, Plan
from orchestra.evaluation.provenance import Settings, difference, settings_for
from orchestra.evaluation.questions import Key, Question, QuestionRow, key_of
from orchestra.runtime import jsonl, outside
from orchestra.runtime.run_folder import name_of, write_whole
from orchestra.vocabulary import ConfigError

MAX_BYTES = 16 << 20  # of sweep.json
MOST_REPEATS = 1000
SCORERS = "exact", "match", "gaia", "judge", "omnigaia"
PLAIN_NAME = r"^[^/\x00]*[^/\x00.][^/\x00]*$"  # of a folder: a path cannot lead out
Figure = Annotated[FiniteFloat, Field(ge=0, lt=1e12)]
Repeat = Annotated[int, Field(ge=1, le=MOST_REPEATS)]


@with_config(ConfigDict(extra="allow", strict=True))
class _Settings(TypedDict):
    method: str
    model: str
    judge: str | None
    reuse: NotRequired[str | None]  # the name of another sweep
    questions: NotRequired[dict[str, str]]  # the hash of each, by id
    repeat: NotRequired[Repeat]
    shard: NotRequired[str | None]


@with_config(ConfigDict(extra="allow", strict=True))
class _Row(TypedDict):
    """A line of rows.jsonl, as far as it is read again."""

    id: str
    repeat: NotRequired[Repeat]
    question: NotRequired[str]
    method: NotRequired[str]
    model: NotRequired[str]
    level: str
    category: str
    right: NotRequired[str]
    accepted: NotRequired[Annotated[list[str], Field(min_length=1)]]
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
    fallback: NotRequired[bool]
    reused_calls: NotRequired[Figure]
    saved_usd: NotRequired[Figure | None]


@with_config(ConfigDict(extra="allow", strict=True))
class _OtherRow(_Row):
    cost_usd: NotRequired[Figure | None]


@with_config(ConfigDict(extra="allow", strict=True))
class _ScoreRow(TypedDict):
    """A line of scores/SCORER.jsonl."""

    id: str
    repeat: Repeat
    run: str
    answer: str
    score: bool | None
    cost_usd: Figure | None


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


def newest(rows: Iterable[QuestionRow]) -> dict[Key, QuestionRow]:
    """The valid row of each question and repeat."""
    return {key_of(row): row for row in rows}


def scored_rows(folder: Path) -> dict[Key, QuestionRow]:
    """The valid rows of a sweep, with the scores of `evaluate score`. Raises ConfigError."""
    rows = newest(rows_of(folder))
    outside.check(folder / "scores")
    for scorer in SCORERS:
        for found in score_rows(folder, scorer):
            row = rows.get(key_of(found), {})
            same = [row.get(key) == found[key] for key in ("run", "answer")]
            if all(same) and row["status"] == "done":  # else it was answered again
                row[scorer] = found["score"]
    return rows


def score_rows(folder: Path, scorer: str) -> Iterator[dict[str, Any]]:
    """What `evaluate score` found, a row for each answer. Raises ConfigError."""
    file = scores_file(folder, scorer)
    for number, found in enumerate(jsonl.read(file), 1):
        _check(_ScoreRow, found, f"{file}, row {number}")
        yield found


def scores_file(folder: Path, scorer: str) -> Path:
    """What `evaluate score` writes."""
    return folder / "scores" / f"{scorer}.jsonl"


def has_score(folder: Path, settings: Settings, scorer: str) -> bool:
    """Whether the answers of a sweep have this score."""
    by_rule = scorer in ("exact", "match")
    when_run = scorer == "judge" and bool(settings["judge"])
    return by_rule or when_run or scores_file(folder, scorer).is_file()


def earlier_sweep(folder: Path) -> Earlier:
    """The sweep of --reuse. Raises ConfigError."""
    settings_of(folder)
    outside.check(folder / "runs")
    runs = {
        key_of(row): outside.member(folder / "runs", row["run"])
        for row in newest(rows_of(folder)).values()
    }
    return Earlier(name_of(folder), runs)


def earlier_rows(
    plan: Plan,
    asked: Sequence[Question],
    data: Path,
    with_budget: bool,
    extend: bool = False,
) -> list[QuestionRow]:
    """The rows of earlier sweeps into the same folder; writes sweep.json if there was none. Raises
    ConfigError if anything but the number of questions, with `extend`, was different.
    """
    file = plan.out / "sweep.json"
    (plan.out / "runs").mkdir(parents=True, exist_ok=True)
    for folder in (plan.out, plan.out / "runs"):
        outside.check(folder)
    settings = settings_for(plan, asked, data, with_budget)
    now: Settings = json.loads(json.dumps(settings))  # as it is read again
    if not file.exists():
        write_settings(plan.out, now)
        return []
    stored = settings_of(plan.out)
    found = difference(stored, now, extend)
    if found:
        raise ConfigError(f"{plan.out} {found}; {_advice(found, plan.out)}")
    sizes = [len(stored["questions"]), stored["repeat"]]
    if sizes != [len(now["questions"]), now["repeat"]]:
        more = {key: now[key] for key in ("data", "questions", "repeat")}
        more["extended"] = _extended(stored, sizes)
        write_settings(plan.out, {**stored, **more})
    return rows_of(plan.out)


def write_settings(folder: Path, settings: Settings) -> None:
    write_whole(
        folder / "sweep.json", json.dumps(settings, indent=1, ensure_ascii=False)
    )


def _advice(found: str, out: Path) -> str:
    """How to go on, or to start a new sweep."""
    start = f"start a new sweep with another --out, and --reuse {out} to pay only for what differs"
    if "set of questions" in found or "repeat" in found:
        return f"ask the same ones, add more with --extend, or {start}"
    return f"go on with the settings that began it, or {start}"


def _extended(stored: Settings, sizes: list[int]) -> list[Any]:
    """How many questions and repeats the sweep had before each --extend."""
    before = stored.get("extended", [])
    return [*before, sizes] if isinstance(before, list) else [sizes]


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
