"""GoogleSearchAction: Serper where SERPER_API_KEY is set, else ddgs where it is installed."""

from __future__ import annotations

import json
import os
from typing import Any

from orchestra.runtime import http
from orchestra.runtime.prompts import fenced, say
from orchestra.toolkit import Environment, ToolError, tool

SERPER_URL = "https://google.serper.dev/search"
SERPER_KEY = "SERPER_API_KEY"
SERPER_AT = "SERPER_URL"  # another service with the same format
TIMEOUT_S = 20.0
MAX_RESULTS = 20
MAX_CHARS = 5000  # of each text of a result

Row = dict[str, str]


@tool("GoogleSearchAction", "web")
def google_search(
    env: Environment, query: str, k: int = 5, gl: str = "", hl: str = ""
) -> str:
    """Search the web: titles, links and snippets of the best pages. Open a link with
    ExtractUrlContentAction.

    query: what to search for, in a few words
    k: how many results
    gl: country to search from, as in us
    hl: language, as in en
    """
    if not query.strip():
        raise ToolError(say("tools/notes", "search_empty"))
    asked = {"q": query, "num": max(1, min(k, MAX_RESULTS)), "gl": gl, "hl": hl}
    rows = env.local("search", asked, lambda: _search(asked), list[Row])
    if not rows:
        raise ToolError(say("tools/notes", "search_nothing", query=query))
    texts = ["\n".join(row.values()) for row in rows]
    return fenced("\n\n".join(f"{n}. {text}" for n, text in enumerate(texts, 1)))


def _search(asked: dict[str, Any]) -> list[Row]:
    given = {k: v for k, v in asked.items() if v}
    return serper(given) if os.environ.get(SERPER_KEY) else duckduckgo(given)


def serper(asked: dict[str, Any]) -> list[Row]:
    """The answer box, the knowledge graph and the pages that Serper found. Raises ToolError."""
    headers = {"X-API-KEY": os.environ[SERPER_KEY], "content-type": "application/json"}
    url = os.environ.get(SERPER_AT) or SERPER_URL
    try:
        answer = http.post(url, asked, headers, TIMEOUT_S)
        if 200 <= answer.status < 300:
            found = json.loads(answer.content)
            pages = (found.get("organic") or [])[: asked["num"]]
            rows = map(
                _row, (found.get("answerBox"), found.get("knowledgeGraph"), *pages)
            )
            return [row for row in rows if row]
        reason = f"HTTP {answer.status}"
    except http.NoAnswer as error:
        reason = error.args[0]
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        reason = "no JSON"  # or JSON of another shape
    raise ToolError(say("tools/notes", "search_failed", engine="Serper", reason=reason))


def _row(entry: dict[str, Any] | None) -> Row:
    """The fields that an entry of the reply has, cut."""
    entry = entry or {}
    texts = [entry.get(k) for k in ("type", "answer", "snippet", "description", "date")]
    texts += [f"{k}: {v}" for k, v in (entry.get("attributes") or {}).items()]
    link = entry.get("link") or entry.get("website") or entry.get("descriptionLink")
    text = "\n".join(str(text) for text in texts if text)
    row = {"link": link, "text": text, "title": entry.get("title")}
    return {k: _text(v) for k, v in row.items() if v}


def _text(value: Any) -> str:
    return (
        str(value)[:MAX_CHARS].encode("utf-8", "replace").decode()
    )  # JSON may hold surrogates


def duckduckgo(asked: dict[str, Any]) -> list[Row]:
    """The pages that ddgs finds; it needs no key. Raises ToolError."""
    try:
        from ddgs import DDGS
        from ddgs.exceptions import DDGSException
    except ImportError:
        raise ToolError(say("tools/notes", "no_search")) from None
    country, language = (
        asked.get(k, v).partition("-")[0] for k, v in (("gl", "us"), ("hl", "en"))
    )
    region = f"{country}-{language}".lower()  # some engines refuse us-zh-CN
    try:
        ddgs, limit = DDGS(timeout=int(TIMEOUT_S)), asked["num"]
        pages = ddgs.text(asked["q"], region=region, max_results=limit)
    except DDGSException as error:
        if "No results" in str(error):
            return []
        reason = type(error).__name__
        raise ToolError(
            say("tools/notes", "search_failed", engine="ddgs", reason=reason)
        ) from None
    fields = {"link": "href", "snippet": "body", "title": "title"}
    return [
        _row({name: page.get(key) for name, key in fields.items()}) for page in pages
    ]
