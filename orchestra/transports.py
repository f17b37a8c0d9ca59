"""Where HTTP meets the tape: the transports of the openai client (httpx2) and of requests.

Each looks whether its thread is inside a logical call. If so, the tape plays the answer or keeps
it; if not, the call is the host program's and passes untouched. httpx2 goes through vcrpy's own
transport stub. vcrpy's stub for requests does not hold under threads (it unpatches the whole
process while it connects), so that one is here.
"""

from __future__ import annotations

import io
import ssl
import sys
import threading
import time
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import httpcore2
import httpx2
import requests
import urllib3
from vcr.request import Request
from vcr.stubs.httpx_stubs import vcr_handle_request

from orchestra.call import Cassette, current_call

_real_httpx2_send = httpx2.HTTPTransport.handle_request
_real_connect = httpcore2.SyncBackend.connect_tcp
_real_requests_send = requests.adapters.HTTPAdapter.send
_installing = threading.Lock()
_installed = False


def install() -> None:
    """Once a process. An audit hook can not be taken off; outside logical calls it is idle."""
    global _installed
    with _installing:
        if not _installed:
            httpx2.HTTPTransport.handle_request = _httpx2_send  # type: ignore[method-assign]
            httpcore2.SyncBackend.connect_tcp = _connect  # type: ignore
            requests.adapters.HTTPAdapter.send = _requests_send  # type: ignore
            sys.addaudithook(_guard)
            _installed = True


class _Asking:
    """What vcrpy's stub takes for a cassette: the tape, and what was sent in case that fails."""

    write_protected = False

    def __init__(self, tape: Cassette) -> None:
        self.tape = tape
        self.sent: Request | None = None

    def can_play_response_for(self, request: Request) -> bool:
        playable = self.tape.can_play_response_for(request)
        self.sent = None if playable else request
        return playable

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tape, name)


MAX_BYTES = 64 << 20  # of an answer


@dataclass
class _Limits:
    end: float  # of time.monotonic()
    bytes_left: int = MAX_BYTES


_limits: ContextVar[_Limits | None] = ContextVar("limits_of_request", default=None)


class _InTime(httpcore2.NetworkStream):
    """A connection that a request of ours waits for until its end, and no longer. The client's own
    limit is between two bytes: an endpoint that drips would hold a run for ever.
    """

    def __init__(self, stream: httpcore2.NetworkStream) -> None:
        self.stream = stream

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        data = self.stream.read(max_bytes, _left_s(timeout))
        if limits := _limits.get():
            limits.bytes_left -= len(data)
            if limits.bytes_left < 0:
                raise httpcore2.ReadError(f"the answer is over {MAX_BYTES >> 20} MiB")
        return data

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self.stream.write(buffer, _left_s(timeout))

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore2.NetworkStream:  # fmt: skip
        return _InTime(self.stream.start_tls(ssl_context, server_hostname, _left_s(timeout)))

    def close(self) -> None:
        self.stream.close()

    def get_extra_info(self, info: str) -> Any:
        return self.stream.get_extra_info(info)


def _left_s(timeout: float | None) -> float | None:
    """The time that may pass now. Raises ReadTimeout at the end of the request."""
    if (limits := _limits.get()) is None:
        return timeout
    left_s = limits.end - time.monotonic()
    if left_s <= 0:
        raise httpcore2.ReadTimeout("the answer was not all there in time")
    return left_s if timeout is None else min(timeout, left_s)


def _connect(
    self: httpcore2.SyncBackend, host: str, port: int, timeout: float | None = None, **how: Any
) -> httpcore2.NetworkStream:
    return _InTime(_real_connect(self, host, port, _left_s(timeout), **how))


def _httpx2_send(self: httpx2.HTTPTransport, request: httpx2.Request) -> httpx2.Response:
    call = current_call()
    if call is None:
        return _real_httpx2_send(self, request)
    asking = _Asking(call.tape)
    limit_s = request.extensions.get("timeout", {}).get("read")
    entered = _limits.set(_Limits(time.monotonic() + limit_s) if limit_s else None)
    try:
        send = vcr_handle_request(asking, _real_httpx2_send, httpx2)
        return send(self, request)  # type: ignore[no-any-return]
    except (httpx2.TransportError, httpx2.DecodingError) as failure:
        if asking.sent is not None:
            call.tape.append_failure(asking.sent, failure)
        raise
    finally:
        _limits.reset(entered)


def _requests_send(self: Any, request: requests.PreparedRequest, **how: Any) -> requests.Response:
    call = current_call()
    if call is None:
        return _real_requests_send(self, request, **how)
    asked = Request(request.method, request.url, request.body, dict(request.headers))
    if not call.tape.can_play_response_for(asked):
        return _send_and_keep(self, request, how, asked, call.tape)
    played = call.tape.play_response(asked)
    raw = urllib3.HTTPResponse(
        body=io.BytesIO(played["body"]["string"]),
        headers={name: ", ".join(values) for name, values in played["headers"].items()},
        status=played["status"]["code"],
        reason=played["status"]["message"],
        preload_content=False,
    )
    return self.build_response(request, raw)  # type: ignore[no-any-return]


def _send_and_keep(
    adapter: Any,
    request: requests.PreparedRequest,
    how: dict[str, Any],
    asked: Request,
    tape: Cassette,
) -> requests.Response:
    try:
        response = _real_requests_send(adapter, request, **how)
        body = response.content  # decoded: so the encoding is not kept
    except requests.RequestException as failure:
        tape.append_failure(asked, failure)
        raise
    headers = {k: [v] for k, v in response.headers.items() if k.lower() != "content-encoding"}
    status = {"code": response.status_code, "message": response.reason}
    tape.append(asked, {"status": status, "headers": headers, "body": {"string": body}})
    return response


def _guard(event: str, arguments: tuple[Any, ...]) -> None:
    """An audit hook: a logical call of a replaying tape opens no socket, by whatever library."""
    if event in ("socket.connect", "socket.getaddrinfo", "socket.sendto", "socket.sendmsg"):
        call = current_call()
        if call is not None:
            call.tape.refuse_socket(arguments[:2])
