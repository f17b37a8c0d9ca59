"""Runs behind the wall of tools/code.py: the readable text of a page, which nobody trusts.

Started as `python -I -c <this file> html|pdf|text`; the page comes on standard input.
"""

import io
import sys

MAX_CHARS = 400_000
MAX_PAGES = 300


def pdf_text(body: bytes) -> str:
    import pypdf

    reader = pypdf.PdfReader(io.BytesIO(body))
    texts: list[str] = []
    for page in reader.pages[:MAX_PAGES]:
        texts.append(page.extract_text())
        if sum(map(len, texts)) > MAX_CHARS:
            break
    return "\n\n".join(texts)


def html_text(body: bytes) -> str:
    import trafilatura

    found = trafilatura.extract(
        body, include_tables=True, include_links=True, with_metadata=False, favor_recall=True
    )
    return found or trafilatura.html2txt(body) or ""


def plain_text(body: bytes) -> str:
    return body.decode("utf-8", "replace")


def main() -> None:
    body = sys.stdin.buffer.read()
    read = {"html": html_text, "pdf": pdf_text, "text": plain_text}[sys.argv[1]]
    text = read(body)[:MAX_CHARS]
    sys.stdout.buffer.write(text.encode("utf-8", "replace"))


main()
