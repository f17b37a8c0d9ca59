"""Prints the readable text of a page; runs in the sandbox, because pages are not trusted.

Started as `python -I -c <this file> html|pdf|text CONTENT_TYPE NOTE`, with the page on standard
input. NOTE follows the text of a PDF that is too long to be read whole.
"""

import contextlib
import io
import os
import re
import sys
from typing import Any

MAX_CHARS = 400_000
MAX_PAGES = 300
LOCKED = 4  # exit status: the PDF needs a password


def pdf_text(body: bytes) -> str:
    import pypdf

    reader = pypdf.PdfReader(io.BytesIO(body))
    if reader.is_encrypted and not reader.decrypt(""):
        sys.exit(LOCKED)
    texts: list[str] = []
    for page in reader.pages[:MAX_PAGES]:
        texts.append(page.extract_text())
        if sum(map(len, texts)) > MAX_CHARS:
            break
    if any(texts) and len(texts) < len(reader.pages):
        texts.append(sys.argv[3])
    return "\n\n".join(texts)


def html_text(page: str) -> str:
    import trafilatura
    from lxml import html  # type: ignore[import-untyped]

    def words(of: Any) -> str | None:
        return trafilatura.extract(
            of, include_tables=True, include_links=True, favor_recall=True
        )

    found = words(page) or str(trafilatura.html2txt(page))
    if (
        page.strip() and not found
    ):  # over the limits of the parser, as with many unclosed tags
        tree = html.document_fromstring(page, parser=html.HTMLParser(huge_tree=True))
        found = words(tree) or ""
    return found


def decoded(body: bytes, content_type: str) -> str:
    """UTF-8 where it is valid; else by the byte order mark, the header or the page."""
    with contextlib.suppress(UnicodeDecodeError):
        if not body.isascii():
            return body.decode("utf-8-sig")
    from w3lib.encoding import html_to_unicode

    return str(html_to_unicode(re.sub("[\"']", "", content_type), body)[1])


def main() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # warnings of parsers
    body = sys.stdin.buffer.read()
    if sys.argv[1] == "pdf":
        text = pdf_text(body)
    else:
        text = decoded(body, sys.argv[2])
        text = html_text(text) if sys.argv[1] == "html" else text
    sys.stdout.buffer.write(text[:MAX_CHARS].encode("utf-8", "replace"))


main()
