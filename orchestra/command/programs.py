"""What every program of the layers shares: an error is one line, and Ctrl-C has last words."""

from __future__ import annotations

from collections.abc import Callable

from orchestra.command.flags import ENDS, exit_code
from orchestra.command.terminal import interruption, printable, tell
from orchestra.command.way_on import why_of
from orchestra.kernel.tape import Cancelled


def run_program(name: str, work: Callable[[], int | None]) -> int:
    """Run `work` and return its exit code. An error is one line on standard error."""

    def stopped(error: BaseException) -> int:
        kept = (
            "; what is done is kept, and the same command goes on"
            if isinstance(error, Cancelled | MemoryError)
            else ""
        )
        tell(f"{name}: {printable(why_of(error))}{kept}")
        return exit_code(error)

    interruption.last_words = lambda: stopped(Cancelled("interrupted"))
    try:
        return work() or 0
    except ENDS as error:
        is_interrupted = interruption.cancelled.is_set()
        return stopped(Cancelled("interrupted") if is_interrupted else error)
