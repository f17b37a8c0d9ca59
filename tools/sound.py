"""The sound of a file as 16 kHz mono, a part at a time: a long file is never in memory at once."""

from __future__ import annotations

import io
import wave
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from runtime.prompts import say
from tools import ToolError
from tools.decoding import RATE, blocks
from tools.media import read_errors

if TYPE_CHECKING:
    from tools.decoding import Samples

QUIET_S = 0.2  # a part ends in the middle of the quietest moment this long
SEARCH = 0.3  # looked for in this last share of a part
SHORTEST_S = 0.1  # endpoints refuse less
SILENCE = 60  # a part whose samples all stay below it (of 32768) holds nothing to hear


class Part(NamedTuple):
    """`samples` from `start_s` of the file on. `broken`: the file cannot be read any further."""

    start_s: float
    samples: Samples  # (n,)
    broken: bool = False


def parts(
    path: Path, part_s: float, start_s: float = 0.0, end_s: float | None = None
) -> Iterator[Part]:
    """The sound from `start_s` to `end_s`, cut where it is quiet, in parts of at most `part_s`.

    Raises ToolError: no sound in it, or not readable from its start.
    """
    import numpy

    held, at, read = numpy.zeros(0, numpy.int16), start_s, False
    decoded = blocks(path, start_s, end_s)
    while True:
        try:
            block = next(decoded, None)
        except read_errors() as error:
            if not read:
                raise unreadable(path, error) from None
            yield Part(at, held, broken=True)
            return
        if block is None:
            break
        read, held = True, numpy.concatenate([held, block])
        while len(held) > part_s * RATE:
            cut = quietest(held[: int(part_s * RATE)])
            yield Part(at, held[:cut])
            held, at = held[cut:], at + cut / RATE
    if len(held):
        yield Part(at, held)


def quietest(samples: Samples) -> int:
    """Where to cut: the middle of the quietest moment in the last share of the samples."""
    import numpy

    window = int(QUIET_S * RATE)
    first = int(len(samples) * (1 - SEARCH))
    loudness = numpy.abs(samples[first:].astype(numpy.int32))
    sums = numpy.concatenate([[0], numpy.cumsum(loudness)])
    return first + int(numpy.argmin(sums[window:] - sums[:-window])) + window // 2


def is_silent(samples: Samples) -> bool:
    """Whether there is nothing to hear."""
    if len(samples) < SHORTEST_S * RATE:
        return True
    return max(int(samples.max()), -int(samples.min())) < SILENCE


def as_wav(samples: Samples) -> bytes:
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes(samples.tobytes())
    return buffer.getvalue()


def clock(seconds: float) -> str:
    """
    >>> clock(3725.4)
    '1:02:05'
    """
    hours, rest = divmod(int(seconds), 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}" if hours else f"{rest // 60}:{rest % 60:02}"


def unreadable(path: Path, error: Exception) -> ToolError:
    reason = getattr(error, "strerror", None) or str(error)
    return ToolError(say("notes", "unreadable", name=path.name, reason=reason))
