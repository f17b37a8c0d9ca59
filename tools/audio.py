"""ParseAudioAction: speech as text with times.

A transcription endpoint, an audio model or faster-whisper (the extra `local`) hears the sound. A
long recording is transcribed in parts; only a few parts are in memory at a time.
"""

from __future__ import annotations

import base64
import os
import threading
from functools import cache, partial
from pathlib import Path
from typing import Any

from orchestra.runtime import openai_api
from orchestra.runtime.pool import Engine
from orchestra.runtime.prompts import DATA_CHARS, fenced, named, render, say
from orchestra.toolkit import AudioFile, Environment, ToolError, tool
from orchestra.tools import reading
from orchestra.tools.media import (
    WHISPER,
    WHOLE,
    Window,
    check_whisper,
    clock,
    engine_needs,
)
from orchestra.tools.perception import analysed
from orchestra.tools.sound import RATE, Part, Samples, as_wav, is_silent, parts
from orchestra.vocabulary import BudgetExceeded, ConfigError, Media

WHISPER_S = 28.0  # the window of Whisper is 30 s
ENDPOINT_S = 120.0  # 3.8 MB as 16 kHz mono WAV
HINT_CHARS = 400
_loading = threading.Lock()

TimedText = tuple[float, str]  # start in seconds, text


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
    rows: list[TimedText] = analysed(
        env,
        "audio",
        by_endpoint=partial(_heard_by_endpoint, env, file, query, window),
        locally=partial(_heard_locally, env, file, window),
    )
    text = "\n".join(f"[{clock(start_s)}] {words}" for start_s, words in rows if words)
    if not text:
        text = say("tools/notes", "no_words")
    if len(text) > DATA_CHARS:
        source = say("tools/notes", "transcript_of", name=named(file.name))
        return reading.answer_from(env, query, text, source)
    return say("notes", "transcript", name=named(file.name), text=fenced(text))


def _heard_by_endpoint(
    env: Environment, file: Media, query: str, window: Window, engine: Engine
) -> list[TimedText]:
    ask = partial(_ask_endpoint, engine, query)
    return reading.in_parallel(env, ask, parts(file.path, ENDPOINT_S, window))


def _heard_locally(env: Environment, file: Media, window: Window) -> list[TimedText]:
    hint = env.task.question
    start_s, end_s = window
    request = {
        "sha256": file.sha256,
        "hint": hint,
        "start_s": start_s,
        "end_s": end_s,
    }
    hear = partial(transcribe, file.path, hint, window)
    rows: list[TimedText] = env.local("transcribe", request, hear, list[TimedText])
    return rows


def _ask_endpoint(
    engine: Engine, query: str, env: Environment, part: Part
) -> TimedText:
    """What an endpoint hears in one part. Raises EndpointError or BudgetExceeded."""
    start_s, samples = part
    if is_silent(samples):
        return start_s, ""
    if engine.transcription_model:
        return start_s, _transcription(env, engine, samples)
    return start_s, _audio_model_reply(env, engine, query, samples)


def _audio_model_reply(
    env: Environment, engine: Engine, query: str, samples: Samples
) -> str:
    data = base64.b64encode(as_wav(samples)).decode()
    content = [
        {"type": "text", "text": render("tools/audio.md", query=query)},
        {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}},
    ]
    return reading.ask(env, env.pool[engine.backend], content)


def _transcription(env: Environment, engine: Engine, samples: Samples) -> str:
    minutes = len(samples) / RATE / 60
    cost_usd = None
    if engine.usd_per_minute is not None:
        cost_usd = engine.usd_per_minute * minutes
    if not env.purse.affords(cost_usd):
        raise BudgetExceeded(
            f"budget exhausted: transcription costs {cost_usd:.6f} USD"
        )
    return openai_api.transcribe(
        env.chat,
        env.pool[engine.backend],
        model=engine.transcription_model,
        sound=as_wav(samples),
        hint=env.task.question,
        purse=env.purse,
        cost_usd=cost_usd,
    )


def transcribe(path: Path, hint: str, window: Window = WHOLE) -> list[TimedText]:
    """The speech of a file, by faster-whisper (the extra `local`); `hint` may hold rare words."""
    prompt = hint[:HINT_CHARS]
    rows: list[TimedText] = []
    for part_start_s, samples in parts(path, WHISPER_S, window):
        if is_silent(samples):
            continue
        segments, _ = _loaded_whisper().transcribe(
            samples.astype("float32") / 32768.0,
            initial_prompt=prompt if prompt else None,
            condition_on_previous_text=False,
        )
        for segment in segments:
            start_s = round(part_start_s + segment.start, 1)
            rows.append((start_s, segment.text.strip()))
    return rows


def _loaded_whisper() -> Any:
    """The model that WHISPER_MODEL names, loaded by the first thread that needs it. Raises
    ConfigError if it is not there.
    """
    check_whisper()
    with _loading:
        return _whisper(os.environ.get(WHISPER, "tiny.en"))


@cache
def _whisper(name: str) -> Any:
    try:
        from faster_whisper import WhisperModel
    except ImportError:
        needs = engine_needs("audio", "faster_whisper")
        raise ConfigError(needs) from None
    try:
        return WhisperModel(name, device="cpu", compute_type="int8")
    # The model is missing or damaged, or there is no network.
    except (OSError, ValueError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise ToolError(
            say("notes", "broken_engine", what=f"{WHISPER} {name}", why=reason)
        ) from None
