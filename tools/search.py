"""GoogleSearchAction: Serper where SERPER_API_KEY is set, else ddgs where it is installed."""

from __future__ import annotations

import json
import os
from typing import Any

from runtime import http
from runtime.prompts import fenced, say
from tools import Environment, ToolError, tool

SERPER_URL = "https://google.serper.dev/search"
SERPER_KEY = "SERPER_API_KEY"
SERPER_AT = "SERPER_URL"  # another service of the same format: a proxy, an intranet
TIMEOUT_S = 20.0
MAX_RESULTS = 20
MAX_CHARS = 5000  # of each text of a result

Row = dict[str, str]


@tool("GoogleSearchAction", "web")
def google_search(env: Environment, query: str, k: int = 5, gl: str = "", hl: str = "") -> str:
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
    given = {k: v for k, v in asked.items() if v}
    rows = env.local("search", asked, lambda: _search(given), list[Row])
    if not rows:
        raise ToolError(say("tools/notes", "search_nothing", query=query))
    texts = ["\n".join(row.values()) for row in rows]
    return fenced("\n\n".join(f"{n}. {text}" for n, text in enumerate(texts, 1)))


def _search(asked: dict[str, Any]) -> list[Row]:
    return serper(asked) if os.environ.get(SERPER_KEY) else duckduckgo(asked)


def serper(asked: dict[str, Any]) -> list[Row]:
    """The answer box, the knowledge graph and the pages that Serper gives. Raises ToolError."""
    headers = {"X-API-KEY": os.environ[SERPER_KEY], "content-type": "application/json"}
    url, found = os.environ.get(SERPER_AT) or SERPER_URL, None
    try:
        answer = http.post(url, json.dumps(asked).encode(), headers, TIMEOUT_S)
        reason = f"HTTP {answer.status}"
        found = json.loads(answer.content) if 200 <= answer.status < 300 else None
    except http.NoAnswer as error:
        reason = error.args[0]
    except (ValueError, RecursionError):
        reason = "no JSON"
    if not isinstance(found, dict):
        raise ToolError(say("tools/notes", "search_failed", engine="Serper", reason=reason))
    pages = found.get("organic")
    listed = pages[: asked["num"]] if isinstance(pages, list) else []
    rows = [_row(e) for e in (found.get("answerBox"), found.get("knowledgeGraph"), *listed)]
    return [row for row in rows if row]


def _row(entry: Any) -> Row:
    """One entry of Serper's reply: every field it may have, and none it has not."""
    entry = entry if isinstance(entry, dict) else {}
    facts = entry.get("attributes")
    texts = [_text(entry.get(k)) for k in ("type", "answer", "snippet", "description", "date")]
    texts += [f"{k}: {_text(v)}" for k, v in facts.items()] if isinstance(facts, dict) else []
    link = entry.get("link") or entry.get("website") or entry.get("descriptionLink")
    text, title = "\n".join(filter(None, texts)), entry.get("title")
    row = {"link": _text(link), "text": _text(text), "title": _text(title)}
    return {k: v for k, v in row.items() if v}


def _text(value: Any) -> str:
    """A text or number of the reply, as long as one can be; "" for anything else."""
    if not isinstance(value, (str, int, float)):
        return ""
    return str(value)[:MAX_CHARS].encode("utf-8", "replace").decode()


def duckduckgo(asked: dict[str, Any]) -> list[Row]:
    """The pages that ddgs finds without a key. Raises ToolError."""
    try:
        from ddgs import DDGS
        from ddgs.exceptions import DDGSException
    except ImportError:
        raise ToolError(say("tools/notes", "no_search")) from None
    country, language = (asked.get(k, v).partition("-")[0] for k, v in (("gl", "us"), ("hl", "en")))
    region = f"{country}-{language}".lower()  # zh-CN has a part too many for some engines
    try:
        pages = DDGS(timeout=int(TIMEOUT_S)).text(
            asked["q"], region=region, max_results=asked["num"]
        )
    except DDGSException as error:
        if "No results" in str(error):
            return []
        reason = type(error).__name__
        raise ToolError(say("tools/notes", "search_failed", engine="ddgs", reason=reason)) from None
    fields = {"link": "href", "text": "body", "title": "title"}
    return [{name: _text(page.get(key)) for name, key in fields.items()} for page in pages]
