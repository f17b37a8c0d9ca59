"""The command as a process. From here on, signals are noted; everything else is imported later.

The command works in a thread, and the main thread waits for it and for signals. Python raises
KeyboardInterrupt between any two steps of the main thread, also where a lock was just taken, which
then stays locked for good. So the main thread runs nothing of the program: it sees the signals, and
asks the program to end.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

POLL_S = 0.1
GRACE_S = (
    3.0  # after a signal, for calls in flight, which have 2 s, and for the end row
)
LAST_WORDS_S = 0.8  # nobody may be reading standard error
INTERRUPTED = 130  # the exit code of `main`


def start() -> None:
    """Does not return."""
    signals: list[int] = []
    process = os.getpid()

    def note(number: int, frame: object) -> None:
        if os.getpid() == process:
            signals.append(number)
        else:  # in a child that was forked, as by multiprocessing
            is_int = number == signal.SIGINT
            usual = signal.default_int_handler if is_int else signal.SIG_DFL
            signal.signal(number, usual)
            os.kill(os.getpid(), number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # as it is under nohup
            signal.signal(number, note)
    os._exit(_run(signals))


def _run(signals: list[int]) -> int:
    """Run the command until it ends or a signal is noted. Returns the exit code; threads that wait
    for an endpoint may be left.
    """
    for stream in (
        "stdin",
        "stdout",
        "stderr",
    ):  # no file may get the number of a closed one
        if getattr(sys, stream) is None:
            setattr(sys, stream, Path(os.devnull).open("r+"))  # noqa: SIM115
    codes: list[int] = []
    work = _in_thread(lambda: codes.append(_exit_code(signals)))
    while work.is_alive() and not signals:
        work.join(POLL_S)
    if work.is_alive():
        _interrupt(work, signals)
    if signals and codes in ([], [INTERRUPTED]):
        return 128 + signals[0]  # as shells report it: 130, 143 or 129
    return codes[0]


def _in_thread(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def _exit_code(signals: list[int]) -> int:
    """That of `main`, which is imported here because a signal may come meanwhile."""
    try:
        main = _main()
        code = main(sys.argv[1:]) if main else 2
    except SystemExit as stop:  # of argparse: --help, --version
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:  # a bug, here or in the user's Python
        if not signals:
            traceback.print_exc()
        code = INTERRUPTED if signals else 1
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    return code


def _main() -> Any:
    """The command; None where a package that it needs is not installed."""
    try:
        from orchestra.command import main
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("orchestra"):
            raise
        advice = f"{sys.executable} -m pip install -r requirements.txt"
        sys.stderr.write(f"orchestra-min needs the package {error.name}: {advice}\n")
        return None
    return main


def _interrupt(work: threading.Thread, signals: list[int]) -> None:
    """Ask the work to end and wait for it. If it takes too long, or at a second signal, say what
    was interrupted in its place.
    """
    terminal: Any = sys.modules.get("orchestra.command.terminal")
    interruption = getattr(terminal, "interruption", None)
    if interruption:
        interruption.cancelled.set()
    if interruption and interruption.running:
        told = "stopping: calls in flight have 2 s to finish; Ctrl-C again ends at once"
        _in_thread(lambda: terminal.tell(told)).join(LAST_WORDS_S)
    began_s = time.monotonic()
    while interruption and work.is_alive() and len(signals) == 1:
        work.join(POLL_S)
        if time.monotonic() - began_s > GRACE_S:
            break
    if work.is_alive():
        _in_thread(lambda: _last_words(interruption)).join(LAST_WORDS_S)


def _last_words(interruption: Any) -> None:
    if interruption is None:
        sys.stderr.write("interrupted\n")
        return
    for folder in interruption.running:
        with suppress(Exception):
            _write_end(folder)
    with suppress(OSError, ValueError):
        interruption.hide_display()
        sys.stdout = sys.__stdout__ or sys.stdout  # not those of a display
        sys.stderr = sys.__stderr__ or sys.stderr
        interruption.last_words()


def _write_end(folder: Path) -> None:
    """The end row of a run that waits for an endpoint, so that it cannot write it itself."""
    from orchestra.kernel.folder import EVENT_VERSION, read_events
    from orchestra.report.totals import summary

    seen = summary(folder)
    events = read_events(folder)
    if events[-1]["event"] == "end":
        return
    row = {
        "v": EVENT_VERSION,
        "event": "end",
        "at": [seen.rounds + 2],
        "answer": "",
        "state": "interrupted",
        "cause": "signal",
        "why": "interrupted",
        "rounds": seen.rounds,
        "calls": seen.totals.calls,
        "cost_usd": seen.totals.cost_usd,
        "tokens": seen.totals.tokens,
        "failed_subtasks": seen.failed_subtasks,
        "fallback": False,
        "finished": False,
        "timing": {},
    }
    with (folder / "trajectory.jsonl").open("ab") as file:
        file.write(json.dumps(row).encode() + b"\n")


if __name__ == "__main__":
    start()
