#!/usr/bin/env python3
"""Table 1 and Figures 4 to 6 of Orchestra-o1 (arXiv 2606.13707) on your models, with the paper's
figures below yours.

    python benchmarks/table1.py OmniGAIA/test_metadata.json --judge gpt-5 --backends pool.toml ...

All further flags are those of `evaluate run`. OUT gets a sweep for each method with the settings of
section 4.1: 10 rounds of the main agent and 30 steps of a sub-agent. Each is judged by OmniGAIA's
rule. The same command again does what is missing or failed.

Differences from the paper: it names neither the judge nor the models of the sub-agents, and no
settings for AOrchestra and ReAct. Here these have the same rounds and steps.

omnigaia_paper.json has the figures that the paper states, each with its place. What is only drawn
there is `-`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from orchestra.command.runs import table
from orchestra.command.terminal import usd
from orchestra.evaluation import command as evaluate
from orchestra.evaluation import comparison

PAPER = json.loads(
    (ROOT / "benchmarks/omnigaia_paper.json").read_text(encoding="utf-8")
)
SETTINGS = {  # section 4.1, by method
    "orchestra-o1": ("--rounds", "10", "--steps", "30"),
    "aorchestra": ("--rounds", "10", "--steps", "30"),
    "react": ("--steps", "30"),
}
LEVELS = ("Easy", "Medium", "Hard")
QUESTIONS = 360  # in OmniGAIA
Cells = dict[str, Any]  # of a row, by column


def answered(method: str, a: argparse.Namespace, rest: Iterable[str]) -> int:
    """The sweep of a method, judged. Returns its exit code."""
    out = a.out / method
    flags = [
        "--data",
        a.data,
        "--out",
        out,
        "--method",
        method,
        *SETTINGS[method],
        *rest,
    ]
    code = evaluate.main(["run", *map(str, flags)])
    if code not in (0, 1):
        return code
    judge = ["score", out, "--scorer", "omnigaia", "--judge", a.judge]
    judge += ["--backends", a.backends] if a.backends else []
    return max(code, evaluate.main(list(map(str, judge))))


def cells_of(name: str, method: Mapping[str, Any]) -> Cells:
    """All that the tables show of a sweep."""
    overall = method["overall"]
    cells: Cells = {"method": name, "Overall": _percent(overall)}
    for column, category in PAPER["categories"].items():
        cells[column] = _percent(method["category"].get(category))
    for level in LEVELS:
        found = method["level"].get(level)
        cells[level] = _percent(found)
        cells[f"cost_{level}"] = found and usd(found["cost_usd"])
    cells["cost"] = usd(overall["cost_usd"])
    cells["each"] = usd(overall["cost_each_usd"])
    latency_s = overall["latency_s"]
    cells["latency"] = None if latency_s is None else f"{latency_s:.1f} s"
    return cells


def _percent(found: Mapping[str, Any] | None) -> str | None:
    return None if found is None else f"{100 * found['accuracy']:.1f}"


def tables(methods: Mapping[str, Any]) -> Iterator[str]:
    """Each table as text: the rows of these sweeps, and below them those of the paper."""
    here = [cells_of(name, method) for name, method in methods.items()]
    harnesses = [
        row for row in here if row["method"].startswith(("react/", "orchestra-o1/"))
    ]
    by_category = [*PAPER["categories"], "Overall"]
    costs = [
        "Overall",
        "cost",
        "each",
        "latency",
        *(f"cost_{level}" for level in LEVELS),
    ]
    yield _table("Table 1", by_category, here)
    yield _table("Figure 4", LEVELS, here)
    yield _table("Figure 5", costs, here)
    yield _table("Figure 6", by_category, harnesses)


def _table(name: str, columns: Iterable[str], here: list[Cells]) -> str:
    of_paper = PAPER["tables"][name]
    published = [
        {
            "method": f"{row} (paper)",
            **{key: f"{value:.1f}" for key, value in cells.items()},
        }
        for row, cells in of_paper["rows"].items()
    ]
    shown = table(" ".join(["method", *columns]), [*here, *published])
    return f"{name} ({of_paper['source']})\n{shown}"


def main(argv: list[str]) -> int:
    """Exit codes: those of evaluate."""
    p = argparse.ArgumentParser(prog="table1", epilog="and the flags of evaluate run")
    p.add_argument("data", type=Path, help="test_metadata.json of RUC-NLPIR/OmniGAIA")
    p.add_argument("--out", type=Path, default=Path("sweeps/table1"))
    p.add_argument(
        "--methods", default=",".join(SETTINGS), help="some of them: A,B (all)"
    )
    p.add_argument("--judge", required=True, help="the model that judges the answers")
    p.add_argument("--backends", type=Path, help="a pool file")
    a, rest = p.parse_known_args(argv)
    rest += ["--backends", str(a.backends)] if a.backends else []
    methods = [name for name in SETTINGS if name in a.methods.split(",")]
    codes = [answered(method, a, rest) for method in methods]
    if max(codes) > 1:
        return max(codes)
    found = comparison.report([a.out / method for method in methods], "omnigaia")
    print(f"accuracy in % by omnigaia; (paper): {PAPER['source']}")
    print("\n" + "\n\n".join(tables(found["methods"])))
    for name, method in found["methods"].items():
        if (asked := method["overall"]["questions"]) != QUESTIONS:
            print(f"\n{name}: {asked} of the {QUESTIONS} questions of OmniGAIA")
    return max(codes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
