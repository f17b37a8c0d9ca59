"""GoogleSearchAction searches the web; tools/search_engines.py does it."""

from __future__ import annotations

from typing import Any

from orchestra.kernel.prompts import fenced, say
from orchestra.kernel.tool import Environment, tool
from orchestra.kernel.vocabulary import ToolError

MAX_RESULTS = 20


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

    def search() -> Any:
        from orchestra.tools import search_engines

        return search_engines.search(asked)

    rows = env.local("search", asked, search)
    if not rows:
        raise ToolError(say("tools/notes", "search_nothing", query=query))
    texts = ["\n".join(row.values()) for row in rows]
    numbered = [f"{number}. {text}" for number, text in enumerate(texts, 1)]
    return fenced("\n\n".join(numbered))
