"""The questions of a file, which question_files.py reads, with the keys that data sets use.

{"Question": "Which city?", "Final answer": "Prague", "file_name": "a.png"} is a question of GAIA;
its media file is a.png in the folder of the file.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
)

from orchestra.evaluation.question_files import QUESTION, items
from orchestra.kernel.vocabulary import ConfigError

ANSWER = "answer", "final_answer", "ground_truth", "gold"
ALSO = "accepted too"  # with a space, so it is no key of a file: see `_key`
MEDIA_KEY = re.compile("(image|audio|video)(_path)?s?$")  # of other data sets
Kind = Literal["image", "audio", "video", "file", ""]  # "": that of the file's content
QuestionRow = dict[str, Any]  # a line of rows.jsonl; docs/evaluate.md lists its keys
Key = tuple[str, int]  # a question and its repeat, from 1
NOT_READ = "repeat", "shown"  # fields that are not the file's


def _field(*keys: str, **how: Any) -> Any:
    """A field that data sets name by any of these keys, in lower case."""
    return Field(validation_alias=AliasChoices(*keys), **how)


def _media(entry: Any) -> Any:
    """A path, or an object with type and path, as (modality, path)."""
    if not isinstance(entry, dict):
        return "", entry
    modality = entry.get("type", entry.get("modality", ""))
    return str(modality).lower(), entry.get("path")


class Question(BaseModel):
    """`media`: (modality, path) each. `also`: the other answers that are accepted. With --repeat, a
    question is answered in several repeats.
    """

    model_config = ConfigDict(
        frozen=True, coerce_numbers_to_str=True, str_strip_whitespace=True
    )
    question: str = _field(*QUESTION, min_length=1)
    answer: str = _field(*ANSWER, min_length=1)
    also: tuple[Annotated[str, Field(min_length=1)], ...] = _field(ALSO, default=())
    media: tuple[Annotated[tuple[Kind, str], BeforeValidator(_media)], ...] = _field(
        "media", "omni_modal_input", "files", default=()
    )
    id: str = _field("id", "task_id", "_id", "qid", default="")
    level: str = _field("level", "difficulty", default="")
    category: str = _field("category", "topic", "subject", default="")
    repeat: int = 1
    shown: str = ""  # the question as a row has it, without secrets

    @property
    def key(self) -> Key:
        return self.id, self.repeat

    @property
    def accepted(self) -> tuple[str, ...]:
        """Every answer that is right."""
        return (self.answer, *self.also)

    @property
    def name(self) -> str:
        """The name of its run folder: 7, and 7@2 for the second repeat."""
        name = re.sub(r"[^\w-]", "_", self.id)[:80]
        return name if self.repeat == 1 else f"{name}@{self.repeat}"

    @property
    def label(self) -> str:
        """Its name for people."""
        return self.id if self.repeat == 1 else f"{self.id} (repeat {self.repeat})"

    @property
    def row(self) -> QuestionRow:
        """Its row in rows.jsonl before it is answered."""
        return {
            "id": self.id,
            "repeat": self.repeat,
            "question": self.shown or self.question,
            "level": self.level,
            "category": self.category,
            "right": " or ".join(self.accepted),
            "accepted": list(self.accepted),
            "status": "failed",
        }


def key_of(row: QuestionRow) -> Key:
    """The question and the repeat of a row. Rows of earlier versions have no repeat."""
    return row["id"], row.get("repeat", 1)


def accepted_of(row: QuestionRow) -> list[str]:
    """The answers that are right. Rows of earlier versions have only one. Raises ConfigError."""
    if "accepted" in row:
        return list(row["accepted"])
    if not isinstance(row.get("right"), str):
        raise ConfigError(f"question {row['id']}: its row has no right answer")
    return [row["right"]]


def load(file: Path, media: Path | None = None) -> list[Question]:
    """The questions of a file. Paths of media are relative to `media` (default: the folder of the
    file). Raises ConfigError.
    """
    root = file.parent if media is None else media
    found: dict[str, Question] = {}
    for number, item in enumerate(items(file), 1):
        try:
            q = _question(item, number, root)
            if q.name in found:
                raise ConfigError(
                    f"another question has an id like {q.id!r}; change it"
                )
        except ConfigError as error:
            raise ConfigError(f"{file}: question {number}: {error}") from None
        found[q.name] = q
    if not found:
        raise ConfigError(f"{file}: has no question in it")
    return list(found.values())


def _question(item: Any, number: int, root: Path) -> Question:
    """An item of the file as a question. Its id is `number` if it has none."""
    if not isinstance(item, dict):
        raise ConfigError("needs an object with question and answer")
    fields = {_key(name): value for name, value in item.items() if value is not None}
    for name in NOT_READ:
        fields.pop(name, None)
    if fields.get("file_name"):  # GAIA
        fields["media"] = [fields["file_name"]]
    for key, value in fields.items():
        if value and MEDIA_KEY.match(key):
            raise ConfigError(f"{key}: name its files in media")
    try:
        q = Question(**_with_one_answer(fields))
    except ValidationError as error:
        raise ConfigError(first_problem(error)) from None
    paths = tuple((kind, _located(path, root)) for kind, path in q.media)
    return q.model_copy(update={"id": q.id or str(number), "media": paths})


def first_problem(error: ValidationError) -> str:
    """The first value that does not fit, in one line."""
    first = error.errors(include_input=False, include_url=False)[0]
    where = ".".join(map(str, first["loc"]))[:80]
    if first["type"] == "missing":
        return f"it has no {where!r}"
    return " ".join(f"{where}: {first['msg']}".split())[:200]


def _with_one_answer(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields of a question with the first of a list of accepted answers as its answer, and the
    others as `also`. Raises ConfigError.
    """
    for key in ANSWER:
        given = fields.get(key)
        if not isinstance(given, list):
            continue
        if not given or not all(_is_answer(one) for one in given):
            raise ConfigError(
                f"{key}: a list of accepted answers needs at least one, each a text or a number"
            )
        return {**fields, key: given[0], ALSO: given[1:]}
    return fields


def _is_answer(value: Any) -> bool:
    return isinstance(value, str | int | float) and str(value).strip() != ""


def _key(name: str) -> str:
    return name.strip().lower().replace(" ", "_")


def _located(path: str, root: Path) -> str:
    """The absolute path of a media file: `path` under `root`, or else its name in `root`."""
    inside = Path(os.path.normpath(path))
    if inside.is_absolute() or ".." in inside.parts:
        raise ConfigError(f"media {path!r} needs a path inside {root}; see --media")
    place = root / inside
    by_name = root / inside.name
    if not place.is_file() and by_name.is_file():
        place = by_name
    return str(place.absolute())
