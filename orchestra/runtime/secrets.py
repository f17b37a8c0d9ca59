"""Text is redacted when it enters the program, so no tape, trajectory, log or answer holds a key.

Redacted are the values of the environment variables that this run uses, plain, JSON-escaped and
percent-encoded, and text in the format of a known vendor's keys (detect-secrets' list). A replay
redacts nothing: the recording is already redacted.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from functools import cache
from typing import Any
from urllib.parse import quote

SHORTEST = 8  # characters; a shorter value may be part of ordinary words
WORD = re.compile(
    r"[a-z_-]{,19}|[A-Z_-]{,19}"
)  # a placeholder such as "not-needed", not a key
# Longer strings are data, not keys. ASCII: a key may follow letters of other scripts.
TOKEN = re.compile(r"(?<![\w.~+/=-])[\w.~+/=-]{20,512}+(?![\w.~+/=-])", re.A)
ALWAYS = ("SERPER_API_KEY", "JINA_API_KEY")
LLM_VENDORS = ("sk-", "sk_", "hf_", "gsk_", "xai-", "jina_")  # not in detect-secrets
VENDORS = "aws github_token gitlab_token openai pypi_token sendgrid slack stripe telegram_token"
URL_PASSWORD = re.compile(r"(?<=://)([^\s/:@]{0,100}):([^\s/@]{1,200})(?=@)")
REDACTED = "<SECRET>"


class Secrets:
    """What to redact in one run: the values of `names` among the environment's variables."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        found: dict[str, str] = {}
        for name in sorted({*names, *ALWAYS}):
            value = os.environ.get(name, "").strip()
            if len(value) >= SHORTEST and not WORD.fullmatch(value):
                escaped = json.dumps(value)[1:-1]
                twice, percent = json.dumps(escaped)[1:-1], quote(value, safe="")
                lower = re.sub("%..", lambda code: code[0].lower(), percent)
                for spelling in (value, escaped, twice, percent, lower, quote(value)):
                    found.setdefault(spelling, f"<{name}>")
        self._known = sorted(found.items(), key=lambda pair: -len(pair[0]))

    def redacted(self, value: Any) -> Any:
        """A JSON value without secrets and lone surrogates, which cannot be encoded."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list | tuple):
            return [self.redacted(v) for v in value]
        if isinstance(value, dict):
            return {self.redacted(k): self.redacted(v) for k, v in value.items()}
        return value

    def text(self, text: str) -> str:
        for secret, name in self._known:
            text = text.replace(secret, name)
        if not text.isascii():
            text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        if "://" in text and "@" in text:
            text = URL_PASSWORD.sub(rf"\1:{REDACTED}", text)
        return TOKEN.sub(_without_key, text) if len(text) >= 20 else text


def _without_key(found: re.Match[str]) -> str:
    token, escape = found[0], ""
    if found.string[max(found.start() - 1, 0)] == "\\":  # the n of a line break in JSON
        token, escape = token[1:], token[0]
    if token.isdigit() or not any(c.isdigit() for c in token):
        return found[0]
    parts = (part.lstrip("_") for part in re.split(r"[=/+]", token))
    secret = any(part.startswith(LLM_VENDORS) for part in parts)
    secret = secret or any(shape.search(token) for shape in _shapes())
    return escape + REDACTED if secret else found[0]


@cache
def _shapes() -> tuple[re.Pattern[str], ...]:
    """detect-secrets' patterns of vendors' keys."""
    from importlib import import_module

    plugins = [
        import_module(f"detect_secrets.plugins.{name}") for name in VENDORS.split()
    ]
    lists = [
        getattr(kind, "denylist", ())
        for plugin in plugins
        for kind in vars(plugin).values()
    ]
    # each module also imports the base class, whose `denylist` is a property
    return tuple(
        shape
        for shapes in lists
        if isinstance(shapes, list | tuple)
        for shape in shapes
    )
