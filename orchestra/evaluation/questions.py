"""A file of questions, read: JSON or JSON lines, with the keys that data sets use.

{"Question": "Which city?", "Final answer": "Prague", "file_name": "a.png"} is a question of GAIA;
its media file is a.png in the folder of the file.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Annotated, Any, Literal

import jsonlines
from pydantic import AliasChoices, BeforeValidator, ConfigDict, Field

from orchestra.runtime.pool import Checked
from orchestra.vocabulary import ConfigError

QUESTION = "question", "problem", "query", "prompt"
ANSWER = "answer", "final_answer", "ground_truth", "gold"
ALSO = "accepted too"  # with a space, so it is no key of a file: see `_key`
MEDIA_KEY = re.compile("(image|audio|video)(_path)?s?$")  # of other data sets
Kind = Literal["image", "audio", "video", "file", ""]  # "": that of the file's content
QuestionRow = dict[str, Any]  # a line of rows.jsonl; docs/evaluate.md lists its keys


def _field(*keys: str, **how: Any) -> Any:
    """A field that data sets name by any of these keys, in lower case."""
    return Field(validation_alias=AliasChoices(*keys), **how)


def _media(entry: Any) -> Any:
    """A path, or an object with type and path, as (modality, path)."""
    if not isinstance(entry, dict):
        return "", entry
    modality = entry.get("type", entry.get("modality", ""))
    return str(modality).lower(), entry.get("path")


class Question(Checked):
    """`media`: (modality, path) each. `also`: the other answers that are accepted."""

    model_config = ConfigDict(
        extra="ignore", coerce_numbers_to_str=True, str_strip_whitespace=True
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
    facts: Any = ()  # of MiniGAIA, for --world

    @property
    def accepted(self) -> tuple[str, ...]:
        """Every answer that is right."""
        return (self.answer, *self.also)

    @property
    def name(self) -> str:
        """The name of its run folder."""
        return re.sub(r"[^\w-]", "_", self.id)[:80]

    @property
    def row(self) -> QuestionRow:
        """Its row in rows.jsonl before it is answered."""
        return {
            "id": self.id,
            "level": self.level,
            "category": self.category,
            "right": " or ".join(self.accepted),
            "status": "failed",
        }


def load(file: Path, media: Path | None = None) -> list[Question]:
    """The questions of a file, as `items` reads it. Paths of media are relative to `media`
    (default: the folder of the file). Raises ConfigError.
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


def items(file: Path) -> list[Any]:
    """The items of a JSON array, of an object that holds one, or of JSON lines. Raises
    ConfigError.
    """
    try:
        data = _parsed(file.read_text(encoding="utf-8-sig").strip())
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"{file}: cannot be read as JSON or JSON lines ({error})"
        ) from None
    if isinstance(data, list):
        return data
    if isinstance(data, dict) and not _is_question(data):
        lists = [value for value in data.values() if isinstance(value, list)]
        if len(lists) == 1:
            return lists[0]
    return [data]


def _parsed(text: str) -> Any:
    """JSON, or else JSON lines. Raises ValueError."""
    if not text:
        return []
    try:
        return json.loads(text)
    except ValueError:
        if text.startswith("["):
            raise
        lines = jsonlines.Reader(text.split("\n"))
        return list(lines.iter(skip_empty=True))


def _is_question(data: dict[str, Any]) -> bool:
    return any(key.strip().lower() in QUESTION for key in data)


def _question(item: Any, number: int, root: Path) -> Question:
    """An item of the file as a question. Its id is `number` if it has none."""
    if not isinstance(item, dict):
        raise ConfigError("needs an object with question and answer")
    fields = {_key(name): value for name, value in item.items() if value is not None}
    if fields.get("file_name"):  # GAIA
        fields["media"] = [fields["file_name"]]
    for key, value in fields.items():
        if value and MEDIA_KEY.match(key):
            raise ConfigError(f"{key}: name its files in media")
    q = Question(**_with_one_answer(fields))
    paths = tuple((kind, _located(path, root)) for kind, path in q.media)
    return q.model_copy(update={"id": q.id or str(number), "media": paths})


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
