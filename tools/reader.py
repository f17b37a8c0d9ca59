"""Prints a file of the task or a page of the web as text; runs in the sandbox, because neither is
trusted.

tools/readers.py starts it as `python -I -c <this file> NAME NOTES [CONTENT_TYPE URL]`. With a
CONTENT_TYPE, the page of the URL is on standard input. trafilatura reads pages, openpyxl and xlrd
sheets, pypdf reads PDF, and markitdown other documents. An archive becomes a list of its files, and
the texts of the first of them. Everything else is read as plain text. NOTES are the sentences for a
model, as JSON.
"""

import contextlib
import io
import json
import os
import re
import resource
import stat
import sys
import zipfile
from collections.abc import Iterator
from datetime import datetime, time, timedelta
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import Any

MAX_CHARS = 400_000
MAX_MEMBERS = 200  # of an archive: those that are listed
MAX_UNPACKED_BYTES = 256 << 20  # of an archive or a document, which is one too
MAX_MEMBER_BYTES = 16 << 20
MAX_PAGES = 300
GUESS_BYTES = 1 << 20  # of a text, which its encoding is guessed from
MAX_MEMORY_BYTES = 2 << 30  # the sandbox has the same limit
AS_PLAIN_TEXT = {".html", ".htm", ".ipynb"}  # where markitdown is not installed
PACKED = {".docx", ".xlsx", ".pptx", ".epub"}  # archives of no files of the user
SHEETS = {".xlsx": "openpyxl", ".xls": "xlrd"}  # the package that reads them
DOCUMENTS = {*PACKED - SHEETS.keys(), *AS_PLAIN_TEXT}  # which markitdown reads
PACKAGES = {
    ".pdf": "pypdf",
    **SHEETS,
    **dict.fromkeys(DOCUMENTS - AS_PLAIN_TEXT, "markitdown"),
}
ENCRYPTED = b"\xd0\xcf\x11\xe0"  # how an .xlsx with a password begins
CUT = "\f"  # the end of a text that was not read to its end
ENDINGS = {"st", "nd", "rd", "th", "er", "re", "e", "ème", "o", "a"}  # of a number
SHORT = re.compile(r"[-+−]?\w+|\(.*\)")  # a superscript that needs no parentheses
Sheets = Iterator[tuple[str, Iterator[list[str]]]]  # the name of each, and its rows
NOTES = {"cut": "", "guessed": ""}  # ${encoding} in the second one
XML_ENCODING = re.compile(rb"<\?xml[^>]*\sencoding=[\"']([\w.-]+)")
# exit statuses
LOCKED = 4  # it opens with a password only
NO_TEXT = 5
TOO_LARGE = 6
NO_READER = 7  # the package that reads it is not installed


def main(name: str, notes: str, content_type: str | None = None, url: str = "") -> None:
    # Parsers write warnings to standard error, which would be read as text of the file.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    suffix = Path(name).suffix.lower()
    NOTES.update(json.loads(notes))
    try:
        if content_type is None:
            text = text_of(Path(name).read_bytes(), suffix)
        else:
            text = page_text(sys.stdin.buffer.read(), suffix, content_type, url)
    except MemoryError:
        sys.exit(TOO_LARGE)
    if len(text) > MAX_CHARS or text.endswith(CUT):
        text = f"{text[:MAX_CHARS].removesuffix(CUT)}\n{NOTES['cut']}"
    sys.stdout.buffer.write(text.encode("utf-8", "replace"))


def text_of(data: bytes, suffix: str, inside: bool = False) -> str:
    """The text of a file by its suffix. `inside`: it is in an archive, so no archive is opened."""
    if suffix == ".zip" and not inside:
        return archive_text(data)
    if suffix in PACKED:
        check_size(data)
    if suffix == ".pdf":
        return pdf_text(data)
    if suffix in SHEETS:
        return workbook_text(data, suffix)
    if suffix in DOCUMENTS:
        return document_text(data, suffix)
    return plain_text(data)


# ---- documents -----------------------------------------------------------------------------------


def can_read(suffix: str) -> bool:
    """Whether the package is installed that reads files with this suffix, if one is needed."""
    return suffix not in PACKAGES or find_spec(PACKAGES[suffix]) is not None


def pdf_text(data: bytes) -> str:
    try:
        import pypdf
    except ImportError:
        sys.exit(NO_READER)
    reader = pypdf.PdfReader(io.BytesIO(data))
    if reader.is_encrypted and not reader.decrypt(""):
        sys.exit(LOCKED)
    texts: list[str] = []
    for page in reader.pages[:MAX_PAGES]:
        texts.append(page.extract_text())
        if sum(map(len, texts)) > MAX_CHARS:
            break
    is_cut = any(texts) and len(texts) < len(reader.pages)
    return "\n\n".join(texts) + CUT * is_cut


def document_text(data: bytes, suffix: str) -> str:
    """A document as Markdown."""
    try:
        from markitdown import MarkItDown, StreamInfo
    except ImportError:
        if suffix in AS_PLAIN_TEXT:
            return plain_text(data)
        sys.exit(NO_READER)
    reader = MarkItDown(enable_plugins=False)
    kind = StreamInfo(extension=suffix)
    found = reader.convert_stream(io.BytesIO(data), stream_info=kind)
    return str(found.markdown)


# ---- sheets --------------------------------------------------------------------------------------


def workbook_text(data: bytes, suffix: str) -> str:
    """The sheets of a workbook as Markdown tables, with each cell as the file has it: a text stays
    a text, and nothing is guessed.
    """
    if suffix == ".xlsx" and data.startswith(ENCRYPTED):
        sys.exit(LOCKED)
    try:
        sheets = sheets_of_xlsx(data) if suffix == ".xlsx" else sheets_of_xls(data)
        texts = []
        for name, rows in sheets:
            texts.append(f"## {name}\n{table_text(rows)}")
            if sum(map(len, texts)) > MAX_CHARS:
                return "\n\n".join(texts) + CUT
    except ImportError:
        sys.exit(NO_READER)
    return "\n\n".join(texts)


def sheets_of_xlsx(data: bytes) -> Sheets:
    """A formula shows its stored value, or itself if none is stored."""
    import openpyxl

    values, formulas = (
        openpyxl.load_workbook(io.BytesIO(data), read_only=True, data_only=stored)
        for stored in (True, False)
    )
    for sheet, other in zip(values.worksheets, formulas.worksheets, strict=True):
        sheet.reset_dimensions()  # which may be wrong
        other.reset_dimensions()
        both = zip(sheet.iter_rows(), other.iter_rows(), strict=True)
        yield sheet.title, (list(map(xlsx_cell, *pair)) for pair in both)


def xlsx_cell(cell: Any, formula: Any) -> str:
    if cell.value is None and formula.data_type == "f":
        return str(getattr(formula.value, "text", formula.value))
    return cell_text(cell.value, cell.number_format if cell.value is not None else "")


def sheets_of_xls(data: bytes) -> Sheets:
    import xlrd

    book = xlrd.open_workbook(
        file_contents=data, formatting_info=True, logfile=io.StringIO()
    )

    def text(cell: Any) -> str:
        shown: Any = cell.value
        if cell.ctype == xlrd.XL_CELL_DATE:
            shown = xlrd.xldate.xldate_as_datetime(cell.value, book.datemode)
            shown = shown.time() if cell.value < 1 else shown
        elif cell.ctype == xlrd.XL_CELL_BOOLEAN:
            shown = bool(cell.value)
        elif cell.ctype == xlrd.XL_CELL_ERROR:
            shown = xlrd.error_text_from_code[cell.value]
        form = book.format_map[book.xf_list[cell.xf_index].format_key].format_str
        return cell_text(shown, form)

    for sheet in book.sheets():
        yield sheet.name, (list(map(text, row)) for row in sheet.get_rows())


def cell_text(value: Any, form: str) -> str:
    """A value as the sheet shows it, as far as digits count. `form`: its number format."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, int | float):
        if form.endswith("%"):
            return f"{round(value * 100, 10):g}%"
        whole = int(value) if value == int(value) else None
        digits = len(form) if re.fullmatch("0+", form) else 0  # 00501
        return repr(value) if whole is None else str(whole).zfill(digits)
    if isinstance(value, datetime):
        has_time = value.time() != time() or "h" in form.lower()
        return value.isoformat(" ") if has_time else value.date().isoformat()
    if isinstance(value, timedelta):
        minutes, seconds = divmod(round(value.total_seconds()), 60)
        return f"{minutes // 60}:{minutes % 60:02}:{seconds:02}"
    text = str(value).replace("|", "\\|")
    return "<br>".join(text.splitlines())


def table_text(rows: Iterator[list[str]]) -> str:
    """The rows as a Markdown table, the first one as its header, without empty cells at their ends
    and empty rows at the end.
    """
    lines: list[str] = []
    ended = size = 0  # where the last row that is not empty ends
    for row in rows:
        while row and not row[-1]:
            row.pop()
        lines.append(f"| {' | '.join(row)} |")
        if len(lines) == 1:
            lines.append(f"| {' | '.join(['---'] * max(1, len(row)))} |")
        ended = len(lines) if row else ended
        size += len(lines[-1])
        if size > MAX_CHARS:
            break
    return "\n".join(lines[:ended])


# ---- archives ------------------------------------------------------------------------------------


def check_size(data: bytes) -> None:
    """Ends the program for a document that would be too large unpacked. Its parts cannot be larger
    than they say: zipfile reads no further.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as packed:
            size = sum(part.file_size for part in packed.infolist())
    except zipfile.BadZipFile:
        return  # an encrypted document, or an old format: its reader tells
    if size > MAX_UNPACKED_BYTES:
        sys.exit(TOO_LARGE)


def archive_text(data: bytes) -> str:
    """A line for each file of an archive, and the texts of those that are small enough, as long as
    there is room. Nothing is unpacked to the disk, and links are not followed.
    """
    with zipfile.ZipFile(io.BytesIO(data)) as packed:
        members = packed.infolist()
        lines = [f"{m.filename} ({m.file_size} bytes)" for m in members[:MAX_MEMBERS]]
        if len(members) > MAX_MEMBERS:
            lines.append(f"... and {len(members) - MAX_MEMBERS} more")
        texts = ["\n".join(lines)]
        left = MAX_UNPACKED_BYTES
        for member in members[:MAX_MEMBERS]:
            left -= member.file_size
            if left < 0 or sum(map(len, texts)) > MAX_CHARS:
                break
            text = member_text(packed, member)
            if text.strip():
                texts.append(f"--- {member.filename} ---\n{text}")
    return "\n\n".join(texts)


def member_text(packed: zipfile.ZipFile, member: zipfile.ZipInfo) -> str:
    """The text of a file in an archive; "" if it has none, or cannot be read."""
    mode = member.external_attr >> 16
    is_file = not member.is_dir() and not stat.S_ISLNK(mode)
    is_locked = member.flag_bits & 1
    if not is_file or is_locked or member.file_size > MAX_MEMBER_BYTES:
        return ""
    suffix = PurePosixPath(member.filename).suffix.lower()
    try:
        return text_of(packed.read(member), suffix, inside=True)
    except MemoryError:
        raise
    except (Exception, SystemExit):  # parsers do not document what they raise
        return ""


# ---- plain text ----------------------------------------------------------------------------------


def plain_text(data: bytes) -> str:
    """UTF-16 with its mark, the encoding that an XML file declares, UTF-8 where it is valid, else
    the one that chardet guesses, which is said. Ends the program for bytes that are no text.
    """
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return data.decode("utf-16", "replace")
    if b"\0" in data:
        sys.exit(NO_TEXT)
    declared = XML_ENCODING.match(data)
    names = ["utf-8-sig"]
    if declared and not declared[1].lower().startswith(b"utf"):
        names.insert(0, declared[1].decode())
    for name in names:
        with contextlib.suppress(UnicodeDecodeError, LookupError):
            return data.decode(name)
    guessed = "cp1252"
    with contextlib.suppress(ImportError):
        import chardet

        guessed = chardet.detect(data[:GUESS_BYTES])["encoding"] or guessed
    note = NOTES["guessed"].replace("${encoding}", guessed)
    return f"{note}\n{data.decode(guessed, 'replace')}"


# ---- pages of the web ----------------------------------------------------------------------------


def page_text(body: bytes, suffix: str, content_type: str, url: str) -> str:
    if suffix == ".pdf":
        return pdf_text(body)
    text = decoded(body, content_type)
    return html_text(text, url) if suffix == ".html" else text


def html_text(page: str, url: str) -> str:
    """The main text of a page as Markdown, with whole URLs and marked superscripts."""
    import trafilatura
    from lxml import html  # type: ignore[import-untyped]

    if not page.strip():
        return ""
    tree = trafilatura.load_html(page)
    if tree is None:  # the page is over the limits of the parser
        parser = html.HTMLParser(huge_tree=True)
        tree = html.document_fromstring(page, parser=parser)
    tree.make_links_absolute(url, handle_failures="ignore")
    mark_scripts(tree)
    how: Any = {"include_tables": True, "include_links": True, "favor_recall": True}
    return trafilatura.extract(tree, **how) or str(trafilatura.html2txt(tree))


def mark_scripts(tree: Any) -> None:
    """Mark superscripts, and subscripts next to a digit, because they become ordinary text: 10^3 is
    not 103.
    """
    for element in list(tree.iter("sup", "sub")):
        text = " ".join(element.text_content().split())
        before = text_before(element)[-1:].strip()
        near = before + (element.tail or "")[:1]
        if element.tag == "sup" and before and is_power(text, before):
            text = f"^{text}" if SHORT.fullmatch(text) else f"^({text})"
        if element.tag == "sub" and text and any(map(str.isdigit, near)):
            text = f"_{text}"
        for child in list(element):
            element.remove(child)
        element.text = text


def is_power(text: str, before: str) -> bool:
    """Whether a superscript after a character says more than it would as ordinary text. Endings
    (19th, Mme), marks of notes ([1], *) and signs do not.
    """
    begins = text[:1].isalnum() or text[:1] in tuple("+-−(")
    is_ending = before.isdigit() and text.lower() in ENDINGS
    is_word = before.isalpha() and text.isalpha() and len(text) > 1
    return begins and not is_ending and not is_word


def text_before(element: Any) -> str:
    """The text right before an element, in its parent."""
    previous = element.getprevious()
    if previous is not None:
        return str(previous.tail or previous.text_content())
    parent = element.getparent()
    return "" if parent is None else str(parent.text or "")


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
