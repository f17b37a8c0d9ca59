"""POST for a pool of threads, over requests: kept-alive connections, a deadline and a size limit of
each answer.
"""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import requests
from urllib3 import BaseHTTPResponse, Timeout, exceptions
from urllib3.util import Retry

from orchestra.runtime.connections import connections_to

MAX_BYTES = 16 << 20  # of an answer, decoded; a line of a tape has room for more
CONNECT_S = 10.0
PIECE_BYTES = 1 << 16
# Errors after which no request can have arrived. Only `connections_to` raises RequestException,
# as for a malformed proxy.
NEVER_SENT = (
    requests.RequestException,
    exceptions.NewConnectionError,
    exceptions.ConnectTimeoutError,
    exceptions.SSLError,
    exceptions.ProxyError,
)
TIMEOUTS = (TimeoutError, exceptions.TimeoutError)
UNREADABLE = (ArithmeticError, ValueError, LookupError, TypeError, RecursionError)


class NoAnswer(Exception):
    """No response came. `sent`: the request may have arrived whole, and so be billed."""

    def __init__(self, reason: str, sent: bool, timed_out: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.sent = sent
        self.timed_out = timed_out


class Response(NamedTuple):
    """A response of any status, read to its end."""

    status: int
    headers: Mapping[str, str]
    content: bytes


class _Body(io.BytesIO):
    """The body of a request. urllib3 sends it in pieces, and reads on after each."""

    is_sent = (
        False  # to its last byte; until then an endpoint cannot have read it whole
    )

    def read(self, size: int | None = -1, /) -> bytes:
        piece = super().read(size)
        self.is_sent = not piece or size == -1  # vcrpy reads all at once
        return piece


def post(url: str, body: Any, headers: Mapping[str, str], timeout_s: float) -> Response:
    """The response to a JSON body, whatever its status. Redirects are not followed. Raises
    NoAnswer.
    """
    data = json.dumps(body).encode()
    sending = _Body(data)
    # The first limits each send, the second the answer. The body is sent in pieces, so a large
    # upload may take longer.
    timeout = Timeout(connect=min(CONNECT_S, timeout_s), read=timeout_s)
    try:
        pool, target = connections_to(url)
        response = pool.urlopen(
            "POST",
            target,
            body=sending,
            headers={**headers, "content-length": str(len(data))},
            timeout=timeout,
            redirect=False,
            retries=False,
            preload_content=False,
            assert_same_host=False,  # with a proxy, the target is a full URL
        )
        # A response that was read to its end has returned its connection.
        with contextlib.closing(response):
            content = _content(response)
    except (exceptions.HTTPError, OSError, ValueError) as error:
        raise NoAnswer(
            _reason(error),
            sent=sending.is_sent and not isinstance(error, NEVER_SENT),
            timed_out=_timed_out(error),
        ) from None
    if not sending.is_sent and response.status < 300:
        raise NoAnswer("an answer came before the request was sent", sent=False)
    return Response(response.status, response.headers, content)


def _content(response: Any) -> bytes:
    if not isinstance(response, BaseHTTPResponse):
        return bytes(response.read())  # inside a vcrpy cassette of the host program
    parts = []
    size = 0
    while piece := response.read1(PIECE_BYTES, decode_content=True):  # one recv
        parts.append(piece)
        size += len(piece)
        if size > MAX_BYTES:
            raise ValueError(f"the answer is larger than {MAX_BYTES >> 20} MiB")
    return b"".join(parts)


def _timed_out(error: Exception) -> bool:
    """Whether time ran out. (urllib3 derives a refused connection from a timeout.)"""
    refused = isinstance(error, exceptions.NewConnectionError)
    return isinstance(error, TIMEOUTS) and not refused


def _reason(error: Exception) -> str:
    """The reason, without memory addresses and seconds: equal failures have equal texts."""
    if _timed_out(error) or "timed out" in str(error):
        return "timed out"
    cause = error.__cause__
    if isinstance(cause, OSError) and cause.strerror:
        return cause.strerror
    text = str(error.args[-1] if error.args else error)
    return " ".join(text.split())


def retry_after_s(header: str) -> float:
    """The seconds of a Retry-After header, which may be a date; 0 if it cannot be read."""
    with contextlib.suppress(ValueError, OverflowError, exceptions.HTTPError):
        return Retry().parse_retry_after(header)
    return 0.0


def error_of(response: Response) -> tuple[int, str]:
    """Status and message, in one line, of a response that is an error.

    A router may send an error with status 200; then the status is the error's code, 0 if it has
    none. OpenRouter puts the error into the choice.
    """
    code = 0
    error: Any = response.content[:2000].decode("utf-8", "replace")
    with contextlib.suppress(*UNREADABLE):
        data = json.loads(response.content)
        error = data["error"] if "error" in data else data["choices"][0]["error"]
        code = int(error["code"])
    if isinstance(error, dict):
        error = error.get("message") or error
    text = " ".join(str(error).split()) or "no message"
    if 200 <= response.status < 300:
        is_status = 400 <= code < 600
        return (code if is_status else 0), text
    if 300 <= response.status < 400:
        return response.status, f"redirects to {response.headers.get('location', '?')}"
    return response.status, text
