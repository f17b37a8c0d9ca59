"""Fetches URLs that a model or a page wrote, from public addresses only.

A URL must be http(s), without credentials or keys of the user in it. The name of the host is
resolved once. All its addresses must be public, and the connection goes to an address that was
checked, so a name server that changes its answer (DNS rebinding) gains nothing. Each redirect is
checked like a new URL. The size limit counts decompressed bytes; the time limit includes connection
and redirects. Proxies of the environment are not used, because they would resolve the name
themselves.

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
from typing import Any
from urllib.parse import unquote, urljoin

import certifi
import urllib3
from requests.utils import requote_uri
from urllib3.connection import HTTPConnection
from urllib3.connection import port_by_scheme as PORTS
from urllib3.exceptions import HTTPError, LocationParseError
from urllib3.util import Url, parse_url

from orchestra.kernel.prompts import outside, say
from orchestra.kernel.tape import Redact
from orchestra.kernel.vocabulary import ToolError

MAX_BYTES = 20 << 20
MAX_REDIRECTS = 5
MAX_URL_CHARS = 2000
TIMEOUT_S = 30.0
CONNECT_S = 10.0
HEADERS = {
    "User-Agent": "Mozilla/5.0 (compatible; orchestra-min)",
    "Accept-Encoding": "gzip, deflate",
}
GLOBAL_UNICAST = ipaddress.ip_network("2000::/3")
# Python calls these networks global, but they lead to internal addresses.
INTERNAL = [
    ipaddress.ip_network(network)
    for network in (
        "2001::/32",  # Teredo: holds an IPv4 address
        "2002::/16",  # 6to4: holds an IPv4 address
        "192.88.99.0/24",  # relays of 6to4
        "192.0.0.0/24",  # metadata of Oracle's cloud
        "168.63.129.16/32",  # metadata of Azure
    )
]
CHUNK_BYTES = 65536
SPACE = ord(" ")  # this and all before it: control characters


class Refused(ToolError):
    """A URL must not be fetched; the text says why."""


def _error(
    section: str, url: str, kind: type[ToolError] = ToolError, **values: Any
) -> ToolError:
    return kind(say("tools/notes", section, url=outside(url), **values))


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
    deadline = time.monotonic() + timeout_s
    parts = checked(url)
    headers = headers or {}
    for _ in range(MAX_REDIRECTS + 1):
        found = addresses(parts, allow)
        with _response(parts, found, headers, deadline) as response:
            location = response.get_redirect_location()
            if not location:
                return _page(parts.url, response, deadline)
            target = checked(_target(parts.url, location))
            if target[:4] != parts[:4]:  # scheme, user, host, port
                headers = {}  # a key stays with its host
            parts = target
    raise _error("web_redirects", parts.url, Refused, limit=MAX_REDIRECTS)


def checked(url: str, redact: Redact = str) -> Url:
    """The parts of a URL. Raises Refused where its text alone shows that it must not be fetched.
    `redact` takes out the keys of the user.
    """
    plain = unquote(unquote(url))  # ?k=sk%2D... is a key too
    if any(redact(text) != text for text in (url, plain)):
        raise _error("web_secret", "", Refused)
    try:
        parts = parse_url(url)
    except LocationParseError:
        parts = Url()
    if not _is_well_formed(url, parts):
        raise _error("web_malformed", url, Refused)
    return parts


def addresses(parts: Url, allow: Collection[str]) -> list[str]:
    """The addresses of the host, all public unless it is allowed. Raises ToolError."""
    host, port = _host_and_port(parts)
    try:
        rows = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise _error("web_unknown_host", host) from None
    found = [str(address[0]) for *_, address in rows]
    if not is_allowed(parts, allow) and not all(map(is_public, found)):
        raise _error("web_internal", host, Refused)
    return found


def is_allowed(parts: Url, allow: Collection[str]) -> bool:
    host, port = _host_and_port(parts)
    names = {host, f"{host}:{port}", f"[{host}]", f"[{host}]:{port}"}  # [::1] is IPv6
    return not names.isdisjoint(name.lower() for name in allow)


def is_public(address: str) -> bool:
    """Whether an address is one of the public internet and embeds no IPv4 address.

    >>> [is_public(a) for a in ("8.8.8.8", "10.0.0.1", "::ffff:8.8.8.8", "169.254.169.254")]
    [True, False, False, False]
    """
    ip = ipaddress.ip_address(address.partition("%")[0])
    if ip.is_multicast or ip.is_reserved or any(ip in network for network in INTERNAL):
        return False
    return ip.is_global and (ip.version == 4 or ip in GLOBAL_UNICAST)


def _is_well_formed(url: str, parts: Url) -> bool:
    """Whether a URL is http(s), with a host, without a user or password or the zone of an address,
    and read in the same way by all programs: some drop spaces and control characters, and some take
    a backslash for a slash.
    """
    has_odd_character = any(char == "\\" or ord(char) <= SPACE for char in url)
    if has_odd_character or len(url) > MAX_URL_CHARS or "://" not in url:
        return False
    if parts.scheme not in PORTS or not parts.host:
        return False
    return parts.auth is None and "%" not in parts.host


def _target(url: str, location: str) -> str:
    """The URL of a redirect. Servers send UTF-8 and spaces in it, but HTTP is read as Latin-1."""
    text = location.encode("latin-1", "replace").decode("utf-8", "replace").strip()
    return urljoin(url, requote_uri(text))


@contextlib.contextmanager
def _response(
    parts: Url, found: list[str], headers: Mapping[str, str], deadline: float
) -> Iterator[urllib3.BaseHTTPResponse]:
    """The response of the first address that accepts a connection. Errors of the connection, also
    those while the body is read, become a ToolError.
    """
    try:
        with contextlib.ExitStack() as stack:
            sock = stack.enter_context(_connect(found, parts, deadline))
            stack.enter_context(_shut_at(deadline, sock))
            connection = HTTPConnection(found[0], timeout=CONNECT_S)
            stack.callback(connection.close)
            connection.sock = _encrypted(sock, parts)
            sent = {**HEADERS, **headers, "Host": parts.netloc or ""}
            target = parts.request_uri
            connection.request("GET", target, headers=sent, preload_content=False)
            yield connection.getresponse()
    except (HTTPError, http.client.HTTPException, OSError, ValueError) as error:
        if time.monotonic() >= deadline:
            raise _error("web_slow", parts.url) from None
        # Not str(error): it may quote the server.
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise _error("web_failed", parts.url, reason=outside(reason)) from None


def _connect(found: list[str], parts: Url, deadline: float) -> socket.socket:
    """A connection to an address that was checked. The host's name is not looked up again."""
    _, port = _host_and_port(parts)
    failure = OSError("the host has no address")
    for address in found:
        left_s = max(0.01, min(CONNECT_S, deadline - time.monotonic()))
        try:
            return socket.create_connection((address, port), left_s)
        except OSError as error:
            failure = error
    raise failure


@contextlib.contextmanager
def _shut_at(deadline: float, sock: socket.socket) -> Iterator[None]:
    """Shut the connection at the deadline. A timeout of the socket starts again with each byte."""
    left_s = max(0.0, deadline - time.monotonic())
    with sock.dup() as duplicate:  # TLS detaches `sock`
        timer = threading.Timer(left_s, _shut, (duplicate,))
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()


def _shut(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


def _encrypted(sock: socket.socket, parts: Url) -> socket.socket:
    """TLS for https. The certificate must be valid for the name of the host."""
    if parts.scheme != "https":
        return sock
    host, _ = _host_and_port(parts)
    context = ssl.create_default_context(cafile=certifi.where())
    return context.wrap_socket(sock, server_hostname=host)


def _page(url: str, response: urllib3.BaseHTTPResponse, deadline: float) -> Page:
    if not 200 <= response.status < 300:
        raise _error("web_status", url, status=response.status)
    body = bytearray()
    for chunk in response.stream(CHUNK_BYTES, decode_content=True):
        body += chunk
        if len(body) > MAX_BYTES:
            raise _error("web_too_big", url, mib=MAX_BYTES >> 20)
    if time.monotonic() >= deadline:  # shut by the timer: the body is cut off
        raise _error("web_slow", url)
    return Page(url, response.headers.get("content-type", "").lower(), bytes(body))


def _host_and_port(parts: Url) -> tuple[str, int]:
    host = (parts.host or "").strip("[]").rstrip(".")
    return host, parts.port or PORTS[parts.scheme or "http"]
