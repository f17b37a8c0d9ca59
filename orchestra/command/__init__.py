"""The command: `main(words)` is a run, a replay, a resume, or a program of another layer.

flags.py      the flags of a run, and errors   recording.py  a run that is paid for
terminal.py   what is printed                  pool_file.py  the models
outside.py    checks of a folder from others   names.py      FILE.py:NAME becomes an object
redact.py     keys in texts                    trust.py      what must be allowed again
words.py      the words of a new run           way_on.py     how to go on with a run
runs.py       the list of runs                 log.py        RUN/log.txt
status.py     who is at work
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orchestra_min
from orchestra.command import flags, outside, terminal
from orchestra.command.flags import TO_A_REPLAY
from orchestra.command.terminal import PROGRAM, interruption, put, tell
from orchestra.kernel.folder import Ending, Manifest, read_events, read_manifest
from orchestra.kernel.tape import Cancelled, Failure, TapeMiss, exchanges
from orchestra.kernel.vocabulary import ConfigError, EndpointError
from orchestra_min import Outcome, ending_of

if TYPE_CHECKING:
    from orchestra.command.redact import Redact

PROGRAMS = {  # of other layers, and the function that runs them
    "report": "orchestra.report.command:main",
    "explain": "orchestra.report.explain:main",
    "diff": "orchestra.variation.diff:main",
    "evaluate": "orchestra.evaluation.command:main",
    "curate": "orchestra.curation.curate:main",
    "optimize-prompt": "orchestra.curation.optimize_prompt:main",
}
VERBS = ("replay", "resume", "runs", "help", "version")


def main(words: Sequence[str]) -> int:
    """Run one command. Returns the exit code; see --help."""
    verb, *rest = words or [""]
    if verb in PROGRAMS:
        return _start_program(verb, rest)
    if verb in ("help", "version"):
        words = [f"--{verb}"]
    command = Command(words)
    interruption.last_words = lambda: command.stopped(Cancelled("interrupted"))
    try:
        return command.run()
    except flags.ENDS as error:
        is_interrupted = interruption.cancelled.is_set()
        return command.stopped(Cancelled("interrupted") if is_interrupted else error)
    except Exception as error:  # a bug, here or in the user's Python
        if isinstance(error, RuntimeError) and "start new thread" in str(error):
            return command.stopped(error)
        row = command.put_row(error)
        lines = command.next_steps(command.folder, ending_of(error), row["rounds"])
        error.add_note("\n".join(lines))
        raise


def _start_program(verb: str, rest: Sequence[str]) -> int:
    module, _, function = PROGRAMS[verb].partition(":")
    try:
        program: Callable[[Sequence[str]], int] = getattr(
            import_module(module), function
        )
    except ModuleNotFoundError as error:
        if not module.startswith(error.name or "?"):
            raise
        tell(f"{PROGRAM}: {verb} is not installed here ({module} is missing)")
        return 2
    return program(list(rest))


class Command:
    """The words of a command line, and the run that they start."""

    def __init__(self, words: Sequence[str]) -> None:
        self.words = words
        self.args: argparse.Namespace | None = None
        self.folder: Path | None = None  # of the run, once it may begin
        self.redact: terminal.Text = str
        self.served: list[str] = []  # by the endpoint, if it refused a model

    def run(self) -> int:
        """Returns the exit code."""
        began_s = time.time()
        verb, *rest = self.words or [""]
        if verb == "runs":
            return _list_runs(rest)
        if verb not in VERBS and verb[:1] != "-":
            from orchestra.command.words import check_verb

            check_verb(verb, [*PROGRAMS, *VERBS])
        kind = verb if verb in ("replay", "resume") else ""
        self.args = a = flags.read(rest if kind else self.words, PROGRAM, kind)
        is_over = a.resume is not None and _is_over(a)
        if a.replay or is_over:
            outcome = _replay(a)
        else:
            from orchestra.command.recording import record

            if not a.resume:
                from orchestra.command.words import complete, read_question

                complete(a)
                read_question(a)
            with _damage_is_one_line(a):
                outcome = record(a, self.began)
        terminal.report(outcome, a, self.redact)
        if not a.quiet:
            for line in self.next_steps(outcome.run, outcome.ending, outcome.rounds):
                tell(line)
        if a.replay and not a.quiet:
            tell("replayed: every call is as recorded")
        if is_over and not a.quiet:
            tell("nothing was missing: the run had ended")
        if not (a.quiet or a.replay or is_over):
            _tell_what_changed(a, outcome.run, began_s)
        return int(outcome.state != "answered")

    def began(self, folder: Path, redact: Redact) -> None:
        self.folder = folder
        self.redact = redact.text

    def stopped(self, error: BaseException) -> int:
        """Print what ended the command, and how to go on. Returns the exit code."""
        from orchestra.command.way_on import advice_now, again_after_replay

        interruption.is_told = isinstance(error, Cancelled)
        row = self.put_row(error)
        is_quiet = "--quiet" in self.words
        is_final = isinstance(error, ConfigError | TapeMiss)  # another try ends alike
        if row["calls"] and not (is_quiet or is_final):
            tell(f"{terminal.figures(row)}, {self.folder}")
        if isinstance(error, EndpointError) and not (self.args and self.args.replay):
            advice, self.served = advice_now(error, self.folder)
            row["why"] = f"{row['why'].rstrip('.')}; {advice}"
        kept = "\n" if isinstance(error, TapeMiss) else ""  # the lines that differ
        line = terminal.printable(self.redact(row["why"]), kept)
        tell(f"{PROGRAM}: {line}")
        if not (is_quiet or is_final):
            for line in self.next_steps(self.folder, ending_of(error), row["rounds"]):
                tell(line)
        if isinstance(error, TapeMiss) and error.differs and self.args and not is_quiet:
            run = self.args.replay or self.args.resume
            how = again_after_replay(run, self.args, read_manifest(run))
            purpose = "to see what the change leads to, paying only for that"
            step = how.step(purpose, how.command("--from-round", 1, "--reuse", run))
            tell(terminal.printable(f"  {': '.join(step)}"))
        return flags.exit_code(error)

    def put_row(self, error: BaseException) -> dict[str, Any]:
        """The row of a run that an error ended, which --json prints."""
        from orchestra.command.way_on import row_of_error

        row = row_of_error(error, self.folder)
        if "--json" in self.words:
            with suppress(OSError):  # it may be the error
                put(self.redact(json.dumps(row)))
        return row

    def next_steps(
        self, run: Path | None, ending: Ending, rounds: int | None
    ) -> list[str]:
        """What to do after a run, indented. A replay that answers needs nothing."""
        if self.args is None or run is None:
            return []
        if self.args.replay and ending.state == "answered" and not ending.why:
            return []
        if not os.path.lexists(run / "run.json"):
            return []
        from orchestra.command.way_on import again, again_after_replay, next_steps

        stored, a = read_manifest(run), self.args
        how = again_after_replay(run, a, stored) if a.replay else again(run, a)
        model = [] if a.backends else self.served[:1]
        steps = next_steps(how, stored, ending, rounds or 0, *model)
        return [terminal.printable(f"  {': '.join(step)}") for step in steps]


# ---- the words -----------------------------------------------------------------------------------


def _list_runs(words: Sequence[str]) -> int:
    from orchestra.command.runs import list_runs

    p = flags.OneLineParser(
        prog=f"{PROGRAM} runs", description="List the runs in a folder."
    )
    default: Any = {"nargs": "?", "default": Path("runs"), "help": "(default: runs)"}
    p.add_argument("folder", metavar="DIR", type=Path, **default)
    p.add_argument("--json", action="store_true", help="as a JSON list")
    a = p.parse_args(list(words))
    return list_runs(a.folder, a.json)


# ---- a replay ------------------------------------------------------------------------------------


def _replay(a: argparse.Namespace) -> Outcome:
    """Raises ConfigError, TapeMiss."""
    folder = a.replay or a.resume
    outside.check_run(folder)
    stored = read_manifest(folder)
    given: dict[str, Any] = {}
    with (
        ExitStack() as stack,
        terminal.progress(a, str) as listeners,
        _damage_is_one_line(a),
    ):
        if a.set.keys() - {"parallel"} or _needs_more(stored):
            from orchestra.command import recording, trust
            from orchestra.command.redact import Redact

            given, resolve = trust.objects_again(a, folder, stored, stack, Redact())
            given |= recording.changes(a, folder, stored, resolve, given)
        return orchestra_min.replay(folder, listeners, a.parallel, **given)


def _is_over(a: argparse.Namespace) -> bool:
    """Whether a resume would find nothing to do. Raises ConfigError."""
    if a.given - {*TO_A_REPLAY, "resume", "backends"}:
        return False
    outside.check_run(a.resume)
    with outside.damage_is_one_line(a.resume):
        end = (read_events(a.resume) or [{}])[-1]
        if end.get("state") == "answered" or not end.get("finished"):
            return end.get("state") == "answered"
        calls = exchanges(a.resume / "tape.jsonl")
        return not any(isinstance(call.outcome, Failure) for call in calls)


def _damage_is_one_line(a: argparse.Namespace) -> AbstractContextManager[None]:
    """For a replay or resume without Python of the user, which may raise anything."""
    folder = a.replay or a.resume
    is_own = ":" in f"{a.method or ''}{a.agent or ''}" or a.tools
    return (
        outside.damage_is_one_line(folder) if folder and not is_own else nullcontext()
    )


def _needs_more(stored: Manifest) -> bool:
    """Whether a replay needs Python of the user, or a layer that changed the run."""
    options = stored.options
    names = ":" in f"{options.method}{options.agent}" or options.agent == "mini-swe"
    own = any(options.more.get(name) for name in ("tools", "mcp"))
    return (
        names
        or own
        or any(stored.more.get(n) for n in ("earlier", "what_if", "parent"))
    )


# ---- afterwards ----------------------------------------------------------------------------------


def _tell_what_changed(a: argparse.Namespace, folder: Path, began_s: float) -> None:
    """After a resume: what was kept. After a fork, or a run that reused another: what was reused
    and paid, and where they part.
    """
    is_fork = a.from_round is not None or a.what_if
    if a.resume and not is_fork:
        calls = exchanges(folder / "tape.jsonl")
        made = sum(call.began_s >= began_s for call in calls)
        tell(f"calls of models and tools: {len(calls) - made} kept, {made} made now")
    for before in ([a.resume] if is_fork else a.reuse)[:1]:
        for line in import_module("orchestra.variation.diff").lines_of(before, folder):
            tell(line)
