"""ExtractUrlContentAction: a query answered from the text of a web page.

With JINA_API_KEY, Jina Reader fetches and renders the page. Without it, the page is fetched through
the guard and read by trafilatura (HTML) or pypdf (PDF) in the sandbox of the code tool.
"""

from __future__ import annotations

import os
import re
from functools import partial
from pathlib import Path

from orchestra.runtime.prompts import say
from orchestra.runtime.secrets import Secrets
from orchestra.toolkit import Environment, ToolError, tool
from orchestra.tools import guard, reading, sandbox

JINA_URL = "https://r.jina.ai/"
JINA_KEY = "JINA_API_KEY"
READER = Path(__file__).with_name("page_text.py").read_text(encoding="utf-8")
READ_S = 30.0
MAX_TEXT = 2_000_000
LOCKED = 4  # exit status of the reader for a PDF that needs a password


@tool("ExtractUrlContentAction", "web")
def extract_url_content(env: Environment, url: str, browse_query: str) -> str:
    """Open a web page or a PDF by its URL and find out what it says about a query.

    url: the whole URL, as a search or a page showed it
    browse_query: what you want to know from the page
    """
    read = partial(page_text, url.strip(), env.allow_hosts, env.tape.secrets)
    text = env.local("visit", {"url": url}, read, str)
    return reading.answer_from(env, browse_query, text, "a web page")


def page_text(
    url: str, allow: tuple[str, ...] = (), secrets: Secrets | None = None
) -> str:
    """The readable text of a page. Raises ToolError: refused, failed, or nothing to read."""
    parts, key = guard.checked(url, secrets), os.environ.get(JINA_KEY)
    if key and not guard.is_allowed(
        parts, allow
    ):  # Jina must not learn of internal pages
        guard.addresses(parts, ())
        headers = {"Authorization": f"Bearer {key}"}
        text = guard.fetch(JINA_URL + parts.url, allow, headers).body.decode(
            "utf-8", "replace"
        )
    else:
        page = guard.fetch(url, allow)
        text = _read(page, _kind(page))
    if not text.strip():
        raise ToolError(say("tools/notes", "page_empty", url=url[:200]))
    return text


def _kind(page: guard.Page) -> str:
    """html, pdf or text, by the media type; a PDF also by its content."""
    media_type = re.split("[;,]", page.content_type)[0].strip()
    if media_type == "application/pdf" or page.body[:1024].lstrip().startswith(
        b"%PDF-"
    ):
        return "pdf"
    if media_type in ("text/html", "application/xhtml+xml", ""):
        return "html"
    if media_type.startswith("text/") or media_type.endswith(("json", "xml")):
        return "text"
    raise ToolError(say("tools/notes", "page_kind", url=page.url[:200]))


def _read(page: guard.Page, kind: str) -> str:
    """The text of a page, extracted in the sandbox, because a page may take over its parser. Where
    there is no sandbox, in a process with limits.
    """
    command = sandbox.python(
        READER, kind, page.content_type, say("tools/notes", "part_cut")
    )
    unsafe = bool(sandbox.trouble())
    ran = sandbox.confined(
        command, page.body, READ_S, sandbox.World(), MAX_TEXT, unsafe=unsafe
    )
    if ran.ended == "end" and ran.status == LOCKED:
        raise ToolError(say("tools/notes", "page_locked", url=page.url[:200]))
    if ran.ended != "end" or ran.status:
        raise ToolError(
            say("tools/notes", "page_unreadable", url=page.url[:200], kind=kind)
        )
    return ran.output.decode("utf-8", "replace")
