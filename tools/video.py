"""VideoAnalysisAction: frames go to the image engine, the sound track to the audio engine; one
observation reports both.
"""

from __future__ import annotations

import re
from functools import partial
from itertools import groupby
from pathlib import Path

from orchestra.runtime.pool import Engine
from orchestra.runtime.prompts import fenced, named, render, say
from orchestra.toolkit import Environment, ToolError, VideoFile, tool
from orchestra.tools import audio, image
from orchestra.tools.frames import frames
from orchestra.tools.media import WHOLE, Window, clock
from orchestra.tools.perception import analysed
from orchestra.vocabulary import EndpointError, Media

MOST_FRAMES = 16
TIME = re.compile(r"(\d{1,4}:){0,2}\d{1,6}(\.\d{1,9})?\s*s?", re.ASCII)

TimedFrame = tuple[str, str]  # time or times; the text or the data URL of a frame


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
    start_s = _seconds(start_time)
    end_s = _seconds(end_time)
    if start_s is None:
        start_s = 0.0
    if end_s is not None and end_s <= start_s:
        start = start_time if start_time else "0"
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
    request = {
        "sha256": file.sha256,
        "frames": count,
        "start_s": start_s,
        "end_s": end_s,
    }

    def locally() -> str:
        read = partial(read_frames, file.path, count, window)
        texts = env.local("video_text", request, read, list[TimedFrame])
        lines = "\n".join(f"[{times}] {text}" for times, text in texts)
        return say(
            "tools/notes", "video_text", name=named(file.name), lines=fenced(lines)
        )

    def by_endpoint(engine: Engine) -> str:
        take = partial(_data_urls, file.path, count, window)
        shown = env.local("frames", request, take, list[TimedFrame])
        return _seen_by_model(env, engine, file, query, shown)

    return analysed(env, "image", by_endpoint, locally)


def _seen_by_model(
    env: Environment, engine: Engine, file: Media, query: str, shown: list[TimedFrame]
) -> str:
    times = ", ".join(time for time, _ in shown)
    request = render("tools/video.md", query=query, times=times, count=len(shown))
    answer = image.ask(env, engine, request, shown)
    return say(
        "tools/notes", "video_seen", name=named(file.name), times=times, answer=answer
    )


def _data_urls(path: Path, count: int, window: Window) -> list[TimedFrame]:
    """(time, data URL) of the frames."""
    return [
        (clock(time_s), image.data_url(picture, "JPEG"))
        for time_s, picture in frames(path, count, window)
    ]


def read_frames(path: Path, count: int, window: Window = WHOLE) -> list[TimedFrame]:
    """(times, text) of the text in the frames; frames in a row with the same text are one entry."""
    texts: list[TimedFrame] = []
    for time_s, picture in frames(path, count, window):
        lines = image.read_text(picture)
        text = " / ".join(lines) if lines else "-"
        texts.append((clock(time_s), text))
    rows: list[TimedFrame] = []
    for text, same in groupby(texts, key=lambda row: row[1]):
        times = [time for time, _ in same]
        first, last = times[0], times[-1]
        rows.append((first if first == last else f"{first}-{last}", text))
    return rows
