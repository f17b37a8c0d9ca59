"""The page for a browser: one file with its style, its script and its data."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import zlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
SCRIPTS = ("dom", "timeline", "search", "detail", "run", "runs", "compare", "main")


@cache
def template() -> str:
    """page.html with its style and its script in it, but without data."""
    text = (FOLDER / "page.html").read_text(encoding="utf-8")
    style = (FOLDER / "page.css").read_text(encoding="utf-8")
    scripts = [(FOLDER / f"{s}.js").read_text(encoding="utf-8") for s in SCRIPTS]
    return text.replace("{{STYLE}}", style).replace("{{SCRIPT}}", "\n".join(scripts))


def page(data: Mapping[str, Any], live: bool = False) -> str:
    """The page with its data, compressed: no text of a model can become markup or script. `live`:
    it may ask its server for newer data.
    """
    head = dict(data)
    texts = head.pop("texts", [])  # shown later: they are long
    text = template().replace("{{POLICY}}", policy(live))
    text = text.replace("{{DATA}}", packed({**head, "live": live}))
    return text.replace("{{TEXTS}}", packed(texts))


def packed(data: Any) -> str:
    """Data as the script of the page reads it."""
    text = json.dumps(data, ensure_ascii=False, default=str)
    compressed = zlib.compress(text.encode("utf-8", "replace"), 6)
    return base64.b64encode(compressed).decode()


def policy(live: bool = False) -> str:
    """The Content-Security-Policy of the page: it loads nothing but media, from its data and from
    the run folder, and runs and applies nothing but its own script and style, known by their hash.
    A live page may also ask its own server.
    """
    rules = [
        "default-src 'none'",
        "img-src data: file:",
        "media-src data: file:",
        f"script-src {_hash_of('script')}",
        f"style-src {_hash_of('style')}",
        "base-uri 'none'",
        "form-action 'none'",
    ]
    if live:
        rules.append("connect-src 'self'")
    return "; ".join(rules)


@cache
def _hash_of(tag: str) -> str:
    """The hash of the script or style of the page."""
    found = re.search(rf"(?s)<{tag}>(.*?)</{tag}>", template())
    text = found[1] if found else ""
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
