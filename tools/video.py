"""VideoAnalysisAction: frames go to the image engine, the sound track to the audio engine; one
observation reports both.
"""

from __future__ import annotations

import re
from typing import Any

from orchestra.kernel.prompts import fenced, named, render, say
from orchestra.kernel.tool import Environment, VideoFile, tool
from orchestra.kernel.vocabulary import EndpointError, Media, ToolError, Window
from orchestra.tools import audio, image

MOST_FRAMES = 16
TIME = re.compile(r"(\d{1,4}:){0,2}\d{1,6}(\.\d{1,9})?\s*s?", re.ASCII)


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
    window = _window(start_time, end_time)
    count = max(1, min(max_frames, MOST_FRAMES))
    seen = _seen(env, file, query, count, window)
    if not analyze_audio:
        return seen
    try:
        heard = audio.transcript(env, file, query, window)
    # The report of the frames was paid for, so it is returned all the same.
    except (ToolError, EndpointError) as failure:
        heard = str(failure)
    return say("tools/notes", "video", seen=seen, said=heard)


def _window(start_time: str, end_time: str) -> Window:
    """The window between two times, as a model writes them. Raises ToolError."""
    start_s = _seconds(start_time) or 0.0
    end_s = _seconds(end_time)
    if end_s is not None and end_s <= start_s:
        start = start_time or "0"
        raise ToolError(say("tools/notes", "empty_window", start=start, end=end_time))
    return start_s, end_s


def _seconds(text: str) -> float | None:
    """Seconds, or minutes and seconds, or hours too; None of an empty text. Raises ToolError.

    >>> _seconds("90"), _seconds("1:30"), _seconds("0:01:30")
    (90.0, 90.0, 90.0)
    """
    if not text.strip():
        return None
    if not TIME.fullmatch(text.strip()):
        raise ToolError(say("tools/notes", "bad_time", time=text[:40]))
    pieces = reversed(text.strip(" s").split(":"))  # seconds first
    return sum(float(piece) * 60.0**n for n, piece in enumerate(pieces))


def _seen(env: Environment, file: Media, query: str, count: int, window: Window) -> str:
    """What the frames show. Raises ToolError or EndpointError."""
    start_s, end_s = window
    request: dict[str, Any] = {"sha256": file.sha256, "frames": count}
    request |= {"start_s": start_s, "end_s": end_s}
    name = named(file.name)

    def read() -> Any:
        from orchestra.tools import frames

        return frames.read_frames(file.path, count, window)

    def show() -> Any:
        from orchestra.tools import frames

        return frames.data_urls(file.path, count, window)

    engine = env.pool.engine_of("image")
    if engine.engine == "local":
        texts = env.local("video_text", request, read)
        lines = "\n".join(f"[{times}] {text}" for times, text in texts)
        return say("tools/notes", "video_text", name=name, lines=fenced(lines))
    shown = env.local("frames", request, show)
    times = ", ".join(time for time, _ in shown)
    asked = render("tools/video.md", query=query, times=times, count=len(shown))
    answer = image.look(env, engine, asked, shown)
    return say("tools/notes", "video_seen", name=name, times=times, answer=answer)
