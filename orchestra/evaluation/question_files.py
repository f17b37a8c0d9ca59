"""The items of a file of questions, whatever its format: JSON, JSON lines, CSV or Parquet.

    id,question,answer,media
    7,Which clock is it?,Orloj,clock.png; bells.wav

is a CSV file with one question, which has two files.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jsonlines

from orchestra import install
from orchestra.kernel.vocabulary import ConfigError

QUESTION = "question", "problem", "query", "prompt"
FILES = "media", "files"  # columns of a CSV file that may name several files
BATCH = 100  # rows of a Parquet file that are read at once
BUFFER_BYTES = 1 << 16  # of a column that is read
READABLE = "JSON, JSON lines, CSV or Parquet"


def items(file: Path, columns: Sequence[str] | None = None) -> Iterator[Any]:
    """The items of a JSON array, of an object that holds one, or of JSON lines; the rows of a file
    that ends in .csv or .parquet. A Parquet file is read in batches of BATCH rows, and of these
    `columns` alone where it has them (None: all); memory holds a batch, and a page of each column.
    Other files are read whole. Raises ConfigError.
    """
    if not file.exists():
        raise ConfigError(f"{file}: there is no such file")
    try:
        if file.suffix.lower() == ".csv":
            yield from _rows_of_csv(file)
        elif file.suffix.lower() == ".parquet":
            yield from _rows_of_parquet(file, columns)
        else:
            yield from _items_of_json(file)
    except ImportError:
        advice = install("parquet")
        raise ConfigError(f"{file}: Parquet needs pyarrow: {advice}") from None
    except (OSError, ValueError, RecursionError, csv.Error) as error:
        why = " ".join(str(error).split())[:200]
        raise ConfigError(f"{file}: cannot be read as {READABLE} ({why})") from None


# ---- CSV and Parquet -----------------------------------------------------------------------------


def _rows_of_csv(file: Path) -> list[Any]:
    """A dict for each row, without its empty cells. Raises ValueError, csv.Error, OSError."""
    with file.open(encoding="utf-8-sig", newline="") as text:
        return [_of_cells(row) for row in csv.DictReader(text, strict=True)]


def _of_cells(row: dict[Any, Any]) -> dict[str, Any]:
    """Raises ValueError if the row has more cells than the header."""
    if None in row:
        raise ValueError(
            f"a row has more cells than the header: {', '.join(row[None])}"
        )
    found = {}
    for name, cell in row.items():
        if cell is not None and cell.strip():
            found[name] = _paths(cell) if name.strip().lower() in FILES else cell
    return found


def _paths(cell: str) -> Any:
    """The files that a cell names: a JSON array, or paths divided by semicolons."""
    if cell.lstrip().startswith("["):
        return json.loads(cell)
    return [path.strip() for path in cell.split(";") if path.strip()]


def _rows_of_parquet(file: Path, columns: Sequence[str] | None) -> Iterator[Any]:
    """Raises ImportError, ValueError, OSError."""
    from pyarrow import parquet

    # Else whole columns of a row group are read at once
    how = {"buffer_size": BUFFER_BYTES, "pre_buffer": False}
    with parquet.ParquetFile(file, **how) as rows:
        names = None
        if columns is not None:
            names = [name for name in rows.schema_arrow.names if name in columns]
        for batch in rows.iter_batches(BATCH, columns=names, use_threads=False):
            yield from batch.to_pylist()


# ---- JSON ----------------------------------------------------------------------------------------


def _items_of_json(file: Path) -> list[Any]:
    """Raises ValueError, OSError."""
    data = _parsed(file.read_text(encoding="utf-8-sig").strip())
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
