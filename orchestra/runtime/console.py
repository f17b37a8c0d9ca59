"""What the command line prints: the answer or a table to standard output, all else to standard
error.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TextIO

from orchestra.runtime import tape, trajectory
from orchestra.runtime.run_folder import holds_paid, read_manifest
from orchestra.runtime.trajectory import (
    Event,
    Listener,
    Trajectory,
    describe,
    printable,
    usd,
)
from orchestra.vocabulary import ConfigError, EndpointError

PROGRAM = (
    "orchestra-min" if Path(sys.argv[0]).name == "orchestra-min" else "orchestra_min.py"
)
KEYS = "answer fallback why cost_usd paid_usd calls tokens rounds failed_subtasks latency_s run"
Outcome = Trajectory | EndpointError
DAMAGED = (
    LookupError,
    TypeError,
    ValueError,
    AttributeError,
    OverflowError,
)  # of a damaged run


@contextlib.contextmanager
def listeners(a: argparse.Namespace) -> Iterator[tuple[Listener, ...]]:
    """The progress of a run on standard error: a line for each decision and result; in a terminal,
    a spinner with the newest event below them.
    """
    kinds = {"decision", "result", "notice"} | ({"run"} if a.compare else set())

    def tell_progress(event: Event) -> None:
        if event["event"] in kinds:
            tell(describe(event)[:200])

    if a.quiet or not sys.stderr.isatty():
        yield () if a.quiet else (tell_progress,)
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (
        SpinnerColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}", markup=False),
    )
    console = Console(stderr=True, markup=False, emoji=False, highlight=False)
    with Progress(*columns, console=console, transient=True) as progress:
        newest = progress.add_task("deciding", total=None)

        def show(event: Event) -> None:
            tell_progress(event)
            progress.update(
                newest, description=describe(event)[: max(console.width - 12, 20)]
            )

        yield (show,)


# ---- the outcome ---------------------------------------------------------------------------------


def row(outcome: Outcome) -> dict[str, Any]:
    """An outcome as the JSON object of --json."""
    if isinstance(outcome, EndpointError):
        return {"error": str(outcome)}
    return {k: getattr(outcome, k) for k in KEYS.split()} | {
        "answer": outcome.answer or None
    }


def report(outcomes: Mapping[str, Outcome], a: argparse.Namespace) -> int:
    """Print the answer, or with --compare one row per method; what it cost goes to standard error.
    Returns the exit code, the worst of the methods'.
    """
    rows = [{"method": method, **row(outcome)} for method, outcome in outcomes.items()]
    if a.json:
        one = {k: v for k, v in rows[0].items() if k != "method"}
        text = json.dumps(rows if a.compare else one)
    elif a.compare:
        text = table(
            "method answer fallback rounds calls tokens cost_usd latency_s", rows
        )
    else:
        text = str(rows[0].get("answer") or "")
    if text:
        put(text)
    for r in rows:
        for note in [r["error"]] if "error" in r else _notes(r, a.quiet):
            tell(f"{r['method']}: {note}" if a.compare else note)
    return max(4 if "error" in r else int(r["fallback"]) for r in rows)


def _notes(r: Mapping[str, Any], quiet: bool) -> Iterator[str]:
    if r["fallback"]:
        kind = "a fallback answer" if r["answer"] else "no answer found"
        yield f"{kind}{f' ({why})' if (why := r['why']) else ''}; see {r['run']}"
    if r["failed_subtasks"]:
        yield f"failed sub-tasks: {r['failed_subtasks']}; see {r['run']}/log.txt"
    if not quiet:
        diff = Path(r["run"], "changes.diff")
        changes = f", {diff}" if diff.exists() else ""
        calls = "1 call" if r["calls"] == 1 else f"{r['calls']} calls"
        yield f"{calls}, {r['tokens']} tokens, {usd(r['cost_usd'])}, {r['run']}{changes}"
        yield f"to look at it: {invocation('report', absolute(r['run']))}"


def table(columns: str, rows: Iterable[Mapping[str, Any]], width: int = 40) -> str:
    """Rows below a header, as plain text. `width`: the most characters of a cell."""
    lines = [columns.split()]
    for r in rows:
        cells = [{"answer": r.get("error"), **r}.get(name) for name in columns.split()]
        texts = [
            f"{c:.4g}" if isinstance(c, float) else "-" if c is None else str(c)
            for c in cells
        ]
        lines.append([printable(" ".join(text.split()))[:width] for text in texts])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    padded = [[c.ljust(w) for c, w in zip(line, widths, strict=True)] for line in lines]
    return "\n".join("  ".join(line).rstrip() for line in padded)


def list_runs(folder: Path, as_json: bool) -> int:
    """--runs: question, answer, cost and date (of the newest call) of each run folder. Returns the
    exit code.
    """
    rows, columns = [], "run question answer cost_usd date"
    if not folder.is_dir():
        raise ConfigError(
            f"--runs {folder}: there is no such folder; name one that has runs"
        )
    for run in (
        [folder] if (folder / "run.json").is_file() else sorted(folder.iterdir())
    ):
        with contextlib.suppress(ConfigError, OSError, *DAMAGED):
            about = {"run": run.name, "question": read_manifest(run).question}
            end = trajectory.ended(trajectory.read(run / "trajectory.jsonl")) or {}
            timings = [
                row["timing"]
                for row in tape.read(run / "tape.jsonl")
                if "timing" in row
            ]
            oldest = (run / "run.json").stat().st_mtime
            newest = time.localtime(
                max((t["began_s"] for t in timings), default=oldest)
            )
            rows.append(
                {**end, **about, "date": time.strftime("%Y-%m-%d %H:%M", newest)}
            )
    listed = [{k: row.get(k) for k in columns.split()} for row in rows]
    put(json.dumps(listed) if as_json else table(columns, listed))
    return 0


def failure(
    error: BaseException, run: str, folder: Path, a: argparse.Namespace | None
) -> str:
    """What ended the command, and the command that continues the run in `folder`."""
    text = str(error) or "interrupted"
    if a is None or a.replay or a.runs or isinstance(error, ConfigError):
        return text
    if not holds_paid(folder / "tape.jsonl"):
        return f"{text}; nothing was answered, so nothing is kept"
    o, method = a.options, run if a.compare else a.options.method
    flags = {
        "--resume": [absolute(folder)], "--backends": [a.backends], "--workdir": [a.workdir],
        "--method": [method] if ".py:" in method else [], "--tools": o.tools, "--mcp": o.mcp,
        "--allow-host": o.allow_hosts,
    }  # fmt: skip
    words = [
        word
        for flag, values in flags.items()
        for v in values
        if v
        for word in (flag, str(v))
    ]
    words += ["--unsafe-code"] * o.unsafe_code
    return f"{text}; continue with: {invocation(*words)}"


def invocation(*words: str) -> str:
    """A command for this program that can be pasted into a shell in any folder."""
    program = [absolute(sys.argv[0])]
    if PROGRAM != "orchestra-min":
        program = [sys.executable, getattr(find_spec("orchestra_min"), "origin", "")]
    elif shutil.which(PROGRAM) == program[0]:
        program = [PROGRAM]
    return shlex.join([*program, *words])


def absolute(path: object) -> str:
    return os.path.abspath(str(path))  # noqa: PTH100  it keeps links


def tell_error(line: str, argv: Sequence[str]) -> None:
    """The one line of an error; with --json, an object on standard output too."""
    if "--json" in argv:
        row = dict.fromkeys(KEYS.split()) | {"why": line, "failed_subtasks": 0}
        with contextlib.suppress(OSError):  # it may be the error
            put(json.dumps(row))
    tell(f"{PROGRAM}: {line}")


def tell(line: str) -> None:
    """Print a line to standard error; a closed one is not an error."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        print(
            f"{_escaped(line, sys.stderr)}\n", end="", file=sys.stderr, flush=True
        )  # in one write


def _escaped(text: str, stream: TextIO) -> str:
    return printable(text, kept="\n\t") if stream.isatty() else text


def put(text: str) -> None:
    """Print to standard output; a closed pipe is not an error."""
    encoding = sys.stdout.encoding or "utf-8"
    with contextlib.suppress(BrokenPipeError):
        shown = (
            _escaped(text, sys.stdout)
            .encode(encoding, "backslashreplace")
            .decode(encoding)
        )
        print(shown, flush=True)
