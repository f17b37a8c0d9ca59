"""Frames of a video, each with its time: at even times, and where the scene changes. They are read
by seeking: memory does not grow with the length of the video.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from orchestra.prompts import say
from tools import ToolError, sound

FRAME_SIDE = 1280  # pixels
THREADS = 2  # each holds decoded frames
PROBES = 4  # key frames that are looked at for each frame that is wanted
PROBE_SIDE = 48  # pixels
NEW_SCENE = 20  # of 255: the mean difference of two small grey pictures

Frame = tuple[float, Any]  # seconds, picture


def frames(path: Path, count: int, start_s: float, end_s: float | None) -> Iterator[Frame]:
    """At most `count` frames of the window, upright and small, in their order. Raises ToolError
    where none can be read.
    """
    shown = False
    try:
        with sound.opened(path) as source:
            stream = sound.stream_of(source, "video")
            if stream is None:
                raise ToolError(say("tools/notes", "no_pictures", name=path.name))
            stream.codec_context.thread_count = THREADS
            length_s = _length_s(source, stream)
            end = min(length_s, end_s) if end_s is not None else length_s
            if start_s >= end:
                length = sound.clock(length_s)
                raise ToolError(say("tools/notes", "after_the_end", name=path.name, length=length))
            last = -1.0
            for wanted in times(source, stream, start_s, end, count):
                t, picture = _frame_at(source, stream, wanted)
                if t > last:
                    yield t, picture
                    last, shown = t, True
    except sound.read_errors() as error:
        if not shown:
            raise sound.unreadable(path, error) from None


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
    with contextlib.suppress(*sound.read_errors()):
        return next(_decoded(source, stream, t), (t, None))
    return t, None


def _frame_at(source: Any, stream: Any, t: float) -> Frame:
    """The frame that is shown at `t`."""
    best = None
    for at, frame in _decoded(source, stream, t):
        if best is not None and at > t:
            break
        best = at, frame
    if best is None:
        raise ValueError("no frame can be decoded")
    picture = best[1].to_image()
    if best[1].rotation:
        picture = picture.rotate(best[1].rotation, expand=True)
    picture.thumbnail((FRAME_SIDE, FRAME_SIDE))
    return best[0], picture


def _decoded(source: Any, stream: Any, t: float) -> Iterator[tuple[float, Any]]:
    """(time, frame) from the last key frame before `t` on."""
    start, whole = stream.start_time or 0, False
    source.seek(int(t / stream.time_base) + start, stream=stream)
    for frame in source.decode(stream):
        whole = whole or frame.key_frame  # some formats seek to where they can not decode yet
        if whole:
            yield max((frame.time or 0.0) - float(start * stream.time_base), 0.0), frame


def _length_s(source: Any, stream: Any) -> float:
    """The length of a video, from its packets where its header does not tell."""
    import av

    if source.duration:
        return float(source.duration / av.time_base)
    if stream.duration:
        return float(stream.duration * stream.time_base)
    ends = (p.pts * p.time_base for p in source.demux(stream) if p.pts is not None)
    return float(max(ends, default=0)) + 0.001
