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
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TextIO

from orchestra.ending import ending_of
from orchestra.runtime import outside
from orchestra.runtime.options import SEAMS, flag_of
from orchestra.runtime.run_folder import holds_calls, is_begun, name_of, read_manifest
from orchestra.runtime.summary import summary
from orchestra.runtime.tape import TapeMiss
from orchestra.runtime.trajectory import (
    Trajectory,
    printable,
    usd,
)
from orchestra.runtime.user_code import is_spec, spec_of
from orchestra.vocabulary import ConfigError, EndpointError

INSTALLED = "orchestra-min"
PROGRAM = INSTALLED if Path(sys.argv[0]).name == INSTALLED else "orchestra_min.py"
KEYS = (
    "answer state cause why fallback cost_usd paid_usd calls tokens reused_calls saved_usd "
    "rounds failed_subtasks latency_s run"
)
COMPARED = "method answer state rounds calls tokens cost_usd latency_s"
LISTED = "run method state cost_usd date answer question"
FAILED = 4  # the exit code of an EndpointError


# ---- the outcome ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Failed:
    """A run of a comparison whose endpoint failed."""

    error: EndpointError
    folder: Path


Outcome = Trajectory | Failed  # of one run of a command


def row(outcome: Outcome) -> dict[str, Any]:
    """An outcome as the JSON object of --json."""
    if isinstance(outcome, Failed):
        return row_of_error(outcome.error, outcome.folder)
    fields = {key: getattr(outcome, key) for key in KEYS.split()}
    fields["answer"] = outcome.answer or None
    return fields


def row_of_error(error: BaseException, folder: Path | None) -> dict[str, Any]:
    """The same of a run that an error has ended; `folder` None: there is no run."""
    ending = ending_of(error)
    fields: dict[str, Any] = dict.fromkeys(KEYS.split())
    fields |= {"state": ending.state, "cause": ending.cause, "why": ending.why}
    fields["fallback"] = ending.state == "fallback"
    fields["failed_subtasks"] = 0
    if folder is not None:
        with contextlib.suppress(ConfigError, TapeMiss, OSError, MemoryError):
            fields |= _so_far(folder)
    return fields


def report(outcomes: Mapping[str, Outcome], a: argparse.Namespace) -> int:
    """Print the answer, or with --compare one row per method; what it cost goes to standard error.
    Returns the exit code, the worst of the methods'.
    """
    rows = {method: row(outcome) for method, outcome in outcomes.items()}
    text = _text_of(rows, a)
    if text:
        put(text)
    codes = []
    for method, outcome in outcomes.items():
        for note in _notes(rows[method], a):
            tell(f"{method}: {note}" if a.compare else note)
        if isinstance(outcome, Failed):
            codes.append(FAILED)
            tell(f"{method}: {way_on(method, outcome.folder, a)}")
        else:
            codes.append(int(outcome.state != "answered"))
    return max(codes)


def _text_of(rows: Mapping[str, dict[str, Any]], a: argparse.Namespace) -> str:
    """What a command prints to standard output."""
    if a.compare:
        compared = [{"method": method, **r} for method, r in rows.items()]
        return json.dumps(compared) if a.json else table_with_why(COMPARED, compared)
    [only] = rows.values()
    return json.dumps(only) if a.json else str(only["answer"] or "")


def _notes(r: Mapping[str, Any], a: argparse.Namespace) -> Iterator[str]:
    """What to know about a run besides its answer."""
    if r["state"] != "answered":
        kind = "a fallback answer" if r["answer"] else "no answer found"
        why = f" ({r['why']})" if r["why"] else ""
        yield f"{kind}{why}; see {r['run']}"
    if r["failed_subtasks"]:
        yield f"failed sub-tasks: {r['failed_subtasks']}; see {r['run']}/log.txt"
    if not (a.quiet or a.compare):
        diff = Path(r["run"], "changes.diff")
        changes = f", {diff}" if diff.exists() else ""
        yield f"{_figures(r)}, {r['run']}{changes}"
        yield f"to look at it: {invocation('report', absolute(r['run']))}"


def _figures(r: Mapping[str, Any]) -> str:
    """What a run used and cost."""
    calls = "1 call" if r["calls"] == 1 else f"{r['calls']} calls"
    figures = f"{calls}, {r['tokens']} tokens, {usd(r['cost_usd'])}"
    if r["reused_calls"]:
        figures += f", {r['reused_calls']} reused, {usd(r['saved_usd'])} saved"
    return figures


def table(columns: str, rows: Iterable[Mapping[str, Any]], width: int = 40) -> str:
    """Rows below a header, as plain text. `width`: the most characters of a cell."""
    names = columns.split()
    lines = [names]
    for r in rows:
        texts = [_cell(r.get(name)) for name in names]
        lines.append([printable(" ".join(text.split()))[:width] for text in texts])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(_padded(line, widths) for line in lines)


def table_with_why(columns: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """One line for each run, and below it why it ended early."""
    head, *lines = table(columns, rows).splitlines()
    shown = [head]
    for r, line in zip(rows, lines, strict=True):
        shown.append(line)
        if r["why"]:
            shown.append(f"    why: {printable(' '.join(r['why'].split()))}")
    return "\n".join(shown)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _padded(line: Sequence[str], widths: Sequence[int]) -> str:
    cells = [cell.ljust(width) for cell, width in zip(line, widths, strict=True)]
    return "  ".join(cells).rstrip()


def list_runs(folder: Path, as_json: bool) -> int:
    """--runs: one row for each run in a folder, also for those of its comparisons. Returns the exit
    code.
    """
    if not folder.is_dir():
        problem = "there is no such folder; name one that has runs"
        raise ConfigError(f"--runs {folder}: {problem}")
    runs = [folder] if is_begun(folder) else outside.runs_in(folder, depth=2)
    rows = []
    for run in runs:
        name = run.name if run == folder else run.relative_to(folder).as_posix()
        try:
            rows.append({"run": name, **_row_of(run)})
        except (ConfigError, TapeMiss, OSError) as error:
            rows.append({"run": name, "state": "damaged", "why": str(error)})
    put(json.dumps(rows) if as_json else table_with_why(LISTED, rows))
    return 0


def _row_of(run: Path) -> dict[str, Any]:
    seen = summary(run)
    date = time.strftime("%Y-%m-%d %H:%M", time.localtime(seen.date_s))
    return {
        "method": seen.method,
        "state": seen.ending.state,
        "why": seen.ending.why,
        "answer": seen.answer,
        "cost_usd": seen.totals.cost_usd,
        "date": date,
        "question": seen.question,
    }


# ---- errors, and how to go on --------------------------------------------------------------------


def failure(
    error: BaseException, method: str, folder: Path, a: argparse.Namespace | None
) -> str:
    """What ended the command, and the command that continues the run in `folder`."""
    text = ending_of(error).why
    if isinstance(error, ConfigError):
        text = printable(text)  # it may have names of a folder from someone else
    if a is None or a.replay or a.runs:
        return text
    hint = way_on(method, folder, a)
    if a.resume and isinstance(error, TapeMiss):
        return text  # a resume would end so again
    if isinstance(error, ConfigError) and (a.resume or not hint):
        return text  # of the command line; a new run may end so after paid calls
    return f"{text}; {hint or 'no call was made, so nothing is kept'}"


def way_on(method: str, folder: Path, a: argparse.Namespace | None) -> str:
    """How to continue the run in `folder`; "" if it made no call."""
    if a is None or a.replay or not holds_calls(folder / "tape.jsonl"):
        return ""
    method = method if a.compare else a.options.method
    return f"continue with: {_resume_command(folder, method, a)}"


def _resume_command(folder: Path, method: str, a: argparse.Namespace) -> str:
    """The command with each permission that a resume needs again."""
    words = ["--resume", absolute(folder)]
    if a.backends:
        words += ["--backends", absolute(a.backends)]
    if a.workdir:
        words += ["--workdir", absolute(a.workdir)]
    reuse = [*a.reuse]
    if a.resume and absolute(a.resume) != absolute(folder):  # a fork may reuse its run
        is_reused = name_of(a.resume) in read_manifest(folder).reuse
        reuse = [a.resume, *reuse] if is_reused else reuse
    if reuse:
        words += ["--reuse", ",".join(map(absolute, reuse))]
    options = a.options.with_(method=method)
    for name in SEAMS:
        spec = spec_of(getattr(options, name))
        if is_spec(spec):
            words += [flag_of(name), absolute_spec(spec)]
    for tool in options.tools:
        words += ["--tools", absolute_spec(spec_of(tool))]
    for command in options.mcp:
        words += ["--mcp", command]
    for host in options.allow_hosts:
        words += ["--allow-host", host]
    if options.unsafe_code:
        words.append("--unsafe-code")
    return invocation(*words)


def invocation(*words: str) -> str:
    """A command for this program that can be pasted into a shell in any folder."""
    if PROGRAM != "orchestra-min":
        program = [sys.executable, getattr(find_spec("orchestra_min"), "origin", "")]
    elif shutil.which(PROGRAM) == absolute(sys.argv[0]):
        program = [PROGRAM]
    else:
        program = [absolute(sys.argv[0])]
    return shlex.join([*program, *words])


def absolute(path: object) -> str:
    return os.path.abspath(str(path))  # noqa: PTH100  it keeps links


def absolute_spec(spec: str) -> str:
    """FILE.py:NAME with the whole path; package.module:NAME as it is."""
    where, _, name = spec.rpartition(":")
    return f"{absolute(where)}:{name}" if where.endswith(".py") else spec


def tell_error(
    error: BaseException, line: str, argv: Sequence[str], folder: Path | None
) -> None:
    """What the run in `folder` has cost so far, and the one line of an error; with --json, an
    object on standard output too.
    """
    row = row_of_error(error, folder)
    if "--json" in argv:
        with contextlib.suppress(OSError):  # it may be the error
            put(json.dumps(row))
    if row["calls"] and "--quiet" not in argv:
        tell(f"{_figures(row)}, {folder}")
    tell(f"{PROGRAM}: {line}")


def _so_far(folder: Path) -> dict[str, Any]:
    """What a run has used and cost."""
    seen = summary(folder)
    return {
        **vars(seen.totals),
        "rounds": seen.rounds,
        "failed_subtasks": seen.failed_subtasks,
        "run": str(folder),
    }


def tell(line: str) -> None:
    """Print a line to standard error; a closed one is not an error."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        text = _escaped(line, sys.stderr) + "\n"
        print(text, end="", file=sys.stderr, flush=True)  # in one write


def _escaped(text: str, stream: TextIO) -> str:
    return printable(text, kept="\n\t") if stream.isatty() else text


def put(text: str) -> None:
    """Print to standard output; a closed pipe is not an error."""
    encoding = sys.stdout.encoding or "utf-8"
    with contextlib.suppress(BrokenPipeError):
        data = _escaped(text, sys.stdout).encode(encoding, "backslashreplace")
        print(data.decode(encoding), flush=True)
