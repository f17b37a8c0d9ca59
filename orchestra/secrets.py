"""No secret in any tape, trajectory, log or report: what is written goes through `scrub` first.

Two nets: the values of environment variables whose names look like secrets, in the spellings they
take in JSON and in URLs; and text shaped like a key of a known maker, or behind "Bearer".
"""

from __future__ import annotations

import json
import os
import re
from typing import Any
from urllib.parse import quote, urlsplit

NAME = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL", re.I)
QUERY = re.compile(r"([?&][^=&]*(?:key|token|secret|passw|sig)[^=&]*=)[^&#]*", re.I)
MAKERS = ("sk", "pk", "rk", "hf", "gsk", "xai", "jina", "ghp")
STARTS = (*(maker + dash for maker in MAKERS for dash in "-_"), "AIza", "Bearer ")
SHAPED = re.compile(  # with a digit in it: words are none; in JSON a line may begin behind \\n
    rf"(?:\b|(?<=\\[nrt]))(?:(?:{'|'.join(MAKERS)})[-_]|AIza)(?=[\w-]*\d)[\w-]{{16,}}"
    r"|(?<=Bearer )(?=[\w.~+/=-]*\d)[\w.~+/=-]{16,}"
)
LEAST_CHARS = 8  # a shorter value would be found in ordinary words
WORD = re.compile(r"[a-z_]{,19}|[A-Z_]{,19}")  # a dummy such as "anything"; no key of any maker


_known: list[tuple[str, str]] = []


def look_up() -> None:
    """Read the environment's secrets; each run does so at its start."""
    found = set()
    for name, value in os.environ.items():
        if NAME.search(name) and len(value) >= LEAST_CHARS and not WORD.fullmatch(value):
            for spelling in (value, json.dumps(value)[1:-1], quote(value, safe="")):
                found.add((spelling, f"<{name}>"))
    _known[:] = sorted(found, key=lambda s: (-len(s[0]), s))  # the longest first


look_up()


def scrub(text: str) -> str:
    """`text` without the environment's secrets and without anything shaped like a key."""
    for secret, placeholder in _known:
        text = text.replace(secret, placeholder)
    if any(start in text for start in STARTS):  # seldom; the expression is slow
        text = SHAPED.sub("<SECRET>", text)
    return text


def scrub_json(text: str) -> str:
    """The same for JSON, which stays JSON: a secret of digits may be a part of a number."""
    clean = scrub(text)
    if clean == text:
        return text
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):  # it was none
        return clean
    try:
        json.loads(clean)
    except ValueError:
        return json.dumps(_with_clean_strings(value), ensure_ascii=False)
    return clean


def _with_clean_strings(value: Any) -> Any:
    if isinstance(value, str):
        return scrub(value)
    if isinstance(value, list):
        return [_with_clean_strings(v) for v in value]
    if isinstance(value, dict):
        return {scrub(k): _with_clean_strings(v) for k, v in value.items()}
    return value


def restore(text: str) -> str:
    """`text` with the environment's secrets again where `scrub` took them out, if they are set."""
    for name, value in os.environ.items():
        if scrub(value) == f"<{name}>":
            text = text.replace(f"<{name}>", value)
    return text


def scrub_bytes(data: bytes) -> bytes:
    """The same for what is no text, as a form with a file in it: the environment's secrets."""
    for secret, placeholder in _known:
        data = data.replace(secret.encode(), placeholder.encode())
    return data


def scrub_url(url: str) -> str:
    """The same for a URL, whose query may carry a key under any value."""
    return QUERY.sub(r"\1<SECRET>", scrub(url))


def key_problem(key: str) -> str:
    """What keeps a value from being a key, "" if nothing: no header takes it, and errors quote it.
    Never repeats it.
    """
    if key.isascii() and key.isprintable():
        return ""
    return "holds a line break or a character that is not ASCII, as no key does; set it again"


def url_problem(url: str) -> str:
    """What keeps an address from being an endpoint's, "" if nothing. Never repeats a secret."""
    wanted = "needs http(s)://host/v1"
    if scrub(url) != url:
        return "holds a key; it stands in an environment variable, which api_key_env names"
    if not url.isprintable() or " " in url:
        return f"{wanted} without spaces, not {url!r}"
    try:
        parts = urlsplit(url)
        if parts.username or parts.password:
            return "holds a user or password; name the key's environment variable instead"
        if parts.query or parts.fragment:
            return f"{wanted} and no ?query; a key stands in an environment variable"
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
            parts.hostname.encode("idna")
            return ""
    except ValueError:  # of brackets, a port or a host that are none
        pass
    return wanted if "@" in url or "?" in url else f"{wanted}, not {url!r}"
