"""Which questions of a file a sweep asks: --ids, --level, --category, --limit and --repeat."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from pathlib import Path

from orchestra import methods as shipped
from orchestra.command import terminal
from orchestra.evaluation.questions import Question
from orchestra.kernel.vocabulary import ConfigError


def chosen(a: argparse.Namespace, asked: list[Question]) -> list[Question]:
    """The questions of --ids, --level, --category and --limit, with the modality of each file.
    Those whose media cannot be read are listed and left out. Raises ConfigError.
    """
    readable: list[Question] = []
    for q in _selected(a, asked):
        try:
            readable.append(_with_modalities(q))
        except ConfigError as error:
            terminal.tell(f"question {q.id} is skipped: {error}")
    if not readable:
        raise ConfigError("no question is left; see --media and --limit")
    return readable


def _selected(a: argparse.Namespace, asked: list[Question]) -> list[Question]:
    """The questions of --ids, --level, --category and --limit. Raises ConfigError."""
    for flag, key in (("ids", "id"), ("level", "level"), ("category", "category")):
        asked = _with_value(asked, flag, key, getattr(a, flag), a.data)
    return asked[: a.limit]


def _with_value(
    asked: list[Question], flag: str, key: str, values: str | None, data: Path
) -> list[Question]:
    """The questions with one of the values A,B of a flag; all if there are none. Raises
    ConfigError for a value that no question has.
    """
    names = [name.strip().lower() for name in (values or "").split(",") if name]
    if not names:
        return asked
    known = {getattr(q, key) for q in asked} - {""}
    for name in names:
        if name not in {value.lower() for value in known}:
            listed = ", ".join(sorted(known)) or "none"
            raise ConfigError(
                f"--{flag}: no question has {name!r}; {data} has {listed}"
            )
    return [q for q in asked if getattr(q, key).lower() in names]


def _with_modalities(q: Question) -> Question:
    """Raises ConfigError for a file that is missing or cannot be read."""
    files = shipped.check_media(q.media)
    media = tuple((modality, str(path)) for modality, path in files)
    return q.model_copy(update={"media": media})


def repeated(asked: Iterable[Question], repeats: int) -> list[Question]:
    """Each question `repeats` times; all first repeats come before the second ones."""
    return [
        q.model_copy(update={"repeat": n}) for n in range(1, repeats + 1) for q in asked
    ]


def redacted(asked: Iterable[Question], redact: Callable[[str], str]) -> list[Question]:
    """The questions as rows and the judge's tape have them: answers and texts without secrets."""
    kept = []
    for q in asked:
        answer, *also = [redact(text) for text in q.accepted]
        shown = redact(q.question)
        without = {"answer": answer, "also": tuple(also), "shown": shown}
        kept.append(q.model_copy(update=without))
    return kept
