"""Transcriptions and the list of models, by the openai package. It takes 0.6 s to import, so it is
imported when it is used.
"""

from __future__ import annotations

import hashlib
import os
import ssl
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from pydantic import ValidationError
from typing_extensions import TypedDict

from orchestra.money import Purse
from orchestra.runtime import http
from orchestra.runtime.chat import Chat, Kind, Outcome, key_of
from orchestra.runtime.tape import adapter
from orchestra.vocabulary import Backend, ConfigError, EndpointError

NEVER_SENT = "ConnectError", "ConnectTimeout", "ProxyError", "UnsupportedProtocol"


class _Transcript(TypedDict):
    text: str


class _Models(TypedDict):
    data: list[dict[str, Any]] | None


def transcribe(
    chat: Chat, backend: Backend, model: str, sound: bytes, hint: str, purse: Purse,
    cost_usd: float | None,
) -> str:  # fmt: skip
    """The text of a WAV file, from /audio/transcriptions. Raises EndpointError."""
    fields = {"model": model, "prompt": hint}
    request = {
        "url": backend.base_url,
        "sha256": hashlib.sha256(sound).hexdigest(),
        **fields,
    }
    file = ("audio.wav", sound)
    send = partial(
        _send, chat, backend,
        lambda api: api.audio.transcriptions.with_raw_response.create(file=file, **fields),
    )  # fmt: skip
    outcome, played = chat.exchange(
        TRANSCRIPTION, backend.name, request, send, purse, cost_usd
    )
    if "data" not in outcome:
        raise EndpointError(chat.advice(backend, outcome, []))
    purse.charge(cost_usd, played)
    return str(outcome["data"])


def with_model(chat: Chat, backend: Backend) -> Backend:
    """The backend with its model: if none is named, the only one that the endpoint serves.

    Raises EndpointError, and ConfigError if it does not serve exactly one.
    """
    if backend.model:
        return backend
    send = partial(
        _send, chat, backend, lambda api: api.models.with_raw_response.list()
    )
    request = {"url": backend.base_url}
    with chat.tape.call("models"):
        outcome, _ = chat.exchange(MODELS, backend.name, request, send, Purse(), 0.0)
    if (status := outcome.get("status", 200)) in (0, 401, 403, 429) or status >= 500:
        raise EndpointError(chat.advice(backend, outcome, []))
    served = outcome.get("data", [])
    if len(served) != 1:
        listed = ", ".join(served[:10]) or "no list of models (most URLs end in /v1)"
        raise ConfigError(f"{backend.base_url} serves {listed}: name one with --model")
    return replace(backend, model=served[0])


def _send(chat: Chat, backend: Backend, call: Callable[[Any], Any]) -> http.Answer:
    """One attempt of a call with the client. Raises NoAnswer."""
    import openai

    how: Any = {"timeout": chat.timeout_s, "max_retries": 0}
    try:
        if bundle := os.environ.get(
            "REQUESTS_CA_BUNDLE"
        ):  # requests reads it; httpx does not
            trusted = ssl.create_default_context(cafile=bundle)
            how["http_client"] = openai.DefaultHttpxClient(verify=trusted)
        with openai.OpenAI(
            base_url=backend.base_url, api_key=key_of(backend), **how
        ) as api:
            answer = call(api)
    except openai.APIStatusError as error:
        answer = error.response
    except (openai.APIConnectionError, ValueError, OSError, ImportError) as error:
        why = (
            "timed out"
            if isinstance(error, openai.APITimeoutError)
            else error.__cause__ or error
        )
        sent = type(error.__cause__).__name__ not in NEVER_SENT
        raise http.NoAnswer(str(why), sent) from None
    return http.Answer(answer.status_code, answer.headers, answer.content)


def _text(answer: http.Answer) -> str:
    try:
        return str(adapter(_Transcript).validate_json(answer.content)["text"])
    except ValidationError as error:
        raise ValueError(f"no usable answer ({error.errors()[0]['msg']})") from None


def _ids(answer: http.Answer) -> list[str]:
    """The names of the models; [] if the answer is not a list of models."""
    try:
        models = adapter(_Models).validate_json(answer.content)["data"] or []
    except ValidationError:
        return []
    return [m["id"] for m in models if isinstance(m.get("id"), str)]


TRANSCRIPTION = Kind("transcription", _text, Outcome[str])
MODELS = Kind("models", _ids, Outcome[list[str]])
