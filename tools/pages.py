"""The readable text of a web page or a PDF.

With JINA_API_KEY, Jina Reader fetches and renders the page. Without it, tools/guard.py fetches the
page, and tools/page_text.py extracts its text in the sandbox.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from pathlib import Path

from urllib3.util import Url

from orchestra.kernel.prompts import outside, say
from orchestra.kernel.tape import Redact
from orchestra.kernel.vocabulary import ToolError
from orchestra.tools import guard, sandbox

JINA_URL = "https://r.jina.ai/"
JINA_KEY = "JINA_API_KEY"
READER = Path(__file__).with_name("page_text.py").read_text(encoding="utf-8")
READ_S = 30.0
MAX_TEXT_BYTES = 2_000_000
LOCKED = 4  # exit status of the reader for a PDF that needs a password


def page_text(url: str, allow: Collection[str] = (), redact: Redact = str) -> str:
    """The readable text of a page. Raises ToolError: refused, failed, or nothing to read."""
    parts = guard.checked(url, redact)
    key = os.environ.get(JINA_KEY)
    if key and not guard.is_allowed(parts, allow):
        text = _text_from_jina(parts, allow, key)
    else:  # without a key, or internal: Jina must not learn of internal pages
        page = guard.fetch(url, allow)
        text = _extracted(page, _kind(page))
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


def _extracted(page: guard.Page, kind: str) -> str:
    """The text of a page, extracted in the sandbox, because a page may take over its parser. Where
    there is no sandbox, in a process with limits.
    """
    cut_note = say("tools/notes", "part_cut")
    ran = sandbox.confined(
        command=sandbox.python(READER, kind, page.content_type, cut_note),
        stdin=page.body,
        timeout_s=READ_S,
        mounts=sandbox.Mounts(),
        max_output_bytes=MAX_TEXT_BYTES,
        unsafe=sandbox.trouble() != "",
    )
    url = outside(page.url)
    if ran.ended == "end" and ran.status == LOCKED:
        raise ToolError(say("tools/notes", "page_locked", url=url))
    if ran.ended != "end" or ran.status != 0:
        raise ToolError(say("tools/notes", "page_unreadable", url=url, kind=kind))
    return ran.output.decode("utf-8", "replace")
