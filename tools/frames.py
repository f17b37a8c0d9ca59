"""Frames of a video, each with its time: at even times, and where the scene changes. They are read
by seeking where that is possible: neither memory nor time grow with the length of the video.
"""

from __future__ import annotations

import contextlib
import math
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from runtime.prompts import say
from tools import ToolError, pixels, sound
from tools.media import MAX_DECODED_BYTES, opened, read_errors, stream_of

THREADS = 2  # each holds decoded frames
MOST_SKIPPED = 1000  # frames that are decoded to come to a key frame
PROBES = 4  # key frames that are looked at for each frame that is wanted
PROBE_SIDE = 48  # pixels
EARLY_S = 1.0  # less is what encoders need to begin
NEW_SCENE = 20  # of 255: the mean difference of two small grey pictures

Frame = tuple[float, Any]  # seconds, picture


def frames(path: Path, count: int, start_s: float, end_s: float | None) -> Iterator[Frame]:
    """At most `count` frames of the window, upright and small, in their order. Raises ToolError
    where none can be read.
    """
    last = -1.0
    for seeking in (True, False):
        try:
            for t, frame in _window(path, count, start_s, end_s, seeking):
                if t > last:
                    yield t, pixels.upright(frame)
                    last = t
            return
        except read_errors() as error:
            if last < 0 and not seeking:
                raise _unreadable(path, error) from None
            if last >= 0:  # of a damaged file, what came before the damage
                return


def _window(
    path: Path, count: int, start_s: float, end_s: float | None, seeking: bool
) -> Iterator[tuple[float, Any]]:
    """(time, frame) of the window: by seeking, or where a format has no times to seek to, or no key
    frame is found there, by decoding all.
    """
    with opened(path) as source:
        stream = stream_of(source, "video")
        if stream is None:
            raise ToolError(say("tools/notes", "no_pictures", name=path.name))
        stream.codec_context.thread_count = THREADS
        bare, early = _has_no_times(source), _starts_early(stream)
        length_s = _counted_s(path) if bare or early else _length_s(path, source, stream)
        end = min(length_s, end_s) if end_s is not None else length_s
        if start_s >= end:
            length = sound.clock(length_s)
            raise ToolError(say("tools/notes", "after_the_end", name=path.name, length=length))
        if seeking and not bare and not early:
            for wanted in times(source, stream, start_s, end, count):
                yield _frame_at(source, stream, wanted)
        else:
            yield from _in_one_pass(source, stream, even(start_s, end, count), bare)


def times(source: Any, stream: Any, start_s: float, end_s: float, count: int) -> list[float]:
    """The greatest changes of scene, half of all at most, and even times."""
    changes = _changes(source, stream, even(start_s, end_s, count * PROBES))
    greatest = [t for _, t in sorted(changes, reverse=True)[: count // 2] if start_s <= t < end_s]
    return sorted([*greatest, *even(start_s, end_s, count - len(greatest))])


def even(start_s: float, end_s: float, count: int) -> list[float]:
    """The middle of each share.

    >>> even(10, 14, 2)
    [11.0, 13.0]
    """
    return [start_s + (n + 0.5) * (end_s - start_s) / count for n in range(count)]


def _changes(source: Any, stream: Any, probes: list[float]) -> list[tuple[float, float]]:
    """(how great, when) of each change between the key frames at the probes: encoders set a key
    frame where a scene begins, and one alone is quickly decoded.
    """
    from PIL import ImageChops, ImageStat

    found: list[tuple[float, float]] = []
    before, last = None, -1.0
    for probe in probes:
        t, frame = _key_frame(source, stream, probe)
        if frame is None or t <= last:
            continue
        small = frame.reformat(PROBE_SIDE, PROBE_SIDE, "gray").to_image().convert("L")
        if before is not None:
            (change,) = ImageStat.Stat(ImageChops.difference(before, small)).mean
            found += [(change, t)] if change >= NEW_SCENE else []
        before, last = small, t
    return found


def _key_frame(source: Any, stream: Any, t: float) -> tuple[float, Any]:
    """The key frame before `t` and its time; None where the file is damaged."""
    with contextlib.suppress(*read_errors()):
        return next(_decoded(source, stream, t), (t, None))
    return t, None


def _frame_at(source: Any, stream: Any, t: float) -> tuple[float, Any]:
    """The frame that is shown at `t`."""
    best = None
    for at, frame in _decoded(source, stream, t):
        if best is not None and at > t:
            break
        best = at, frame
    if best is None:
        raise ValueError("no frame can be decoded")
    return best


def _in_one_pass(
    source: Any, stream: Any, wanted: list[float], bare: bool
) -> Iterator[tuple[float, Any]]:
    """The frames that are shown at the times `wanted`; `bare`: by their count."""
    left, best = deque(wanted), None
    for n, frame in enumerate(source.decode(stream)):
        at = n / float(stream.guessed_rate) if bare else _shown_at(stream, frame)
        while left and best is not None and at > left[0]:
            left.popleft()
            yield best
        if not left:
            return
        best = at, frame
    if best is None:
        raise ValueError("no frame can be decoded")
    yield best


def _decoded(source: Any, stream: Any, t: float) -> Iterator[tuple[float, Any]]:
    """(time, frame) from the last key frame before `t` on."""
    whole = False
    source.seek(int(t / stream.time_base) + (stream.start_time or 0), stream=stream)
    for n, frame in enumerate(source.decode(stream)):
        whole = whole or frame.key_frame  # some formats seek to where they cannot decode yet
        if whole:
            yield _shown_at(stream, frame), frame
        elif n >= MOST_SKIPPED:
            return


def _shown_at(stream: Any, frame: Any) -> float:
    start_s = float((stream.start_time or 0) * stream.time_base)
    return max((frame.time or 0.0) - start_s, 0.0)


def _unreadable(path: Path, error: Exception) -> ToolError:
    import av

    why = sound.unreadable(path, error)
    if not isinstance(error, av.ArgumentError):  # what FFmpeg calls a frame over the limit
        return why
    most = MAX_DECODED_BYTES // 4 // 1_000_000
    return ToolError(say("tools/notes", "no_frames", why=why, most=most))


def _has_no_times(source: Any) -> bool:
    """Whether it is the bare stream of a codec, without a container: its duration is a guess."""
    from av.format import Flags

    return bool(source.format.flags & Flags.no_timestamps.value)


def _starts_early(stream: Any) -> bool:
    """Whether its times begin before 0: there FFmpeg does not seek, and a header counts from 0."""
    return float((stream.start_time or 0) * stream.time_base) < -EARLY_S


def _length_s(path: Path, source: Any, stream: Any) -> float:
    """The length of a video, from its packets where its header does not tell."""
    import av

    if source.duration:
        return float(source.duration / av.time_base)
    if stream.duration:
        return float(stream.duration * stream.time_base)
    return _counted_s(path)


def _counted_s(path: Path) -> float:
    """The length by the packets: from the first to the end of the last, or of as many as there
    are.
    """
    first, end, total = math.inf, -math.inf, 0.0
    with opened(path) as source:
        for packet in source.demux(stream_of(source, "video")):
            length = float((packet.duration or 0) * packet.time_base)
            total += length
            if packet.pts is not None:
                at = float(packet.pts * packet.time_base)
                first, end = min(first, at), max(end, at + length)
    return max(end - first, total, 0.001)
