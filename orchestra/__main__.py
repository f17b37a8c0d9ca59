"""Where the command begins: from here on, signals are noted. Everything else is imported later."""

from __future__ import annotations

import os
import signal


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
    from orchestra.command.signals import run  # imports take time

    os._exit(run(signals))


if __name__ == "__main__":
    start()
