"""A panel as text for a terminal of 80 columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import wrap

from orchestra.kernel.prompts import visible
from orchestra.report.explain.panel import Panel, code_of, figure, shortened

WIDTH = 80
ROWS = 40  # of a table
CODE_LINES = 10


def text(panel: Panel, code: bool = False) -> str:
    """The panel as lines of text. `code`: with the lines that computed it."""
    where = panel.place or "run"
    lines = wrap(f"{where} (Eq. {panel.equation}): {panel.title}", WIDTH)
    for equation in [*panel.formula.splitlines(), *panel.numbers.splitlines()]:
        lines += wrap(equation, WIDTH, initial_indent="  ", subsequent_indent="    ")
    lines += _table(panel)
    for note in panel.notes:
        lines += wrap(note, WIDTH, initial_indent="  ", subsequent_indent="  ")
    if panel.source:
        lines.append(f"  computed in {panel.source}")
        lines += _last_lines(panel.source) if code else []
    return visible("\n".join(lines))


def _last_lines(source: str) -> list[str]:
    """The last CODE_LINES of a function up to its equation, or to its end, and its first line. They
    begin with a line of its body, not inside a block.
    """
    lines = code_of(source)
    named = [n for n, line in enumerate(lines, 1) if "# Eq." in line]
    end = named[-1] if named else len(lines)
    start = max(0, end - CODE_LINES)
    if start == 0:
        return lines[:end]
    body = _indent(lines[0]) + 4
    while start < end - 1 and _indent(lines[start]) != body:
        start += 1
    return [lines[0], "     ...", *lines[start:end]]


def _indent(line: str) -> int:
    """Of a line with its number."""
    return len(line[5:]) - len(line[5:].lstrip())


def _table(panel: Panel) -> Iterator[str]:
    """The rows below a header; > marks what was chosen."""
    shown = panel.rows[:ROWS]
    if not shown:
        return
    names = [shortened(row.name) for row in shown]
    width = max(len(name) for name in names)
    yield f"    {' ' * width}{_cells(panel.columns, panel.columns)}"
    for row, name in zip(shown, names, strict=True):
        mark = ">" if row.chosen else " "
        figures = [figure(value) for value in row.figures]
        yield f"  {mark} {name.ljust(width)}{_cells(figures, panel.columns)}"
        yield from wrap(
            row.note, WIDTH, initial_indent="      ", subsequent_indent="      "
        )
    left_out = len(panel.rows) - len(shown)
    if left_out:
        yield f"    ... and {left_out} more (--json has all)"


def _cells(texts: Sequence[str], columns: Sequence[str]) -> str:
    cells = zip(texts, columns, strict=True)
    return "".join(f"  {cell.rjust(max(len(column), 8))}" for cell, column in cells)
