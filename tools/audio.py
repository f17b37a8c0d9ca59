"""ParseAudioAction: a transcription endpoint or an audio model listens, or faster-whisper does,
behind one function.
"""

from __future__ import annotations

import base64
import io
import os
import threading
from contextvars import Context
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from orchestra.pool import Engine
from orchestra.prompts import render, say
from tools import AudioFile, Environment, ToolError, tool

MAX_ENDPOINT_BYTES = 25 << 20  # what transcription endpoints take in one request
WAV_BYTES_PER_S = 16000 * 2  # 16 kHz mono, 16 bits
WHISPER = "WHISPER_MODEL"  # a faster-whisper folder or model name


@tool("ParseAudioAction", "aud")
def audio_analysis(env: Environment, query: str, audio_path: AudioFile) -> str:
    """Listen to one sound file of the task: what is said in it.

    query: what your task wants to know about the recording, in the words of the task
    audio_path: the file name of the recording, exactly as the task lists it
    """
    sound = env.media(audio_path, "audio")
    engine = env.pool.engines["audio"]
    if engine.engine == "local":
        arguments = {"sha256": sound.sha256, "hint": env.task.question}
        text = env.local("transcribe", arguments, lambda: transcribe(sound.path, env.task.question))
    else:
        sent = endpoint_audio(sound.path)
        if len(sent.data) > MAX_ENDPOINT_BYTES:
            raise ToolError(
                say(
                    "notes",
                    "too_big",
                    name=sound.name,
                    mib=len(sent.data) >> 20,
                    limit=MAX_ENDPOINT_BYTES >> 20,
                )
            )
        text = _ask_endpoint(env, engine, query, sent)
        if not engine.transcription_model:
            return text  # the audio model has answered the query itself
    return say("notes", "transcript", name=sound.name, text=text or "-")


class Sound(NamedTuple):
    data: bytes
    format: str  # wav or mp3
    seconds: float


def _ask_endpoint(env: Environment, engine: Engine, query: str, sent: Sound) -> str:
    backend = env.pool[engine.backend]
    if engine.transcription_model:
        price = None if engine.usd_per_minute is None else engine.usd_per_minute * sent.seconds / 60
        env.purse.check(price)
        file = (f"audio.{sent.format}", sent.data)
        text, played = env.chat.transcribe(
            backend, engine.transcription_model, file, hint=env.task.question
        )
        env.purse.charge(price, played)
        return text
    content: list[dict[str, Any]] = [
        {"type": "text", "text": render("tools/audio.md", query=query)},
        {
            "type": "input_audio",
            "input_audio": {"data": base64.b64encode(sent.data).decode(), "format": sent.format},
        },
    ]
    return env.chat(backend, [{"role": "user", "content": content}], env.purse).text


def endpoint_audio(path: Path) -> Sound:
    """WAV and MP3 as they are; the sound of any other file FFmpeg reads as 16 kHz mono WAV."""
    import av

    try:
        with av.open(str(path)) as source:
            seconds = (source.duration or 0) / av.time_base
            if source.format.name in ("wav", "mp3"):
                return Sound(path.read_bytes(), source.format.name, seconds)
            if not source.streams.audio:
                raise ToolError(say("notes", "unreadable", name=path.name, reason="no sound"))
            data = _as_wav(source)  # its length is known where a file says none
            return Sound(data, "wav", len(data) / WAV_BYTES_PER_S)
    except (av.FFmpegError, ValueError) as error:
        raise ToolError(say("notes", "unreadable", name=path.name, reason=str(error))) from None


def _as_wav(source: Any) -> bytes:
    import av

    buffer = io.BytesIO()
    with av.open(buffer, "w", format="wav", container_options={"fflags": "+bitexact"}) as target:
        stream = target.add_stream("pcm_s16le", rate=16000, layout="mono")
        resampler = av.AudioResampler(format="s16", layout="mono", rate=16000)
        for frame in source.decode(audio=0):
            for piece in resampler.resample(frame):
                target.mux(stream.encode(piece))
        for piece in resampler.resample(None):  # what it still holds
            target.mux(stream.encode(piece))
        target.mux(stream.encode(None))
    return buffer.getvalue()


def transcribe(path: Path, hint: str) -> str:
    """What is said in a sound file, by faster-whisper (requirements-local.txt); `hint` helps with
    rare words.
    """
    try:
        with _loading:  # sub-agents that start together share one model
            model = Context().run(_whisper)  # a download is no call of the run: not for the tape
        segments, _ = model.transcribe(
            str(path), initial_prompt=hint[:400], condition_on_previous_text=False
        )
        return " ".join(s.text.strip() for s in segments)
    except (ValueError, RuntimeError, OSError, IndexError) as error:
        raise ToolError(say("notes", "unreadable", name=path.name, reason=str(error))) from None


_loading = threading.Lock()


@cache
def _whisper() -> Any:
    try:
        from faster_whisper import WhisperModel
    except ImportError:
        raise ToolError(say("notes", "no_engine", what="faster-whisper")) from None
    return WhisperModel(os.environ.get(WHISPER, "tiny.en"), device="cpu", compute_type="int8")
