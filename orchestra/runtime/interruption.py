"""Ctrl-C, SIGTERM and SIGHUP, as the parts of the program see them.

`orchestra/process.py` calls `request` when a signal arrives. Every open tape is then cancelled,
so no further call starts. A host program that calls `orchestrate` or `main` keeps its own signals.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol


class OpenTape(Protocol):
    """What an interruption needs of a Tape. `in_flight`: its calls that are being made now."""

    cancelled: threading.Event
    in_flight: list[str]


def say_interrupted() -> None:
    sys.stderr.write("interrupted\n")


def nothing() -> None:
    """There is no display."""


class Interruption:
    """Whether this process was asked to end, and what must still be done then.

    `last_words` prints what was interrupted and how to continue it; a command sets it.
    `hide_display` removes a spinner, so that it is not drawn over these words.
    """

    def __init__(self) -> None:
        self.requested = False
        self.last_words: Callable[[], object] = say_interrupted
        self.hide_display: Callable[[], object] = nothing
        self._tapes: list[weakref.ref[OpenTape]] = []
        self._ends: list[Callable[[], object]] = []

    def watch(self, tape: OpenTape) -> None:
        self._tapes.append(weakref.ref(tape, self._tapes.remove))
        if self.requested:
            tape.cancelled.set()

    @contextmanager
    def ended_by(self, write_end: Callable[[], object]) -> Iterator[None]:
        """During a run: `write_end` writes its end row if the run's own thread cannot, because it
        waits for an endpoint.
        """
        self._ends.append(write_end)
        try:
            yield
        finally:
            self._ends.remove(write_end)

    def write_ends(self) -> None:
        """Write the end rows of the runs that are not over."""
        for write_end in list(self._ends):
            write_end()

    def request(self) -> None:
        """Start no further call in this process."""
        self.requested = True
        for tape in self._watched():
            tape.cancelled.set()

    @property
    def waits_for_calls(self) -> bool:
        """Whether a call is in flight, which may be paid for."""
        return any(tape.in_flight for tape in self._watched())

    def _watched(self) -> list[OpenTape]:
        tapes = [reference() for reference in list(self._tapes)]
        return [tape for tape in tapes if tape is not None]


of_process = Interruption()
