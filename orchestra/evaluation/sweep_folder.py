"""The folder of a sweep: sweep.json has its settings, rows.jsonl a line for each question as it
ends, scores/ what `evaluate score` found. If a question has several lines, the last one is valid.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired

from pydantic import (
    ConfigDict,
    Field,
    FiniteFloat,
    TypeAdapter,
    ValidationError,
    with_config,
)
from typing_extensions import TypedDict

from orchestra.command import folders, outside
from orchestra.evaluation import judge
from orchestra.evaluation.answering import Earlier, Plan
from orchestra.evaluation.provenance import Settings, difference, settings_for
from orchestra.evaluation.questions import (
    Key,
    Question,
    QuestionRow,
    accepted_of,
    first_problem,
    key_of,
)
from orchestra.evaluation.scores import RULES, scores_of
from orchestra.kernel.folder import write_whole
from orchestra.kernel.vocabulary import ConfigError

MAX_BYTES = 128 << 20  # of a file of a sweep
MOST_REPEATS = 1000
SCORERS = *RULES, "judge", "omnigaia"
PLAIN_NAME = r"^[^/\x00]*[^/\x00.][^/\x00]*$"  # of a folder: a path cannot lead out
OF_AN_ANSWER = "answer", "cost_usd", "latency_s", "calls", "tokens", "resumed"
Figure = Annotated[FiniteFloat, Field(ge=0, lt=1e12)]
Repeat = Annotated[int, Field(ge=1, le=MOST_REPEATS)]
Name = Annotated[str, Field(pattern=PLAIN_NAME)]


@with_config(ConfigDict(extra="allow", strict=True))
class _Settings(TypedDict):
    method: str
    model: str
    reuse: NotRequired[str | None]  # the name of another sweep
    questions: NotRequired[dict[str, str]]  # the hash of each, by id
    repeat: NotRequired[Repeat]


@with_config(ConfigDict(extra="allow", strict=True))
class _Row(TypedDict):
    """A line of rows.jsonl, as far as it is read again."""

    id: str
    repeat: NotRequired[Repeat]
    question: NotRequired[str]
    level: str
    category: str
    right: NotRequired[str]
    accepted: NotRequired[Annotated[list[str], Field(min_length=1)]]
    status: Literal["done", "failed", "starved"]
    why: NotRequired[str]
    run: Name
    # Of a row that is done
    answer: NotRequired[str]
    cost_usd: NotRequired[Figure | None]
    paid_usd: NotRequired[Figure | None]
    latency_s: NotRequired[Figure]
    calls: NotRequired[Figure]
    tokens: NotRequired[Figure]
    resumed: NotRequired[bool]
    fallback: NotRequired[bool]
    reused_calls: NotRequired[Figure]
    saved_usd: NotRequired[Figure | None]


@with_config(ConfigDict(extra="allow", strict=True))
class _ScoreRow(TypedDict):
    """A line of scores/SCORER.jsonl."""

    id: str
    repeat: Repeat
    run: Name
    answer: str
    score: bool | str | None
    cost_usd: Figure | None


def rows_of(folder: Path) -> list[QuestionRow]:
    """All rows of a sweep, the oldest first. Raises ConfigError."""
    file = folder / "rows.jsonl"
    rows = list(folders.rows(file, MAX_BYTES))
    for number, row in enumerate(rows, 1):
        where = f"{file}, row {number}"
        _check(_Row, row, where)
        lacking = [name for name in OF_AN_ANSWER if name not in row]
        if row["status"] == "done" and lacking:
            raise ConfigError(f"{where} is damaged ({lacking[0]} is missing)")
    return rows


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _check(kind: Any, row: object, where: str) -> None:
    """Raises ConfigError."""
    try:
        _adapter(kind).validate_python(row)
    except ValidationError as error:
        raise ConfigError(f"{where} is damaged ({first_problem(error)})") from None


def newest(rows: Iterable[QuestionRow]) -> dict[Key, QuestionRow]:
    """The valid row of each question and repeat."""
    return {key_of(row): row for row in rows}


def scored_rows(folder: Path, bare: bool = True) -> dict[Key, QuestionRow]:
    """The valid rows of a sweep, scored by each rule, and with what `evaluate score` found. `bare`:
    where it copied an answer out of the reply, that is scored. Raises ConfigError.
    """
    rows = newest(rows_of(folder))
    for scorer in judge.RULES:
        for found in score_rows(folder, scorer):
            row = rows.get(key_of(found), {})
            same = [row.get(key) == found[key] for key in ("run", "answer")]
            if all(same) and row["status"] == "done":  # else it was answered again
                row[scorer] = found["score"]
    for row in rows.values():
        if row["status"] == "done":
            given = (row.get("bare") if bare else None) or row["answer"]
            row |= scores_of(given, accepted_of(row), row.get("question", ""))
    return rows


def score_rows(folder: Path, scorer: str) -> Iterator[dict[str, Any]]:
    """What `evaluate score` found, a row for each answer. Raises ConfigError."""
    file = scores_file(folder, scorer)
    for number, found in enumerate(folders.rows(file, MAX_BYTES), 1):
        _check(_ScoreRow, found, f"{file}, row {number}")
        kind = str if scorer == "bare" else bool
        if not isinstance(found["score"], kind | None):
            raise ConfigError(f"{file}, row {number} is damaged (score)")
        yield found


def scores_file(folder: Path, scorer: str) -> Path:
    """What `evaluate score` writes."""
    return folder / "scores" / f"{scorer}.jsonl"


def has_score(folder: Path, scorer: str) -> bool:
    """Whether the answers of a sweep have this score."""
    return scorer in RULES or scores_file(folder, scorer).is_file()


def earlier_sweep(folder: Path) -> Earlier:
    """The sweep of --reuse. Raises ConfigError."""
    settings_of(folder)
    rows = newest(rows_of(folder))
    runs = {key: folder / "runs" / row["run"] for key, row in rows.items()}
    return Earlier(folder.resolve().name, runs)


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
    (plan.out / "runs").mkdir(parents=True, exist_ok=True)
    settings = settings_for(plan, asked, data, with_budget)
    now: Settings = json.loads(json.dumps(settings))  # as it is read again
    if not (plan.out / "sweep.json").exists():
        write_settings(plan.out, now)
        return []
    stored = settings_of(plan.out)
    found = difference(stored, now, extend)
    if found:
        raise ConfigError(
            f"{plan.out} differs in {found}: go on with the settings that began it (--extend asks "
            f"more questions or repeats), or start a new sweep with another --out, and --reuse "
            f"{plan.out} to pay only for what differs"
        )
    before = [len(stored["questions"]), stored["repeat"]]
    if before != [len(now["questions"]), now["repeat"]]:
        extended = [
            *stored.get("extended", ()),
            before,
        ]  # how many it had before each --extend
        write_settings(plan.out, {**now, "extended": extended})
    return rows_of(plan.out)


def write_settings(folder: Path, settings: Settings) -> None:
    text = json.dumps(settings, indent=1, ensure_ascii=False)
    write_whole(folder / "sweep.json", text)


def settings_of(folder: Path) -> Settings:
    """The settings of a sweep, from sweep.json. Raises ConfigError, also for a link or a special
    file in a sweep, which may come from someone else.
    """
    outside.check(folder)
    outside.check(folder / "runs")
    outside.check(folder / "scores")
    file = folder / "sweep.json"
    inside = sorted(path.parent.name for path in folder.glob("*/sweep.json"))
    if inside and not file.exists():
        listed = ", ".join(inside)
        raise ConfigError(
            f"{folder} is not a sweep, but has some: {listed}; name these"
        )
    settings: Settings = outside.json_of(file, f"is {folder} a sweep?")
    _check(_Settings, settings, str(file))
    return settings
