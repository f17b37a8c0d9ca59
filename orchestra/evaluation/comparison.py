"""Methods compared by their sweeps: accuracy with an interval, cost, latency, and a test for each
pair of methods on the questions that both answered.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

from orchestra.evaluation import gaia
from orchestra.evaluation.questions import QuestionRow
from orchestra.evaluation.sweep_folder import Settings, newest, rows_of, settings_of
from orchestra.money import add_usd
from orchestra.runtime import console
from orchestra.runtime.run_folder import name_of
from orchestra.runtime.trajectory import usd
from orchestra.vocabulary import ConfigError

WIDTH = 100  # of a table cell, at most
HEADING = (
    "accuracy in %, 95 % interval, questions, cost without the judge's, median latency"
)
PARTS = "level", "category"
SCORES = "exact", "match", "judge", "gaia"
MethodRow = dict[str, Any]  # the figures of a method: overall, and of each part
Outcomes = dict[tuple[Any, Any], bool]  # by question and right answer: answered rightly


class Figures(TypedDict):
    """Of some questions of a sweep."""

    n: int
    failed: int
    accuracy: float
    interval: tuple[float, float]
    cost_usd: float | None
    unjudged: int
    latency_s: float | None  # the median; None: every run was continued


class Pair(TypedDict):
    """Two methods on their `n` common questions, and how many of these only one got right."""

    a: str
    b: str
    n: int
    only_a: int
    only_b: int
    p: float  # of McNemar's test


class Variation(TypedDict):
    """A sweep that reused another one, on their `n` common questions that both answered."""

    new: str
    old: str
    n: int
    changed: int  # answers
    newly_right: int
    newly_wrong: int
    reused: float  # the share of the calls of models
    saved_usd: float | None


# ---- statistics ----------------------------------------------------------------------------------


def wilson(right: int, n: int, z: float = 1.96) -> tuple[float, float]:
    """The 95 % interval of a proportion; n > 0."""
    p = right / n
    zz = z * z / n
    middle = p + zz / 2
    half = z * math.sqrt(p * (1 - p) / n + zz / n / 4)
    low = (middle - half) / (1 + zz)
    high = (middle + half) / (1 + zz)
    return max(0.0, low), min(1.0, high)  # rounding may pass them


def mcnemar(only_a: int, only_b: int) -> float:
    """The exact two-sided p-value, from the numbers of questions that only one method got right."""
    n = only_a + only_b
    tail = ways = 1  # ways: n over k, from one k to the next
    for k in range(1, min(only_a, only_b) + 1):
        ways = ways * (n - k + 1) // k
        tail += ways
    return float(min(1.0, 2 * tail / 2**n))


def figures(rows: Sequence[QuestionRow], score: str) -> Figures:
    """Accuracy with its interval, cost and latency. A failed row counts as wrong."""
    n = len(rows)
    right = sum(is_right(row, score) for row in rows)
    done = [row for row in rows if row["status"] == "done"]
    latencies_s = [row["latency_s"] for row in done if not row["resumed"]]
    return {
        "n": n,
        "failed": n - len(done),
        "accuracy": right / n,
        "interval": wilson(right, n),
        "cost_usd": add_usd(*(row["cost_usd"] for row in done)),
        "unjudged": sum(row.get("judge", False) is None for row in done),
        "latency_s": statistics.median(latencies_s) if latencies_s else None,
    }


def is_right(row: QuestionRow, score: str) -> bool:
    """A failed row has no score, and None is the score of a judge without a verdict. That of GAIA
    follows from the answer.
    """
    if score == "gaia" and "answer" in row:
        return gaia.is_right(row["answer"].strip(), row.get("right", ""))
    return bool(row.get(score))


# ---- the report ----------------------------------------------------------------------------------


class Sweep(NamedTuple):
    """A sweep that is compared, and the name of the one that it reused."""

    name: str
    folder: str
    reuse: str | None
    rows: list[QuestionRow]


def report(folders: Iterable[Path], score: str | None) -> dict[str, Any]:
    """The figures of each sweep, and McNemar's test for each pair of them. Raises ConfigError."""
    sweeps = [(folder, settings_of(folder)) for folder in folders]
    score = _common_score(sweeps, score)
    methods: dict[str, MethodRow] = {}
    outcomes: dict[str, Outcomes] = {}
    read: list[Sweep] = []
    for folder, settings in sweeps:
        rows = _newest_rows(folder)
        name = _in_one_word(f"{settings['method']}/{settings['model']}")
        if name in methods:
            name = _in_one_word(f"{name}/{folder}")
        methods[name] = method_row(rows, score, judged=bool(settings["judge"]))
        outcomes[name] = _outcomes(rows, score)
        read.append(Sweep(name, name_of(folder), settings.get("reuse"), rows))
    variations = [
        varied(new, old, score)
        for new in read
        for old in read
        if new is not old and new.reuse == old.folder
    ]
    pairs = [compared(a, b, outcomes) for a, b in combinations(methods, 2)]
    return {"methods": methods, "mcnemar": pairs, "variations": variations}


def varied(new: Sweep, old: Sweep, score: str) -> Variation:
    """What a sweep changed of the one that it reused."""
    before = {(row["id"], row.get("right")): row for row in old.rows}
    pairs = [(before.get((row["id"], row.get("right"))), row) for row in new.rows]
    both = [(a, b) for a, b in pairs if a and _is_done(a) and _is_done(b)]
    calls = sum(b["calls"] for _, b in both)
    reused = sum(b.get("reused_calls", 0) for _, b in both)
    return {
        "new": new.name,
        "old": old.name,
        "n": len(both),
        "changed": sum(a["answer"] != b["answer"] for a, b in both),
        "newly_right": sum(is_right(b, score) > is_right(a, score) for a, b in both),
        "newly_wrong": sum(is_right(b, score) < is_right(a, score) for a, b in both),
        "reused": reused / calls if calls else 0.0,
        "saved_usd": add_usd(*(b.get("saved_usd", 0.0) for _, b in both)),
    }


def _is_done(row: QuestionRow) -> bool:
    return bool(row["status"] == "done")


def _common_score(sweeps: Iterable[tuple[Path, Settings]], score: str | None) -> str:
    """The score of the comparison: by default the best one that all sweeps have."""
    unjudged = [folder for folder, settings in sweeps if not settings["judge"]]
    if score is None:
        return "match" if unjudged else "judge"
    if score == "judge" and unjudged:
        raise ConfigError(f"--score judge: {unjudged[0]} was run without --judge")
    return score


def _newest_rows(folder: Path) -> list[QuestionRow]:
    """The newest row of each question of a sweep."""
    rows = newest(rows_of(folder))
    if not rows:
        raise ConfigError(f"{folder} has no rows yet")
    return list(rows.values())


def _in_one_word(name: str) -> str:
    """As the name of a column, which has no spaces."""
    return "_".join(name.split())


def _outcomes(rows: Iterable[QuestionRow], score: str) -> Outcomes:
    """Two sweeps have a question in common if its right answer is the same in both."""
    return {(row["id"], row.get("right")): is_right(row, score) for row in rows}


def method_row(rows: Sequence[QuestionRow], score: str, judged: bool) -> MethodRow:
    """Figures of one method: overall, by score, level and category."""
    found: MethodRow = {"score": score, "overall": figures(rows, score)}
    found["exact"] = figures(rows, "exact")["accuracy"]
    found["match"] = figures(rows, "match")["accuracy"]
    if judged:
        found["judge"] = figures(rows, "judge")["accuracy"]
    for key in PARTS:
        found[key] = _by_part(rows, key, score)
    return found


def _by_part(rows: Sequence[QuestionRow], key: str, score: str) -> dict[str, Figures]:
    """The figures of each level or category, in their order."""
    parts: dict[str, list[QuestionRow]] = {}
    for row in rows:
        parts.setdefault(row[key], []).append(row)
    return {part: figures(parts[part], score) for part in sorted(parts, key=_by_number)}


def _by_number(part: str) -> str:
    """As a sort key: 2 comes before 10."""
    return part.zfill(9) if part.isdigit() else part


def compared(a: str, b: str, outcomes: Mapping[str, Outcomes]) -> Pair:
    """McNemar's test of two methods."""
    right_a = outcomes[a]
    right_b = outcomes[b]
    both = right_a.keys() & right_b.keys()
    only_a = sum(right_a[q] and not right_b[q] for q in both)
    only_b = sum(right_b[q] and not right_a[q] for q in both)
    p = mcnemar(only_a, only_b)
    return {"a": a, "b": b, "n": len(both), "only_a": only_a, "only_b": only_b, "p": p}


# ---- as tables -----------------------------------------------------------------------------------


def print_report(found: Mapping[str, Any]) -> None:
    """Tables in the shape of Table 1 and Figures 4 to 6 of arXiv 2606.13707."""
    methods: dict[str, MethodRow] = found["methods"]
    tables = [HEADING]
    for key in PARTS:
        tables.append(_table_by(key, methods))
    tables.append(_scores(methods))
    if found["mcnemar"]:
        tables.append(console.table("a b n only_a only_b p", found["mcnemar"], WIDTH))
    if found["variations"]:
        tables.append(_variations(found["variations"]))
    console.put("\n\n".join(tables))


def _table_by(key: str, methods: Mapping[str, MethodRow]) -> str:
    """A row for each level or category and for all questions, a column for each method."""
    rows: dict[str, dict[str, str]] = {}
    for method in methods.values():
        for part in method[key]:
            rows.setdefault(part, {key: part})
    for name, method in methods.items():
        cells = {**method[key], "overall": method["overall"]}
        for part, found in cells.items():
            rows.setdefault(part, {key: part})[name] = _cell(found)
    return console.table(" ".join([key, *methods]), rows.values(), WIDTH)


def _cell(found: Figures) -> str:
    """As in 66.7 [30-90] n=6 USD 0.0100 1.2 s."""
    low, high = found["interval"]
    accuracy = f"{100 * found['accuracy']:.1f} [{100 * low:.0f}-{100 * high:.0f}]"
    latency_s = found["latency_s"]
    latency = "-" if latency_s is None else f"{latency_s:.1f} s"
    return f"{accuracy} n={found['n']} {usd(found['cost_usd'])} {latency}"


def _scores(methods: Mapping[str, MethodRow]) -> str:
    """A row for each method with its three scores."""
    rows = [
        {"method": name, **method, **method["overall"]}
        for name, method in methods.items()
    ]
    columns = "method score exact match judge unjudged failed"
    return console.table(columns, rows, WIDTH)


def _variations(found: Iterable[Variation]) -> str:
    """A row for each sweep with --reuse: what it changed, and what it did not pay again."""
    rows = []
    for v in found:
        cells = {"reused": f"{100 * v['reused']:.0f} %", "saved": usd(v["saved_usd"])}
        rows.append({**v, **cells})
    columns = "new old n changed newly_right newly_wrong reused saved"
    return console.table(columns, rows, WIDTH)
