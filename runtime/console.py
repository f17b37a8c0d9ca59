"""What people read: progress and notes on standard error, the answer alone on standard output,
RUN/log.txt, and tables.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from logging.handlers import MemoryHandler
from pathlib import Path
from typing import Any, TextIO

from orchestra.vocabulary import ConfigError, EndpointError
from runtime import tape, trajectory
from runtime.run_folder import read_manifest
from runtime.tape import TapeWriteError
from runtime.trajectory import LAST, Event, Listener, Trajectory

LOG_BYTES, LOG_BATCH = 10 << 20, 100
KEYS = (
    "answer", "fallback", "why", "cost_usd", "paid_usd", "calls", "tokens", "rounds",
    "failed_subtasks", "latency_s", "run",
)  # fmt: skip


def describe(event: Event) -> str:
    """One event as one line."""
    at = () if event["event"] == "end" else event["at"]  # it comes after every round
    parts = zip("rts", at, strict=False)
    place = "/".join(f"{name}{n}" for name, n in parts if n not in (0, LAST))
    match event["event"]:
        case "run":
            text = f"run: {event['question']!r} with {event['options']['method']}"
        case "notice":
            text = event["message"]
        case "decision" if "mistake" in event:
            text = f"mistake: {event['mistake']}"
        case "decision" if event["decision"]["action"] == "complete":
            text = f"complete: {event['decision']['answer']!r}"
        case "decision":
            y = event["decision"]
            text = f"delegate {len(y['subtasks'])}: {y['reasoning'] or y['fallback']}"
        case "subtask":
            u = event["subtask"]
            tools = ", ".join(u["tools"]) or "no tools"
            text = f"{u['id']} to {u['backend']} with {tools}: {u['instruction']}"
        case "step":
            text = f"{event['action']} {event['params']} -> {event['observation'][:300]}"
        case "result":
            text = f"{event['status']}: {event['answer'] or event['error']} ({figures(event)})"
        case _:
            kind = "fallback" if event["fallback"] else "answer"
            text = f"{kind}: {event['answer']!r} ({event['calls']} calls, {figures(event)})"
    return printable(f"{place} {text}".strip())


def printable(text: str) -> str:
    """One line that no terminal obeys: pages and programs are quoted in it."""
    line = " ".join(text.split())
    if line.isprintable():
        return line
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in line)


def figures(event: Event) -> str:
    return f"{usd(event['cost_usd'])}, {event['timing'].get('latency_s', 0.0):.1f} s"


def usd(amount: float | None) -> str:
    return "USD unknown" if amount is None else f"USD {amount:.4f}"


class Log:
    """RUN/log.txt: a line an event, written in batches; concurrent-log-handler rotates it."""

    def __init__(self, path: Path) -> None:
        from concurrent_log_handler import ConcurrentRotatingFileHandler

        self._file = ConcurrentRotatingFileHandler(
            str(path), maxBytes=LOG_BYTES, backupCount=2, encoding="utf-8",
            lock_file_directory=tempfile.gettempdir(),
        )  # fmt: skip
        self._file.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
        self._batch = MemoryHandler(LOG_BATCH, logging.ERROR, self._file)

    def __call__(self, event: Event) -> None:
        line = describe(event)
        self._batch.handle(logging.LogRecord("orchestra", 20, "", 0, line, None, None))

    def close(self) -> None:
        self._batch.close()
        self._file.close()


# ---- progress ------------------------------------------------------------------------------------


class Progress:
    """On a terminal: the rounds, and the sub-tasks of each in parallel."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        self._rows: dict[tuple[int, int], list[str]] = {}
        self._began: dict[tuple[int, int], float] = {}
        self._started, self._headline = time.monotonic(), "deciding"
        console = Console(stderr=True, markup=False, emoji=False)
        self._live = Live(get_renderable=self._table, console=console, refresh_per_second=8)
        self._live.start()

    def __call__(self, event: Event) -> None:
        place = tuple(event["at"][:2])
        match event["event"]:
            case "decision" | "end" | "notice":
                self._headline = describe(event)
            case "subtask":
                u = event["subtask"]
                self._began[place] = time.monotonic()
                self._rows[place] = [u["id"], printable(u["instruction"]), "running", "", ""]
            case "step":
                self._rows[place][2] = f"step {event['at'][2]}: {event['action']}"
            case "result":
                text = printable(f"{event['status']}: {event['answer'] or event['error']}")
                seconds = f"{event['timing']['latency_s']:.1f} s"
                self._rows[place][2:] = [text, seconds, usd(event["cost_usd"])]

    def _table(self) -> Any:
        from rich.console import Group
        from rich.spinner import Spinner
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, header_style="bold")
        for name, width in zip(
            ("round", "task", "what", "status", "time", "cost"), (5, 10, 40, 50, 8, 12), strict=True
        ):
            table.add_column(name, max_width=width, no_wrap=True, overflow="ellipsis")
        for place, row in list(self._rows.items()):
            elapsed = row[3] or f"{time.monotonic() - self._began[place]:.0f} s"
            cells = [str(place[0]), *row[:3], elapsed, row[4]]
            table.add_row(*map(Text, cells))  # a model wrote some: no markup of it is obeyed
        elapsed = f"{time.monotonic() - self._started:.0f} s"
        spinner = Spinner("dots", Text(f"{elapsed}  {self._headline}", no_wrap=True))
        return Group(spinner, table) if self._rows else spinner

    def close(self) -> None:
        self._live.stop()


def plain_progress(event: Event) -> None:
    """Where standard error is not a terminal: a line an event, without the steps."""
    if event["event"] in ("decision", "result", "notice"):
        tell(describe(event)[:200])


@contextlib.contextmanager
def listeners(a: argparse.Namespace) -> Iterator[tuple[Listener, ...]]:
    """The progress of a run, as it suits standard error."""
    if a.quiet:
        yield ()
    elif not sys.stderr.isatty() or a.side_by_side:
        yield (plain_progress,)
    else:
        with contextlib.closing(Progress()) as progress:
            yield (progress,)


# ---- the outcome ---------------------------------------------------------------------------------


def row(result: Trajectory) -> dict[str, Any]:
    """An outcome as the JSON object of --json."""
    return {k: getattr(result, k) for k in KEYS} | {"answer": result.answer or None}


def report(result: Trajectory, a: argparse.Namespace) -> int:
    """Print the answer, and on standard error what it cost. Returns the exit code."""
    text = json.dumps(row(result), ensure_ascii=False) if a.json else result.answer
    printed = _print(text) if text else True
    if not a.quiet and (changes := Path(result.run) / "changes.diff").exists():
        tell(f"changes: {changes}")
    if result.fallback:
        kind = "a fallback answer, from the evidence" if result.answer else "no answer found"
        tell(f"{kind}{f' ({result.why})' if result.why else ''}; see {result.run}")
    if result.failed_subtasks:
        tell(f"{result.failed_subtasks} sub-tasks failed; see {result.run}/log.txt")
    if not a.quiet:
        tell(f"{result.calls} calls, {result.tokens} tokens, {usd(result.cost_usd)}, {result.run}")
    return 1 if result.fallback or not printed else 0


def report_all(results: Mapping[str, Trajectory | EndpointError], a: argparse.Namespace) -> int:
    """One table, or one JSON object a method. The exit code is the worst of the methods'."""
    rows: list[dict[str, Any]] = []
    for method, result in results.items():
        failed = isinstance(result, EndpointError)
        rows.append({"method": method, **({"error": str(result)} if failed else row(result))})  # type: ignore[arg-type]
    if a.json:
        printed = _print(json.dumps(rows, ensure_ascii=False))
    else:
        head = ("method", "answer", "rounds", "calls", "tokens", "cost", "latency")
        printed = _print(table(head, [_cells(r) for r in rows]))
    for r in rows:
        if "error" in r:
            tell(f"{r['method']}: {r['error']}")
    worst = max((4 if "error" in r else int(r["fallback"]) for r in rows), default=0)
    return worst or int(not printed)


def _cells(r: Mapping[str, Any]) -> tuple[str, ...]:
    if "error" in r:
        return (r["method"], r["error"])
    answer = (r["answer"] or "-") + (" (fallback)" if r["fallback"] else "")
    counts = (str(r[k]) for k in ("rounds", "calls", "tokens"))
    return r["method"], answer, *counts, usd(r["cost_usd"]), f"{r['latency_s']:.2f} s"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Rows under a head, as plain text."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=None, pad_edge=False, header_style="")
    for name in head:
        grid.add_column(name, max_width=40, no_wrap=True, overflow="ellipsis")
    for cells in rows:
        grid.add_row(*(Text(printable(cell)) for cell in cells))
    console = Console(width=200, markup=False, emoji=False, color_system=None)
    with console.capture() as text:
        console.print(grid)
    return "\n".join(line.rstrip() for line in text.get().splitlines())


def list_runs(folder: Path) -> int:
    """--runs: question, answer, cost and date of each run folder. Returns the exit code."""
    rows = []
    for run in sorted(folder.iterdir()) if folder.is_dir() else ():
        with contextlib.suppress(ConfigError):
            manifest = read_manifest(run)
            events = trajectory.read(run / "trajectory.jsonl")
            end = events[-1] if events and events[-1]["event"] == "end" else {}
            date = time.strftime(
                "%Y-%m-%d %H:%M", time.localtime((run / "run.json").stat().st_mtime)
            )
            cost = usd(end["cost_usd"]) if end else "-"
            answer = end.get("answer", "(not finished)")
            rows.append((run.name, manifest.question, answer, cost, date))
    _print(table(("run", "question", "answer", "cost", "date"), rows))
    return 0


def failure(
    error: BaseException, folder: Path, a: argparse.Namespace, done: Sequence[str] = ()
) -> str:
    """What ended the command, and the command that continues what it began."""
    text = str(error) or "interrupted"
    if isinstance(error, EndpointError) and a.replay:
        return f"the tape ends in a recorded failure: {text}"
    if a.replay or not isinstance(error, EndpointError | TapeWriteError | KeyboardInterrupt):
        return text
    folders = [folder / m for m in a.methods if m not in done] if a.compare else [folder]
    begun = [path for path in folders if tape.holds_paid(path / "tape.jsonl")]
    if not begun:
        return f"{text}; nothing was answered, so nothing is kept"
    named = [("--backends", a.backends)] if a.backends else []
    named += [("--tools", t) for t in a.options.tools] + [("--mcp", m) for m in a.options.mcp]
    named += [("--allow-host", h) for h in a.options.allow_hosts]
    flags = "".join(f" {flag} {shlex.quote(str(value))}" for flag, value in named)
    runs = " or ".join(shlex.quote(str(path)) for path in begun)
    program = f"{shlex.quote(sys.executable)} {shlex.quote(sys.argv[0])}"
    return f"{text}; continue with: {program} --resume {runs}{flags}"


def tell_error(line: str, argv: Sequence[str] | None, printed: object) -> None:
    """The one line of an error; with --json, an object on standard output too."""
    if "--json" in (sys.argv[1:] if argv is None else argv) and not printed:
        _print(json.dumps(dict.fromkeys(KEYS) | {"why": line}, ensure_ascii=False))
    tell(f"orchestra_min.py: {line}")


def tell(line: str) -> None:
    """On standard error, if anybody reads it."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        print(_shown(line, sys.stderr), file=sys.stderr, flush=True)


def _shown(text: str, stream: TextIO) -> str:
    """On a terminal, without control characters: a model wrote some of it."""
    if not stream.isatty():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else f"\\x{ord(c):02x}" for c in text)


def _print(text: str) -> bool:
    """On standard output, in characters that it has. False if it could not be written."""
    if sys.stdout is None:  # the shell closed it
        return True
    try:
        shown = _shown(text, sys.stdout)
        encoding = sys.stdout.encoding or "utf-8"
        print(shown.encode(encoding, "backslashreplace").decode(encoding), flush=True)
    except BrokenPipeError:  # the reader has read enough
        return True
    except OSError as error:
        tell(f"orchestra_min.py: stdout: {error.strerror}; the answer is in the run folder")
        return False
    return True
