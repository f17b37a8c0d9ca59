"""What the openai package does: transcriptions, which are uploads, and the list of models. It takes
0.6 s to import, so it is imported when it is used.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from orchestra.vocabulary import Backend, ConfigError, EndpointError
from runtime.chat import Chat, key_of
from runtime.tape import Failure


def transcribe(
    chat: Chat, backend: Backend, model: str, sound: bytes, sha256: str, hint: str
) -> tuple[str, bool]:
    """The text of a WAV file by /audio/transcriptions, and whether it was played from the tape.

    Raises EndpointError.
    """
    request = {"url": backend.base_url, "model": model, "prompt": hint, "sha256": sha256}
    sent = {"model": model, "prompt": hint, "file": ("audio.wav", sound)}

    def ask(client: Any) -> str:
        text = client.audio.transcriptions.create(**sent).text
        if not isinstance(text, str):
            raise TypeError("no text in the answer")
        return text

    try:
        return _exchange(chat, "transcription", backend, request, ask)
    except Failure as failure:
        raise EndpointError(chat.advice(backend, failure.outcome, [])) from None


def with_model(chat: Chat, backend: Backend) -> Backend:
    """The backend with the name of its model; "" is the only one that the endpoint serves.

    Raises ConfigError where it serves several, EndpointError.
    """
    if backend.model:
        return backend

    def ask(client: Any) -> list[str]:
        return [m.id for m in client.models.list().data or () if isinstance(m.id, str)]

    served: list[str] = []
    try:
        with chat.tape.call("models"):
            served, _ = _exchange(chat, "models", backend, {"url": backend.base_url}, ask)
    except Failure as failure:
        if (status := failure.outcome["status"]) in (0, 401, 403, 429) or status >= 500:
            raise EndpointError(chat.advice(backend, failure.outcome, [])) from None
    if len(served) != 1:
        listed = ", ".join(served[:10]) or "no list of models"
        raise ConfigError(f"{backend.base_url} serves {listed}: name one with --model")
    return replace(backend, model=served[0])


def _exchange(
    chat: Chat, kind: str, backend: Backend, request: dict[str, Any], ask: Callable[[Any], Any]
) -> tuple[Any, bool]:
    """`ask(client)` on the tape, with the client's own retries. Raises Failure."""

    def attempt() -> Any:
        import openai

        key, url = key_of(backend), backend.base_url
        try:
            with openai.OpenAI(base_url=url, api_key=key, timeout=chat.timeout_s) as client:
                return ask(client)
        except (openai.APIError, ValueError, TypeError, AttributeError) as error:
            status, why = getattr(error, "status_code", 200), str(error.__cause__ or error)
            if isinstance(error, openai.APIConnectionError):
                status = 0
            elif status == 200:
                why = f"no usable answer ({type(error).__name__})"
        raise Failure({"status": status, "why": why[:300], "unanswered": 0})

    shape = list[str] if kind == "models" else str
    return chat.tape.exchange(kind, request, attempt, shape)
