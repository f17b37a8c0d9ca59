"""How a run ends. Every run has one end row, and every view of a run reads it.

    answered      the main agent completed, or a sub-task answered for it
    fallback      the run ended early; its answer is the best that the evidence supports
    stopped       the run ended without an answer
    interrupted   the user, the host program or the machine ended the run

`cause` says what ended it early, and `why` tells a person. A program reads `cause`, never `why`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from orchestra.vocabulary import Cause

EndState = Literal["answered", "fallback", "stopped", "interrupted"]


@dataclass(frozen=True)
class Ending:
    """How a run ended, and why. `finished`: the method came to its end; if not, a resume goes on
    where the run stopped.
    """

    state: EndState
    cause: Cause = ""
    why: str = ""
    finished: bool = True


def ending_of(error: BaseException) -> Ending:
    """How a run ended that an error has stopped."""
    cause: Cause = getattr(error, "cause", "bug")
    if cause == "signal" or isinstance(error, KeyboardInterrupt):
        return Ending("interrupted", "signal", "interrupted", finished=False)
    if exhausted(error):
        return Ending("stopped", "machine", exhausted(error), finished=False)
    if isinstance(error, OSError):
        cause = "disk"
    why = str(error) if cause != "bug" else f"{type(error).__name__}: {error}"
    return Ending("stopped", cause, why, finished=False)


def exhausted(error: BaseException) -> str:
    """What the machine has no more of, if that is the error, else ""."""
    if isinstance(error, MemoryError):
        return "this machine has no memory left"
    if isinstance(error, RuntimeError) and "start new thread" in str(error):
        return "this machine starts no more threads: use a smaller --parallel"
    return ""
