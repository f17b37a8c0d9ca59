"""Kept-alive connections. One carries another call only after exactly one clean, final answer, so
that the answer of one call cannot be taken for that of the next.
"""

from __future__ import annotations

import contextlib
import io
import os
import queue
import socket
import time
from collections.abc import Mapping
from functools import lru_cache
from http.client import HTTPResponse
from typing import Any

import requests
from requests.adapters import HTTPAdapter

IDLE = 256  # connections kept by a process, to all its endpoints together
IDLE_S = 4.0  # many servers close a connection that has been idle for 5 s
ENDPOINTS = 256  # whose settings are kept
SWITCHING_PROTOCOLS = 101
WITHOUT_BODY = (SWITCHING_PROTOCOLS, 204, 304)
FRAMING = ("content-length", "transfer-encoding")  # a clean answer has one of them
# The variables that name a file or folder of trusted certificates: those that requests reads, and
# those that the openai package reads.
CA_BUNDLES = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE", "SSL_CERT_DIR")


def connections_to(url: str) -> tuple[Any, str]:
    """urllib3's pool of connections to an endpoint, and the request target. A forked child has its
    own: on shared connections, it and its parent could read each other's answers.
    """
    return _connections(url, os.getpid())


@lru_cache(ENDPOINTS)
def _connections(url: str, process_id: int) -> tuple[Any, str]:
    """With the proxy and certificates that requests finds in the environment."""
    session = requests.Session()
    settings = session.merge_environment_settings(url, {}, True, None, None)
    request = requests.Request("POST", url).prepare()
    proxies = settings["proxies"]
    adapter = HTTPAdapter(pool_connections=1, pool_maxsize=1)
    pool: Any = adapter.get_connection_with_tls_context(
        request, settings["verify"], proxies, settings["cert"]
    )

    def new_connection() -> Any:
        connection = type(pool)._new_conn(pool)
        connection.response_class = FinalAnswer
        return connection

    pool._new_conn = new_connection
    pool.pool = Idle()
    return pool, adapter.request_url(request, proxies)


def missing_bundle(environment: Mapping[str, str]) -> str:
    """The first of CA_BUNDLES that names nothing that exists, as NAME=PATH; "" if there is none."""
    for name in CA_BUNDLES:
        path = environment.get(name, "")
        if path and not os.path.exists(path):  # noqa: PTH110  nor raises, if it is hidden
            return f"{name}={path}"
    return ""


# ---- idle connections ----------------------------------------------------------------------------


class Idle:
    """The idle connections to one endpoint, in place of urllib3's queue. urllib3 gets one only if
    nothing can be read from it: neither its end nor bytes that nobody asked for.
    """

    # Those to all endpoints, the longest idle first. Each step on it is atomic, so that it needs no
    # lock, which a fork could leave locked.
    kept: dict[Any, tuple[Any, float]] = {}

    def get(self, block: bool = False, timeout: float | None = None) -> Any:
        """The connection that was used last. Raises queue.Empty."""
        for connection in reversed(list(Idle.kept)):
            owner, since = Idle.kept.get(connection, (None, 0.0))
            if owner is self and _take(connection):
                if time.monotonic() - since < IDLE_S:
                    return connection
                connection.close()
        raise queue.Empty

    def put(self, connection: Any, block: bool = False) -> None:
        """Keep a connection, and close those that are too many or were idle for too long."""
        if connection is None:
            return
        if not connection.is_connected:
            connection.close()
            return
        Idle.kept[connection] = (self, time.monotonic())
        self._close_old()

    @staticmethod
    def _close_old() -> None:
        now = time.monotonic()
        oldest_first = list(Idle.kept.items())
        too_many = len(oldest_first) - IDLE
        for number, (connection, (_, since)) in enumerate(oldest_first):
            if number >= too_many and now - since < IDLE_S:
                return
            if _take(connection):
                connection.close()

    def qsize(self) -> int:
        """How many there are, for vcrpy."""
        return sum(owner is self for owner, _ in list(Idle.kept.values()))


def _take(connection: Any) -> bool:
    """Take a connection from the idle ones. False if another thread has done so."""
    return Idle.kept.pop(connection, None) is not None


# ---- one answer ----------------------------------------------------------------------------------


class FinalAnswer(HTTPResponse):
    """A final answer. Interim ones (RFC 9110, 15.2) are skipped."""

    def __init__(self, connected: socket.socket, *args: Any, **fields: Any) -> None:
        super().__init__(connected, *args, **fields)
        self.fp.close()
        self.fp = Incoming(connected)

    def begin(self) -> None:
        """Read the status and the headers. After an answer that is not clean the connection ends:
        other programs on the way may have read it differently.
        """
        super().begin()
        is_clean = self.status not in WITHOUT_BODY
        while self.status < 200 and self.status != SWITCHING_PROTOCOLS:
            is_clean = False
            self.headers = None  # type: ignore[assignment]
            super().begin()
        if not is_clean or all(name in self.headers for name in FRAMING):
            self.will_close = True


class Incoming(io.BufferedReader):
    """What arrives for one answer. If more than the answer has arrived when it is closed, the
    connection ends.
    """

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._received = Received(connected)
        super().__init__(self._received)

    def close(self) -> None:
        if not self.closed and self._has_more():
            with contextlib.suppress(OSError, AttributeError):
                self._socket.shutdown(socket.SHUT_RDWR)
        super().close()

    def _has_more(self) -> bool:
        self._received.ended = True
        decrypted = getattr(self._socket, "pending", int)()  # by TLS, and not read
        return bool(decrypted or self.peek(1))


class Received(io.RawIOBase):
    """The bytes of a socket until a deadline: its timeout, counted from now."""

    def __init__(self, connected: socket.socket) -> None:
        self.ended = False  # then it has no bytes
        self._socket = connected
        self._file: Any = connected.makefile("rb", buffering=0)  # keeps the socket open
        self._deadline = time.monotonic() + (connected.gettimeout() or 0.0)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        if self.ended:
            return None
        left_s = self._deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("timed out")
        self._socket.settimeout(left_s)
        received: int | None = self._file.readinto(buffer)
        return received

    def close(self) -> None:
        super().close()
        self._file.close()
