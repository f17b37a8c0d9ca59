"""The readable text of a web page or a PDF.

With JINA_API_KEY, Jina Reader fetches and renders the page. Without it, tools/guard.py fetches the
page, and tools/reader.py extracts its text in the sandbox.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection

from urllib3.util import Url

from orchestra.kernel.prompts import outside, say
from orchestra.kernel.tape import Redact
from orchestra.kernel.vocabulary import ToolError
from orchestra.tools import guard, readers

JINA_URL = "https://r.jina.ai/"
JINA_KEY = "JINA_API_KEY"


def page_text(url: str, allow: Collection[str] = (), redact: Redact = str) -> str:
    """The readable text of a page. Raises ToolError: refused, failed, or nothing to read."""
    parts = guard.checked(url, redact)
    key = os.environ.get(JINA_KEY)
    if key and not guard.is_allowed(parts, allow):
        text = _text_from_jina(parts, allow, key)
    else:  # without a key, or internal: Jina must not learn of internal pages
        page = guard.fetch(url, allow)
        kind = _kind(page)
        text, problem = readers.read(
            f"page.{kind}", page.content_type, page.url, body=page.body
        )
        if problem:
            section = "page_locked" if problem == "locked" else "page_unreadable"
            why = {"url": outside(page.url), "kind": kind}
            raise ToolError(say("tools/notes", section, **why))
    if not text.strip():
        raise ToolError(say("tools/notes", "page_empty", url=outside(url)))
    return text


def _text_from_jina(parts: Url, allow: Collection[str], key: str) -> str:
    guard.addresses(parts, allow=())  # refuses internal pages here too
    headers = {"Authorization": f"Bearer {key}"}
    page = guard.fetch(JINA_URL + parts.url, allow, headers)
    return page.body.decode("utf-8", "replace")


def _kind(page: guard.Page) -> str:
    """html, pdf or text, by the media type; a PDF also by its content."""
    media_type = re.split("[;,]", page.content_type)[0].strip()
    begins_as_pdf = page.body[:1024].lstrip().startswith(b"%PDF-")
    if media_type == "application/pdf" or begins_as_pdf:
        return "pdf"
    if media_type in ("text/html", "application/xhtml+xml", ""):
        return "html"
    if media_type.startswith("text/") or media_type.endswith(("json", "xml")):
        return "text"
    raise ToolError(say("tools/notes", "page_kind", url=outside(page.url)))
