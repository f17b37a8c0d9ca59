"""Where the command begins: from here on, signals are noted. Everything else is imported later."""

from __future__ import annotations

import os
import signal


def command() -> None:
    """Does not return."""
    signals: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) != signal.SIG_IGN:  # as it is under nohup
            signal.signal(number, lambda number, frame: signals.append(number))
    os.register_at_fork(after_in_child=restore_signals)
    from orchestra.process import run  # imports take time

    os._exit(run(signals))


def restore_signals() -> None:
    """In a child that was forked, as by multiprocessing, signals do what they usually do."""
    for number, usual in (
        (signal.SIGINT, signal.default_int_handler),
        (signal.SIGTERM, signal.SIG_DFL),
    ):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, usual)
