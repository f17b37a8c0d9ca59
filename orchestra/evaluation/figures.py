"""The figures of one method on some questions: accuracy, cost and latency, with their intervals."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import fmean
from typing import TypedDict

import numpy as np

from orchestra.evaluation.intervals import Interval, bootstrap, of_accuracy, pass_at
from orchestra.evaluation.questions import QuestionRow
from orchestra.kernel.money import add_usd

JUDGED = "judge", "omnigaia"  # the scores of a model: None without a verdict


class Figures(TypedDict):
    """Of some rows of a sweep. Every interval resamples questions."""

    n: int  # rows: questions times repeats
    questions: int
    failed: int
    accuracy: float
    interval: Interval
    second: float  # the accuracy by the second score of the report
    cost_usd: float | None  # of all rows; None: some price is unknown
    cost_each_usd: float | None  # of a question, the mean
    cost_interval_usd: Interval | None
    unjudged: int
    latency_s: float | None  # the median of questions; None: no run was made whole
    latency_interval_s: Interval | None


def is_right(row: QuestionRow, score: str) -> bool:
    """A failed row has no score, and None is the score of a judge without a verdict."""
    return bool(row.get(score))


def is_done(row: QuestionRow) -> bool:
    return bool(row["status"] == "done")


def figures(rows: Sequence[QuestionRow], score: str, second: str) -> Figures:
    """Accuracy, cost and latency. A failed row counts as wrong."""
    done = [row for row in rows if is_done(row)]
    shares = list(share_right(rows, score).values())
    repeats = max(map(len, by_question(rows).values()))
    costs = list(costs_usd(done).values())
    is_known = all(cost is not None for cost in costs) and costs != []
    known = [cost for cost in costs if cost is not None]
    latencies = list(latencies_s(done).values())
    return {
        "n": len(rows),
        "questions": len(shares),
        "failed": len(rows) - len(done),
        "accuracy": fmean(shares),
        "interval": of_accuracy(shares, repeats),
        "second": fmean(share_right(rows, second).values()),
        "cost_usd": add_usd(*(row["cost_usd"] for row in done)),
        "cost_each_usd": sum(known) / len(known) if is_known else None,
        "cost_interval_usd": bootstrap(known) if is_known else None,
        "unjudged": sum(None in map(row.get, JUDGED, (False, False)) for row in done),
        "latency_s": float(np.median(latencies)) if latencies else None,
        "latency_interval_s": bootstrap(latencies, np.median) if latencies else None,
    }


# ---- one value for each question -----------------------------------------------------------------


def by_question(rows: Iterable[QuestionRow]) -> dict[str, list[QuestionRow]]:
    """The rows of each question: its repeats."""
    found: dict[str, list[QuestionRow]] = {}
    for row in rows:
        found.setdefault(row["id"], []).append(row)
    return found


def share_right(rows: Iterable[QuestionRow], score: str) -> dict[str, float]:
    """Which part of its answers is right, for each question."""
    return {
        name: sum(is_right(row, score) for row in of_one) / len(of_one)
        for name, of_one in by_question(rows).items()
    }


def costs_usd(done: Iterable[QuestionRow]) -> dict[str, float | None]:
    """What a question costs, the mean of its repeats; None if that is unknown."""
    return _means(done, lambda row: row["cost_usd"])


def latencies_s(done: Iterable[QuestionRow]) -> dict[str, float]:
    """How long a question takes, the mean of its repeats, without runs that were continued or that
    reused calls.
    """
    whole = (row for row in done if not row["resumed"] and not row.get("reused_calls"))
    found = _means(whole, lambda row: row["latency_s"])
    return {name: value for name, value in found.items() if value is not None}


def _means(
    rows: Iterable[QuestionRow], value_of: Callable[[QuestionRow], float | None]
) -> dict[str, float | None]:
    found: dict[str, float | None] = {}
    for name, of_one in by_question(rows).items():
        total = add_usd(*map(value_of, of_one))
        found[name] = None if total is None else total / len(of_one)
    return found


# ---- repeats -------------------------------------------------------------------------------------


def pass_at_k(rows: Iterable[QuestionRow], score: str) -> dict[str, float]:
    """pass@k for each k up to the repeats that every question has; {} without repeats."""
    questions = list(by_question(rows).values())
    found: dict[str, float] = {}
    most = min(map(len, questions))
    for k in range(1, most + 1) if most > 1 else ():
        chances = []
        for of_one in questions:
            right = sum(is_right(row, score) for row in of_one)
            chances.append(pass_at(k, len(of_one), right))
        found[str(k)] = sum(chances) / len(chances)
    return found
