"""Text is redacted when it enters the program, so no tape, trajectory, log or answer holds a key.

Three things are redacted: the values of the environment variables that this run uses (plain,
JSON-escaped or percent-encoded), passwords in URLs, and text in the format of a key
(vendor_keys.py). A replay needs no variables: its recording is already redacted.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from typing import Any
from urllib.parse import quote

from orchestra.runtime.vendor_keys import REDACTED, without_keys

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
        for secret, name in self._known:
            text = text.replace(secret, name)
        if not text.isascii():
            text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        if "://" in text and "@" in text:
            text = URL_PASSWORD.sub(rf"\1:{REDACTED}", text)
        return without_keys(text)


def _spellings(value: str) -> list[str]:
    """How a value may be written: plain, JSON-escaped once or twice, percent-encoded."""
    escaped = json.dumps(value)[1:-1]
    escaped_twice = json.dumps(escaped)[1:-1]
    percent = quote(value, safe="")
    lower_percent = re.sub("%..", lambda code: code[0].lower(), percent)
    return [value, escaped, escaped_twice, percent, lower_percent, quote(value)]
