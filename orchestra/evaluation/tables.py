"""The report of `evaluate report` as tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from orchestra.command import terminal
from orchestra.command.runs import table
from orchestra.command.terminal import usd
from orchestra.evaluation.comparison import PARTS, MethodRow, Pair, by_number
from orchestra.evaluation.figures import Figures
from orchestra.evaluation.intervals import Interval
from orchestra.evaluation.sweep_folder import SCORERS

WIDTH = 100  # of a table cell, at most
HEADING = "accuracy in % by {score} (by {second}) [95 % interval by {score}] n: answers"


def print_report(found: Mapping[str, Any]) -> None:
    """Accuracy by level and category, how the questions ended, their cost, and each pair."""
    terminal.put("\n\n".join(filter(None, _tables(found))))


def _tables(found: Mapping[str, Any]) -> Iterator[str]:
    methods: dict[str, MethodRow] = found["methods"]
    first = [*_unfinished(methods)]
    if found["partly_bare"]:
        first.append("replies are scored as they are: not every one has a bare copy")
    if found["bare"]:
        copied = "answers were copied out of the replies by `--scorer bare`"
        left = f"; {found['no_copy']} without a copy, scored as replied"
        first.append(copied + left * bool(found["no_copy"]))
    first.append("")  # a line of its own, as in every report
    yield "\n".join([*first, HEADING.format(**found)]).lstrip()
    for key in PARTS:
        yield _table_by(key, methods)
    yield _outcomes(methods)
    yield _costs(methods)
    if any(method["pass_at"] for method in methods.values()):
        yield _pass_at(methods)
    if found["pairs"]:
        yield _pairs(found["pairs"])


def _unfinished(methods: Mapping[str, MethodRow]) -> Iterator[str]:
    """What to know before reading the figures of sweeps that are not complete."""
    for name, m in methods.items():
        if m["unfinished"]:
            done = m["asked"] - m["unfinished"]
            told = "to continue, give its command again"
            yield f"not finished: {name} has {done} of {m['asked']} answers; {told}"
        if m["overall"]["unjudged"]:
            count = f"{m['overall']['unjudged']} answers without a verdict"
            yield f"not judged: {name} has {count}, which count as wrong"


# ---- accuracy by level and category --------------------------------------------------------------


def _table_by(key: str, methods: Mapping[str, MethodRow]) -> str:
    """A row for each level or category and for all questions, a column for each method. "" for
    categories that divide nothing.
    """
    parts = sorted({part for m in methods.values() for part in m[key]}, key=by_number)
    if key != PARTS[0] and len(parts) < 2:
        return ""
    rows: list[dict[str, str]] = []
    for part in parts:
        found = {name: m[key][part] for name, m in methods.items() if part in m[key]}
        rows.append({key: part or "-"} | {name: _cell(f) for name, f in found.items()})
    rows.append(
        {key: "overall"} | {name: _cell(m["overall"]) for name, m in methods.items()}
    )
    return table(" ".join([key, *methods]), rows, WIDTH)


def _cell(found: Figures) -> str:
    """As in 66.7 (50.0) [30-90] n=6."""
    low, high = found["interval"]
    both = f"{100 * found['accuracy']:.1f} ({100 * found['second']:.1f})"
    return f"{both} [{100 * low:.0f}-{100 * high:.0f}] n={found['n']}"


# ---- by method -----------------------------------------------------------------------------------


def _outcomes(methods: Mapping[str, MethodRow]) -> str:
    """A row for each method: its scores, and how its questions ended."""
    rows = []
    for name, method in methods.items():
        fallback = f"{100 * method['fallback']:.0f} %"
        cells = {"method": name, **method, **method["overall"], "fallback": fallback}
        cells |= {key: f"{100 * method[key]:.1f}" for key in SCORERS if key in method}
        rows.append(cells)
    scores = [key for key in SCORERS if any(key in m for m in methods.values())]
    counts = "asked answered no_answer fallback unfinished failed"
    return table(f"method {' '.join(scores)} {counts}", rows, WIDTH)


def _costs(methods: Mapping[str, MethodRow]) -> str:
    """A row for each method: calls, tokens, cost and time of a question, which share of the calls
    was reused, and what that saved.
    """
    rows = []
    for name, method in methods.items():
        found = method["overall"]
        each = found["cost_each_usd"], found["cost_interval_usd"]
        unknown = "unknown" if found["cost_usd"] is None else "-"
        cost = _with_interval(*each, "USD {:.4f}", "{:.4f}", unknown)
        latency = _with_interval(
            found["latency_s"], found["latency_interval_s"], "{:.1f} s", "{:.1f}"
        )
        cells = {"mean_cost": cost, "median_latency": latency}
        cells |= {
            "calls": f"{method['calls']:.1f}",
            "tokens": f"{method['tokens']:,.0f}",
            "reused": f"{100 * method['reused']:.0f} %",
            "saved": usd(method["saved_usd"]),
        }
        rows.append({"method": name, **cells})
    return table(
        "method calls tokens mean_cost median_latency reused saved", rows, WIDTH
    )


def _with_interval(
    value: float | None,
    interval: Interval | None,
    form: str,
    bound: str,
    without: str = "-",
) -> str:
    """As in USD 0.0100 [0.0050, 0.0200]; `without` a value, another text."""
    if value is None or interval is None:
        return without
    low, high = (bound.format(limit) for limit in interval)
    return f"{form.format(value)} [{low}, {high}]"


def _pass_at(methods: Mapping[str, MethodRow]) -> str:
    """A row for each method: the chance that one of k answers is right."""
    most = max(len(method["pass_at"]) for method in methods.values())
    rows = []
    for name, method in methods.items():
        shares = {f"pass@{k}": f"{100 * v:.1f}" for k, v in method["pass_at"].items()}
        rows.append({"method": name, **shares})
    columns = [f"pass@{k}" for k in range(1, most + 1)]
    return table(" ".join(["method", *columns]), rows, WIDTH)


# ---- by pair -------------------------------------------------------------------------------------


def _pairs(pairs: Iterable[Pair]) -> str:
    """A row for each pair of methods: a minus b, in percentage points."""
    rows = []
    for pair in pairs:
        low, high = pair["interval"]
        difference = f"{100 * pair['difference']:+.1f}"
        accuracy = f"{difference} [{100 * low:+.1f}, {100 * high:+.1f}]"
        rows.append({**pair, "a-b": accuracy})
    legend = "pairs: questions that only one got right; a - b in points; p exact, p_holm corrected"
    return f"{legend}\n{table('score a b n only_a only_b a-b p p_holm', rows, WIDTH)}"
