"""A run as a trace for Perfetto: its calls and sub-tasks with their times."""

from __future__ import annotations

from itertools import count
from typing import Any

from orchestra.vocabulary import ConfigError

ROUNDING_US = (
    50  # of a duration on the tape: without it, a call could overlap the next one
)
ABOUT = "call kind model input_tokens output_tokens cost_usd status error agent backend instruction"
Row = dict[str, Any]


def perfetto(run: Row) -> Row:
    """A run, as report.run_row returns it, in Chrome's Trace Event Format, which Perfetto opens.
    Parallel calls of a sub-task get tracks of their own. Raises ConfigError if the tape has no
    times.
    """
    tids, free_us = (
        dict[str, int](),
        dict[str, int](),
    )  # of a track; the end of its last call
    events = slices(run)
    for e in events:
        tracks = (e["tid"] + f" ({n})" * (n > 1) for n in count(1))
        track = next(name for name in tracks if free_us.get(name, 0) <= e["ts"])
        if e["cat"] != "sub-task":  # a sub-task contains its calls
            free_us[track] = e["ts"] + e["dur"]
        e["tid"] = tids.setdefault(track, len(tids) + 1)
    head = {"ph": "M", "pid": 1, "name": "thread_name"}
    names = [{**head, "tid": tid, "args": {"name": name}} for name, tid in tids.items()]
    return {"traceEvents": names + events, "displayTimeUnit": "ms"}


def slices(run: Row) -> list[Row]:
    """Calls and sub-tasks as complete events in order of time, in microseconds since 1970. `tid`:
    r1/t2 for sub-task 2 of round 1, else main.
    """
    tasks, found = dict[str, Row](), list[Row]()
    for e in run["events"]:
        if e["event"] in ("subtask", "result"):
            row = e["subtask"] if e["event"] == "subtask" else e
            tasks.setdefault("r{}/t{}".format(*e["at"]), {}).update(row)
    for c in run["tape"] or [{}]:
        if not all(
            isinstance(c.get(key), int | float) for key in ("began_s", "took_s")
        ):
            raise ConfigError(
                f"{run['name']}: its tape has no times of calls; record it again"
            )
        ts, us = round(c["began_s"] * 1e6), round(c["took_s"] * 1e6) - ROUNDING_US
        task, last = "/".join(c["call"].split("/")[:2]), c["call"].rpartition("/")[2]
        kind, name = ("chat", c["model"]) if c["kind"] == "chat" else ("tool", last)
        row = {**c, "status": "failed" if c["failed"] else "done"}
        found.append(
            _slice(task if task in tasks else "main", kind, name, ts, max(us, 0), row)
        )
    for task, row in tasks.items():
        if own := [e for e in found if e["tid"] == task]:
            ts, end = min(e["ts"] for e in own), max(e["ts"] + e["dur"] for e in own)
            found.insert(0, _slice(task, "sub-task", row["id"], ts, end - ts, row))
    return sorted(found, key=lambda e: (e["ts"], -e["dur"]))


def _slice(track: str, kind: str, name: str, ts: int, us: int, row: Row) -> Row:
    args = {key: row[key] for key in ABOUT.split() if row.get(key) not in (None, "")}
    place = {"ph": "X", "pid": 1, "tid": track, "ts": ts, "dur": us}
    return {**place, "cat": kind, "name": name, "args": args}
