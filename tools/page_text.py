"""Runs behind the wall of tools/code.py: the readable text of a page, which nobody trusts.

Started as `python -I -c <this file> html|pdf|text CHARSET`; the page comes on standard input. The
exit status says what else there is to know of it.
"""

import codecs
import io
import re
import sys
from html.parser import HTMLParser

MAX_CHARS = 400_000
MAX_PAGES = 300
META = re.compile(rb"<meta[^>]+charset\s*=\s*[\"']?\s*([\w.:-]+)", re.IGNORECASE)
META_BYTES = 4096  # where browsers look for it
MARKS = {
    codecs.BOM_UTF8: "utf-8",
    codecs.BOM_UTF16_LE: "utf-16-le",
    codecs.BOM_UTF16_BE: "utf-16-be",
}
HIDDEN = re.compile(
    rb"<!--(?:-?>|.*?(?:-->|\Z))|<(script|style)\b.*?(?:</\1|\Z)", re.IGNORECASE | re.DOTALL
)  # where a META is none
LABELS = {  # what is meant where these are written: encoding.spec.whatwg.org, names and labels
    **dict.fromkeys(("ascii", "iso8859-1"), "cp1252"), "iso8859-9": "cp1254",
    **dict.fromkeys(("tis-620", "iso8859-11"), "cp874"), "big5": "big5hkscs",
    **dict.fromkeys(("gb2312", "gbk", "x-gbk"), "gb18030"),
    **dict.fromkeys(("euc_kr", "windows-949"), "cp949"),
    **dict.fromkeys(("shift_jis", "x-sjis", "windows-31j"), "cp932"),
}  # fmt: skip
NO_CHARSETS = ("punycode", "idna", "unicode-escape", "raw-unicode-escape", "utf-7")
HIGH = bytes(range(0x80, 0x100))
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


def html_text(body: bytes) -> str:
    import trafilatura

    named = META.search(HIDDEN.sub(b"", body[:META_BYTES]))
    text = decoded(body, sys.argv[2] or (named[1].decode("ascii") if named else ""))
    page = text if text and "<" in text else body  # it is guessed what none says, or says wrongly
    found = trafilatura.extract(
        page, include_tables=True, include_links=True, with_metadata=False, favor_recall=True
    )
    return found or trafilatura.html2txt(page) or words_of(text or plain_text(body))


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


def plain_text(body: bytes) -> str:
    page = decoded(body, sys.argv[2])
    return body.decode("utf-8", "replace") if page is None else page


def decoded(body: bytes, charset: str) -> str | None:
    """The text by its byte order mark, else in a charset; None if there is none for it."""
    for mark, name in MARKS.items():
        if body.startswith(mark):
            return body[len(mark) :].decode(name, "replace")
    try:
        name = codecs.lookup(LABELS.get(charset.lower(), charset)).name
        name = LABELS.get(name, name)
        if name in NO_CHARSETS:
            return None
        return _utf8_after_all(body, name) or body.decode(name, "replace")
    except (LookupError, ValueError):  # no charset that there is, or none for this
        return None


def _utf8_after_all(body: bytes, charset: str) -> str:
    """The text, where a charset of one byte a character is named and it is UTF-8: by chance, none
    of some length is. Else "".
    """
    if body.isascii() or len(HIGH.decode(charset, "replace")) < len(HIGH):
        return ""
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError:
        return ""


def main() -> None:
    body, whole = sys.stdin.buffer.read(), True
    if sys.argv[1] == "pdf":
        text, whole = pdf_text(body)
    else:
        text = (html_text if sys.argv[1] == "html" else plain_text)(body)
    sys.stdout.buffer.write(text[:MAX_CHARS].encode("utf-8", "replace"))
    sys.exit(0 if whole and len(text) <= MAX_CHARS else CUT)


main()
