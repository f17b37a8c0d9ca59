"""GAIA (arXiv 2311.12983), AOrchestra's first benchmark: where its questions are, the rule of its
official scorer, and its submission file.

Its folder has a metadata.parquet (a metadata.jsonl in copies from before October 2025) with the
attachments next to it. A row has task_id, Question, Level (1 to 3), "Final answer" ("?" where it is
secret) and file_name; questions.py reads these keys.

    >>> is_right("$1,234.50", "1234.5"), is_right("17 km", "17")
    (True, False)
    >>> is_right("right of it, BLUE", "Right of it,blue"), is_right("a, b", "b, a")
    (True, False)
    >>> is_right("Sea-Gull", "sea gull"), is_right("gull", "sea gull")
    (True, False)
"""

from __future__ import annotations

import json
import re
import string
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from orchestra.command.terminal import describe
from orchestra.evaluation.sweep_folder import newest, rows_of, settings_of
from orchestra.kernel.folder import read_events
from orchestra.kernel.vocabulary import ConfigError

FILES = "metadata.jsonl", "metadata.parquet"
TRACE_CHARS = 20_000  # of one question in a submission
NOT_IN_A_NUMBER = str.maketrans("", "", "$%,")
PUNCTUATION = str.maketrans("", "", string.punctuation)
DIVIDER = re.compile("[,;]")


def data_file(data: Path) -> Path:
    """The file of questions: `data`, or one of FILES if that is a folder. Raises ConfigError."""
    if not data.is_dir():
        return data
    for name in FILES:
        if (data / name).is_file():
            return data / name
    found = [path for name in FILES for path in sorted(data.rglob(name))]
    inside = ", ".join(str(path.relative_to(data)) for path in found[:3])
    known = f"; it has {inside}" if inside else ""
    names = " or ".join(FILES)
    raise ConfigError(f"--data {data}: has no {names}, as a folder of GAIA{known}")


# ---- the official scorer -------------------------------------------------------------------------


def is_right(given: str, right: str) -> bool:
    """Whether an answer is right by the rule of the official scorer.

    The right answer decides what is compared: a number, else a list if it has a comma or semicolon,
    else a text. Units must not be there, but for $ and %.
    """
    if _number(right) is not None:
        return _same_number(given, right)
    if DIVIDER.search(right):
        pairs = DIVIDER.split(given), DIVIDER.split(right)
        if len(pairs[0]) != len(pairs[1]):
            return False
        return all(_same_item(a, b) for a, b in zip(*pairs, strict=True))
    return _plain(given).translate(PUNCTUATION) == _plain(right).translate(PUNCTUATION)


def _same_item(given: str, right: str) -> bool:
    """Two items of a list: here the punctuation of a text counts."""
    if _number(right) is not None:
        return _same_number(given, right)
    return _plain(given) == _plain(right)


def _same_number(given: str, right: str) -> bool:
    return _number(given.translate(NOT_IN_A_NUMBER)) == _number(right)


def _number(text: str) -> float | None:
    """A text as a number, as Python reads it; None if it is not one."""
    try:
        return float(text)
    except ValueError:
        return None


def _plain(text: str) -> str:
    """In lower case, without white space."""
    return "".join(text.split()).lower()


# ---- the submission ------------------------------------------------------------------------------


def submit(folder: Path, out: Path) -> int:
    """Write the answers of a sweep as a submission: task_id, model_answer and reasoning_trace of
    each question. A question that failed has an empty answer. Returns how many there are. Raises
    ConfigError.
    """
    lines = [json.dumps(row, ensure_ascii=False) for row in _submission(folder)]
    if not lines:
        raise ConfigError(f"{folder} has no rows yet")
    try:
        out.write_text("\n".join([*lines, ""]), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--out {out}: {error.strerror}") from None
    return len(lines)


def _submission(folder: Path) -> Iterator[dict[str, Any]]:
    settings_of(folder)
    for row in newest(rows_of(folder)).values():
        if row.get("repeat", 1) != 1:  # one answer each
            continue
        yield {
            "task_id": row["id"],
            "model_answer": row.get("answer", "").strip(),
            "reasoning_trace": _trace(folder / "runs" / row["run"]),
        }


def _trace(run: Path) -> str:
    """What happened in the run of a question, an event a line."""
    events = read_events(run)
    return "\n".join(map(describe, events[1:]))[:TRACE_CHARS]
