"""A panel as text for a terminal of 80 columns, and as HTML with its equation in MathML.

An equation is written once, in the notation that a terminal shows: x_t and x_{t+1} are subscripts,
x^* is a superscript. `mathml` turns it into MathML.

    >>> mathml("B_{t+1} = 0.5")
    '<math><msub><mi>B</mi><mrow><mi>t</mi><mo>+</mo><mn>1</mn></mrow></msub><mo>=</mo><mn>0.5</mn></math>'
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from html import escape
from textwrap import wrap

from orchestra.explain.panel import Panel, Row, figure, shortened
from orchestra.runtime.trajectory import printable

WIDTH = 80
ROWS = 40  # of a table in a terminal
PART = r"\{[^{}]*\}|[^\W_]+|\*"
TOKEN = re.compile(
    rf"(?P<base>\d[\d.]*|[^\W\d_]+|[^\s\w])(?:_(?P<sub>{PART}))?(?:\^(?P<sup>{PART}))?"
)


def _equations(panel: Panel) -> list[str]:
    return [*panel.formula.splitlines(), *panel.numbers.splitlines()]


# ---- text ----------------------------------------------------------------------------------------


def text(panel: Panel) -> str:
    """The panel as lines of text."""
    where = panel.place or "run"
    lines = wrap(f"{where} (Eq. {panel.equation}): {panel.title}", WIDTH)
    for equation in _equations(panel):
        lines += wrap(equation, WIDTH, initial_indent="  ", subsequent_indent="    ")
    lines += _table(panel)
    for note in panel.notes:
        lines += wrap(note, WIDTH, initial_indent="  ", subsequent_indent="  ")
    if panel.source:
        lines.append(f"  computed in {panel.source}")
    return printable("\n".join(lines), kept="\n")


def _table(panel: Panel) -> Iterator[str]:
    """The rows below a header; > marks what was chosen."""
    shown = panel.rows[:ROWS]
    if not shown:
        return
    names = [shortened(row.name) for row in shown]
    width = max(len(name) for name in names)
    yield f"    {' ' * width}{_cells(panel.columns, panel.columns)}".rstrip()
    for row, name in zip(shown, names, strict=True):
        mark = ">" if row.chosen else " "
        figures = [figure(value) for value in row.figures]
        line = f"  {mark} {name.ljust(width)}{_cells(figures, panel.columns)}".rstrip()
        yield from _with_note(line, row)
    left_out = len(panel.rows) - len(shown)
    if left_out:
        yield f"    ... and {left_out} more (--json has all)"


def _cells(texts: Sequence[str], columns: Sequence[str]) -> str:
    cells = []
    for cell, column in zip(texts, columns, strict=True):
        cells.append(cell.rjust(max(len(column), 8)))
    return "".join(f"  {cell}" for cell in cells)


def _with_note(line: str, row: Row) -> Iterator[str]:
    note = " ".join(row.note.split())
    if len(line) + 2 + len(note) <= WIDTH:
        yield f"{line}  {note}".rstrip()
    else:
        yield line
        yield from wrap(
            note, WIDTH, initial_indent="      ", subsequent_indent="      "
        )


# ---- HTML ----------------------------------------------------------------------------------------


def html(panel: Panel) -> str:
    """The panel as an HTML fragment, without styles and scripts. All text is escaped."""
    where = f"{panel.place} (Eq. {panel.equation})" if panel.place else "Run"
    parts = [f"<h4>{escape(f'{where}: {panel.title}')}</h4>"]
    parts += [f"<p>{mathml(equation)}</p>" for equation in _equations(panel)]
    if panel.rows:
        parts.append(_html_table(panel))
    parts += [f"<p>{escape(note)}</p>" for note in panel.notes]
    if panel.source:
        parts.append(f"<p>computed in <code>{escape(panel.source)}</code></p>")
    return f'<section class="equation">{"".join(parts)}</section>'


def _html_table(panel: Panel) -> str:
    columns = ("", *panel.columns, "")
    head = "".join(f'<th scope="col">{escape(column)}</th>' for column in columns)
    body = "".join(_html_row(row) for row in panel.rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _html_row(row: Row) -> str:
    figures = "".join(f"<td>{figure(value)}</td>" for value in row.figures)
    note = " · ".join(filter(None, ["chosen" if row.chosen else "", row.note]))
    cells = f'<th scope="row">{escape(row.name)}</th>{figures}<td>{escape(note)}</td>'
    return f'<tr class="chosen">{cells}</tr>' if row.chosen else f"<tr>{cells}</tr>"


def mathml(notation: str) -> str:
    """An equation as MathML."""
    return f"<math>{_elements(notation)}</math>"


def _elements(notation: str) -> str:
    return "".join(_element(token) for token in TOKEN.finditer(notation))


def _element(token: re.Match[str]) -> str:
    base = _leaf(token["base"])
    sub = token["sub"]
    sup = token["sup"]
    if sub and sup:
        return f"<msubsup>{base}{_group(sub)}{_group(sup)}</msubsup>"
    if sub:
        return f"<msub>{base}{_group(sub)}</msub>"
    if sup:
        return f"<msup>{base}{_group(sup)}</msup>"
    return base


def _leaf(text: str) -> str:
    kind = "mo"
    if text[0].isdigit():
        kind = "mn"
    elif text.isalpha() and text != "Σ":
        kind = "mi"
    return f"<{kind}>{escape(text)}</{kind}>"


def _group(part: str) -> str:
    return f"<mrow>{_elements(part.strip('{}'))}</mrow>"
