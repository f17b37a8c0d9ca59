"""Prints the readable text of a page; runs in the sandbox, because pages are not trusted.

tools/visit.py starts it as `python -I -c <this file> html|pdf|text CONTENT_TYPE CUT_NOTE`, with the
page on standard input. trafilatura reads HTML, and pypdf reads PDF. CUT_NOTE follows the text of a
PDF that is too long to be read whole.
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


def main(kind: str, content_type: str, cut_note: str) -> None:
    hide_warnings()
    body = sys.stdin.buffer.read()
    text = page_text(body, kind, content_type, cut_note)
    sys.stdout.buffer.write(text[:MAX_CHARS].encode("utf-8", "replace"))


def hide_warnings() -> None:
    """Parsers write warnings to standard error, which would be read as text of the page."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)


def page_text(body: bytes, kind: str, content_type: str, cut_note: str) -> str:
    if kind == "pdf":
        return pdf_text(body, cut_note)
    text = decoded(body, content_type)
    if kind == "html":
        return html_text(text)
    return text


def pdf_text(body: bytes, cut_note: str) -> str:
    import pypdf

    reader = pypdf.PdfReader(io.BytesIO(body))
    if reader.is_encrypted and not reader.decrypt(""):
        sys.exit(LOCKED)
    texts: list[str] = []
    for page in reader.pages[:MAX_PAGES]:
        texts.append(page.extract_text())
        if sum(map(len, texts)) > MAX_CHARS:
            break
    has_text = any(texts)
    is_cut = len(texts) < len(reader.pages)
    if has_text and is_cut:
        texts.append(cut_note)
    return "\n\n".join(texts)


def html_text(page: str) -> str:
    import trafilatura

    found = extracted(page) or str(trafilatura.html2txt(page))
    if found or not page.strip():
        return found
    # The page is over the limits of the parser, as with many unclosed tags.
    from lxml import html  # type: ignore[import-untyped]

    parser = html.HTMLParser(huge_tree=True)
    tree = html.document_fromstring(page, parser=parser)
    return extracted(tree) or ""


def extracted(page: Any) -> str | None:
    """The main text of a page or of its tree."""
    import trafilatura

    text: str | None = trafilatura.extract(
        page, include_tables=True, include_links=True, favor_recall=True
    )
    return text


def decoded(body: bytes, content_type: str) -> str:
    """UTF-8 where it is valid; else by the byte order mark, the header or the page."""
    if not body.isascii():  # ISO-2022-JP, for example, looks like ASCII
        with contextlib.suppress(UnicodeDecodeError):
            return body.decode("utf-8-sig")
    from w3lib.encoding import html_to_unicode

    header = re.sub("[\"']", "", content_type)
    _, text = html_to_unicode(header, body)
    return str(text)


if __name__ == "__main__":
    main(*sys.argv[1:])
