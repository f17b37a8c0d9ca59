"""The command as a process: it works in a thread, and the main thread waits for it and for signals.

Python raises KeyboardInterrupt between any two steps of the main thread, also where a lock was just
taken, which then stays locked for good. So the main thread runs nothing of the program: it sees the
signals that `orchestra/command.py` notes, and asks the program to end.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path

from orchestra.runtime.interruption import of_process as interruption

POLL_S = 0.1
GRACE_S = (
    4.0  # after a signal, for calls in flight to reach the tape, and for the end row
)
IDLE_S = 1.0  # after a signal, for a command without calls in flight to end by itself
END_ROWS_S = 0.4  # after that, for the end rows of runs that still wait for an endpoint
LAST_WORDS_S = 0.4  # nobody may be reading standard error
INTERRUPTED = 130  # the exit code of `main`


def run(signals: list[int]) -> int:
    """Run `orchestra_min.main` until it ends or a signal is noted. Returns the exit code; threads
    that wait for an endpoint may be left.
    """
    replace_closed_streams()
    codes: list[int] = []
    work = in_thread(lambda: codes.append(exit_code()))
    while work.is_alive() and not signals:
        work.join(POLL_S)
    if work.is_alive():
        interrupt(work, signals)
    if signals and codes in ([], [INTERRUPTED]):
        return 128 + signals[0]  # as shells report it: 130 or 143
    return codes[0]


def replace_closed_streams() -> None:
    """No file of a run may get the number of a standard stream that the shell closed."""
    for stream in ("stdin", "stdout", "stderr"):
        if getattr(sys, stream) is None:
            setattr(sys, stream, Path(os.devnull).open("r+"))  # noqa: SIM115


def in_thread(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def exit_code() -> int:
    """That of `main`, which is imported here because a signal may come meanwhile."""
    try:
        code: int = import_module("orchestra_min").main()
    except SystemExit as stop:  # of argparse: --help, --version
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:  # a bug, here or in the user's Python
        if not interruption.requested:
            traceback.print_exc()
        code = INTERRUPTED if interruption.requested else 1
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    return code


def interrupt(work: threading.Thread, signals: list[int]) -> None:
    """Ask the work to end and wait for it. If it takes too long, or at a second signal, say what
    was interrupted in its place.
    """
    interruption.request()
    began_s = idle_s = time.monotonic()
    while work.is_alive() and len(signals) == 1:
        work.join(POLL_S)
        now_s = time.monotonic()
        if interruption.waits_for_calls:
            idle_s = now_s
        if now_s - began_s > GRACE_S or now_s - idle_s > IDLE_S:
            break
    if work.is_alive():
        in_thread(interruption.write_ends).join(END_ROWS_S)
        in_thread(last_words).join(LAST_WORDS_S)


def last_words() -> None:
    with suppress(OSError, ValueError):
        interruption.hide_display()
        sys.stdout = sys.__stdout__ or sys.stdout  # not those of a display
        sys.stderr = sys.__stderr__ or sys.stderr
        interruption.last_words()
