"""Two views of the event stream: a log for people, and a live table on a terminal."""

from __future__ import annotations

import logging
import time
from logging.handlers import QueueListener
from pathlib import Path
from queue import SimpleQueue

from concurrent_log_handler import ConcurrentRotatingFileHandler
from rich.console import Console
from rich.live import Live
from rich.table import Table

from orchestra.secrets import scrub
from orchestra.trajectory import Event

LOG_BYTES = 10 << 20


def describe(event: Event) -> str:
    """One event as one line; "" for those a log needs no line for."""
    place = "/".join(
        f"{letter}{n}" for letter, n in zip("rts", event["at"], strict=False) if n < 1 << 30
    )
    match event["event"]:
        case "run":
            return f"run: {event['task']['question']!r} with {event['options']['method']}"
        case "decision" if "mistake" in event:
            return f"{place} mistake: {event['mistake']}"
        case "decision" if event["decision"]["action"] == "complete":
            return f"{place} complete: {event['decision']['answer']!r}"
        case "decision":
            return f"{place} delegate {len(event['decision']['subtasks'])}: {event['decision']['reasoning']}"
        case "subtask":
            u = event["subtask"]
            return f"{place} {u['id']} to {u['backend']} with {', '.join(u['tools']) or 'no tools'}: {u['instruction']}"
        case "step":
            return f"{place} {event['action']} {event['params']} -> {event['observation'][:300]}"
        case "result":
            return f"{place} {event['status']}: {event['answer'] or event['error']} ({usd(event['cost_usd'])}, {_s(event)})"
        case "end":
            kind = "fallback" if event["fallback"] else "answer"
            return f"{kind}: {event['answer']!r} ({event['calls']} calls, {usd(event['cost_usd'])}, {_s(event)})"
    return ""


def usd(amount: float | None) -> str:
    return "USD unknown" if amount is None else f"USD {amount:.4f}"


def _s(event: Event) -> str:
    return f"{event['timing'].get('latency_s', 0.0):.1f} s"


class Log:
    """RUN/log.txt: a line an event, rotated at LOG_BYTES. A thread of its own writes, so that no
    sub-agent waits for the log.
    """

    def __init__(self, path: Path) -> None:
        file = ConcurrentRotatingFileHandler(
            str(path), maxBytes=LOG_BYTES, backupCount=2, encoding="utf-8"
        )
        file.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
        self._queue: SimpleQueue[logging.LogRecord] = SimpleQueue()
        self._writer = QueueListener(self._queue, file)
        self._writer.start()
        self._file = file

    def __call__(self, event: Event) -> None:
        line = scrub(" ".join(describe(event).split()))
        self._queue.put(logging.LogRecord("orchestra", logging.INFO, "", 0, line, None, None))

    def close(self) -> None:
        self._writer.stop()
        self._file.close()


class Progress:
    """Rounds, and the sub-tasks of the round side by side, on standard error."""

    def __init__(self, console: Console | None = None) -> None:
        self._rows: dict[tuple[int, int], dict[str, str]] = {}
        self._started: dict[tuple[int, int], float] = {}
        self._headline = "deciding ..."
        self._live = Live(
            get_renderable=self._table,
            console=console or Console(stderr=True),
            refresh_per_second=4,
        )
        self._live.start()

    def __call__(self, event: Event) -> None:
        key = (event["at"][0], event["at"][1] if len(event["at"]) > 1 else 0)
        match event["event"]:
            case "decision":
                self._headline = describe(event)
            case "subtask":
                u = event["subtask"]
                self._rows[key] = {
                    "id": u["id"],
                    "what": u["instruction"],
                    "status": "running",
                    "cost": "",
                }
                self._started[key] = time.monotonic()
            case "step":
                self._rows[key]["status"] = f"step {event['at'][2]}: {event['action']}"
            case "result":
                self._rows[key] |= {
                    "status": f"{event['status']}: {event['answer'] or event['error']}",
                    "cost": usd(event["cost_usd"]),
                }
                self._rows[key]["time"] = _s(event)
            case "end":
                self._headline = describe(event)

    def _table(self) -> Table:
        table = Table(title=self._headline, title_justify="left", box=None, header_style="bold")
        for name, width in (
            ("round", 5),
            ("task", 6),
            ("what", 40),
            ("status", 50),
            ("time", 8),
            ("cost", 12),
        ):
            table.add_column(name, max_width=width, no_wrap=True, overflow="ellipsis")
        for (round_, j), row in list(self._rows.items()):
            elapsed = row.get("time") or f"{time.monotonic() - self._started[round_, j]:.0f} s"
            table.add_row(str(round_), row["id"], row["what"], row["status"], elapsed, row["cost"])
        return table

    def close(self) -> None:
        self._live.stop()
