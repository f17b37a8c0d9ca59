"""A page that follows a run while it grows, served to the browsers of this machine alone.

The server listens on 127.0.0.1. Its path has a random part, so that other users of the machine
cannot read the page, and a request must name this host: a web page whose own name was pointed at
127.0.0.1 (DNS rebinding) gets nothing.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from orchestra.report.page import packed, page

POLL_S = 1.0  # how often the script of the page asks for newer data
LAST_S = 3.0  # how long a page may take to ask for the last data
HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
}
Read = Callable[[], Mapping[str, Any]]  # the data of the page, as it is now
Stamp = Callable[[], str]  # another text once there is newer data


class Following:
    """The data of the page, read again when there is newer data."""

    def __init__(self, read: Read, stamp: Stamp) -> None:
        self.read = read
        self.stamp = stamp
        self.lock = threading.Lock()
        self.data: Mapping[str, Any] = {"stamp": ""}
        self.sent_stamp = ""
        self.asked_s = -LAST_S  # when a page asked last

    def newest(self) -> Mapping[str, Any]:
        """The data, with its stamp."""
        with self.lock:
            stamp = self.stamp()
            if stamp != self.data["stamp"]:
                self.data = {**self.read(), "stamp": stamp}
            return self.data

    def wait_for_page(self) -> None:
        """Until a page that is open has the last data."""
        last = self.newest()["stamp"]
        while self.sent_stamp != last and time.monotonic() - self.asked_s < LAST_S:
            time.sleep(POLL_S / 10)


class Handler(BaseHTTPRequestHandler):
    """Answers with the page, and with its newer data, without the media that the page has."""

    server: Server

    def do_GET(self) -> None:
        following = self.server.following
        path, _, known = self.path.partition("?")
        if self.headers.get("Host") != self.server.host:
            self.answer(403, "this name is not that of the server")
        elif path == self.server.path:
            data = following.newest()
            self.answer(200, page(data, live=True), kind="text/html")
        elif path == f"{self.server.path}data":
            following.asked_s = time.monotonic()
            data = following.newest()
            is_known = known == data["stamp"]
            newer = {key: value for key, value in data.items() if key != "media"}
            self.answer(204 if is_known else 200, "" if is_known else packed(newer))
            following.sent_stamp = data["stamp"]
        else:
            self.answer(404, "there is nothing here")

    def answer(self, status: int, text: str, kind: str = "text/plain") -> None:
        body = text.encode()
        self.send_response(status)
        for name, value in HEADERS.items():
            self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """A request is no news."""


class Server(ThreadingHTTPServer):
    """On a free port of 127.0.0.1."""

    daemon_threads = True

    def __init__(self, following: Following) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.following = following
        self.host = f"127.0.0.1:{self.server_address[1]}"
        self.path = f"/{secrets.token_urlsafe(16)}/"
        self.url = f"http://{self.host}{self.path}"

    def handle_error(self, *_: object) -> None:
        """A browser that closes its connection is no error."""


@contextmanager
def serve(read: Read, stamp: Stamp) -> Iterator[str]:
    """The URL of the page, which is served until the end of the block."""
    following = Following(read, stamp)
    with Server(following) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True)
        thread.start()
        try:
            yield server.url
            following.wait_for_page()
        finally:
            server.shutdown()
