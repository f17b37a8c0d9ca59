"""Events as lines of text, and RUN/log.txt."""

from __future__ import annotations

import logging
import tempfile
from logging.handlers import MemoryHandler
from pathlib import Path

from runtime.trajectory import LAST, Event

LOG_BYTES, LOG_BATCH = 10 << 20, 100


def describe(event: Event) -> str:
    """One event as one line."""
    at = () if event["event"] == "end" else event["at"]  # it comes after every round
    place = "/".join(f"{k}{n}" for k, n in zip("rts", at, strict=False) if n not in (0, LAST))
    e, figures = event, ""
    if "cost_usd" in e and "latency_s" in e["timing"]:
        figures = f" ({usd(e['cost_usd'])}, {e['timing']['latency_s']:.1f} s)"
    match e["event"]:
        case "run":
            text = f"run: {e['question']!r} with {e['options']['method']}"
        case "notice":
            text = e["message"]
        case "decision" if "mistake" in e:
            text = f"mistake: {e['mistake']}"
        case "decision":
            y = e["decision"]
            delegated = f"delegate {len(y.get('subtasks', ()))}: {y['reasoning']}"
            text = f"complete: {y['answer']!r}" if y["action"] == "complete" else delegated
        case "subtask":
            u = e["subtask"]
            tools = ", ".join(u["tools"]) or "no tools"
            text = f"{u['id']} to {u['backend']} with {tools}: {u['instruction']}"
        case "step":
            text = f"{e['action']} {e['params']} -> {e['observation'][:300]}"
        case "result":
            text = f"{e['status']}: {e['answer'] or e['error'] or e['summary']}{figures}"
        case _:
            text = f"{'fallback' if e['fallback'] else 'answer'}: {e['answer']!r}{figures}"
    return printable(" ".join(f"{place} {text}".split()))


def printable(text: str, kept: str = "") -> str:
    """Without control characters, which a terminal would obey: models wrote some of it."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in kept else f"\\x{ord(c):02x}" for c in text)


def usd(amount: float | None) -> str:
    return "USD unknown" if amount is None else f"USD {amount:.4f}"


class Log:
    """RUN/log.txt: a line an event, written in batches; concurrent-log-handler rotates it."""

    def __init__(self, path: Path) -> None:
        from concurrent_log_handler import ConcurrentRotatingFileHandler

        locks = tempfile.gettempdir()
        self._file = ConcurrentRotatingFileHandler(
            str(path), "a", LOG_BYTES, 2, encoding="utf-8", lock_file_directory=locks
        )
        # A full disk ends the run by its tape.
        self._file.handleError = lambda record: None  # type: ignore[method-assign]
        self._file.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
        self._batch = MemoryHandler(LOG_BATCH, logging.ERROR, self._file)

    def __call__(self, event: Event) -> None:
        line = describe(event)
        self._batch.handle(logging.LogRecord("orchestra", logging.INFO, "", 0, line, None, None))

    def close(self) -> None:
        self._batch.close()
        self._file.close()
