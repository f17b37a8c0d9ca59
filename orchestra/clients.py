"""One openai client an endpoint, with its retries (408, 409, 429, 5xx, refused connections,
Retry-After) and a connection each for requests that run side by side.
"""

from __future__ import annotations

import atexit
import ssl
import threading
from collections import deque
from functools import cache, cached_property
from typing import Any
from urllib.request import getproxies

import httpx2
import openai

RETRIES = 2
PLAYED = "x-orchestra-played"  # on what is from the tape: nothing was paid for it now
TRIED_BY_CALLER = (
    httpx2.TimeoutException,
    httpx2.ReadError,
    httpx2.WriteError,
    httpx2.CloseError,
    httpx2.RemoteProtocolError,
    httpx2.DecodingError,
)

NEVER_SENT = httpx2.ConnectTimeout, httpx2.PoolTimeout
CONNECT_S = 10.0


def played(failure: BaseException | None) -> bool:
    """Whether a failure comes from the tape."""
    return PLAYED in getattr(failure, "__notes__", ())


class OneEachTransport(httpx2.BaseTransport):
    """A connection each for requests that run side by side, leased without a lock. httpx2's own
    pool looks at all its connections under one lock for every request, which at 128 sub-tasks costs
    more than the requests themselves.
    """

    def __init__(self) -> None:
        self._idle: dict[str, deque[httpx2.HTTPTransport]] = {"http": deque(), "https": deque()}

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        return httpx2.create_ssl_context()

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        scheme = request.url.scheme
        try:
            transport = self._idle[scheme].pop()
        except IndexError:
            transport = httpx2.HTTPTransport(verify=self._tls if scheme == "https" else False)
        try:
            return transport.handle_request(request)
        finally:
            self._idle[scheme].append(transport)

    def close(self) -> None:
        for idle in self._idle.values():
            while idle:
                idle.pop().close()


class FailuresToCaller(openai.DefaultHttpxClient):
    """The openai client tries a time-out or a broken answer again by itself, unless it is an error
    of its own: whether there is money for one more is the caller's to know. What a tape plays is
    the outcome of all tries.
    """

    def send(self, request: httpx2.Request, **how: Any) -> httpx2.Response:
        try:
            return super().send(request, **how)
        except (httpx2.TransportError, httpx2.DecodingError) as failure:
            if not isinstance(failure, TRIED_BY_CALLER) and not played(failure):
                raise
            late = isinstance(failure, httpx2.TimeoutException)
            kind = openai.APITimeoutError if late else openai.APIConnectionError
            raise kind(request=request) from failure


_making = threading.Lock()


def client(base_url: str, api_key: str, timeout_s: float) -> openai.OpenAI:
    """The one client of an endpoint: a client per call would cost 20-35 ms each."""
    with _making:  # a cache alone lets threads that start together make one each
        return _client(base_url, api_key, timeout_s)


@cache
def _client(base_url: str, api_key: str, timeout_s: float) -> openai.OpenAI:
    timeout = httpx2.Timeout(timeout_s, connect=CONNECT_S)
    transport = None if getproxies() else OneEachTransport()  # httpx2 finds proxies on its own
    http = FailuresToCaller(timeout=timeout, transport=transport)
    atexit.register(http.close)
    return openai.OpenAI(
        base_url=base_url, api_key=api_key, http_client=http, max_retries=RETRIES, timeout=timeout
    )
