"""Sound of any file that FFmpeg reads, as samples: 16 kHz, mono, 16 bits.

A long recording comes in parts, cut where it is quiet. Only the current part is in memory.
"""

from __future__ import annotations

import io
import wave
from collections.abc import Iterable, Iterator
from itertools import chain, groupby
from pathlib import Path
from typing import Any

import av
import numpy

from orchestra.kernel.vocabulary import WHOLE, Window
from orchestra.tools.media import opened, origin_s

RATE = 16_000  # samples per second
QUIET_S = 0.2  # a part ends in the middle of the quietest moment of this length
SEARCH = 0.3  # share of a part, at its end, that is searched for it
SHORTEST_S = 0.1  # endpoints refuse less
SILENCE = 60  # of 32768: a part whose samples all stay below it is not sent

Samples = Any  # (n,), int16
Part = tuple[float, Samples]  # start in seconds, sound


def parts(path: Path, part_s: float, window: Window = WHOLE) -> Iterator[Part]:
    """The sound of the window in parts of at most `part_s`, cut where it is quiet. Packets that
    cannot be decoded are skipped. Raises ToolError where the file cannot be read.
    """
    pending = numpy.zeros(0, numpy.int16)
    longest = int(part_s * RATE)
    with opened(path, "audio") as (source, stream):
        frames = _frames(source, stream, window)
        first = next(frames, None)
        if first is None:
            return
        window_start_s, _ = window
        start_s = max(window_start_s, _time_s(first) - origin_s(source))
        for block in _resampled(chain([first], frames)):
            pending = numpy.concatenate([pending, block])
            while len(pending) > part_s * RATE:
                cut = quietest(pending[:longest])
                yield start_s, pending[:cut]
                pending = pending[cut:]
                start_s += cut / RATE
    yield start_s, pending


def _time_s(frame: Any) -> float:
    return 0.0 if frame.time is None else float(frame.time)


def _resampled(frames: Iterable[Any]) -> Iterator[Samples]:
    """16 kHz mono, a second at a time. A resampler takes one sample format, channel layout and
    rate; they change in files that were joined.
    """
    for _, same in groupby(frames, _form):
        resampler: Any = av.AudioResampler("s16", "mono", RATE, frame_size=RATE)
        for frame in chain(same, [None]):  # None: what the resampler still holds
            for piece in resampler.resample(frame):
                yield piece.to_ndarray().reshape(-1)


def _form(frame: Any) -> tuple[str, str, int]:
    return frame.format.name, frame.layout.name, frame.sample_rate


def _frames(source: Any, stream: Any, window: Window) -> Iterator[Any]:
    """The decoded frames of the window, whose times count from `origin_s`."""
    start_s, end_s = window
    origin = origin_s(source)
    if start_s > 0:
        source.seek(int((start_s + origin) * av.time_base))
    for frame in _decoded(source, stream):
        at_s = start_s if frame.time is None else frame.time - origin
        if end_s is not None and at_s >= end_s:
            return
        if at_s + frame.samples / frame.sample_rate > start_s:
            yield frame


def _decoded(source: Any, stream: Any) -> Iterator[Any]:
    """The frames from here to the end of the file, without those that cannot be decoded."""
    packets = source.demux(stream)
    while True:
        try:
            packet = next(packets, None)
            if packet is None:
                return
            frames = packet.decode()
        except av.FFmpegError:
            continue
        yield from frames


def quietest(samples: Samples) -> int:
    """Index of the middle of the quietest moment in the last SEARCH of the samples."""
    moment = int(QUIET_S * RATE)
    first = int(len(samples) * (1 - SEARCH))
    loudness = numpy.abs(samples[first:].astype(numpy.int32))
    until = numpy.concatenate([[0], numpy.cumsum(loudness)])
    of_moments = until[moment:] - until[:-moment]
    return first + int(numpy.argmin(of_moments)) + moment // 2


def is_silent(samples: Samples) -> bool:
    """Too short or too quiet to be sent."""
    if len(samples) < SHORTEST_S * RATE:
        return True
    return bool((numpy.abs(samples.astype(int)) < SILENCE).all())


def as_wav(samples: Samples) -> bytes:
    """A WAV file of the samples."""
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)  # bytes
        file.setframerate(RATE)
        file.writeframes(samples.tobytes())
    return buffer.getvalue()
