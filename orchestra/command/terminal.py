"""What the command prints: the answer to standard output, all else to standard error."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from orchestra.kernel.folder import LAST_STEP, Event, Listener, read_manifest
from orchestra.kernel.prompts import without_marks
from orchestra.kernel.vocabulary import Place
from orchestra_min import Outcome

PROGRAM = "orchestra-min"
KEYS = (
    "answer",
    "state",
    "cause",
    "why",
    "fallback",
    "cost_usd",
    "paid_usd",
    "calls",
    "tokens",
    "reused_calls",
    "saved_usd",
    "rounds",
    "failed_subtasks",
    "latency_s",
    "run",
)
SHOWN = ("decision", "result", "notice")  # the events with a line of their own
LINE_CHARS = 200
TEXT_CHARS = 1000  # of a thought or an observation, with --verbose
OBSERVATION_CHARS = 300
Text = Callable[[str], str]
Status = Callable[[], contextlib.AbstractContextManager[Listener]]


class Interruption:
    """What a signal does to this process: it sets `cancelled`, so that no further call starts, and
    if the command then takes too long, says `last_words` in its place and ends `running`, the
    folders of its runs.
    """

    def __init__(self) -> None:
        self.cancelled = threading.Event()
        self.last_words: Callable[[], object] = lambda: tell("interrupted")
        self.hide_display: Callable[[], object] = lambda: None
        self.running: list[Path] = []
        self.is_told = False  # the last words were said: nothing is printed after them


interruption = Interruption()

# ---- one event as one line -----------------------------------------------------------------------


def describe(event: Event) -> str:
    text = f"{_place_of(event)} {_content_of(event)}{_figures_of(event)}"
    return printable(" ".join(without_marks(text).split()))


def _place_of(event: Event) -> str:
    """The place as it is spelled everywhere, r2/t1/s3; "" for the run as a whole."""
    if event["event"] not in ("decision", "subtask", "step", "result"):
        return ""
    round, subtask, step = event["at"]
    return str(Place(round, subtask, 0 if step == LAST_STEP else step))


def _content_of(event: Event) -> str:
    match event:
        case {"event": "run"}:
            return f"run: {event['question']!r} with {event['options']['method']}"
        case {"event": "notice"}:
            return str(event["message"])
        case {"event": "decision", "mistake": mistake}:
            return f"unusable reply; the main agent is told: {mistake}"
        case {
            "event": "decision",
            "decision": {"action": "complete", "answer": answer},
        }:
            return f"complete: {answer!r}"
        case {"event": "decision", "decision": {"fallback": str(why)}} if why:
            return f"the program goes on by itself: {why}"
        case {"event": "decision", "decision": {"subtasks": [{"agent": "single"}]}}:
            return "one agent answers the whole question"
        case {"event": "decision", "decision": y}:
            return f"delegate {len(y['subtasks'])}: {y['reasoning']}".rstrip(": ")
        case {"event": "subtask", "subtask": u}:
            tools = ", ".join(u["tools"]) or "no tools"
            return f"{u['id']} to {u['backend']} with {tools}: {u['instruction']}"
        case {"event": "step"}:
            done = f"{event['action']} {event['params']}"
            observation = event["observation"][:OBSERVATION_CHARS]
            return f"{done} -> {observation}" if observation else done
        case {"event": "result"}:
            report = event["answer"] or event["error"] or event["summary"]
            name = event.get("subtask", "")  # which the main agent's texts have
            is_in_place = name in ("", f"t{event['at'][1]}")
            return f"{'' if is_in_place else f'({name}) '}{event['status']}: {report}"
    answer = f": {event['answer']!r}" if event["answer"] else ""
    why = f" ({event['why']})" if event["why"] not in ("", event["state"]) else ""
    return f"{event['state']}{answer}{why}"


def _figures_of(event: Event) -> str:
    """Cost and time, where both were measured."""
    latency_s = event.get("timing", {}).get("latency_s")
    if "cost_usd" not in event or latency_s is None:
        return ""
    return f" ({usd(event['cost_usd'])}, {latency_s:.1f} s)"


def usd(amount: float | None) -> str:
    return "USD unknown" if amount is None else f"USD {amount:.4f}"


def printable(text: str, kept: str = "") -> str:
    """Text with its control characters escaped, but for those in `kept`: a model may have written
    it for a terminal.
    """
    if text.isprintable():
        return text
    shown = (c if c.isprintable() or c in kept else f"\\x{ord(c):02x}" for c in text)
    return "".join(shown)


# ---- the two streams -----------------------------------------------------------------------------


def tell(line: str) -> None:
    """Print a line to standard error; a closed one is not an error."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        text = _escaped(line, sys.stderr) + "\n"
        print(text, end="", file=sys.stderr, flush=True)  # in one write


def put(text: str) -> None:
    """Print to standard output; a closed pipe is not an error."""
    encoding = sys.stdout.encoding or "utf-8"
    with contextlib.suppress(BrokenPipeError):
        data = _escaped(text, sys.stdout).encode(encoding, "backslashreplace")
        print(data.decode(encoding), flush=True)


def _escaped(text: str, stream: TextIO) -> str:
    return printable(text, kept="\n\t") if stream.isatty() else text


# ---- while a run works ---------------------------------------------------------------------------


@contextlib.contextmanager
def progress(
    a: argparse.Namespace, redact: Text, status_line: Status | None = None
) -> Iterator[tuple[Listener, ...]]:
    """The listeners of a run. Inside, what others print goes to standard error, too. `status_line`
    shows who is at work, on a terminal.
    """
    show = partial(_tell_event, a.verbose, redact)
    with contextlib.redirect_stdout(sys.stderr):
        if a.quiet:
            yield ()
        elif status_line is not None and sys.stderr.isatty():
            with status_line() as update:
                yield show, update
        else:
            yield (show,)


def _tell_event(is_verbose: bool, redact: Text, event: Event) -> None:
    if interruption.is_told:
        return
    if is_verbose and event["event"] == "step":
        tell(redact("\n".join(step_lines(event))))  # in one piece
    if event["event"] in SHOWN:
        line = redact(describe(event))
        tell(line if len(line) <= LINE_CHARS else f"{line[: LINE_CHARS - 4]} ...")


def step_lines(step: Event) -> Iterator[str]:
    """A step as mini-swe-agent prints it: thought, action, observation and cost."""
    params = ", ".join(f"{key}={value!r}" for key, value in step["params"].items())
    cost = f" ({usd(step['spent_usd'])} so far)" if "spent_usd" in step else ""
    yield f"{Place(*step['at'])} {step['action']}({params[:TEXT_CHARS]}){cost}"
    name = "error" if step["failed"] else "observation"
    for title, text in (("thought", step["memory"]), (name, step["observation"])):
        shown = text[:TEXT_CHARS].strip().replace("\n", "\n    ")
        if shown:
            yield f"    {title}: {shown}"


# ---- how it ended --------------------------------------------------------------------------------


def report(outcome: Outcome, a: argparse.Namespace, redact: Text) -> None:
    """Print the answer, and to standard error what it cost and how to look at it."""
    row = row_of(outcome)
    put(redact(json.dumps(row) if a.json else str(row["answer"] or "")))
    for note in _notes(row, a.quiet):
        tell(redact(note))


def row_of(outcome: Outcome) -> dict[str, Any]:
    """An outcome as the JSON object of --json."""
    row = {key: getattr(outcome, key, None) for key in KEYS}
    row |= {
        "cause": outcome.ending.cause,
        "why": outcome.ending.why,
        "run": str(outcome.run),
    }
    return {**row, "answer": outcome.answer or None, **_reused(outcome.run)}


def _reused(run: Path) -> dict[str, Any]:
    """What a run took from others; most take nothing, which their run.json shows."""
    more = read_manifest(run).more
    if not (more.get("reuse") or more.get("parent")):
        return {"reused_calls": 0, "saved_usd": 0.0}
    from orchestra.report.totals import totals_in

    totals = totals_in(run)
    return {"reused_calls": totals.reused_calls, "saved_usd": totals.saved_usd}


def _notes(row: Mapping[str, Any], is_quiet: bool) -> Iterator[str]:
    """What to know about a run besides its answer."""
    if row["state"] != "answered":
        kind = "fallback answer" if row["answer"] else "no answer"
        yield f"{kind}: {row['why']}"
    elif row["why"]:
        yield row["why"]
    if row["failed_subtasks"]:
        yield f"failed sub-tasks: {row['failed_subtasks']}; see {row['run']}/log.txt"
    diff = Path(row["run"], "changes.diff")
    if diff.with_name("workdir.git").exists() and not diff.exists():
        yield f"no file of --workdir was changed; see {row['run']}/log.txt"
    if not is_quiet:
        changes = f", {diff}" if diff.exists() else ""
        yield f"{figures(row)}, {row['run']}{changes}"


def figures(row: Mapping[str, Any]) -> str:
    """What a run used and cost."""
    calls = "1 call" if row["calls"] == 1 else f"{row['calls']} calls"
    shown = f"{calls}, {row['tokens']} tokens, {usd(row['cost_usd'])}"
    shown += " (no price in a pool file)" * (row["cost_usd"] is None)
    if row["reused_calls"]:
        shown += f", {row['reused_calls']} reused, {usd(row['saved_usd'])} saved"
    return shown
