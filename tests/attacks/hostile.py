"""A server on loopback that misbehaves: each path is one attack."""

import contextlib
import gzip
import time
import zlib
from collections.abc import Callable, Iterator
from functools import cache
from http.server import BaseHTTPRequestHandler
from typing import Any

from orchestra.tools import pages
from tests.scripted import Server

Trick = Callable[[Any], None]


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.server.seen.append((self.path, dict(self.headers)))
        with contextlib.suppress(OSError):
            self.server.tricks[self.path.partition("?")[0]](self)

    do_POST = do_GET

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def serving(tricks: dict[str, Trick]) -> Iterator[Any]:
    """A server with `host`, `url`, and its requests in `seen`: paths with their headers."""
    with contextlib.closing(Server(Handler)) as server:
        server.tricks, server.seen = tricks, []
        yield server


def read(trick: Trick) -> str:
    """The text that the program reads from the page."""
    with serving({"/": trick}) as server:
        return pages.page_text(server.url + "/", (server.host,)).strip()


def page(body: bytes | str, kind: str = "text/html", **headers: str) -> Trick:
    data = body.encode() if isinstance(body, str) else body

    def answer(h: Any) -> None:
        h.send_response(200)
        rows = {"Content-Type": kind, "Content-Length": str(len(data)), **headers}
        for name, value in rows.items():
            h.send_header(name.replace("_", "-"), value)
        h.end_headers()
        h.wfile.write(data)

    return answer


def raw(answer: bytes) -> Trick:
    return lambda h: h.wfile.write(answer)


def redirect(target: str, status: int = 302) -> Trick:
    head = f"HTTP/1.1 {status} Found\r\nLocation: {target}\r\nContent-Length: 0\r\n\r\n"
    return raw(head.encode())


def without_end(head: bytes, piece: bytes, pause_s: float = 0.0) -> Trick:
    def answer(h: Any) -> None:
        h.wfile.write(head)
        while True:
            h.wfile.write(piece)
            time.sleep(pause_s)

    return answer


OK = b"HTTP/1.1 200 OK\r\n"
HTML = OK + b"Content-Type: text/html\r\n\r\n"
SLOW: dict[str, Trick] = {
    "body": without_end(HTML, b"x", 0.1),
    "headers": without_end(OK, b"X", 0.1),
    "silent": lambda h: time.sleep(30),
    # a body that never grows: every chunk comes with a long extension and holds one byte
    "chunks": without_end(OK + b"Transfer-Encoding: chunked\r\n\r\n", b"1;" + b"x" * 4000 + b"\r\nx\r\n", 0.01),
    "continues": without_end(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
}  # fmt: skip


@cache
def packed(size_mib: int, encoding: str) -> bytes:
    """Compressed zeros."""
    packer = zlib.compressobj(1, zlib.DEFLATED, 31 if encoding == "gzip" else 15)
    return b"".join(packer.compress(bytes(1 << 20)) for _ in range(size_mib)) + packer.flush()


def bomb(encoding: str = "gzip", layers: int = 1) -> Trick:
    data = packed(160, encoding)
    for _ in range(layers - 1):
        data = gzip.compress(data)
    return page(data, Content_Encoding=", ".join([encoding] * layers))


def pdf(*objects: bytes) -> bytes:
    """A PDF of a catalog and these objects, the first of which is the page tree."""
    rows = enumerate((b"<</Type/Catalog/Pages 2 0 R>>", *objects), 1)
    body = b"".join(b"%d 0 obj%sendobj\n" % row for row in rows)
    return b"%PDF-1.4\n" + body + b"trailer<</Root 1 0 R/Size 9>>\nstartxref\n0\n%%EOF\n"


def pages_of(content: bytes, about: bytes = b"", pages: int = 1) -> bytes:
    """A PDF with the same content on each page."""
    return pdf(
        b"<</Type/Pages/Kids[%s]/Count %d>>" % (b"3 0 R " * pages, pages),
        b"<</Type/Page/Parent 2 0 R/Contents 4 0 R/Resources<</Font<</F1 5 0 R>>>>/MediaBox[0 0 300 300]>>",
        b"<<%s/Length %d>>stream\n%s\nendstream" % (about, len(content), content),
        b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>",
    )  # fmt: skip
