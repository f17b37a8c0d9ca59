"""The equations of a run for its page, and the code that computes them."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import orchestra
from orchestra import explain
from orchestra.runtime.tape import TapeMiss
from orchestra.vocabulary import ConfigError

SOURCES = Path(orchestra.__file__).parent.parent
PanelRow = dict[str, Any]  # place, title, the panel as HTML, and where it is computed


def panel_rows(folder: Path) -> list[PanelRow]:
    """The panels of a run; a sentence in their place if its folder does not allow them."""
    try:
        panels = explain.panels(folder)
    except (ConfigError, TapeMiss) as error:
        problem = f"The equations cannot be computed again: {error}"
        panels = [explain.Panel("", "", problem)]
    rows = []
    for panel in panels:
        html = explain.html(panel)
        rows.append({"place": panel.place, "html": html, "source": panel.source})
    return rows


def code_of(sources: Iterable[str]) -> dict[str, str]:
    """The functions at these places, written FILE:LINE, with the numbers of their lines."""
    return {source: _function_at(source) for source in sources}


def _function_at(source: str) -> str:
    name, _, number = source.rpartition(":")
    first = int(number)
    lines = (SOURCES / name).read_text(encoding="utf-8").splitlines(keepends=True)
    function = inspect.getblock(lines[first - 1 :])
    numbered = (f"{first + n:4} {line}" for n, line in enumerate(function))
    return "".join(numbered).rstrip()
