"""One POST to an endpoint, over connections that are kept.

    response = by_requests(url, body, key, timeout_s)    # or raises NoAnswer

`by_requests` is the kernel's `send`; a model in this process is another.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cache
from typing import Any, NamedTuple

import requests
import urllib3
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection

MAX_BYTES = 16 << 20  # of an answer
CONNECT_S = 10.0
CONNECTIONS = 256  # kept to one endpoint
# Errors after which no request can have arrived
NEVER_SENT = (
    "NewConnectionError",
    "NameResolutionError",
    "ConnectTimeout",
    "SSLError",
    "ProxyError",
    "Invalid",
    "CA certificate",
    "UnicodeEncodeError",
)
Body = dict[str, Any]


class Response(NamedTuple):
    """A response of any status, read to its end."""

    status: int
    content: bytes
    retry_after_s: float = 0.0
    location: str = ""  # of a redirect


class NoAnswer(Exception):
    """No response came. `billed`: the request may have arrived all the same."""

    def __init__(self, why: str, billed: bool, timed_out: bool = False) -> None:
        super().__init__(why)
        self.billed = billed
        self.timed_out = timed_out


Send = Callable[[str, Body, str, float], Response]


def session(url: str) -> requests.Session:
    """The connections of this process to an endpoint, with the proxy and certificates of the
    environment, which are read once.
    """
    scheme, _, host = url.split("/")[:3]
    return _session(f"{scheme}//{host}/", os.getpid())


class Connections(HTTPAdapter):
    """The connections to one endpoint. What depends on its address alone is found once, and `send`
    returns urllib3's response as it is.
    """

    def __init__(self) -> None:
        super().__init__(pool_maxsize=CONNECTIONS)
        self.pool: Any = None
        self.targets: dict[str, str] = {}  # URL -> what a request's first line names

    def get_connection_with_tls_context(self, *how: Any, **more: Any) -> Any:
        if self.pool is None:
            self.pool = super().get_connection_with_tls_context(*how, **more)
        # Each time: the host process may use a cassette of vcrpy since the last call.
        self.pool.ConnectionCls = in_one_write(type(self.pool).ConnectionCls)
        return self.pool

    def request_url(self, request: Any, proxies: Any) -> str:
        if request.url not in self.targets:
            self.targets[request.url] = super().request_url(request, proxies)
        return self.targets[request.url]

    def build_response(self, req: Any, resp: Any) -> Any:
        return resp


@cache
def in_one_write(connection: Any) -> Any:
    """urllib3's connection, but the head of a request and its body leave in one write, within the
    time limit of the call. Another class, such as vcrpy's in the host process, is left as it is.
    """
    if connection not in (HTTPConnection, HTTPSConnection):
        return connection

    class InOneWrite(connection):  # type: ignore[misc]
        pieces: list[Any] | None = None
        timeout: Any

        def connect(self) -> None:
            """In at most CONNECT_S; to send the request may take longer."""
            whole_s = self.timeout
            self.timeout = min(CONNECT_S, whole_s)
            super().connect()
            self.timeout = whole_s
            self.sock.settimeout(whole_s)

        def request(self, *how: Any, **more: Any) -> None:
            self.pieces = []
            super().request(*how, **more)
            data = b"".join(self.pieces)
            self.pieces = None
            self.send(data)

        def send(self, data: Any) -> None:
            if self.pieces is None:
                super().send(data)
            else:
                self.pieces.append(data)

    return InOneWrite


@cache
def _session(endpoint: str, process_id: int) -> requests.Session:
    """`endpoint`: scheme, host and port. A forked child has its own."""
    made = requests.Session()
    settings = made.merge_environment_settings(endpoint, {}, True, None, None)
    made.proxies.update(settings["proxies"])
    own = os.environ.get("SSL_CERT_FILE") or os.environ.get("SSL_CERT_DIR")
    made.verify = settings["verify"] if settings["verify"] is not True else own or True
    made.trust_env = False  # so that it is not read again for each call
    adapter = Connections()
    made.mount("https://", adapter)
    made.mount("http://", adapter)
    return made


def by_requests(url: str, body: Body, key: str, timeout_s: float) -> Response:
    """One POST. Redirects are not followed. Raises NoAnswer."""

    def prepare() -> requests.PreparedRequest:
        request = requests.PreparedRequest()
        data = json.dumps(body).encode()
        headers: Any = {"authorization": f"Bearer {key}", "user-agent": "orchestra-min"}
        headers |= {
            "content-type": "application/json",
            "accept-encoding": "gzip, deflate",
        }
        headers["Content-Length"] = str(len(data))
        request.method, request.url, request.body = "POST", url, data
        request.headers = headers
        return request

    return deliver(url, prepare, timeout_s)


def deliver(
    url: str, prepare: Callable[[], requests.PreparedRequest], timeout_s: float
) -> Response:
    """The response to a request, over the connections of its endpoint. Raises NoAnswer."""
    connections = session(url)
    deadline = time.monotonic() + timeout_s
    try:
        response: Any = connections.get_adapter(url).send(
            prepare(),
            stream=True,
            timeout=timeout_s,
            verify=connections.verify or False,
            proxies=connections.proxies,
        )
        try:
            if response.status < 200:  # end the connection: the answer comes later
                raise NoAnswer("only an interim answer came", billed=True)
            content = _content_of(response, deadline)
        finally:
            response.close()  # the connection is kept if all of the answer was read
        headers = response.headers
        wait_s = retry_after_s(headers.get("retry-after", ""))
        return Response(response.status, content, wait_s, headers.get("location", ""))
    except (OSError, ValueError, urllib3.exceptions.HTTPError) as error:
        reason = repr(error)
        never_sent = any(name in reason for name in NEVER_SENT)
        timed_out = isinstance(error, requests.Timeout) or "timed out" in reason
        why = f"no connection ({_cause(error)})"
        why = f"timed out after {timeout_s:g} s" if timed_out else why
        raise NoAnswer(why, not never_sent, timed_out) from None


def _content_of(response: Any, deadline: float) -> bytes:
    """The body, decoded. Raises NoAnswer."""
    if not isinstance(response, urllib3.HTTPResponse):
        return bytes(response.read())  # of vcrpy: the host process uses a cassette
    pieces = []
    size = 0
    while piece := response.read1(1 << 16, decode_content=True):
        pieces.append(piece)
        size += len(piece)
        if size > MAX_BYTES:
            raise NoAnswer(
                f"the answer is longer than {MAX_BYTES >> 20} MiB", billed=True
            )
        if time.monotonic() > deadline:
            raise NoAnswer("timed out within the answer", billed=True, timed_out=True)
    return b"".join(pieces)


def _cause(error: BaseException) -> str:
    """The innermost error, in one line."""
    while error.__context__ is not None:
        error = error.__context__
    return " ".join(str(error).split())[:100] or type(error).__name__


def retry_after_s(header: str) -> float:
    """Retry-After: seconds, or a date. 0: there is none that can be read."""
    if header.replace(".", "", 1).isdigit():
        return float(header)
    try:
        until = parsedate_to_datetime(header)
        return max(0.0, (until - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError):
        return 0.0
