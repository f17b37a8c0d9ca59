"""The sound of a file as 16 kHz mono, a part at a time: a long file is never in memory at once."""

from __future__ import annotations

import io
import wave
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from orchestra.media import opened, stream_of
from orchestra.prompts import say
from tools import ToolError

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

    Samples = NDArray[numpy.int16]

RATE = 16_000  # samples a second
QUIET_S = 0.2  # a part ends in the middle of the quietest moment this long
SEARCH = 0.3  # looked for in this last share of a part
LOWEST_RATE = 1000  # samples a second, of a file
MOST_MIXED = 8  # channels; FFmpeg mixes only those of more whose places it knows
MOST_BAD = 20  # packets one after another
SHORTEST_S = 0.1  # endpoints refuse less
SILENCE = 60  # a part whose samples all stay below it (of 32768) holds nothing to hear


class Part(NamedTuple):
    """`samples` from `start_s` of the file on. `broken`: the file can not be read any further."""

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
    blocks = _blocks(path, start_s, end_s)
    while True:
        try:
            block = next(blocks, None)
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


def read_errors() -> tuple[type[Exception], ...]:
    """What reading a damaged file raises."""
    import av

    return av.FFmpegError, OSError, ValueError


def _blocks(path: Path, start_s: float, end_s: float | None) -> Iterator[Samples]:
    """The samples as they are decoded, about a second at a time; of a damaged file all that came
    before the error.
    """
    import numpy

    with opened(path) as source:
        stream = stream_of(source, "audio")
        if stream is None:
            raise ToolError(say("tools/notes", "no_sound", name=path.name))
        pending: list[Samples] = []
        failure: Exception | None = None
        try:
            for samples in _resampled(_frames(source, stream, start_s, end_s)):
                pending.append(samples)
                if sum(map(len, pending)) >= RATE:
                    yield numpy.concatenate(pending)
                    pending = []
        except read_errors() as error:
            failure = error
        if pending:
            yield numpy.concatenate(pending)
        if failure:
            raise failure


def _resampled(frames: Iterator[Any]) -> Iterator[Samples]:
    """16 kHz mono. A resampler takes one form of sound only: where that changes, as in files that
    were joined, another goes on.
    """
    import av

    resampler, form = av.AudioResampler("s16", "mono", RATE), None
    for frame in frames:
        if frame.sample_rate < LOWEST_RATE:  # a small file would become a very long sound
            raise ValueError(f"{frame.sample_rate} samples a second")
        if frame.layout.nb_channels > MOST_MIXED:
            frame = _averaged(frame)
        now = frame.format.name, frame.layout.name, frame.sample_rate
        if now != form:
            yield from _samples(resampler.resample(None))
            resampler, form = av.AudioResampler("s16", "mono", RATE), now
        yield from _samples(resampler.resample(frame))
    yield from _samples(resampler.resample(None))


def _averaged(frame: Any) -> Any:
    """The mean of all channels, as one of floating numbers from -1 to 1."""
    import av
    import numpy

    data = frame.to_ndarray()
    if not frame.format.is_planar:  # (1, n * channels)
        data = data.reshape(-1, frame.layout.nb_channels).T
    mean = data.mean(axis=0, dtype=numpy.float32)  # (channels, n) -> (n,)
    if data.dtype.kind in "iu":
        half = 2.0 ** (8 * data.dtype.itemsize - 1)
        mean = (mean - half if data.dtype.kind == "u" else mean) / half
    mono = av.AudioFrame.from_ndarray(mean[None].astype(numpy.float32), "flt", "mono")
    mono.sample_rate, mono.pts, mono.time_base = frame.sample_rate, frame.pts, frame.time_base
    return mono


def _frames(source: Any, stream: Any, start_s: float, end_s: float | None) -> Iterator[Any]:
    """What is decoded of the window; its times count from the start of the file, as shown."""
    import av

    origin_s = (source.start_time or 0) / av.time_base
    if start_s > 0:
        source.seek(int((start_s + origin_s) * av.time_base))
    for frame in _decoded(source, stream):
        at = None if frame.time is None else frame.time - origin_s
        if end_s is not None and at is not None and at >= end_s:
            return
        if at is None or at + frame.samples / frame.sample_rate > start_s:
            yield frame


def _decoded(source: Any, stream: Any) -> Iterator[Any]:
    """The frames of all packets; a few that can not be decoded, as where files were joined, are
    passed over.
    """
    import av

    failures: list[Exception] = []
    for packet in source.demux(stream):
        try:
            decoded = packet.decode()
        except av.InvalidDataError as error:
            failures.append(error)
            if len(failures) > MOST_BAD:
                break
            continue
        failures = [] if decoded else failures
        yield from decoded
    if failures:
        raise failures[-1]


def _samples(frames: list[Any]) -> list[Samples]:
    return [frame.to_ndarray().reshape(-1) for frame in frames]


def unreadable(path: Path, error: Exception) -> ToolError:
    reason = getattr(error, "strerror", None) or str(error)
    return ToolError(say("notes", "unreadable", name=path.name, reason=reason))
