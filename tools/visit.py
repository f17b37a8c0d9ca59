"""ExtractUrlContentAction answers a query from the text of a web page; tools/pages.py gets it."""

from __future__ import annotations

from dataclasses import replace

from orchestra.kernel.prompts import without_marks
from orchestra.kernel.tool import Environment, tool


@tool("ExtractUrlContentAction", "web")
def extract_url_content(env: Environment, url: str, browse_query: str) -> str:
    """Open a web page or a PDF by its URL and find out what it says about a query.

    url: the whole URL, as a search or a page showed it
    browse_query: what you want to know from the page
    """
    from orchestra.tools import reading

    allow = env.options.more.get("allow_hosts", ())

    def read() -> str:
        from orchestra.tools import pages

        plain = without_marks(url).strip()  # small models copy the marks, too
        return pages.page_text(plain, allow, env.tape.redact)

    reader = replace(env, depends_on=lambda: " ".join(allow))
    text = reader.local("visit", {"url": url}, read)
    return reading.answer_from(env, browse_query, text, "a web page")
