"""The samples of a sound file, or of the sound of a video, as they are decoded: 16 kHz mono."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runtime.prompts import say
from tools import ToolError
from tools.media import opened, read_errors, stream_of

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

    Samples = NDArray[numpy.int16]

RATE = 16_000  # samples a second
LOWEST_RATE = 1000  # samples a second, of a file
MOST_MIXED = 8  # channels; FFmpeg mixes only those of more whose places it knows
MOST_BAD = 20  # packets one after another


def blocks(path: Path, start_s: float, end_s: float | None) -> Iterator[Samples]:
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
    """The frames of all packets; a few that cannot be decoded, as where files were joined, are
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
