"""The page for a browser: one file with its style, its script and its data. The pages of the runs
of a folder share files with the first two.
"""

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
SCRIPTS = (
    "dom",
    "timeline",
    "in_flight",
    "search",
    "detail",
    "run",
    "runs",
    "compare",
    "main",
)


@cache
def parts() -> dict[str, str]:
    """The shared files: the style and the script."""
    scripts = [(FOLDER / f"{s}.js").read_text(encoding="utf-8") for s in SCRIPTS]
    style = (FOLDER / "page.css").read_text(encoding="utf-8")
    return {"page.css": style, "page.js": "\n".join(['"use strict";', *scripts])}


@cache
def template(shared: str = "") -> str:
    """page.html with its style and its script in it, but without data. `shared`: where these are
    files, relative to the page.
    """
    text = (FOLDER / "page.html").read_text(encoding="utf-8")
    style, script = (f"\n{part}\n" for part in parts().values())
    elements = f"<style>{style}</style>", f"<script>{script}</script>"
    if shared:
        link = f'<link rel="stylesheet" href="{shared}page.css">'
        elements = link, f'<script src="{shared}page.js"></script>'
    return text.replace("{{STYLE}}", elements[0]).replace("{{SCRIPT}}", elements[1])


def page(data: Mapping[str, Any], live: bool = False, shared: str = "") -> str:
    """The page with its data, compressed: no text of a model can become markup or script. `live`:
    it may ask its server for newer data. `shared`: as in `template`.
    """
    head = dict(data)
    texts = head.pop("texts", [])  # shown later: they are long
    text = template(shared).replace("{{POLICY}}", policy(live, shared))
    text = text.replace("{{DATA}}", packed({**head, "live": live}))
    return text.replace("{{TEXTS}}", packed(texts))


def packed(data: Any) -> str:
    """Data as the script of the page reads it."""
    text = json.dumps(data, ensure_ascii=False, default=str)
    compressed = zlib.compress(text.encode("utf-8", "replace"), 6)
    return base64.b64encode(compressed).decode()


def policy(live: bool = False, shared: str = "") -> str:
    """The Content-Security-Policy of the page: it loads nothing but media, from its data and from
    the run folder, and runs and applies nothing but its own script and style, known by their hash,
    or files next to it where they are shared. A live page may also ask its own server.
    """
    own = "'self' file:" if shared else ""
    rules = [
        "default-src 'none'",
        "img-src data: file:",
        "media-src data: file:",
        f"script-src {own or _hash_of('script')}",
        f"style-src {own or _hash_of('style')}",
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
