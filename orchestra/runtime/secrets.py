"""Text is redacted when it enters the program, so no tape, trajectory, log or answer holds a key.

Three things are redacted: the values of the environment variables that this run uses, passwords in
URLs, and text in the format of a key (vendor_keys.py). Each is found in plain text and spelled with
escapes (escapes.py), so that no later decoding makes a key of what was recorded. A replay needs no
variables: its recording is already redacted.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import quote

from orchestra.runtime.escapes import Span, decoded, located, replaced
from orchestra.runtime.vendor_keys import REDACTED, keys_in, without_keys

SHORTEST = 8  # characters; a shorter value may be part of ordinary words
# A placeholder such as "not-needed", not a key.
PLACEHOLDER = re.compile(r"[a-z_-]{,19}|[A-Z_-]{,19}")
ALWAYS = ("SERPER_API_KEY", "JINA_API_KEY")
URL_PASSWORD = re.compile(r"(?<=://)([^\s/:@]{0,100}):([^\s/@]{1,200})(?=@)")


class Secrets:
    """What to redact in one run: the values of `names` among the environment's variables."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        found: dict[str, str] = {}
        for name in sorted({*names, *ALWAYS}):
            value = os.environ.get(name, "").strip()
            if len(value) < SHORTEST or PLACEHOLDER.fullmatch(value):
                continue
            for spelling in _spellings(value):
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

    def found_in(self, text: str) -> bool:
        return self.text(text) != text

    def text(self, text: str) -> str:
        """A text without secrets."""
        text = self._plain(text)
        shown = decoded(text)
        if shown == text:
            return text
        names = _apart(self._secrets_in(shown))
        if not names:
            return text
        places = located(text, names)
        return replaced(text, zip(places, names.values(), strict=True))

    def _plain(self, text: str) -> str:
        """A text without the secrets in it that are not spelled with escapes."""
        for secret, name in self._known:
            text = text.replace(secret, name)
        if not text.isascii():
            text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        if "://" in text and "@" in text:
            text = URL_PASSWORD.sub(rf"\1:{REDACTED}", text)
        return without_keys(text)

    def _secrets_in(self, text: str) -> Iterator[tuple[Span, str]]:
        """Where secrets are, and what to write in their place."""
        for secret, name in self._known:
            start = text.find(secret)
            while start >= 0:
                end = start + len(secret)
                yield (start, end), name
                start = text.find(secret, end)
        for password in URL_PASSWORD.finditer(text):
            yield password.span(2), REDACTED
        for span in keys_in(text):
            yield span, REDACTED


def _apart(found: Iterable[tuple[Span, str]]) -> dict[Span, str]:
    """Spans in their order, with those that overlap made one."""
    apart: dict[Span, str] = {}
    for (start, end), name in sorted(found, key=lambda pair: pair[0]):
        last = next(reversed(apart), (0, 0))
        if start >= last[1]:
            apart[start, end] = name
        elif end > last[1]:
            del apart[last]
            apart[last[0], end] = REDACTED
    return apart


def _spellings(value: str) -> list[str]:
    """How a value may be written: plain, JSON-escaped once or twice, percent-encoded."""
    escaped = json.dumps(value)[1:-1]
    escaped_twice = json.dumps(escaped)[1:-1]
    percent = quote(value, safe="")
    lower_percent = re.sub("%..", lambda code: code[0].lower(), percent)
    return [value, escaped, escaped_twice, percent, lower_percent, quote(value)]
