"""What the command line asks for, and how its answer is said: on stdout the answer alone."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

from orchestra import comparison, pool_file
from orchestra.outcomes import holds_paid
from orchestra.pool import Pool
from orchestra.replay import TapeWriteError
from orchestra.run_folder import Options
from orchestra.trajectory import Listener, Trajectory
from orchestra.trust import Named
from orchestra.vocabulary import EndpointError, Modality

Arguments = argparse.Namespace
Asked = tuple[str, list[tuple[Modality, str | Path]], Pool, Options]


def asked(a: Arguments) -> Asked:
    """The question, its files, the pool and the options. Raises ConfigError for a bad pool."""
    typed = a.question == "-"
    question = sys.stdin.buffer.read().decode("utf-8", "replace") if typed else a.question
    pool = pool_file.choose(a.backends, a.model, a.perception)
    given = {k: v for k in ("context", "sub_agent", "mode", "dom") if (v := getattr(a, k))}
    options = Options(
        **given,
        method=a.method,
        rounds=a.rounds,
        steps=a.steps,
        parallel=a.parallel or Options.parallel,
        budget_usd=a.budget,
        timeout_s=a.timeout or Options.timeout_s,
        stop_threshold=a.stop_threshold,
        allow_hosts=tuple(a.allow_host),
        tools=tuple(a.tools),
        mcp=tuple(a.mcp),
    )
    modalities: tuple[Modality, ...] = ("image", "audio", "video")
    return question, [(m, path) for m in modalities for path in getattr(a, m)], pool, options


@contextlib.contextmanager
def listeners(a: Arguments) -> Iterator[tuple[Listener, ...]]:
    """The live progress where a person watches, else nobody."""
    if not sys.stderr.isatty() or a.quiet:
        yield ()
        return
    from orchestra.progress import Progress  # rich is slow to load

    with contextlib.closing(Progress()) as progress:
        yield (progress,)


def open_streams() -> None:
    """Where the shell closed one, nothing: else the next file that is opened takes its place."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("r+"))  # noqa: SIM115


def named(a: Arguments) -> Named:
    """What the user names beside a run folder. Raises ConfigError for a bad pool file."""
    pool = pool_file.load(a.backends) if a.backends else None
    return Named(tuple(a.tools), tuple(a.mcp), tuple(a.allow_host), pool)


def report(result: Trajectory, a: Arguments) -> int:
    """Say the answer, and on stderr what the user should know of it. Returns the exit code."""
    text = json.dumps(_row(result), ensure_ascii=False) if a.json else result.answer
    came_out = _say(text) if text else True
    if (changes := result.run / "changes.diff").exists() and not a.quiet:
        tell(f"what was changed: {changes}")
    if result.cost_usd is None and not a.quiet:
        tell("cost unknown: a model used has no price, or a call got no answer")
    if result.fallback:
        said = "a fallback answer, from the evidence" if result.answer else "no answer found"
        said += f" ({result.why})" if result.why else ""
        tell(f"{said}; see {result.run}")
    return 1 if result.fallback or not came_out else 0


def report_all(results: Mapping[str, comparison.Outcome], folder: Path, a: Arguments) -> int:
    """One table, or one JSON object a method. The exit code is the worst of the methods'."""
    rows: list[comparison.Row] = []
    for method, result in results.items():
        if isinstance(result, EndpointError):
            rows.append({"method": method, "error": str(result)})
            continue
        row = {"method": method, **_row(result), "tokens": result.tokens}
        rows.append({**row, "critical_path_s": comparison.critical_path_s(result.events)})
    came_out = _say(json.dumps(rows, ensure_ascii=False) if a.json else comparison.table(rows))
    for row in rows:
        if "error" in row:
            tell(f"{row['method']}: {row['error']}")
    if not a.quiet and any("run" in row for row in rows):
        tell(f"a run each in {folder}; --replay plays one again")
    worst = max(4 if "error" in row else int(row["fallback"]) for row in rows)
    return worst or int(not came_out)


def failure(error: BaseException, folder: Path, a: Arguments) -> str:
    """What ended the command, and the command that goes on with what it began."""
    said = str(error) or "interrupted"
    if isinstance(error, EndpointError) and a.replay:
        return f"the tape ends in a failure that was recorded: {said}"
    if a.replay or not isinstance(error, EndpointError | TapeWriteError | KeyboardInterrupt):
        return said
    finished = error.finished if isinstance(error, comparison.Interrupted) else ()
    left = {m: folder / m for m in a.compare or () if m not in finished} or {"": folder}
    begun = {m: path for m, path in left.items() if holds_paid(path / "tape.jsonl")}
    if a.compare and (idle := ", ".join(m for m in left if m not in begun)):
        said += f"; not run: {idle}"
    runs = " or ".join(shlex.quote(str(path)) for path in begun.values())
    program = sys.argv[0] if sys.argv[0].endswith("orchestra_min.py") else "orchestra_min.py"
    again = f"; go on with: python {shlex.quote(program)} --resume {runs}"
    kept = again if runs else "" if finished else "; nothing was answered, so nothing is kept"
    return said + kept


def tell(line: str) -> None:
    """On stderr, if anybody can hear it."""
    with contextlib.suppress(OSError):
        print(_shown(line, sys.stderr), file=sys.stderr, flush=True)


def _shown(text: str, stream: TextIO) -> str:
    """On a terminal, without what it would obey: a model wrote some of it. Elsewhere as it is."""
    if not stream.isatty():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else f"\\x{ord(c):02x}" for c in text)


def _say(text: str) -> bool:
    """On stdout, in characters that it has. Whether it came out: the disk may be full."""
    encoding = sys.stdout.encoding or "utf-8"
    try:
        said = _shown(text, sys.stdout)
        print(said.encode(encoding, "backslashreplace").decode(encoding), flush=True)
    except BrokenPipeError:  # it has read enough
        return True
    except OSError as error:
        tell(f"orchestra_min.py: stdout: {error.strerror}; the answer is in the run folder")
        return False
    return True


def _row(result: Trajectory) -> dict[str, Any]:
    keys = ("answer", "fallback", "cost_usd", "paid_usd", "calls", "rounds", "latency_s", "run")
    row = {k: getattr(result, k) for k in keys}
    return row | {"answer": result.answer or None, "run": str(result.run)}
