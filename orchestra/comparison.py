"""Several methods on one question, beside each other: a row each, as a table or as JSON."""

from __future__ import annotations

import threading
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import Any

from orchestra.log import usd
from orchestra.trajectory import LAST, Event, Trajectory
from orchestra.vocabulary import ConfigError, EndpointError

Row = dict[str, Any]
Outcome = Trajectory | EndpointError
ANSWER_COLUMNS = 40
GRACE_S = 1.0  # for calls in flight
HEAD = "method", "answer", "rounds", "calls", "tokens", "cost", "latency", "/ critical path"


class Interrupted(KeyboardInterrupt):
    """Ctrl-C among several methods; `finished`: the outcomes of those that were done."""

    def __init__(self, finished: Mapping[str, Outcome]) -> None:
        super().__init__("interrupted")
        self.finished = finished


class Misconfigured(ConfigError):
    """The user's mistake that one method met; `finished`: the outcomes of those that were done."""

    def __init__(self, error: ConfigError, finished: Mapping[str, Outcome]) -> None:
        super().__init__(str(error))
        self.finished = finished


def run(
    methods: Sequence[str],
    one: Callable[[str, threading.Event], Trajectory],
    side_by_side: bool,
) -> dict[str, Outcome]:
    """`one(method, cancelled)` for each, in turn or side by side. A method whose endpoint fails,
    fails alone; anything else ends all, and what is in flight has a moment to reach its tape.
    Raises Interrupted for Ctrl-C, and Misconfigured for a ConfigError.
    """
    cancelled = threading.Event()
    outcomes: dict[str, Outcome] = {}

    def alone(method: str) -> None:
        try:
            outcomes[method] = one(method, cancelled)
        except EndpointError as error:
            outcomes[method] = error

    def finished() -> dict[str, Outcome]:
        return {m: outcomes[m] for m in methods if m in outcomes}

    try:
        if side_by_side:
            _together(methods, alone, cancelled)
        else:
            for method in methods:
                alone(method)
    except KeyboardInterrupt:
        raise Interrupted(finished()) from None
    except ConfigError as error:
        raise Misconfigured(error, finished()) from None
    return finished()


def _together(
    methods: Sequence[str], alone: Callable[[str], None], cancelled: threading.Event
) -> None:
    executor = ThreadPoolExecutor(len(methods), thread_name_prefix="method")
    futures = [executor.submit(alone, method) for method in methods]
    try:
        for future in wait(futures, return_when=FIRST_EXCEPTION).done:
            future.result()
    except BaseException:
        cancelled.set()
        wait(futures, GRACE_S)
        raise
    finally:
        executor.shutdown(wait=False)


def critical_path_s(events: Sequence[Event]) -> float:
    """What the run would take if nothing ever waited: its decisions in a row, and of each round the
    longest chain of sub-tasks, by the latencies that were measured.
    """
    total = 0.0
    needs: dict[tuple[int, str], Sequence[str]] = {}
    took: dict[tuple[int, str], float] = {}
    for event in events:
        t, timing = event["at"][0], event["timing"]
        if event["event"] == "decision":
            total += timing["latency_s"]
        elif event["event"] == "subtask":
            needs[t, event["subtask"]["id"]] = event["subtask"]["needs"]
        elif event["event"] == "result" and event["at"][2] == LAST:
            took[t, event["subtask"]] = timing["latency_s"]
    longest: dict[int, float] = {}
    for t, id in took:
        longest[t] = max(longest.get(t, 0.0), _path_s(t, id, needs, took, {}))
    return total + sum(longest.values())


def _path_s(
    t: int,
    id: str,
    needs: Mapping[tuple[int, str], Sequence[str]],
    took: Mapping[tuple[int, str], float],
    known: dict[str, float],
) -> float:
    """The longest chain that ends in a sub-task; needs of earlier rounds had ended before."""
    walk = [id]
    while walk:
        inner = [n for n in needs[t, walk[-1]] if (t, n) in took]
        if open_ := [n for n in inner if n not in known]:
            walk += open_
        else:
            done = walk.pop()
            known[done] = took[t, done] + max((known[n] for n in inner), default=0.0)
    return known[id]


def table(rows: Sequence[Row]) -> str:
    """The rows under a head, in columns; answers are cut, `?` is unknown."""
    cells = [HEAD, *(_cells(row) for row in rows)]
    widths = [max(_columns(row[i]) for row in cells) for i in range(len(HEAD))]
    lines = ["  ".join(_padded(c, w) for c, w in zip(row, widths, strict=True)) for row in cells]
    return "\n".join(line.rstrip() for line in lines)


def _cells(row: Row) -> tuple[str, ...]:
    if "error" in row:
        return row["method"], _cut(row["error"]), *("-" for _ in HEAD[2:])
    answer = _cut(row["answer"] or "-") + (" (fallback)" if row["fallback"] else "")
    path = row["critical_path_s"]
    ratio = f"{row['latency_s'] / path:.2f}" if path else "-"
    counts = (str(row[k]) for k in ("rounds", "calls", "tokens"))
    return row["method"], answer, *counts, usd(row["cost_usd"]), f"{row['latency_s']:.2f} s", ratio


def _cut(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= ANSWER_COLUMNS else text[: ANSWER_COLUMNS - 3] + "..."


def _columns(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def _padded(text: str, columns: int) -> str:
    return text + " " * (columns - _columns(text))
