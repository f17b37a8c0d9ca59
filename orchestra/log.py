"""RUN/log.txt: the event stream for people, one line an event."""

from __future__ import annotations

import logging
from functools import cache
from logging.handlers import QueueListener
from pathlib import Path
from queue import SimpleQueue

from concurrent_log_handler import ConcurrentRotatingFileHandler

from orchestra.secrets import scrub
from orchestra.trajectory import LAST, Event

LOG_BYTES = 10 << 20


def describe(event: Event) -> str:
    """One event as one line."""
    at = () if event["event"] == "end" else event["at"]  # it comes after every round
    names = zip("rts", at, strict=False)
    place = "/".join(f"{name}{n}" for name, n in names if n not in (0, LAST))
    match event["event"]:
        case "run":
            said = f"run: {event['task']['question']!r} with {event['options']['method']}"
        case "decision" if "mistake" in event:
            said = f"mistake: {event['mistake']}"
        case "decision" if event["decision"]["action"] == "complete":
            said = f"complete: {event['decision']['answer']!r}"
        case "decision":
            y = event["decision"]
            why = y["reasoning"] or y.get("fallback", "")
            said = f"delegate {len(y['subtasks'])}: {why}"
        case "subtask":
            u = event["subtask"]
            tools = ", ".join(u["tools"]) or "no tools"
            said = f"{u['id']} to {u['backend']} with {tools}: {u['instruction']}"
        case "step":
            said = f"{event['action']} {event['params']} -> {event['observation'][:300]}"
        case "result":
            said = f"{event['status']}: {event['answer'] or event['error']} ({figures(event)})"
        case "end":
            kind = "fallback" if event["fallback"] else "answer"
            said = f"{kind}: {event['answer']!r} ({event['calls']} calls, {figures(event)})"
        case other:
            said = other
    return f"{place} {said}".strip()


def printable(text: str) -> str:
    """One line that no terminal obeys: pages and programs are quoted in it."""
    line = " ".join(text.split())
    if line.isprintable():
        return line
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in line)


@cache
def warn_once(said: str) -> None:
    """Tell the user, once a process."""
    logging.getLogger("orchestra").warning(said)


def figures(event: Event) -> str:
    return f"{usd(event['cost_usd'])}, {seconds(event)}"


def usd(amount: float | None) -> str:
    return "USD unknown" if amount is None else f"USD {amount:.4f}"


def seconds(event: Event) -> str:
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
        line = scrub(printable(describe(event)))
        self._queue.put(logging.LogRecord("orchestra", logging.INFO, "", 0, line, None, None))

    def close(self) -> None:
        self._writer.stop()
        self._file.close()
