"""ParseAudioAction: a transcription endpoint or an audio model listens, or faster-whisper does.

Any format that FFmpeg reads. Long recordings are cut where they are quiet and the parts heard side
by side; the transcript says when.
"""

from __future__ import annotations

import base64
import hashlib
import os
import threading
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

from orchestra.vocabulary import BudgetExceeded, Media
from runtime import openai_api
from runtime.pool import Engine
from runtime.prompts import DATA_CHARS, fenced, render, say
from tools import AudioFile, Environment, ToolError, reading, sound, tool
from tools.decoding import RATE
from tools.engines import WHISPER

WHISPER_S = 28.0  # Whisper hears 30 s at a time
ENDPOINT_S = 120.0  # of 16 kHz mono WAV: 3.8 MB
HINT_CHARS = 400
_making = threading.Lock()

Row = tuple[float, str]  # seconds, what was said from there on


@tool("ParseAudioAction", "aud")
def audio_analysis(env: Environment, query: str, audio_path: AudioFile) -> str:
    """Listen to one sound file of the task: what is said in it.

    query: what your task wants to know about the recording, in the words of the task
    audio_path: the file name of the recording, exactly as the task lists it
    """
    return heard(env, env.media(audio_path, "audio"), query)


def heard(
    env: Environment, file: Media, query: str, start_s: float = 0.0, end_s: float | None = None
) -> str:
    """The transcript with its times; of a long one what answers the query. Raises ToolError."""
    engine = env.pool.engine("audio")
    if engine.engine == "local":
        hint = env.task.question
        key = {"sha256": file.sha256, "hint": hint, "start_s": start_s, "end_s": end_s}
        rows = env.local("transcribe", key, lambda: transcribe(file.path, hint, start_s, end_s))
    else:
        rows = _ask_endpoint(env, engine, query, file, start_s, end_s)
    text = "\n".join(f"[{sound.clock(at)}] {said}" for at, said in rows if said)
    if len(text) > DATA_CHARS:
        return reading.answer_from(
            env, query, text, say("tools/notes", "transcript_of", name=file.name)
        )
    return say(
        "notes", "transcript", name=file.name, text=fenced(text or say("tools/notes", "no_words"))
    )


def _ask_endpoint(
    env: Environment, engine: Engine, query: str, file: Media, start_s: float, end_s: float | None
) -> list[Row]:
    """Each part to the endpoint, a few in parallel; no more parts in memory than that."""
    parts = sound.parts(file.path, ENDPOINT_S, start_s, end_s)
    rows: list[Row] = []
    while batch := list(islice(parts, reading.SIDE_BY_SIDE)):

        def ask(env: Environment, n: int, batch: list[sound.Part] = batch) -> str:
            return _ask_part(env, engine, query, batch[n])

        said = reading.side_by_side(env, len(batch), ask, first=len(rows))
        rows += [(part.start_s, text) for part, text in zip(batch, said, strict=True)]
        if batch[-1].broken:
            rows.append(_broken(batch[-1]))
    return rows


def _ask_part(env: Environment, engine: Engine, query: str, part: sound.Part) -> str:
    if sound.is_silent(part.samples):
        return ""
    backend, data = env.pool[engine.backend], sound.as_wav(part.samples)
    if engine.transcription_model:
        minutes = len(part.samples) / RATE / 60
        price = None if engine.usd_per_minute is None else engine.usd_per_minute * minutes
        if not env.purse.affords(price):
            raise BudgetExceeded(f"budget exhausted: transcription costs {price:.6f} USD")
        key = hashlib.sha256(data).hexdigest()
        hint, model = env.task.question, engine.transcription_model
        text, played = openai_api.transcribe(env.chat, backend, model, data, key, hint)
        env.purse.charge(price, played)
        return text
    encoded = {"data": base64.b64encode(data).decode(), "format": "wav"}
    content: list[dict[str, Any]] = [
        {"type": "text", "text": render("tools/audio.md", query=query)},
        {"type": "input_audio", "input_audio": encoded},
    ]
    return env.chat(backend, [{"role": "user", "content": content}], env.purse).text


def transcribe(
    path: Path, hint: str, start_s: float = 0.0, end_s: float | None = None
) -> list[Row]:
    """What is said when in a sound file, by faster-whisper (the extra `local`); `hint` helps
    with rare words.
    """
    rows: list[Row] = []
    for part in sound.parts(path, WHISPER_S, start_s, end_s):
        if not sound.is_silent(part.samples):
            samples = part.samples.astype("float32") / 32768.0
            segments, _ = _whisper().transcribe(
                samples, initial_prompt=hint[:HINT_CHARS] or None, condition_on_previous_text=False
            )
            rows += [(round(part.start_s + s.start, 1), s.text.strip()) for s in segments]
        if part.broken:
            rows.append(_broken(part))
    return rows


def _broken(part: sound.Part) -> Row:
    return part.start_s + len(part.samples) / RATE, say("tools/notes", "breaks_off")


def _whisper() -> Any:
    with _making:
        return _whisper_model(os.environ.get(WHISPER, "tiny.en"))


@cache
def _whisper_model(name: str) -> Any:
    try:
        from faster_whisper import WhisperModel
    except ImportError:
        raise ToolError(say("notes", "no_engine", what="faster-whisper")) from None
    try:
        return WhisperModel(name, device="cpu", compute_type="int8")
    except (OSError, ValueError, RuntimeError) as error:  # not there, no network, or damaged
        why = str(error).splitlines()[0]
        raise ToolError(say("notes", "broken_engine", what=f"{WHISPER} {name}", why=why)) from None
