"""What an explanation is: one equation at one place of a run, with the numbers that decided."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orchestra

SOURCES = Path(orchestra.__file__).parent.parent
NAME_CHARS = 40  # of a piece of the history, as the name of a row


@dataclass(slots=True)
class Row:
    """One candidate. `figures` are those of the panel's columns; None: not recorded."""

    name: str
    figures: tuple[float | None, ...] = ()
    chosen: bool = False
    note: str = ""


@dataclass(frozen=True)
class Panel:
    """Why the run did what it did at a place.

    `place` is as in r2 or r2/t1, or "" for the run as a whole. `title` says in a sentence what was
    decided. `formula` is the paper's equation and `numbers` the same with the run's numbers; x_t
    and x_{t+1} are subscripts, x^* is a superscript. `source` is the function that computes it, as
    FILE:LINE. A panel without a formula is a sentence alone.
    """

    place: str
    equation: str
    title: str
    formula: str = ""
    numbers: str = ""
    columns: tuple[str, ...] = ()
    rows: tuple[Row, ...] = ()
    notes: tuple[str, ...] = ()
    source: str = ""


def row_of(panel: Panel) -> dict[str, Any]:
    """A panel for the page, with its figures as texts."""
    rows = [
        {**asdict(row), "figures": [figure(f) for f in row.figures]}
        for row in panel.rows
    ]
    return {**asdict(panel), "rows": rows}


def source_of(function: Callable[..., Any]) -> str:
    """Where a function is in this version, as orchestra/kernel/placing.py:118."""
    path = function.__module__.replace(".", "/")
    return f"{path}.py:{inspect.unwrap(function).__code__.co_firstlineno}"


def code_of(source: str) -> list[str]:
    """The lines of the function at FILE:LINE, each with its number."""
    name, _, number = source.rpartition(":")
    first = int(number)
    lines = (SOURCES / name).read_text(encoding="utf-8").splitlines(keepends=True)
    function = inspect.getblock(lines[first - 1 :])
    return [f"{first + n:4} {line.rstrip()}" for n, line in enumerate(function)]


def figure(value: float | None) -> str:
    """A number with four significant digits, without an exponent.

    >>> figure(0.000012345), figure(6000.0), figure(None)
    ('0.00001234', '6000', '-')
    """
    if value is None:
        return "-"
    text = f"{value:.4g}"
    if "e-" in text:
        return f"{value:.8f}".rstrip("0").rstrip(".")
    return f"{value:.0f}" if "e" in text else text


def shortened(text: str, chars: int = NAME_CHARS) -> str:
    """The beginning of a text in one line."""
    text = " ".join(text.split())
    return text if len(text) <= chars else text[: chars - 3] + "..."
