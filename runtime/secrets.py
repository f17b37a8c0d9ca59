"""No key in any tape, trajectory, log or answer: text is redacted when it enters the program.

Redacted are the values of the environment variables that this run uses, as they are, in JSON
escapes and percent-encoded, and text that begins as a known vendor's keys do.
A replay redacts nothing: what it plays was redacted when it was recorded.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from typing import Any
from urllib.parse import quote

SHORTEST = 8  # characters; a shorter value would be found in ordinary words
WORD = re.compile(r"[a-z_]{,19}|[A-Z_]{,19}")  # a dummy such as "anything", no key
TOKEN = re.compile(r"(?<![\w.~+/=-])[\w.~+/=-]{20,512}+(?![\w.~+/=-])")  # longer runs are data
ALWAYS = ("SERPER_API_KEY", "JINA_API_KEY")
VENDORS = (  # how their keys begin
    "sk-", "sk_", "rk_live_", "hf_", "gsk_", "xai-", "jina_", "AIza", "AKIA", "ghp_", "gho_",
    "ghs_", "github_pat_", "glpat-", "pypi-", "SG.", "xoxb-", "xoxp-",
)  # fmt: skip
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
        """A JSON value without secrets, and without halves of characters, which no file takes."""
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
    secret = any(part.lstrip("_").startswith(VENDORS) for part in re.split(r"[=/+]", token))
    return escape + REDACTED if secret else found[0]
