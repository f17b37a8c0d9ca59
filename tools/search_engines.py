"""A search of the web: with Serper, a service that searches with Google, if SERPER_API_KEY is set,
else with ddgs, a package that needs no key, if that is installed.
"""

from __future__ import annotations

import json
import os
from typing import Any

import requests

from orchestra.kernel.http import NoAnswer, deliver
from orchestra.kernel.prompts import outside, say
from orchestra.kernel.vocabulary import ToolError

SERPER_URL = "https://google.serper.dev/search"
SERPER_KEY = "SERPER_API_KEY"
SERPER_AT = "SERPER_URL"  # another service with the same format
TIMEOUT_S = 20.0
MAX_CHARS = 5000  # of each text of a result
DESCRIPTIONS = (
    "type",
    "answer",
    "snippet",
    "body",
    "description",
    "date",
)  # fields of an entry

FoundPage = dict[str, str]


def search(asked: dict[str, Any]) -> list[FoundPage]:
    """The pages found. Raises ToolError."""
    given = {name: value for name, value in asked.items() if value}
    if os.environ.get(SERPER_KEY):
        return serper(given)
    return duckduckgo(given)


def serper(asked: dict[str, Any]) -> list[FoundPage]:
    """The answer box, the knowledge graph and the pages that Serper found. Raises ToolError."""
    headers = {"X-API-KEY": os.environ[SERPER_KEY]}
    url = os.environ.get(SERPER_AT) or SERPER_URL  # an empty variable counts as not set
    request = requests.Request("POST", url, headers, json=asked)
    try:
        response = deliver(url, request.prepare, TIMEOUT_S)
        if 200 <= response.status < 300:
            return _serper_rows(json.loads(response.content), asked["num"])
        reason = f"HTTP {response.status}"
    except NoAnswer as error:
        reason = str(error)
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        reason = "no JSON"  # or JSON of another shape
    raise _failed("Serper", outside(reason))


def _failed(engine: str, reason: str) -> ToolError:
    return ToolError(say("tools/notes", "search_failed", engine=engine, reason=reason))


def _serper_rows(found: dict[str, Any], limit: int) -> list[FoundPage]:
    pages = found.get("organic") or []
    entries = [found.get("answerBox"), found.get("knowledgeGraph"), *pages[:limit]]
    rows = [_row(entry) for entry in entries if entry]
    return [row for row in rows if row]


def _row(entry: dict[str, Any]) -> FoundPage:
    """The fields that an entry of the reply has, cut."""
    links = (entry.get(name) for name in ("link", "website", "descriptionLink", "href"))
    lines = [entry.get(name) for name in DESCRIPTIONS]
    attributes = entry.get("attributes") or {}
    lines += [f"{name}: {value}" for name, value in attributes.items()]
    text = "\n".join(str(line) for line in lines if line)
    link = next(filter(None, links), "")
    row = {"link": link, "text": text, "title": entry.get("title")}
    return {name: _text(value) for name, value in row.items() if value}


def _text(value: Any) -> str:
    """A value as text, cut. JSON may hold halves of characters (surrogates), which become `?`."""
    return str(value)[:MAX_CHARS].encode("utf-8", "replace").decode()


def duckduckgo(asked: dict[str, Any]) -> list[FoundPage]:
    """The pages that ddgs finds; it needs no key. Raises ToolError."""
    try:
        from ddgs import DDGS
        from ddgs.exceptions import DDGSException
    except ImportError:
        raise ToolError(say("tools/notes", "no_search")) from None
    try:
        engine = DDGS(timeout=int(TIMEOUT_S))
        pages = engine.text(asked["q"], region=_region(asked), max_results=asked["num"])
    except DDGSException as error:
        if "No results" in str(error):
            return []
        raise _failed("ddgs", type(error).__name__) from None
    return [_row(page) for page in pages]


def _region(asked: dict[str, Any]) -> str:
    """Country and language as ddgs wants them: us-en. Some engines refuse us-zh-CN."""
    named = (asked.get("gl", "us"), asked.get("hl", "en"))
    return "-".join(name.partition("-")[0] for name in named).lower()
