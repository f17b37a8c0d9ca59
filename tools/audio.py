"""ParseAudioAction: speech as text with times.

A transcription endpoint, an audio model or faster-whisper (the extra `local`) hears the sound;
the pool says which. tools/hearing.py does it, when no tape has what was heard.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

from orchestra.kernel.prompts import DATA_CHARS, fenced, named, say
from orchestra.kernel.tool import AudioFile, Environment, tool
from orchestra.kernel.vocabulary import WHOLE, Media, Window


@tool("ParseAudioAction", "aud")
def audio_analysis(env: Environment, query: str, audio_path: AudioFile) -> str:
    """Listen to one sound file of the task: what is said in it.

    query: what your task wants to know about the recording, in the words of the task
    audio_path: the file name of the recording, exactly as the task lists it
    """
    return transcript(env, env.media(audio_path, "audio"), query)


def transcript(
    env: Environment, file: Media, query: str, window: Window = WHOLE
) -> str:
    """The transcript with times; of a long one, what answers the query. Raises ToolError."""
    hint = env.task.question
    start_s, end_s = window
    request = {"sha256": file.sha256, "hint": hint, "start_s": start_s, "end_s": end_s}

    def transcribe() -> Any:
        from orchestra.tools import hearing

        return hearing.by_whisper(file.path, hint, window, env.chat.notify)

    engine = env.pool.engine_of("audio")
    if engine.engine == "local":
        whisper = replace(env, depends_on=lambda: os.environ.get("WHISPER_MODEL", ""))
        rows = whisper.local("transcribe", request, transcribe)
    else:
        from orchestra.tools import hearing

        rows = hearing.by_endpoint(env, engine, file.path, query, window)
    text = "\n".join(f"[{clock(start_s)}] {words}" for start_s, words in rows if words)
    if not text:
        text = say("tools/notes", "no_words")
    if len(text) > DATA_CHARS:
        from orchestra.tools import reading

        source = say("tools/notes", "transcript_of", name=named(file.name))
        return reading.answer_from(env, query, text, source)
    return say("notes", "transcript", name=named(file.name), text=fenced(text))


def clock(seconds: float) -> str:
    """A time in a recording, as a player shows it.

    >>> clock(65.9), clock(3725.4)
    ('1:05', '1:02:05')
    """
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    if hours:
        return f"{hours}:{minute:02}:{second:02}"
    return f"{minute}:{second:02}"
