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

from orchestra.contracts import adapter
from orchestra.money import Bill, Purse
from orchestra.runtime import http
from orchestra.runtime.attempts import Kind
from orchestra.runtime.chat import AnswerRow, Chat, Cost
from orchestra.runtime.completion import key_of
from orchestra.vocabulary import Backend, ConfigError, Failure

NEVER_SENT = ("ConnectError", "ConnectTimeout", "ProxyError", "UnsupportedProtocol")
UNUSABLE = (0, 401, 403, 429)  # statuses after which a list of models says nothing
LISTED = 10  # models in an error


class _Transcript(TypedDict):
    text: str


class _Models(TypedDict):
    data: list[dict[str, Any]] | None


def transcribe(
    chat: Chat,
    backend: Backend,
    model: str,
    sound: bytes,
    hint: str,
    purse: Purse,
    cost_usd: float | None,
) -> str:
    """The text of a WAV file, from /audio/transcriptions. Raises EndpointError."""
    fields = {"model": model, "prompt": hint}
    digest = hashlib.sha256(sound).hexdigest()
    request = {"url": backend.base_url, "sha256": digest, **fields}
    file = ("audio.wav", sound)

    def create(api: Any) -> Any:
        return api.audio.transcriptions.with_raw_response.create(file=file, **fields)

    outcome = chat.exchange(
        TRANSCRIPTION,
        request,
        send=partial(_send, chat, backend, create),
        bill=Bill(chat.ledger, purse, backend.name, most_usd=cost_usd),
        cost_of=lambda text: Cost(cost_usd),
    )
    if isinstance(outcome, Failure):
        raise chat.error(backend, outcome)
    return str(outcome.value)


def with_model(chat: Chat, backend: Backend) -> Backend:
    """The backend with its model: if none is named, the only one that the endpoint serves.

    Raises EndpointError, and ConfigError if it does not serve exactly one.
    """
    if backend.model:
        return backend

    def list_models(api: Any) -> Any:
        return api.models.with_raw_response.list()

    with chat.tape.call("models"):
        outcome = chat.exchange(
            MODELS,
            request={"url": backend.base_url},
            send=partial(_send, chat, backend, list_models),
            bill=Bill(chat.ledger, Purse(), backend.name, most_usd=0.0),
            cost_of=lambda models: Cost(0.0),
        )
    if isinstance(outcome, Failure):
        if outcome.status in UNUSABLE or outcome.status >= 500:
            raise chat.error(backend, outcome)
        served = []  # the endpoint has no list of models
    else:
        served = outcome.value
    if len(served) != 1:
        none = "no list of models (most URLs end in /v1)"
        listed = ", ".join(served[:LISTED]) or none
        raise ConfigError(f"{backend.base_url} serves {listed}: name one with --model")
    return replace(backend, model=served[0])


def _send(chat: Chat, backend: Backend, call: Callable[[Any], Any]) -> http.Response:
    """One attempt of a call with the client. Raises NoAnswer."""
    import openai

    how: dict[str, Any] = {"timeout": chat.timeout_s, "max_retries": 0}
    try:
        bundle = os.environ.get("REQUESTS_CA_BUNDLE")
        if bundle:  # requests reads it; httpx does not
            trusted = ssl.create_default_context(cafile=bundle)
            how["http_client"] = openai.DefaultHttpxClient(verify=trusted)
        key = key_of(backend)
        with openai.OpenAI(base_url=backend.base_url, api_key=key, **how) as api:
            answer = call(api)
    except openai.APIStatusError as error:
        answer = error.response
    except (openai.APIConnectionError, ValueError, OSError, ImportError) as error:
        timed_out = isinstance(error, openai.APITimeoutError)
        reason = "timed out" if timed_out else str(error.__cause__ or error)
        sent = type(error.__cause__).__name__ not in NEVER_SENT
        raise http.NoAnswer(reason, sent, timed_out) from None
    return http.Response(answer.status_code, answer.headers, answer.content)


def _text(response: http.Response) -> str:
    try:
        transcript = adapter(_Transcript).validate_json(response.content)
    except ValidationError as error:
        problem = error.errors()[0]["msg"]
        raise ValueError(f"no usable answer ({problem})") from None
    return str(transcript["text"])


def _ids(response: http.Response) -> list[str]:
    """The names of the models; [] if the answer is not a list of models."""
    try:
        models = adapter(_Models).validate_json(response.content)["data"] or []
    except ValidationError:
        return []
    return [m["id"] for m in models if isinstance(m.get("id"), str)]


TRANSCRIPTION = Kind("transcription", _text, AnswerRow[str])
MODELS = Kind("models", _ids, AnswerRow[list[str]])
