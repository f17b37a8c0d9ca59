"""Times in a recording, and the part of it from one time to another."""

from __future__ import annotations

Window = tuple[float, float | None]  # in seconds; None: to the end of the file
WHOLE: Window = (0.0, None)


def clock(seconds: float) -> str:
    """A time in a recording, as a player shows it.

    >>> clock(65.9), clock(3725.4)
    ('1:05', '1:02:05')
    """
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    if hours:
        return f"{hours}:{minute:02}:{second:02}"
    return f"{minute}:{second:02}"
