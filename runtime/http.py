"""POST for a pool of threads, over requests: one set of kept-alive connections per endpoint, one
deadline and one size limit per answer.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from functools import cache
from http.cookiejar import DefaultCookiePolicy
from typing import Any, NamedTuple

import requests
from requests.adapters import HTTPAdapter
from urllib3 import BaseHTTPResponse
from urllib3 import exceptions as errors

MAX_BYTES = 64 << 20  # of an answer, decoded
CONNECTIONS = 512  # kept to one endpoint
CONNECT_S = 10.0
NEVER_SENT = (
    errors.NewConnectionError, errors.ConnectTimeoutError, errors.SSLError, errors.ProxyError,
    ValueError,
)  # fmt: skip


class NoAnswer(Exception):
    """`sent`: something may have reached the endpoint, and so be on the bill."""

    def __init__(self, why: str, sent: bool) -> None:
        super().__init__(why, sent)
        self.why, self.sent = why, sent


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    content: bytes


@cache
def _session(process: int) -> requests.Session:
    """The connections of a process: a forked child must not read its parent's answers."""
    session = requests.Session()
    session.auth = lambda request: request  # else ~/.netrc would replace the key
    session.cookies.set_policy(DefaultCookiePolicy(allowed_domains=()))
    for scheme in ("http://", "https://"):
        session.mount(scheme, HTTPAdapter(pool_maxsize=CONNECTIONS))
    return session


def post(url: str, body: bytes, headers: Mapping[str, str], timeout_s: float) -> Answer:
    """The answer, whatever its status; redirects are not followed. Raises NoAnswer."""
    deadline, limits_s = time.monotonic() + timeout_s, (min(CONNECT_S, timeout_s), timeout_s)
    how: Any = {"timeout": limits_s, "allow_redirects": False, "stream": True}
    try:
        with _session(os.getpid()).post(url, body, headers=headers, **how) as response:
            return Answer(response.status_code, response.headers, _content(response, deadline))
    except (errors.HTTPError, OSError, ValueError) as error:
        raise _no_answer(error) from None


def _content(response: requests.Response, deadline: float) -> bytes:
    if not isinstance(response.raw, BaseHTTPResponse):  # inside a vcrpy cassette of the host
        return response.content
    parts, size = [], 0
    while part := response.raw.read1(1 << 16, decode_content=True):  # one recv: a drip is seen
        parts.append(part)
        size += len(part)
        if size > MAX_BYTES:
            raise errors.HTTPError(f"the answer is larger than {MAX_BYTES >> 20} MiB")
        if time.monotonic() > deadline:
            raise TimeoutError("timed out")
    return b"".join(parts)


def _no_answer(error: Exception) -> NoAnswer:
    """Why, without an address in memory or a number of seconds: a replay must read the same."""
    inner = error.args[0] if error.args else None
    inner = getattr(inner, "reason", inner)  # urllib3's error in one of requests
    error = inner if isinstance(inner, Exception) else error
    why = " ".join(str(error.args[-1] if error.args else error).split())[:200]
    if "timed out" in str(error):
        why = "timed out"
    elif isinstance(cause := error.__cause__, OSError) and cause.strerror:
        why = cause.strerror
    return NoAnswer(why, not isinstance(error, NEVER_SENT))
