"""VideoAnalysisAction: frames to the image tool's engine, the sound track to the audio tool's, both
in one observation.
"""

from __future__ import annotations

import base64
import functools
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from orchestra.vocabulary import Media
from runtime.prompts import fenced, render, say
from tools import Environment, ToolError, VideoFile, audio, image, reading, sound, tool
from tools.frames import Frame, frames

MOST_FRAMES = 16
NOISE = 24  # of 255, a pixel


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
    start_s, end_s = _seconds(start_time) or 0.0, _seconds(end_time)
    if end_s is not None and end_s <= start_s:
        raise ToolError(say("tools/notes", "empty_window", start=start_time or "0", end=end_time))
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
    engine = env.pool.engine("image")
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
    return say(
        "tools/notes", "video_seen", name=file.name, times=times, answer=reading.quoted(answer)
    )


def read_frames(path: Path, *window: Any) -> list[tuple[str, str]]:
    """(times, text) of what is written in the frames; like texts one after another are one."""
    rows: list[tuple[float, float, str]] = []
    for t, lines in _read_side_by_side(frames(path, *window)):
        text = " / ".join(lines) or "-"
        if rows and rows[-1][2] == text:
            rows[-1] = (rows[-1][0], t, text)
        else:
            rows.append((t, t, text))
    return [(_span(first, last), text) for first, last, text in rows]


def _read_side_by_side(shots: Iterable[Frame]) -> list[tuple[float, list[str]]]:
    """The lines of text in each frame; a frame like the one before it is not read again."""
    reads: list[tuple[float, Future[list[str]]]] = []
    with ThreadPoolExecutor(image.FRAMES_AT_ONCE, thread_name_prefix="frame") as readers:
        before = None
        for t, picture in shots:
            if len(reads) >= image.FRAMES_AT_ONCE:
                reads[-image.FRAMES_AT_ONCE][
                    1
                ].result()  # no more pictures in memory than are being read
            again = before is not None and _alike(before, picture)
            lines = reads[-1][1] if again else readers.submit(image.read_text, picture, quick=True)
            reads.append((t, lines))
            before = picture
        return [(t, lines.result()) for t, lines in reads]


def _alike(a: Any, b: Any) -> bool:
    """Whether two frames differ by no more than what the codec does to them."""
    from PIL import ImageChops

    extrema: Any = ImageChops.difference(a, b).getextrema()
    return all(most <= NOISE for _, most in extrema)


def _jpeg(picture: Any) -> str:
    return base64.b64encode(image.encoded(picture, "JPEG")).decode()


def _span(first: float, last: float) -> str:
    times = dict.fromkeys((sound.clock(first), sound.clock(last)))
    return "-".join(times)


def _seconds(text: str) -> float | None:
    """Seconds, or minutes and seconds, or hours too: 90, 1:30, 0:01:30."""
    if not text.strip():
        return None
    try:
        pieces = [float(piece) for piece in text.strip().removesuffix("s").split(":")]
    except ValueError:
        pieces = [-1.0]
    total = functools.reduce(lambda whole, piece: whole * 60 + piece, pieces)
    if not (min(pieces) >= 0 and total < 1e6):
        raise ToolError(say("tools/notes", "bad_time", time=text[:40]))
    return total
