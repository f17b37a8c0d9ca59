"""Frames of a video, as pictures: at even times and where the scene changes.

They are read by seeking, so neither memory nor time grows with the length of the video.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from itertools import chain, dropwhile, groupby, pairwise
from pathlib import Path
from typing import Any

import av
from PIL import ImageChops, ImageStat

from orchestra.kernel.prompts import named, say
from orchestra.kernel.vocabulary import WHOLE, ToolError, Window
from orchestra.tools.audio import clock
from orchestra.tools.media import MAX_PIXELS, opened, origin_s
from orchestra.tools.pictures import data_url, read_text

FRAME_SIDE = 1280  # pixels
THREADS = 2  # of the decoder; each holds frames
PROBES = 4  # key frames compared per frame taken
PROBE_SIDE = 48  # pixels
NEW_SCENE = 20  # of 255: mean difference of two small grey pictures
SHORTEST_S = 0.001  # a length that is not 0

Shot = tuple[float, Any]  # time in seconds, picture
Frame = tuple[float, Any]  # time in seconds, frame of FFmpeg or None
TimedFrame = tuple[str, str]  # time or times; the text or the data URL of a frame


def data_urls(path: Path, count: int, window: Window) -> list[TimedFrame]:
    """(time, data URL) of the frames."""
    return [
        (clock(time_s), data_url(picture, "JPEG"))
        for time_s, picture in frames(path, count, window)
    ]


def read_frames(path: Path, count: int, window: Window = WHOLE) -> list[TimedFrame]:
    """(times, text) of the text in the frames; frames in a row with the same text are one entry."""
    texts: list[TimedFrame] = []
    for time_s, picture in frames(path, count, window):
        texts.append((clock(time_s), " / ".join(read_text(picture)) or "-"))
    rows: list[TimedFrame] = []
    for text, same in groupby(texts, key=lambda row: row[1]):
        times = list(dict.fromkeys(time for time, _ in same))
        rows.append(("-".join(dict.fromkeys([times[0], times[-1]])), text))
    return rows


def frames(path: Path, count: int, window: Window = WHOLE) -> Iterator[Shot]:
    """(seconds, picture) of at most `count` frames of the window, upright and small, in order.
    Raises ToolError where none can be read.
    """
    with opened(path, "video") as (source, stream):
        stream.codec_context.thread_count = THREADS
        length_s = _length_s(source, stream)
        start_s, end_s = window
        end_s = min(end_s or length_s, length_s)
        if start_s >= end_s:
            told = {"name": named(path.name), "length": clock(length_s)}
            raise ToolError(say("tools/notes", "after_the_end", **told))
        last_s = -1.0
        for wanted_s in _times(source, stream, start_s, end_s, count):
            time_s, frame = _frame_at(source, stream, wanted_s)
            if frame is None or time_s <= last_s:
                continue
            last_s = time_s
            yield time_s, _upright(frame)
        if last_s < 0:
            most = MAX_PIXELS // 1_000_000
            raise ValueError(
                f"no frame can be decoded; none over {most} million pixels is tried"
            )


def _times(
    source: Any, stream: Any, start_s: float, end_s: float, count: int
) -> list[float]:
    """Even times, and the greatest changes of scene for at most half of all."""
    changes = _scene_changes(source, stream, even(start_s, end_s, count * PROBES))
    greatest = sorted(changes, reverse=True)[: count // 2]
    scenes = [time_s for _, time_s in greatest if start_s <= time_s < end_s]
    return sorted([*scenes, *even(start_s, end_s, count - len(scenes))])


def _scene_changes(
    source: Any, stream: Any, probes_s: list[float]
) -> list[tuple[float, float]]:
    """(difference from 0 to 255, time) of each key frame that shows a scene other than the one
    before it. Encoders put a key frame where a scene begins, and a key frame is decoded without
    others.
    """
    seen: dict[float, Any] = {}  # seconds: small grey picture
    for probe_s in probes_s:
        time_s, frame = _frame_at(source, stream, probe_s, only_key=True)
        if frame is not None:
            small = frame.reformat(PROBE_SIDE, PROBE_SIDE, "gray")
            seen[time_s] = small.to_image().convert("L")
    changes = []
    for (_, before), (time_s, after) in pairwise(sorted(seen.items())):
        difference = ImageStat.Stat(ImageChops.difference(before, after)).mean[0]
        if difference >= NEW_SCENE:
            changes.append((difference, time_s))
    return changes


def even(start_s: float, end_s: float, count: int) -> list[float]:
    """The middle of each of `count` equal parts.

    >>> even(10, 14, 2)
    [11.0, 13.0]
    """
    return [start_s + (n + 0.5) * (end_s - start_s) / count for n in range(count)]


def _frame_at(
    source: Any, stream: Any, wanted_s: float, only_key: bool = False
) -> Frame:
    """The frame that is shown at a time, or with `only_key` the key frame before it. The frame is
    None where the file is damaged.
    """
    best: Frame = (wanted_s, None)
    origin = origin_s(source)
    with contextlib.suppress(av.FFmpegError):
        source.seek(int((wanted_s + origin) / stream.time_base), stream=stream)
        # Some formats seek to packets that cannot be decoded without those before them.
        packets = dropwhile(lambda packet: not packet.is_keyframe, source.demux(stream))
        for frame in chain.from_iterable(packet.decode() for packet in packets):
            time_s = max((frame.time or 0.0) - origin, 0.0)
            if best[1] is not None and time_s > wanted_s:
                break
            best = (time_s, frame)
            if only_key:
                break
    return best


def _upright(frame: Any) -> Any:
    """A frame as a picture, shrunk before it is converted, and rotated as its header says."""
    degrees = frame.rotation
    share = FRAME_SIDE / max(frame.width, frame.height)
    if share < 1:
        size = [max(1, round(side * share)) for side in (frame.width, frame.height)]
        frame = frame.reformat(*size, "rgb24", interpolation="BICUBIC")
    return frame.to_image().rotate(degrees, expand=True)


def _length_s(source: Any, stream: Any) -> float:
    """The length of a video, from its packets if the header does not give it."""
    if stream.duration:
        end = (stream.start_time or 0) + stream.duration
    elif source.duration:
        return float(source.duration / av.time_base)
    else:
        packets = (p for p in source.demux(stream) if p.pts is not None)
        end = max((p.pts + (p.duration or 0) for p in packets), default=0)
    return max(float(end * stream.time_base) - origin_s(source), SHORTEST_S)
