"""VideoAnalysisAction: frames go to the image engine, the sound track to the audio engine; one
observation reports both. Frames are taken at even times and at changes of scene, and read by
seeking: neither memory nor time grows with the length of the video.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from itertools import chain, dropwhile, groupby, pairwise
from pathlib import Path
from typing import Any

import av
from PIL import ImageChops, ImageStat

from orchestra.runtime.prompts import fenced, render, say
from orchestra.toolkit import Environment, ToolError, VideoFile, tool
from orchestra.tools import audio, image
from orchestra.tools.audio import clock
from orchestra.tools.media import MAX_PIXELS, WHOLE, Window, opened
from orchestra.vocabulary import EndpointError, Media

MOST_FRAMES = 16
FRAME_SIDE = 1280  # pixels
THREADS = 2  # of the decoder; each holds frames
PROBES = 4  # key frames compared per frame taken
PROBE_SIDE = 48  # pixels
NEW_SCENE = 20  # of 255: mean difference of two small grey pictures


@tool("VideoAnalysisAction", "vid")
def video_analysis(
    env: Environment,
    query: str,
    video_path: VideoFile,
    max_frames: int = 8,
    start_time: str = "",
    end_time: str = "",
    analyze_audio: bool = True,
) -> str:
    """Watch one video of the task: what frames at even times and at changes of scene show, and what
    is said.

    query: what your task wants to know about the video, in the words of the task
    video_path: the file name of the video, exactly as the task lists it
    max_frames: how many frames to look at, 16 at most
    start_time: from when, in seconds or as 1:30; the beginning if left out
    end_time: until when; the end if left out
    analyze_audio: whether to listen to the sound track too
    """
    file = env.media(video_path, "video")
    start_s, end_s = window = _seconds(start_time) or 0.0, _seconds(end_time)
    if end_s is not None and end_s <= start_s:
        raise ToolError(
            say("tools/notes", "empty_window", start=start_time or "0", end=end_time)
        )
    pictures = _analyse_frames(
        env, file, query, max(1, min(max_frames, MOST_FRAMES)), window
    )
    if not analyze_audio:
        return pictures
    try:
        sound = audio.transcript(env, file, query, window)
    except (
        ToolError,
        EndpointError,
    ) as failure:  # the report of the pictures was paid for
        sound = str(failure)
    return say("tools/notes", "video", seen=pictures, said=sound)


def _analyse_frames(
    env: Environment, file: Media, query: str, count: int, window: Window
) -> str:
    engine, path = env.pool.engine("image"), file.path
    key = {
        "sha256": file.sha256,
        "frames": count,
        "start_s": window[0],
        "end_s": window[1],
    }
    rows = list[tuple[str, str]]
    if engine.engine == "local":
        texts = env.local(
            "video_text", key, lambda: read_frames(path, count, window), rows
        )
        lines = "\n".join(f"[{times}] {text}" for times, text in texts)
        return say("tools/notes", "video_text", name=file.name, lines=fenced(lines))
    shown = (
        (clock(t), image.data_url(f, "JPEG")) for t, f in frames(path, count, window)
    )
    shots = env.local("frames", key, lambda: list(shown), rows)
    times = ", ".join(time for time, _ in shots)
    request = render("tools/video.md", query=query, times=times, count=len(shots))
    answer = image.ask(env, engine, request, shots)
    return say("tools/notes", "video_seen", name=file.name, times=times, answer=answer)


def read_frames(
    path: Path, count: int, window: Window = WHOLE
) -> list[tuple[str, str]]:
    """(times, text) of the text in the frames; frames in a row with the same text are one entry."""
    shots = frames(path, count, window)
    texts = [
        (" / ".join(image.read_text(picture)) or "-", clock(t)) for t, picture in shots
    ]
    rows = [
        (text, [t for _, t in same])
        for text, same in groupby(texts, lambda row: row[0])
    ]
    return [
        ("-".join(dict.fromkeys((times[0], times[-1]))), text) for text, times in rows
    ]


def _seconds(text: str) -> float | None:
    """Seconds, or minutes and seconds, or hours too: 90, 1:30, 0:01:30."""
    if not text.strip():
        return None
    if not re.fullmatch(
        r"(\d{1,4}:){0,2}\d{1,6}(\.\d{1,9})?\s*s?", text.strip(), re.ASCII
    ):
        raise ToolError(say("tools/notes", "bad_time", time=text[:40]))
    pieces = text.strip(" s").split(":")
    return sum(float(piece) * 60.0**n for n, piece in enumerate(reversed(pieces)))


def frames(
    path: Path, count: int, window: Window = WHOLE
) -> Iterator[tuple[float, Any]]:
    """(seconds, picture) of at most `count` frames of the window, upright and small, in order.
    Raises ToolError where none can be read.
    """
    last = -1.0
    with opened(path, "video") as (source, stream):
        stream.codec_context.thread_count = THREADS
        length_s = _length_s(source, stream)
        start_s, end_s = window[0], min(length_s, window[1] or length_s)
        if start_s >= end_s:
            length = clock(length_s)
            raise ToolError(
                say("tools/notes", "after_the_end", name=path.name, length=length)
            )
        for wanted in _times(source, stream, start_s, end_s, count):
            t, frame = _frame_at(source, stream, wanted)
            if frame is not None and t > last:
                last = t
                yield t, _upright(frame)
        if last < 0:
            most = MAX_PIXELS // 1_000_000
            raise ValueError(
                f"no frame can be decoded; none over {most} million pixels is tried"
            )


def _times(
    source: Any, stream: Any, start_s: float, end_s: float, count: int
) -> list[float]:
    """Even times, and the greatest changes of scene for at most half of all. Encoders put a key
    frame where a scene begins, and a key frame is decoded without others.
    """
    keys: dict[float, Any] = {}  # seconds: small grey picture
    for probe in even(start_s, end_s, count * PROBES):
        t, frame = _frame_at(source, stream, probe, key=True)
        if frame is not None:
            keys[t] = (
                frame.reformat(PROBE_SIDE, PROBE_SIDE, "gray").to_image().convert("L")
            )
    changes = [
        (ImageStat.Stat(ImageChops.difference(before, after)).mean[0], t)
        for (_, before), (t, after) in pairwise(sorted(keys.items()))
    ]
    scenes = [t for change, t in sorted(changes, reverse=True) if change >= NEW_SCENE]
    scenes = [t for t in scenes[: count // 2] if start_s <= t < end_s]
    return sorted([*scenes, *even(start_s, end_s, count - len(scenes))])


def even(start_s: float, end_s: float, count: int) -> list[float]:
    """The middle of each of `count` equal parts.

    >>> even(10, 14, 2)
    [11.0, 13.0]
    """
    return [start_s + (n + 0.5) * (end_s - start_s) / count for n in range(count)]


def _frame_at(
    source: Any, stream: Any, t: float, key: bool = False
) -> tuple[float, Any]:
    """(time, frame) of the frame shown at `t`, or of the `key` frame before it. The frame is None
    where the file is damaged.
    """
    best: tuple[float, Any] = t, None
    origin_s = audio.origin_s(source)
    with contextlib.suppress(av.FFmpegError):
        source.seek(int((t + origin_s) / stream.time_base), stream=stream)
        # Some formats seek to packets that cannot be decoded without those before them.
        packets = dropwhile(lambda packet: not packet.is_keyframe, source.demux(stream))
        for frame in chain.from_iterable(packet.decode() for packet in packets):
            at = max((frame.time or 0.0) - origin_s, 0.0)
            if best[1] is not None and at > t:
                break
            best = at, frame
            if key:
                break
    return best


def _upright(frame: Any) -> Any:
    """A frame as a picture, shrunk before it is converted, and rotated as its header says."""
    turn, share = frame.rotation, FRAME_SIDE / max(frame.width, frame.height)
    if share < 1:
        width, height = (
            max(1, round(side * share)) for side in (frame.width, frame.height)
        )
        frame = frame.reformat(width, height, "rgb24", interpolation="BICUBIC")
    return frame.to_image().rotate(turn, expand=True)


def _length_s(source: Any, stream: Any) -> float:
    """The length of a video, from its packets if the header does not give it."""
    if stream.duration:
        end = (stream.start_time or 0) + stream.duration
    elif source.duration:
        return float(source.duration / av.time_base)
    else:
        packets = (p for p in source.demux(stream) if p.pts is not None)
        end = max((p.pts + (p.duration or 0) for p in packets), default=0)
    return max(float(end * stream.time_base) - audio.origin_s(source), 0.001)
