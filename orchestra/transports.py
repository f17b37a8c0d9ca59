"""Where HTTP meets the tape: the transports of the openai client (httpx2) and of requests.

Each looks whether its thread is inside a logical call. If so, the tape plays the answer or keeps
it; if not, the call is the host program's and passes untouched. httpx2 goes through vcrpy's own
transport stub. vcrpy's stub for requests does not hold under threads (it unpatches the whole
process while it connects), so that one is here.
"""

from __future__ import annotations

import io
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx2
import requests
import urllib3
from vcr.request import Request
from vcr.stubs.httpx_stubs import vcr_handle_request

from orchestra.call import Cassette, current_call

_real_httpx2_send = httpx2.HTTPTransport.handle_request
_real_requests_send = requests.adapters.HTTPAdapter.send
_installing = threading.Lock()
_installed = False


def install() -> None:
    """Once a process. An audit hook can not be taken off; outside logical calls it is idle."""
    global _installed
    with _installing:
        if not _installed:
            httpx2.HTTPTransport.handle_request = _httpx2_send  # type: ignore[method-assign]
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


class _InTime(httpx2.SyncByteStream):
    """A body that is all there within the time of the request. The client's own limit is between
    two bytes: an endpoint that drips would hold a run for ever.
    """

    def __init__(self, stream: Any, limit_s: float) -> None:
        self.stream, self.limit_s, self.end = stream, limit_s, time.monotonic() + limit_s

    def __iter__(self) -> Iterator[bytes]:
        for part in self.stream:
            if time.monotonic() > self.end:
                raise httpx2.ReadTimeout(f"the answer was not all there after {self.limit_s:g} s")
            yield part

    def close(self) -> None:
        self.stream.close()


def _send_in_time(self: httpx2.HTTPTransport, request: httpx2.Request) -> httpx2.Response:
    response = _real_httpx2_send(self, request)
    if limit_s := request.extensions.get("timeout", {}).get("read"):
        response.stream = _InTime(response.stream, limit_s)
    return response


def _httpx2_send(self: httpx2.HTTPTransport, request: httpx2.Request) -> httpx2.Response:
    call = current_call()
    if call is None:
        return _real_httpx2_send(self, request)
    asking = _Asking(call.tape)
    try:
        send = vcr_handle_request(asking, _send_in_time, httpx2)
        return send(self, request)  # type: ignore[no-any-return]
    except (httpx2.TransportError, httpx2.DecodingError) as failure:
        if asking.sent is not None:
            call.tape.append_failure(asking.sent, failure)
        raise


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
