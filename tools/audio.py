"""ParseAudioAction: speech as text with times, by a transcription endpoint, an audio model or
faster-whisper.

FFmpeg decodes the file to 16 kHz mono. A long recording is cut where it is quiet and transcribed in
parts; only a few parts are in memory at a time.
"""

from __future__ import annotations

import base64
import io
import os
import threading
import wave
from collections.abc import Iterable, Iterator
from functools import cache, partial
from itertools import chain, groupby
from pathlib import Path
from typing import Any

import av
import numpy

from orchestra.runtime import openai_api
from orchestra.runtime.pool import Engine
from orchestra.runtime.prompts import DATA_CHARS, fenced, render, say
from orchestra.toolkit import AudioFile, Environment, ToolError, tool
from orchestra.tools import reading
from orchestra.tools.media import WHISPER, WHOLE, Window, opened
from orchestra.vocabulary import BudgetExceeded, Media

RATE = 16_000  # samples per second
QUIET_S = 0.2  # a part ends in the middle of the quietest moment of this length
SEARCH = 0.3  # share of a part, at its end, that is searched for it
SHORTEST_S = 0.1  # endpoints refuse less
SILENCE = 60  # of 32768: a part whose samples all stay below it is not sent
WHISPER_S = 28.0  # the window of Whisper is 30 s
ENDPOINT_S = 120.0  # 3.8 MB as 16 kHz mono WAV
HINT_CHARS = 400
_loading = threading.Lock()

Samples = Any  # (n,), int16
Part = tuple[float, Samples]  # start in seconds, sound
Row = tuple[float, str]  # start in seconds, text


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
    engine = env.pool.engine("audio")
    if engine.engine == "local":
        hint = env.task.question
        key = {
            "sha256": file.sha256,
            "hint": hint,
            "start_s": window[0],
            "end_s": window[1],
        }
        rows = env.local(
            "transcribe", key, lambda: transcribe(file.path, hint, window), list[Row]
        )
    else:
        ask = partial(_ask_endpoint, engine, query)
        rows = reading.in_parallel(env, ask, parts(file.path, ENDPOINT_S, window))
    text = "\n".join(f"[{clock(start_s)}] {words}" for start_s, words in rows if words)
    if len(text) > DATA_CHARS:
        source = say("tools/notes", "transcript_of", name=file.name)
        return reading.answer_from(env, query, text, source)
    text = fenced(text or say("tools/notes", "no_words"))
    return say("notes", "transcript", name=file.name, text=text)


def _ask_endpoint(engine: Engine, query: str, env: Environment, part: Part) -> Row:
    start_s, samples = part
    if is_silent(samples):
        return start_s, ""
    backend, wav = env.pool[engine.backend], as_wav(samples)
    if not engine.transcription_model:
        sound = {"data": base64.b64encode(wav).decode(), "format": "wav"}
        content = [
            {"type": "text", "text": render("tools/audio.md", query=query)},
            {"type": "input_audio", "input_audio": sound},
        ]
        return start_s, reading.ask(env, backend, content)
    minutes = len(samples) / RATE / 60
    price = None if engine.usd_per_minute is None else engine.usd_per_minute * minutes
    if not env.purse.affords(price):
        raise BudgetExceeded(f"budget exhausted: transcription costs {price:.6f} USD")
    about = engine.transcription_model, wav, env.task.question, env.purse, price
    return start_s, openai_api.transcribe(env.chat, backend, *about)


def transcribe(path: Path, hint: str, window: Window = WHOLE) -> list[Row]:
    """The speech of a file, by faster-whisper (the extra `local`); `hint` may hold rare words."""
    rows: list[Row] = []
    options = {
        "initial_prompt": hint[:HINT_CHARS] or None,
        "condition_on_previous_text": False,
    }
    for start_s, samples in parts(path, WHISPER_S, window):
        if is_silent(samples):
            continue
        with _loading:
            model = _whisper(os.environ.get(WHISPER, "tiny.en"))
        segments, _ = model.transcribe(samples.astype("float32") / 32768.0, **options)
        rows += [(round(start_s + s.start, 1), s.text.strip()) for s in segments]
    return rows


@cache
def _whisper(name: str) -> Any:
    try:
        from faster_whisper import WhisperModel
    except ImportError:
        raise ToolError(say("notes", "no_engine", what="faster-whisper")) from None
    try:
        return WhisperModel(name, device="cpu", compute_type="int8")
    except (
        OSError,
        ValueError,
        RuntimeError,
    ) as error:  # missing, no network, or damaged
        why = str(error).splitlines()[0]
        raise ToolError(
            say("notes", "broken_engine", what=f"{WHISPER} {name}", why=why)
        ) from None


def parts(path: Path, part_s: float, window: Window = WHOLE) -> Iterator[Part]:
    """The sound of the window in parts of at most `part_s`, cut where it is quiet. Packets that
    cannot be decoded are skipped. Raises ToolError where the file cannot be read.
    """
    pending = numpy.zeros(0, numpy.int16)
    with opened(path, "audio") as (source, stream):
        frames = _frames(source, stream, *window)
        if (first := next(frames, None)) is None:
            return
        start_s = max(
            window[0], (first.time or 0.0) - origin_s(source)
        )  # sound may start late
        for block in _resampled(chain([first], frames)):
            pending = numpy.concatenate([pending, block])
            while len(pending) > part_s * RATE:
                cut = quietest(pending[: int(part_s * RATE)])
                yield start_s, pending[:cut]
                pending, start_s = pending[cut:], start_s + cut / RATE
    yield start_s, pending


def _resampled(frames: Iterable[Any]) -> Iterator[Samples]:
    """16 kHz mono, a second at a time. A resampler takes one sample format, channel layout and
    rate; they change in files that were joined.
    """
    for _, same in groupby(
        frames, lambda f: (f.format.name, f.layout.name, f.sample_rate)
    ):
        resampler: Any = av.AudioResampler("s16", "mono", RATE, frame_size=RATE)
        for frame in chain(same, [None]):
            for piece in resampler.resample(frame):
                yield piece.to_ndarray().reshape(-1)


def _frames(
    source: Any, stream: Any, start_s: float, end_s: float | None
) -> Iterator[Any]:
    """The decoded frames of the window, which counts from `origin_s`."""
    origin = origin_s(source)
    if start_s > 0:
        source.seek(int((start_s + origin) * av.time_base))
    packets = source.demux(stream)
    while True:
        try:
            if (packet := next(packets, None)) is None:
                return
            frames = packet.decode()
        except av.FFmpegError:
            continue
        for frame in frames:
            at_s = start_s if frame.time is None else frame.time - origin
            if end_s is not None and at_s >= end_s:
                return
            if at_s + frame.samples / frame.sample_rate > start_s:
                yield frame


def origin_s(source: Any) -> float:
    """The timestamp that a player shows as 0:00."""
    return float((source.start_time or 0) / av.time_base)


def quietest(samples: Samples) -> int:
    """Index of the middle of the quietest moment in the last SEARCH of the samples."""
    window = int(QUIET_S * RATE)
    first = int(len(samples) * (1 - SEARCH))
    loudness = numpy.abs(samples[first:].astype(numpy.int32))
    sums = numpy.concatenate([[0], numpy.cumsum(loudness)])
    return first + int(numpy.argmin(sums[window:] - sums[:-window])) + window // 2


def is_silent(samples: Samples) -> bool:
    """Too short or too quiet to be sent."""
    return len(samples) < SHORTEST_S * RATE or bool(
        (abs(samples.astype(int)) < SILENCE).all()
    )


def as_wav(samples: Samples) -> bytes:
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setparams((1, 2, RATE, 0, "NONE", ""))  # mono, 2 bytes a sample
        file.writeframes(samples.tobytes())
    return buffer.getvalue()


def clock(seconds: float) -> str:
    """
    >>> clock(3725.4)
    '1:02:05'
    """
    hours, rest = divmod(int(seconds), 3600)
    return (
        f"{hours}:{rest // 60:02}:{rest % 60:02}"
        if hours
        else f"{rest // 60}:{rest % 60:02}"
    )
