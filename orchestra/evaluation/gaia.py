"""GAIA (arXiv 2311.12983), AOrchestra's first benchmark: where its questions are, and its
submission file. The rule of its official scorer is in scores.py.

Its folder has a metadata.parquet (a metadata.jsonl in copies from before October 2025) with the
attachments next to it. A row has task_id, Question, Level (1 to 3), "Final answer" ("?" where it is
secret) and file_name; questions.py reads these keys.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from orchestra.evaluation.sweep_folder import newest, rows_of, settings_of
from orchestra.kernel.vocabulary import ConfigError

FILES = "metadata.jsonl", "metadata.parquet"


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


# ---- the submission ------------------------------------------------------------------------------


def submit(folder: Path, out: Path) -> int:
    """Write the answers of a sweep as a submission: task_id and model_answer of each question. A
    question that failed has an empty answer. Returns how many there are. Raises ConfigError.
    """
    lines = [json.dumps(row, ensure_ascii=False) for row in _submission(folder)]
    if not lines:
        raise ConfigError(f"{folder} has no answer yet: run the sweep again to go on")
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
        }
