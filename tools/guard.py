"""Fetches URLs that a model or a page wrote, from public addresses only.

Only http(s), without credentials or keys of the user in the URL. The host is resolved once, all its
addresses must be public, and the connection goes to the address that was checked, so DNS rebinding
gains nothing. Each redirect is checked like a new URL. The size limit counts decompressed bytes,
the time limit includes connection and redirects. Proxies of the environment are not used: they
would resolve the name themselves.

    page = fetch("https://example.org/", allow=("intranet.example:8080",))
"""

from __future__ import annotations

import contextlib
import http.client
import ipaddress
import socket
import ssl
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from urllib.parse import unquote, urljoin

import certifi
import urllib3
from requests.utils import requote_uri
from urllib3.connection import HTTPConnection
from urllib3.connection import port_by_scheme as PORTS
from urllib3.exceptions import HTTPError, LocationParseError
from urllib3.util import Url, parse_url

from orchestra.runtime.prompts import say
from orchestra.runtime.secrets import Secrets
from orchestra.toolkit import ToolError

MAX_BYTES = 20 << 20
MAX_REDIRECTS = 5
MAX_URL_CHARS = 2000
TIMEOUT_S = 30.0
CONNECT_S = 10.0
AGENT = "Mozilla/5.0 (compatible; orchestra-min)"
GLOBAL_UNICAST = ipaddress.ip_network("2000::/3")
EMBEDDED_IPV4 = "2001::/32", "2002::/16", "192.88.99.0/24"  # Teredo, 6to4
CLOUD_METADATA = "192.0.0.0/24", "168.63.129.16/32"
INTERNAL = [
    *map(ipaddress.ip_network, EMBEDDED_IPV4 + CLOUD_METADATA)
]  # Python calls them global


class Refused(ToolError):
    """A URL that must not be fetched, and why."""


@dataclass(frozen=True)
class Page:
    """The answer to a request: the URL after redirects, the Content-Type header and the body."""

    url: str
    content_type: str
    body: bytes


def fetch(
    url: str,
    allow: Collection[str] = (),
    headers: Mapping[str, str] | None = None,
    timeout_s: float = TIMEOUT_S,
) -> Page:
    """GET a URL. `allow`: hosts (`name` or `name:port`) that may have internal addresses.

    Raises ToolError: refused, not reachable, an error status, too big, too slow.
    """
    deadline, parts = time.monotonic() + timeout_s, checked(url)
    for _ in range(MAX_REDIRECTS + 1):
        with _answer(parts, addresses(parts, allow), headers or {}, deadline) as answer:
            if target := answer.get_redirect_location():
                sent = (
                    target.encode("latin-1", "replace")
                    .decode("utf-8", "replace")
                    .strip()
                )
                here, parts = parts, checked(urljoin(parts.url, requote_uri(sent)))
                headers = (
                    headers if parts[:4] == here[:4] else {}
                )  # a key stays with its host
                continue
            if not 200 <= (status := answer.status) < 300:
                raise ToolError(
                    say("tools/notes", "web_status", url=parts.url, status=status)
                )
            kind = answer.headers.get("content-type", "").lower()
            return Page(parts.url, kind, _body(answer, parts.url, deadline))
    raise Refused(
        say("tools/notes", "web_redirects", url=parts.url, limit=MAX_REDIRECTS)
    )


def checked(url: str, secrets: Secrets | None = None) -> Url:
    """The parts of a URL. Raises Refused where its text alone shows that it must not be fetched."""
    secrets, plain = (
        secrets or Secrets(),
        unquote(unquote(url)),
    )  # ?k=sk%2D... is a key too
    if any(secrets.text(text) != text for text in (url, plain)):
        raise Refused(say("tools/notes", "web_secret"))
    odd = len(url) > MAX_URL_CHARS or "\\" in url or any(ord(c) <= 32 for c in url)
    try:
        parts = parse_url(url)
    except LocationParseError:
        parts = Url()
    is_web = (
        "://" in url and parts.scheme in PORTS and parts.host and parts.auth is None
    )
    if (
        odd or not is_web or "%" in str(parts.host)
    ):  # an IPv6 zone names a local interface
        raise Refused(say("tools/notes", "web_malformed", url=repr(url[:200])))
    return parts


def addresses(parts: Url, allow: Collection[str]) -> list[str]:
    """The addresses of the host, all public unless it is allowed. Raises ToolError."""
    host, port = _host_and_port(parts)
    try:
        rows = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise ToolError(say("tools/notes", "web_unknown_host", host=host)) from None
    found = [str(address[0]) for *_, address in rows]
    if not (is_allowed(parts, allow) or all(map(is_public, found))):
        raise Refused(say("tools/notes", "web_internal", host=host))
    return found


def is_allowed(parts: Url, allow: Collection[str]) -> bool:
    host, port = _host_and_port(parts)
    names = {host, f"{host}:{port}", f"[{host}]", f"[{host}]:{port}"}
    return not names.isdisjoint(map(str.lower, allow))


def is_public(address: str) -> bool:
    """Whether an address is one of the public internet and embeds no IPv4 address.

    >>> [is_public(a) for a in ("8.8.8.8", "10.0.0.1", "::ffff:8.8.8.8", "169.254.169.254")]
    [True, False, False, False]
    """
    ip = ipaddress.ip_address(address.partition("%")[0])
    internal = (
        any(ip in network for network in INTERNAL) or ip.is_multicast or ip.is_reserved
    )
    return ip.is_global and not internal and (ip.version == 4 or ip in GLOBAL_UNICAST)


@contextlib.contextmanager
def _answer(
    parts: Url, found: list[str], headers: Mapping[str, str], deadline: float
) -> Iterator[urllib3.BaseHTTPResponse]:
    """The answer of the first address that accepts a connection, which is shut at the deadline."""
    sent = {"User-Agent": AGENT, "Accept-Encoding": "gzip, deflate", **headers}
    sent["Host"] = parts.netloc or ""
    host, port = _host_and_port(parts)
    try:
        with contextlib.ExitStack() as stack:
            sock = stack.enter_context(_connect(found, port, deadline))
            duplicate = stack.enter_context(sock.dup())  # TLS detaches `sock`
            timer = threading.Timer(
                max(0.0, deadline - time.monotonic()), _shut, (duplicate,)
            )
            timer.daemon = True
            timer.start()
            stack.callback(timer.cancel)
            connection = HTTPConnection(found[0], timeout=CONNECT_S)
            stack.callback(connection.close)
            connection.sock = sock
            if parts.scheme == "https":
                connection.sock = _tls().wrap_socket(sock, server_hostname=host)
            connection.request(
                "GET", parts.request_uri, headers=sent, preload_content=False
            )
            yield connection.getresponse()
    except (HTTPError, http.client.HTTPException, OSError, ValueError) as error:
        if time.monotonic() >= deadline:
            raise ToolError(say("tools/notes", "web_slow", url=parts.url)) from None
        # Not str(error): it may quote the server.
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise ToolError(
            say("tools/notes", "web_failed", url=parts.url, reason=reason)
        ) from None


def _connect(found: list[str], port: int, deadline: float) -> socket.socket:
    failure = OSError("the host has no address")
    for address in found:
        left = max(0.01, min(CONNECT_S, deadline - time.monotonic()))
        try:
            return socket.create_connection((address, port), left)
        except OSError as error:
            failure = error
    raise failure


def _shut(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


def _body(answer: urllib3.BaseHTTPResponse, url: str, deadline: float) -> bytes:
    body = bytearray()
    for chunk in answer.stream(65536, decode_content=True):
        body += chunk
        if len(body) > MAX_BYTES:
            raise ToolError(
                say("tools/notes", "web_too_big", url=url, mib=MAX_BYTES >> 20)
            )
    if time.monotonic() >= deadline:  # shut by the timer: the body is cut off
        raise ToolError(say("tools/notes", "web_slow", url=url))
    return bytes(body)


def _host_and_port(parts: Url) -> tuple[str, int]:
    return (parts.host or "").strip("[]").rstrip("."), parts.port or PORTS[
        parts.scheme or "http"
    ]


_tls = cache(lambda: ssl.create_default_context(cafile=certifi.where()))
