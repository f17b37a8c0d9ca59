"""POST for a pool of threads, over requests: one set of kept-alive connections per endpoint, one
deadline and one size limit per answer.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import time
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

import requests
from requests.adapters import HTTPAdapter
from urllib3 import BaseHTTPResponse, Timeout, exceptions
from urllib3.util import Retry

MAX_BYTES = 64 << 20  # of an answer, decoded
CONNECTIONS = 512  # kept to one endpoint
CONNECT_S = 10.0
NEVER_SENT = (  # only `_connections` raises RequestException, as for a malformed proxy
    requests.RequestException, exceptions.NewConnectionError, exceptions.ConnectTimeoutError,
    exceptions.SSLError, exceptions.ProxyError,
)  # fmt: skip


class NoAnswer(Exception):
    """`args`: the reason, and whether the request may have arrived, and so be billed."""


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    content: bytes


@cache
def _connections(url: str, process_id: int) -> tuple[Any, str]:
    """The connections to an endpoint, and the request target, with the proxy and certificates that
    requests finds in the environment. A forked child has its own connections: on shared ones, it
    and its parent could read each other's answers.
    """
    settings = requests.Session().merge_environment_settings(url, {}, True, None, None)
    request, proxies = requests.Request("POST", url).prepare(), settings["proxies"]
    adapter = HTTPAdapter(pool_connections=1, pool_maxsize=CONNECTIONS)
    pool = adapter.get_connection_with_tls_context(
        request, settings["verify"], proxies, settings["cert"]
    )
    return pool, adapter.request_url(request, proxies)


def post(url: str, body: bytes, headers: Mapping[str, str], timeout_s: float) -> Answer:
    """The answer, whatever its status; redirects are not followed. Raises NoAnswer."""
    deadline = time.monotonic() + timeout_s
    timeout = Timeout(
        connect=min(CONNECT_S, timeout_s), read=timeout_s
    )  # read: of each piece
    how = {
        "redirect": False,
        "retries": False,
        "timeout": timeout,
        "preload_content": False,
    }
    how["assert_same_host"] = False  # with a proxy, the target is a full URL
    try:
        pool, target = _connections(url, os.getpid())
        # in pieces: the connect timeout is the limit of each send, not of a large upload
        pieces, length = io.BytesIO(body), {"content-length": str(len(body))}
        response = pool.urlopen(
            "POST", target, body=pieces, headers={**headers, **length}, **how
        )
        with contextlib.closing(
            response
        ):  # one read to its end has returned its connection
            return Answer(
                response.status, response.headers, _content(response, deadline)
            )
    except (exceptions.HTTPError, OSError, ValueError) as error:
        raise NoAnswer(_reason(error), not isinstance(error, NEVER_SENT)) from None


def _content(response: Any, deadline: float) -> bytes:
    if not isinstance(
        response, BaseHTTPResponse
    ):  # inside a vcrpy cassette of the host program
        return bytes(response.read())
    parts, size = [], 0
    while part := response.read1(
        1 << 16, decode_content=True
    ):  # one recv, then the deadline
        parts.append(part)
        size += len(part)
        if size > MAX_BYTES:
            raise ValueError(f"the answer is larger than {MAX_BYTES >> 20} MiB")
        if time.monotonic() > deadline:
            raise TimeoutError("timed out")
    return b"".join(parts)


def _reason(error: Exception) -> str:
    """The reason, without memory addresses and seconds: equal failures have equal texts."""
    if "timed out" in str(error):
        return "timed out"
    if isinstance(cause := error.__cause__, OSError) and cause.strerror:
        return cause.strerror
    text = str(error.args[-1] if error.args else error)
    return " ".join(text.split())


def retry_after_s(header: str) -> float:
    """The seconds of a Retry-After header, which may be a date; 0 if it cannot be read."""
    with contextlib.suppress(ValueError, OverflowError, exceptions.HTTPError):
        return Retry().parse_retry_after(header)
    return 0.0


def error_of(answer: Answer) -> tuple[int, str]:
    """Status and message, in one line, of an answer that is an error. A router may send an error
    with status 200; then the status is the error's code, 0 if it has none. OpenRouter puts the
    error into the choice.
    """
    status, code = answer.status, 0
    error: Any = answer.content[:2000].decode("utf-8", "replace")
    with contextlib.suppress(
        ArithmeticError, ValueError, LookupError, TypeError, RecursionError
    ):
        data = json.loads(answer.content)
        error = data["error"] if "error" in data else data["choices"][0]["error"]
        code = int(error["code"])
    text = str(error.get("message") or error) if isinstance(error, dict) else str(error)
    if 300 <= answer.status < 400:
        text = f"redirects to {answer.headers.get('location', '?')}"
    if 200 <= answer.status < 300:
        status = code if 400 <= code < 600 else 0
    return status, " ".join(text.split()) or "no message"
