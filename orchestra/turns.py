"""How long a thread of a run may hold the interpreter while others wait for it."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator

TURN_S = 0.05
MANY = 64  # threads
_lock = threading.Lock()
_runs = 0
_before_s = 0.0


@contextlib.contextmanager
def long_turns(threads: int) -> Iterator[None]:
    """While a run of MANY threads goes on, turns of TURN_S, which the whole process shares. A call
    takes the interpreter for a millisecond or two; but where a hundred answers come at once, at
    Python's 5 ms threads take turns in the middle of their calls, which costs a third of the time.
    Of few threads none has to wait long, and beside one that computes long turns would cost more.
    """
    if threads < MANY:
        yield
        return
    global _runs, _before_s
    with _lock:
        if not _runs:
            _before_s = sys.getswitchinterval()
            sys.setswitchinterval(max(TURN_S, _before_s))
        _runs += 1
    try:
        yield
    finally:
        with _lock:
            _runs -= 1
            if not _runs:
                sys.setswitchinterval(_before_s)
