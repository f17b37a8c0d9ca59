"""ParseAudioAction: a transcription endpoint or an audio model listens, or faster-whisper does.

Any format that FFmpeg reads, as 16 kHz mono. A long recording is never in memory at once: it is cut
where it is quiet, and the parts are transcribed in parallel; the transcript says when.
"""

from __future__ import annotations

import base64
import io
import os
import threading
import wave
from collections.abc import Iterable, Iterator
from functools import cache, partial
from itertools import chain, groupby, islice
from pathlib import Path
from typing import Any

import av
import numpy

from orchestra.vocabulary import BudgetExceeded, Media
from runtime import openai_api
from runtime.pool import Engine
from runtime.prompts import DATA_CHARS, fenced, render, say
from tools import AudioFile, Environment, ToolError, reading, tool
from tools.media import WHISPER, WHOLE, Window, opened

RATE = 16_000  # samples a second
QUIET_S = 0.2  # a part ends in the middle of the quietest moment this long
SEARCH = 0.3  # looked for in this last share of a part
SHORTEST_S = 0.1  # endpoints refuse less
SILENCE = 60  # a part whose samples all stay below it (of 32768) holds nothing to hear
WHISPER_S = 28.0  # Whisper hears 30 s at a time
ENDPOINT_S = 120.0  # of 16 kHz mono WAV: 3.8 MB
HINT_CHARS = 400
_making = threading.Lock()

Samples = Any  # an array of int16 (n,)
Part = tuple[float, Samples]  # seconds, the sound from there on
Row = tuple[float, str]  # seconds, what was said from there on


@tool("ParseAudioAction", "aud")
def audio_analysis(env: Environment, query: str, audio_path: AudioFile) -> str:
    """Listen to one sound file of the task: what is said in it.

    query: what your task wants to know about the recording, in the words of the task
    audio_path: the file name of the recording, exactly as the task lists it
    """
    return heard(env, env.media(audio_path, "audio"), query)


def heard(env: Environment, file: Media, query: str, window: Window = WHOLE) -> str:
    """The transcript with its times; of a long one what answers the query. Raises ToolError."""
    engine = env.pool.engine("audio")
    if engine.engine == "local":
        hint = env.task.question
        key = {"sha256": file.sha256, "hint": hint, "start_s": window[0], "end_s": window[1]}
        rows = env.local("transcribe", key, lambda: transcribe(file.path, hint, window), list[Row])
    else:
        rows = _ask_endpoint(env, engine, query, parts(file.path, ENDPOINT_S, window))
    text = "\n".join(f"[{clock(at)}] {said}" for at, said in rows if said)
    if len(text) > DATA_CHARS:
        source = say("tools/notes", "transcript_of", name=file.name)
        return reading.answer_from(env, query, text, source)
    text = fenced(text or say("tools/notes", "no_words"))
    return say("notes", "transcript", name=file.name, text=text)


def _ask_endpoint(env: Environment, engine: Engine, query: str, left: Iterator[Part]) -> list[Row]:
    """Each part to the endpoint, a few in parallel; no more parts in memory than that."""
    rows: list[Row] = []
    while batch := list(islice(left, reading.AT_ONCE)):
        ask = partial(_ask_part, engine, query, [samples for _, samples in batch])
        texts = reading.in_parallel(env, len(batch), ask, first=len(rows))
        rows += [(at, text) for (at, _), text in zip(batch, texts, strict=True)]
    return rows


def _ask_part(engine: Engine, query: str, batch: list[Samples], env: Environment, n: int) -> str:
    if is_silent(batch[n]):
        return ""
    backend, data = env.pool[engine.backend], as_wav(batch[n])
    if engine.transcription_model:
        minutes = len(batch[n]) / RATE / 60
        price = None if engine.usd_per_minute is None else engine.usd_per_minute * minutes
        if not env.purse.affords(price):
            raise BudgetExceeded(f"budget exhausted: transcription costs {price:.6f} USD")
        about = engine.transcription_model, data, env.task.question, env.purse, price
        return openai_api.transcribe(env.chat, backend, *about)
    encoded = {"data": base64.b64encode(data).decode(), "format": "wav"}
    request: dict[str, Any] = {"type": "text", "text": render("tools/audio.md", query=query)}
    content = [request, {"type": "input_audio", "input_audio": encoded}]
    return reading.said(env, backend, content)


def transcribe(path: Path, hint: str, window: Window = WHOLE) -> list[Row]:
    """What is said when in a sound file, by faster-whisper (the extra `local`); `hint` helps
    with rare words.
    """
    rows: list[Row] = []
    for at, samples in parts(path, WHISPER_S, window):
        if is_silent(samples):
            continue
        with _making:
            model = _whisper(os.environ.get(WHISPER, "tiny.en"))
        how = {"initial_prompt": hint[:HINT_CHARS] or None, "condition_on_previous_text": False}
        heard, _ = model.transcribe(samples.astype("float32") / 32768.0, **how)
        rows += [(round(at + s.start, 1), s.text.strip()) for s in heard]
    return rows


@cache
def _whisper(name: str) -> Any:
    try:
        from faster_whisper import WhisperModel
    except ImportError:
        raise ToolError(say("notes", "no_engine", what="faster-whisper")) from None
    try:
        return WhisperModel(name, device="cpu", compute_type="int8")
    except (OSError, ValueError, RuntimeError) as error:  # not there, no network, or damaged
        why = str(error).splitlines()[0]
        raise ToolError(say("notes", "broken_engine", what=f"{WHISPER} {name}", why=why)) from None


def parts(path: Path, part_s: float, window: Window = WHOLE) -> Iterator[Part]:
    """The sound of the window, cut where it is quiet, in parts of at most `part_s`. Of a damaged
    file, what can be decoded. Raises ToolError: nothing can.
    """
    held, at = numpy.zeros(0, numpy.int16), window[0]
    with opened(path, "audio") as (source, stream):
        frames = _frames(source, stream, *window)
        first = list(islice(frames, 1))  # the sound may start late
        at = max([at, *((f.time or 0.0) - origin_s(source) for f in first)])
        for block in _resampled(chain(first, frames)):
            held = numpy.concatenate([held, block])
            while len(held) > part_s * RATE:
                cut = quietest(held[: int(part_s * RATE)])
                yield at, held[:cut]
                held, at = held[cut:], at + cut / RATE
    if len(held):
        yield at, held


def _resampled(frames: Iterable[Any]) -> Iterator[Samples]:
    """16 kHz mono, a second at a time. Where the form of the sound changes, as in files that were
    joined, another resampler goes on.
    """
    for _, same in groupby(frames, lambda f: (f.format.name, f.layout.name, f.sample_rate)):
        resampler: Any = av.AudioResampler("s16", "mono", RATE, frame_size=RATE)
        for frame in chain(same, [None]):
            for piece in resampler.resample(frame):
                yield piece.to_ndarray().reshape(-1)


def _frames(source: Any, stream: Any, start_s: float, end_s: float | None) -> Iterator[Any]:
    """What is decoded of the window; its times count from the start of the file, as shown. Packets
    that cannot be decoded are skipped.
    """
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
    """What a player shows as 0:00."""
    return float((source.start_time or 0) / av.time_base)


def quietest(samples: Samples) -> int:
    """Where to cut: the middle of the quietest moment in the last share of the samples."""
    window = int(QUIET_S * RATE)
    first = int(len(samples) * (1 - SEARCH))
    loudness = numpy.abs(samples[first:].astype(numpy.int32))
    sums = numpy.concatenate([[0], numpy.cumsum(loudness)])
    return first + int(numpy.argmin(sums[window:] - sums[:-window])) + window // 2


def is_silent(samples: Samples) -> bool:
    """Whether there is nothing to hear."""
    return len(samples) < SHORTEST_S * RATE or bool((abs(samples.astype(int)) < SILENCE).all())


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
    return f"{hours}:{rest // 60:02}:{rest % 60:02}" if hours else f"{rest // 60}:{rest % 60:02}"
