"""What is said in a recording: by an endpoint of the pool, or by faster-whisper on this machine.

A long recording is heard in parts; only a few parts are in memory at a time.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

import requests

from orchestra.kernel.chat import endpoint_error, key_of
from orchestra.kernel.http import Response, deliver
from orchestra.kernel.money import Bill
from orchestra.kernel.prompts import render, say
from orchestra.kernel.tape import Failure
from orchestra.kernel.tool import Environment
from orchestra.kernel.vocabulary import (
    WHOLE,
    Backend,
    BudgetExceeded,
    ConfigError,
    Engine,
    ToolError,
    Window,
)
from orchestra.tools import reading
from orchestra.tools.media import WHISPER, check_whisper, engine_needs
from orchestra.tools.sound import RATE, Part, as_wav, is_silent, parts

WHISPER_S = 28.0  # the window of Whisper is 30 s
ENDPOINT_S = 120.0  # 3.8 MB as 16 kHz mono WAV
HINT_CHARS = 400
SIZES = {
    "tiny": "75 MB",
    "base": "145 MB",
    "small": "480 MB",
    "medium": "1.5 GB",
    "large": "3 GB",
}
_loading = threading.Lock()

TimedText = tuple[float, str]  # start in seconds, text


# ---- an endpoint ---------------------------------------------------------------------------------


def by_endpoint(
    env: Environment, engine: Engine, path: Path, query: str, window: Window
) -> list[TimedText]:
    """What an endpoint hears in each part. Raises EndpointError or BudgetExceeded."""
    hear = partial(_heard, engine, query)
    return reading.in_parallel(env, hear, parts(path, ENDPOINT_S, window))


def _heard(engine: Engine, query: str, env: Environment, part: Part) -> TimedText:
    start_s, samples = part
    if is_silent(samples):
        return start_s, ""
    sound = as_wav(samples)
    if engine.transcription_model:
        return start_s, _transcription(env, engine, sound, len(samples) / RATE / 60)
    data = base64.b64encode(sound).decode()
    content = [
        {"type": "text", "text": render("tools/audio.md", query=query)},
        {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}},
    ]
    return start_s, reading.ask(env, env.pool[engine.backend], content)


def _transcription(
    env: Environment, engine: Engine, sound: bytes, minutes: float
) -> str:
    """The text of a WAV file, from /audio/transcriptions."""
    price = engine.usd_per_minute
    cost_usd = None if price is None else price * minutes
    if not env.purse.affords(cost_usd):
        shown = "an unknown amount of" if cost_usd is None else f"{cost_usd:.6f}"
        raise BudgetExceeded(f"budget exhausted: transcription costs {shown} USD")
    backend = env.pool[engine.backend]
    fields = {"model": engine.transcription_model, "prompt": env.task.question}
    digest = hashlib.sha256(sound).hexdigest()
    request = {"url": backend.base_url, "sha256": digest, **fields}
    send = partial(_upload, backend, fields, sound, env.chat.timeout_s)
    bill = Bill(env.chat.ledger, env.purse, backend, cost_usd)
    bill.assumed_usd = cost_usd  # known, and the endpoint reports none
    outcome = env.chat.exchange("transcription", request, send, bill)
    if isinstance(outcome, Failure):
        raise endpoint_error(backend, outcome)
    return outcome.text


def _upload(
    backend: Backend, fields: dict[str, str], sound: bytes, timeout_s: float
) -> Response:
    """One attempt. Its response is a completion with the text. Raises NoAnswer."""
    url = f"{backend.base_url.rstrip('/')}/audio/transcriptions"
    headers = {"authorization": f"Bearer {key_of(backend)}"}
    files = {"file": ("audio.wav", sound, "audio/x-wav")}
    upload = requests.Request("POST", url, headers, files, fields)
    response = deliver(url, upload.prepare, timeout_s)
    try:
        text = json.loads(response.content)["text"]
    except (ValueError, LookupError, TypeError, RecursionError):
        return response
    completion = {"choices": [{"message": {"content": str(text)}}]}
    return response._replace(content=json.dumps(completion).encode())


# ---- faster-whisper ------------------------------------------------------------------------------


def by_whisper(
    path: Path, hint: str, window: Window = WHOLE, tell: Callable[[str], None] = print
) -> list[TimedText]:
    """The speech of a file, by faster-whisper (the extra `local`); `hint` may hold rare words.
    `tell` is told of a download.
    """
    rows: list[TimedText] = []
    model = None  # silence needs none
    for part_start_s, samples in parts(path, WHISPER_S, window):
        if is_silent(samples):
            continue
        model = model or _loaded_whisper(tell)
        segments, _ = model.transcribe(
            samples.astype("float32") / 32768.0,
            initial_prompt=hint[:HINT_CHARS] or None,
            condition_on_previous_text=False,
        )
        for segment in segments:
            start_s = round(part_start_s + segment.start, 1)
            rows.append((start_s, segment.text.strip()))
    return rows


def _loaded_whisper(tell: Callable[[str], None]) -> Any:
    """The model that WHISPER_MODEL names, loaded by the first thread that needs it. Raises
    ConfigError if it is not there.
    """
    check_whisper()
    with _loading:
        name = os.environ.get(WHISPER, "tiny.en")
        _announce(name, tell)
        return _whisper(name)


def _announce(name: str, tell: Callable[[str], None]) -> None:
    """Tell of the download of a model that is not on this machine yet."""
    if os.sep in name:  # a folder
        return
    with suppress(ImportError, ValueError):  # _whisper tells of these
        from faster_whisper import download_model

        try:
            download_model(name, local_files_only=True)
        except OSError:
            sizes = [size for kind, size in SIZES.items() if kind in name]
            size = f" ({sizes[0]})" if sizes else ""
            tell(f"the speech model {name}{size} is downloaded, once")


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
