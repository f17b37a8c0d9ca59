"""Runs in the sandbox: the readable text of a page, which nobody trusts.

Started as `python -I -c <this file> html|pdf|text CHARSET`; the page comes on standard input. The
exit status says what else there is to know of it.
"""

import contextlib
import io
import sys
from html.parser import HTMLParser

MAX_CHARS = 400_000
MAX_PAGES = 300
CUT, LOCKED = 3, 4  # only its beginning was read; it opens with a password only


def pdf_text(body: bytes) -> tuple[str, bool]:
    """(text, whether it is all of it)"""
    import pypdf

    reader = pypdf.PdfReader(io.BytesIO(body))
    if reader.is_encrypted and not reader.decrypt(""):
        sys.exit(LOCKED)
    texts: list[str] = []
    for page in reader.pages[:MAX_PAGES]:
        texts.append(page.extract_text())
        if sum(map(len, texts)) > MAX_CHARS:
            break
    return "\n\n".join(texts), len(texts) == len(reader.pages)


def html_text(page: str) -> str:
    import trafilatura

    found = trafilatura.extract(
        page, include_tables=True, include_links=True, with_metadata=False, favor_recall=True
    )
    return found or trafilatura.html2txt(page) or words_of(page)


def words_of(page: str) -> str:
    """The words between the tags, of a page that is nested too deep or too long for lxml."""

    found: list[str] = []

    class Words(HTMLParser):
        def handle_data(self, data: str) -> None:
            if self.cdata_elem is None:  # no script, no style
                found.append(data)

    reader = Words()
    reader.feed(page)
    reader.close()
    return " ".join(" ".join(found).split())


def decoded(body: bytes, charset: str) -> str:
    """UTF-8 where it is that, whatever it says; else as its byte order mark, the header or the page
    says; else by a guess.
    """
    with contextlib.suppress(UnicodeDecodeError):
        if not body.isascii():
            return body.decode("utf-8-sig")
    from charset_normalizer import from_bytes
    from w3lib.encoding import html_to_unicode

    def guess(body: bytes) -> str | None:
        best = from_bytes(body[:50_000]).best()
        return best.encoding if best else None

    header = f"text/html; charset={charset}" if charset else None
    return str(html_to_unicode(header, body, auto_detect_fun=guess)[1])


def main() -> None:
    body, whole = sys.stdin.buffer.read(), True
    if sys.argv[1] == "pdf":
        text, whole = pdf_text(body)
    else:
        text = decoded(body, sys.argv[2])
        text = html_text(text) if sys.argv[1] == "html" else text
    sys.stdout.buffer.write(text[:MAX_CHARS].encode("utf-8", "replace"))
    sys.exit(0 if whole and len(text) <= MAX_CHARS else CUT)


main()
