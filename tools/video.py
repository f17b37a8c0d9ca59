"""VideoAnalysisAction: frames at even times to the image tool's engine, the sound track to the
audio tool's, both in one observation. The video is read by seeking: memory does not grow with its
length.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from orchestra.prompts import fenced, render, say
from orchestra.vocabulary import Media
from tools import Environment, ToolError, VideoFile, audio, image, sound, tool

MOST_FRAMES = 16
FRAME_SIDE = 1280  # pixels
NOISE = 24  # of 255, a pixel
THREADS = 2  # each holds decoded frames

Frame = tuple[float, Any]  # seconds, picture


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
    """Watch one video of the task: what frames at even times show, and what is said.

    query: what your task wants to know about the video, in the words of the task
    video_path: the file name of the video, exactly as the task lists it
    max_frames: how many frames to look at, 16 at most
    start_time: from when, in seconds or as 1:30; the beginning if left out
    end_time: until when; the end if left out
    analyze_audio: whether to listen to the sound track too
    """
    file = env.media(video_path, "video")
    start_s, end_s = _seconds(start_time) or 0.0, _seconds(end_time)
    if end_s is not None and end_s <= start_s:
        raise ToolError(say("tools/notes", "empty_window", start=start_time, end=end_time))
    count = max(1, min(max_frames, MOST_FRAMES))
    key = {"sha256": file.sha256, "frames": count, "start_s": start_s, "end_s": end_s}
    seen = _seen(env, file, query, key)
    if not analyze_audio:
        return seen
    try:
        said = audio.heard(env, file, query, start_s, end_s)
    except ToolError as failure:  # the pictures stand without the sound
        said = str(failure)
    return say("tools/notes", "video", seen=seen, said=said)


def _seen(env: Environment, file: Media, query: str, key: dict[str, Any]) -> str:
    engine = env.pool.engines["image"]
    window = key["frames"], key["start_s"], key["end_s"]
    if engine.engine == "local":
        rows = env.local("video_text", key, lambda: read_frames(file.path, *window))
        lines = "\n".join(f"[{times}] {text}" for times, text in rows)
        return say("tools/notes", "video_text", name=file.name, lines=fenced(lines))
    shots = env.local("frames", key, lambda: [[t, _jpeg(f)] for t, f in frames(file.path, *window)])
    times = ", ".join(sound.clock(t) for t, _ in shots)
    text = render("tools/video.md", query=query, times=times, count=len(shots))
    content: list[dict[str, Any]] = [{"type": "text", "text": text}]
    for t, data in shots:
        content.append({"type": "text", "text": sound.clock(t)})
        content.append(
            {"type": "image_url", "image_url": {"url": f"data:image/jpeg;base64,{data}"}}
        )
    backend = env.pool[engine.backend]
    answer = env.chat(backend, [{"role": "user", "content": content}], env.purse).text
    return say("tools/notes", "video_seen", name=file.name, times=times, answer=answer)


def read_frames(path: Path, *window: Any) -> list[tuple[str, str]]:
    """(times, text) of what is written in the frames; like texts one after another are one."""
    rows: list[tuple[float, float, str]] = []
    before, text = None, ""
    for t, picture in frames(path, *window):
        if before is None or not _alike(before, picture):
            text = " / ".join(image.read_text(picture, quick=True)) or "-"
        before = picture
        if rows and rows[-1][2] == text:
            rows[-1] = (rows[-1][0], t, text)
        else:
            rows.append((t, t, text))
    return [(_span(first, last), text) for first, last, text in rows]


def _alike(a: Any, b: Any) -> bool:
    """Whether two frames differ by no more than what the codec does to them."""
    from PIL import ImageChops

    extrema: Any = ImageChops.difference(a, b).getextrema()
    return all(most <= NOISE for _, most in extrema)


def frames(path: Path, count: int, start_s: float, end_s: float | None) -> Iterator[Frame]:
    """`count` frames at even times of the window, each in the middle of its share, upright and
    small. Raises ToolError where none can be read.
    """
    import av

    shown = False
    try:
        with av.open(str(path)) as source:
            if not source.streams.video:
                raise ToolError(say("tools/notes", "no_pictures", name=path.name))
            stream = source.streams.video[0]
            stream.codec_context.thread_count = THREADS
            length_s = _length_s(source, stream)
            end = min(length_s, end_s) if end_s is not None else length_s
            if start_s >= end:
                length = sound.clock(length_s)
                raise ToolError(say("tools/notes", "after_the_end", name=path.name, length=length))
            last = -1.0
            for n in range(count):
                t, picture = _frame_at(
                    source, stream, start_s + (n + 0.5) * (end - start_s) / count
                )
                if t > last:
                    yield t, picture
                    last, shown = t, True
    except (av.FFmpegError, OSError, ValueError) as error:
        if not shown:
            reason = getattr(error, "strerror", None) or str(error)
            raise ToolError(say("notes", "unreadable", name=path.name, reason=reason)) from None


def _frame_at(source: Any, stream: Any, t: float) -> Frame:
    """The frame that is shown at `t`."""
    source.seek(int(t / stream.time_base) + (stream.start_time or 0), stream=stream)
    origin = float((stream.start_time or 0) * stream.time_base)
    best = None
    for frame in source.decode(stream):
        at = (frame.time or 0.0) - origin
        if best is not None and at > t:
            break
        best = (max(at, 0.0), frame)
    if best is None:
        raise ValueError("no frame can be decoded")
    picture = best[1].to_image()
    if best[1].rotation:
        picture = picture.rotate(best[1].rotation, expand=True)
    picture.thumbnail((FRAME_SIDE, FRAME_SIDE))
    return best[0], picture


def _length_s(source: Any, stream: Any) -> float:
    """The length of a video, from its packets where its header does not tell."""
    import av

    if source.duration:
        return float(source.duration / av.time_base)
    if stream.duration:
        return float(stream.duration * stream.time_base)
    ends = (p.pts * p.time_base for p in source.demux(stream) if p.pts is not None)
    return float(max(ends, default=0)) + 0.001


def _jpeg(picture: Any) -> str:
    return base64.b64encode(image.encoded(picture, "JPEG")).decode()


def _span(first: float, last: float) -> str:
    return sound.clock(first) if first == last else f"{sound.clock(first)}-{sound.clock(last)}"


def _seconds(text: str) -> float | None:
    """Seconds, or minutes and seconds, or hours too: 90, 1:30, 0:01:30."""
    if not text.strip():
        return None
    try:
        total = 0.0
        for piece in text.strip().removesuffix("s").split(":"):
            total = total * 60 + float(piece)
    except ValueError:
        raise ToolError(say("tools/notes", "bad_time", time=text[:40])) from None
    if not 0 <= total < 1e6:
        raise ToolError(say("tools/notes", "bad_time", time=text[:40]))
    return total
