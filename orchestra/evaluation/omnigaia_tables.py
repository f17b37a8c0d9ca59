"""Table 1 and Figures 4 to 6 of Orchestra-o1 (arXiv 2606.13707), from sweeps over OmniGAIA, with
the paper's figures next to them.

omnigaia_paper.json has the figures that the paper states, each with its place. A figure that is
only drawn there is left out, and its cell is `-`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from orchestra.command import terminal
from orchestra.command.runs import table
from orchestra.command.terminal import usd
from orchestra.evaluation.comparison import MethodRow
from orchestra.evaluation.figures import Figures

PAPER = Path(__file__).with_name("omnigaia_paper.json")
QUESTIONS = 360  # in OmniGAIA; one of them has a category without a column in Table 1
LEVELS = ("Easy", "Medium", "Hard")
ALL = "Overall"
HARNESSES = ("react/", "orchestra-o1/")  # of Figure 6: how the names of sweeps begin
Cells = dict[str, Any]  # of a row, by column
Rows = list[Cells]


@cache
def paper() -> dict[str, Any]:
    """What omnigaia_paper.json has: `categories`, the name of each column in OmniGAIA, and
    `tables`, each with `source` and `rows`.
    """
    found: dict[str, Any] = json.loads(PAPER.read_text(encoding="utf-8"))
    return found


def print_tables(found: Mapping[str, Any]) -> None:
    """Print Table 1 and Figures 4 to 6. `found`: the report of comparison.py."""
    methods: dict[str, MethodRow] = found["methods"]
    terminal.put(f"accuracy in % by {found['score']}; (paper): {paper()['source']}")
    for text in tables(methods):
        terminal.put(f"\n{text}")
    for name, method in methods.items():
        asked = method["overall"]["questions"]
        if asked != QUESTIONS:
            terminal.put(f"\n{name}: {asked} of the {QUESTIONS} questions of OmniGAIA")


def tables(methods: Mapping[str, MethodRow]) -> Iterator[str]:
    """Each table as text: the rows of these sweeps, and below them those of the paper."""
    categories: dict[str, str] = paper()["categories"]
    harnesses = {n: m for n, m in methods.items() if n.startswith(HARNESSES)}
    yield _table("Table 1", [*categories, ALL], _by_category(methods))
    yield _table("Figure 4", LEVELS, _by_level(methods))
    yield _table("Figure 5", _columns_of_costs(), _costs(methods))
    yield _table("Figure 6", [*categories, ALL], _by_category(harnesses))


def _table(name: str, columns: Iterable[str], here: Rows) -> str:
    of_paper = paper()["tables"][name]
    published: Rows = []
    for row, cells in of_paper["rows"].items():
        texts = {column: f"{value:.1f}" for column, value in cells.items()}
        published.append({"method": f"{row} (paper)", **texts})
    shown = table(" ".join(["method", *columns]), [*here, *published])
    return f"{name} ({of_paper['source']})\n{shown}"


# ---- the rows of sweeps --------------------------------------------------------------------------


def _by_category(methods: Mapping[str, MethodRow]) -> Rows:
    """A row for each sweep, with the accuracy in each category of Table 1."""
    categories: dict[str, str] = paper()["categories"]
    rows = []
    for name, method in methods.items():
        cells: Cells = {"method": name, ALL: _percent(method["overall"])}
        for column, category in categories.items():
            cells[column] = _percent(method["category"].get(category))
        rows.append(cells)
    return rows


def _by_level(methods: Mapping[str, MethodRow]) -> Rows:
    rows = []
    for name, method in methods.items():
        cells: Cells = {"method": name}
        for level in LEVELS:
            cells[level] = _percent(method["level"].get(level))
        rows.append(cells)
    return rows


def _columns_of_costs() -> list[str]:
    """The accuracy, the cost and the latency of all questions, then the cost of each level."""
    return [ALL, "cost", "each", "latency", *(f"cost_{level}" for level in LEVELS)]


def _costs(methods: Mapping[str, MethodRow]) -> Rows:
    """`cost`: of all questions; `each`: of a question, the mean; `latency`: the median."""
    rows = []
    for name, method in methods.items():
        overall: Figures = method["overall"]
        latency_s = overall["latency_s"]
        cells: Cells = {
            "method": name,
            ALL: _percent(overall),
            "cost": usd(overall["cost_usd"]),
            "each": usd(overall["cost_each_usd"]),
            "latency": None if latency_s is None else f"{latency_s:.1f} s",
        }
        for level in LEVELS:
            of_level = method["level"].get(level)
            cells[f"cost_{level}"] = of_level and usd(of_level["cost_usd"])
        rows.append(cells)
    return rows


def _percent(found: Figures | None) -> str | None:
    """As Table 1 has it; None without a question."""
    return None if found is None else f"{100 * found['accuracy']:.1f}"
