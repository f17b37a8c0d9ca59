"""Prints a file of the task or a page of the web as text; runs in the sandbox, because neither is
trusted.

tools/readers.py starts it as `python -I -c <this file> NAME NOTES [CONTENT_TYPE URL]`. With a
CONTENT_TYPE, the page of the URL is on standard input. trafilatura reads pages, openpyxl and xlrd
sheets, pypdf reads PDF, and markitdown other documents. An archive becomes a list of its files, and
the texts of the first of them. Everything else is read as plain text. What is not read of a file is
said at the end of its text. NOTES are the sentences for a model, as JSON.
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
from collections import Counter
from collections.abc import Iterator
from datetime import datetime, time, timedelta
from decimal import Decimal
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path, PurePosixPath
from typing import Any

MAX_CHARS = 400_000
MAX_MEMBERS = 200  # of an archive: those that are listed
MAX_UNPACKED_BYTES = 256 << 20  # of an archive or a document, which is one too
MAX_MEMBER_BYTES = 16 << 20
MAX_PAGES = 300
GUESS_BYTES = 1 << 20  # of a text, which its encoding is guessed from
MAX_MEMORY_BYTES = 2 << 30  # the sandbox has the same limit
AS_PLAIN_TEXT = {".html", ".htm"}  # where markitdown is not installed
PACKED = {".docx", ".xlsx", ".pptx", ".epub"}  # archives of no files of the user
SHEETS = {".xlsx": "openpyxl", ".xls": "xlrd"}  # the package that reads them
DOCUMENTS = {*PACKED - SHEETS.keys(), *AS_PLAIN_TEXT}  # which markitdown reads
PACKAGES = {
    ".pdf": "pypdf",
    **SHEETS,
    **dict.fromkeys(DOCUMENTS - AS_PLAIN_TEXT, "markitdown"),
}
ENCRYPTED = b"\xd0\xcf\x11\xe0"  # how an .xlsx with a password begins
# How files begin that have text which no reader here finds: .odt, .doc, .msg, .rtf, .7z, .rar, .gz
FOREIGN = (b"PK\x03\x04", ENCRYPTED, b"{\\rtf", b"7z\xbc\xaf", b"Rar!", b"\x1f\x8b")
# Parts of documents that are archives: where superscripts are marked, whose text markitdown leaves
# out, and which have no text
SCRIPTED = re.compile(
    r"word/(document|footnotes|endnotes|comments|header|footer)\d*\.xml"
    r"|ppt/(slides|notesSlides)/\w+\.xml|.*\.x?html?"
)
MORE_TEXT = re.compile(
    r"word/(header|footer|comments)\d*\.xml|(xl|ppt)/comments.*\.xml"
    r"|xl/drawings/drawing\d+\.xml|\w+/diagrams/data\d+\.xml"
)
NO_TEXT_IN = {
    "pictures": re.compile(
        r"(?!docProps/).*(/media/.*|\.(png|jpe?g|gif|svg|webp))", re.I
    ),
    "charts": re.compile(r"(word|xl)/charts/chart\d*\.xml"),
}
ENDINGS = {"st", "nd", "rd", "th", "er", "re", "e", "ème", "o", "a"}  # of a number
LITERALS = re.compile(r'"[^"]*"|\[[^\]]*\]|[\\_*].')  # in the format of a number
SHORT = re.compile(r"[-+−]?\w+|\(.*\)")  # a superscript that needs no parentheses
CONTROLS = re.compile(r"[\0-\x08\x0b\x0c\x0e-\x1f]")  # which lxml refuses
Sheets = Iterator[tuple[str, Iterator[list[str]]]]  # the name of each, and its rows
KINDS = "pictures", "charts", "forms"
NOTES = dict.fromkeys(("cut", "guessed", "form", "unread", "member", *KINDS), "")
NOT_READ: Counter[str] = Counter()  # of the file: "cut", or how many of KINDS
XML_ENCODING = re.compile(rb"<\?xml[^>]*\sencoding=[\"']([\w.-]+)")
HTML_ENCODING = re.compile(rb"(?s).{,1024}?<meta[^>]*\scharset=[\"']?([\w.-]+)", re.I)
# exit statuses
LOCKED = 4  # it opens with a password only
NO_TEXT = 5
TOO_LARGE = 6
NO_READER = 7  # the package that reads it is not installed
UNKNOWN_KIND = 8  # no package here reads it


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
    notes = end_notes(is_cut=len(text) > MAX_CHARS) if text.strip() else ""
    sys.stdout.buffer.write((text[:MAX_CHARS] + notes).encode("utf-8", "replace"))


def end_notes(is_cut: bool) -> str:
    """What is not read of the file."""
    kinds = [f"{NOTES[kind]} ({NOT_READ[kind]})" for kind in KINDS if NOT_READ[kind]]
    unread = NOTES["unread"].replace("${what}", ", ".join(kinds))
    notes = [NOTES["cut"]] * (is_cut or "cut" in NOT_READ) + [unread] * bool(kinds)
    return "".join(f"\n{note}" for note in notes)


def text_of(data: bytes, suffix: str, inside: bool = False) -> str:
    """The text of a file by its suffix. `inside`: it is in an archive, so no archive is opened."""
    if suffix == ".zip" and not inside:
        return archive_text(data)
    if suffix in PACKED:
        if data.startswith(ENCRYPTED):
            sys.exit(LOCKED)
        check_size(data)
    if suffix == ".pdf":
        return pdf_text(data)
    if suffix in SHEETS:
        return workbook_text(data, suffix)
    if suffix in DOCUMENTS:
        return document_text(data, suffix)
    if suffix == ".ipynb":
        return notebook_text(data)
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
    texts = []
    try:
        texts += form_text(reader)
    except Exception:  # of a damaged form
        NOT_READ["forms"] += 1
    for number, page in enumerate(reader.pages):
        if number == MAX_PAGES or sum(map(len, texts)) > MAX_CHARS:
            NOT_READ["cut"] = 1
            break
        texts.append(page.extract_text())
        with contextlib.suppress(Exception):
            NOT_READ["pictures"] += len(page.images)
    return "\n\n".join(texts)


def form_text(reader: Any) -> list[str]:
    """The fields of a form with their values, also those that no page shows."""
    from pypdf.generic import NameObject

    lines = []
    for name, field in (reader.get_fields() or {}).items():
        value = field.get("/V", "")
        values = value if isinstance(value, list) else [value]
        texts = (str(v)[isinstance(v, NameObject) :] for v in values)  # /Yes
        if "/FT" in field:
            lines.append(f"{name}: {', '.join(texts)}")
    return ["\n".join([NOTES["form"], *lines])] if lines else []


def document_text(data: bytes, suffix: str) -> str:
    """A document as Markdown, with marked superscripts."""
    try:
        from markitdown import MarkItDown, StreamInfo
    except ImportError:
        if suffix in AS_PLAIN_TEXT:
            return plain_text(data, HTML_ENCODING)
        sys.exit(NO_READER)
    if suffix in PACKED:
        data = marked_document(data)
        texts = other_texts(data)
    else:
        data = marked_html(plain_text(data, HTML_ENCODING))
        texts = []
    found = MarkItDown(enable_plugins=False).convert_stream(
        io.BytesIO(data),
        stream_info=StreamInfo(extension=suffix, charset="utf-8"),
        escape_asterisks=False,
        escape_underscores=False,
    )
    return "\n\n".join([str(found.markdown), *texts])


def notebook_text(data: bytes) -> str:
    """The cells of a notebook with their outputs."""
    texts = []
    for cell in json.loads(plain_text(data))["cells"]:
        texts.append("".join(cell["source"]))
        for output in cell.get("outputs", []):
            shown = output.get("text") or output.get("traceback")
            texts.append("".join(shown or output.get("data", {}).get("text/plain", "")))
            NOT_READ["pictures"] += any(
                kind.startswith("image/") for kind in output.get("data", {})
            )
    return "\n\n".join(filter(None, texts))


# ---- documents that are archives -----------------------------------------------------------------


def other_texts(data: bytes) -> list[str]:
    """The texts of the parts that markitdown and openpyxl leave out: headers, footers, comments,
    shapes. What has no text is counted.
    """
    texts = []
    with zipfile.ZipFile(io.BytesIO(data)) as packed:
        for name in packed.namelist():
            NOT_READ.update(
                kind for kind, of in NO_TEXT_IN.items() if of.fullmatch(name)
            )
            if MORE_TEXT.fullmatch(name):
                text = paragraphs(parsed(packed.read(name)))
                texts += [f"--- {name} ---\n{text}"] * bool(text.strip())
    return texts


def parsed(data: bytes) -> Any:
    """The tree of a part of an office document."""
    from lxml import etree  # type: ignore[import-untyped]

    return etree.fromstring(data, etree.XMLParser(recover=True, huge_tree=True))


def paragraphs(tree: Any) -> str:
    """The text of XML of an office document, a line for each paragraph."""
    lines: dict[Any, str] = {}
    for element in tree.iter("{*}t", "{*}text", "{*}tab", "{*}br"):
        if next(element.iterancestors("{*}Fallback"), None) is None:  # the same again
            owner = next(element.iterancestors("{*}p", "{*}comment", "{*}cm"), None)
            lines[owner] = lines.get(owner, "") + (element.text or " ")
    return "\n".join(line.strip() for line in lines.values() if line.strip())


def marked_document(data: bytes) -> bytes:
    """A document with marked superscripts."""
    made = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(data)) as packed,
        zipfile.ZipFile(made, "w") as target,
    ):
        for member in packed.infolist():
            part = packed.read(member)
            if SCRIPTED.fullmatch(member.filename):
                is_xml = member.filename.endswith(".xml")
                text = part.decode("utf-8", "replace")
                part = marked_xml(part) if is_xml else marked_html(text)
            target.writestr(member, part)
    return made.getvalue()


def marked_html(page: str) -> bytes:
    """A page with marked superscripts and the values of its forms, in UTF-8."""
    from lxml import html

    data = CONTROLS.sub(" ", page).encode("utf-8", "replace")
    if not data.strip():
        return data
    parser = html.HTMLParser(encoding="utf-8", huge_tree=True)
    tree = html.document_fromstring(data, parser=parser)
    mark_scripts(tree)
    for field in tree.iter("input", "option"):
        field.tail = f" {form_value(field)} {field.tail or ''}"
    return bytes(html.tostring(tree, encoding="utf-8"))


def form_value(field: Any) -> str:
    """What a field of a form on a page shows; markitdown shows checkboxes."""
    kind = field.get("type")
    if field.tag == "option" or kind == "radio":
        return "[x]" if {"checked", "selected"} & {*field.attrib} else "[ ]"
    return "" if kind in ("hidden", "checkbox") else str(field.get("value", ""))


def marked_xml(data: bytes) -> bytes:
    """A part of an office document with marked superscripts."""
    from lxml import etree

    tree = parsed(data)
    for paragraph in tree.iter("{*}p"):
        texts = [
            text
            for text in paragraph.iter("{*}t")
            if next(text.iterancestors("{*}p")) is paragraph
        ]
        runs = [
            ("", []),
            *((s, list(same)) for s, same in groupby(texts, script_of)),
            ("", []),
        ]
        whole = ["".join(text.text or "" for text in same) for _, same in runs]
        for n, (script, same) in enumerate(runs):
            if script:
                same[0].text = marked(script, whole[n], whole[n - 1], whole[n + 1])
                for text in same[1:]:
                    text.text = ""
    return bytes(etree.tostring(tree, encoding="utf-8", xml_declaration=True))


def script_of(text: Any) -> str:
    """Whether a text of an office document is "sup", "sub" or neither, ""."""
    properties = text.getparent().find("{*}rPr")
    if properties is None:
        return ""
    for align in properties.iter("{*}vertAlign"):  # of Word
        kinds = {"superscript": "sup", "subscript": "sub"}
        return kinds.get("".join(align.values()), "")
    height = str(properties.get("baseline", ""))  # of PowerPoint
    if not height.strip("0%"):
        return ""
    return "sub" if height.startswith("-") else "sup"


# ---- sheets --------------------------------------------------------------------------------------


def workbook_text(data: bytes, suffix: str) -> str:
    """The sheets of a workbook as Markdown tables, with each cell as the file has it: a text stays
    a text, and nothing is guessed.
    """
    try:
        sheets = sheets_of_xlsx(data) if suffix == ".xlsx" else sheets_of_xls(data)
        texts = []
        for name, rows in sheets:
            texts.append(f"## {name}\n{table_text(rows)}")
            if sum(map(len, texts)) > MAX_CHARS:
                NOT_READ["cut"] = 1
                return "\n\n".join(texts)
        if suffix == ".xlsx":
            texts += other_texts(data)
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
        return number_text(value, form)
    if isinstance(value, datetime):
        has_time = value.time() != time() or "h" in form.lower()
        return value.isoformat(" ") if has_time else value.date().isoformat()
    if isinstance(value, timedelta):
        minutes, seconds = divmod(round(value.total_seconds()), 60)
        return f"{minutes // 60}:{minutes % 60:02}:{seconds:02}"
    text = str(value).replace("|", "\\|")
    return "<br>".join(text.splitlines())


def number_text(value: float, form: str) -> str:
    """A number with all its digits, and the zeros, decimals and sign of percent of its format.

    >>> number_text(501, "00000"), number_text(1.1, "0.00"), number_text(0.125, "0%")
    ('00501', '1.10', '12.5%')
    """
    form = LITERALS.sub("", form).partition(";")[0]
    percent = "%" * ("%" in form)
    is_whole = float(value).is_integer()
    number = Decimal(repr(value) if is_whole else format(value, ".15g"))
    number *= 100 if percent else 1
    whole, _, decimals = f"{number.normalize():f}".partition(".")
    fixed = re.search(r"\.(0+)(?!.*E)", form)
    decimals = decimals.ljust(len(fixed[1]) if fixed else 0, "0")
    if re.fullmatch("0+", form) and not decimals:  # 00501
        whole = f"{int(whole):0{len(form) + (number < 0)}}"
    return whole + f".{decimals}" * bool(decimals) + percent


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
    lines: list[str] = []
    texts: list[str] = []
    left = MAX_UNPACKED_BYTES
    with zipfile.ZipFile(io.BytesIO(data)) as packed:
        members = packed.infolist()
        for member in members[:MAX_MEMBERS]:
            left -= member.file_size
            has_room = left >= 0 and sum(map(len, texts)) <= MAX_CHARS
            text = member_text(packed, member) if has_room else None
            size = f"{member.file_size} bytes" + NOTES["member"] * (text is None)
            lines.append(f"{member.filename} ({size})")
            if text and text.strip():
                texts.append(f"--- {member.filename} ---\n{text}")
    if len(members) > MAX_MEMBERS:
        lines.append(f"... and {len(members) - MAX_MEMBERS} more")
    return "\n\n".join(["\n".join(lines), *texts])


def member_text(packed: zipfile.ZipFile, member: zipfile.ZipInfo) -> str | None:
    """The text of a file in an archive; None if it cannot be read."""
    if member.is_dir():
        return ""
    is_link = stat.S_ISLNK(member.external_attr >> 16)
    is_locked = member.flag_bits & 1
    if is_link or is_locked or member.file_size > MAX_MEMBER_BYTES:
        return None
    suffix = PurePosixPath(member.filename).suffix.lower()
    try:
        return text_of(packed.read(member), suffix, inside=True)
    except MemoryError:
        raise
    except (Exception, SystemExit):  # parsers do not document what they raise
        return None


# ---- plain text ----------------------------------------------------------------------------------


def plain_text(data: bytes, encoding: re.Pattern[bytes] = XML_ENCODING) -> str:
    """UTF-16 with its mark, the encoding that the file declares, UTF-8 where it is valid, else the
    one that chardet guesses, which is said. Ends the program for bytes that are no text.
    """
    if data.startswith(FOREIGN):
        sys.exit(UNKNOWN_KIND)
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return data.decode("utf-16", "replace")
    if b"\0" in data:
        sys.exit(NO_TEXT)
    declared = encoding.match(data[:2048])
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
    """The title and main text of a page as Markdown, with whole URLs and marked superscripts."""
    import trafilatura
    from lxml import html

    if not page.strip():
        return ""
    page = CONTROLS.sub(" ", page)
    tree = trafilatura.load_html(page)
    if tree is None:  # the page is over the limits of the parser
        parser = html.HTMLParser(huge_tree=True)
        tree = html.document_fromstring(page, parser=parser)
    tree.make_links_absolute(url, handle_failures="ignore")
    mark_scripts(tree)
    titles = [
        " ".join(head.text_content().split()) for head in tree.iter("title", "h1")
    ]
    how: Any = {"include_tables": True, "include_links": True, "favor_recall": True}
    text = trafilatura.extract(tree, **how) or str(trafilatura.html2txt(tree))
    left_out = [title for title in dict.fromkeys(titles) if title not in text]
    return "\n".join([*left_out, text] if text.strip() else [])


def mark_scripts(tree: Any) -> None:
    """Mark the superscripts and subscripts of a page."""
    for element in list(tree.iter("sup", "sub")):
        text = " ".join(element.text_content().split())
        before, after = text_before(element), element.tail or ""
        for child in list(element):
            element.remove(child)
        element.text = marked(element.tag, text, before, after)
        if element.getparent() is not None:
            element.drop_tag()


def marked(script: str, text: str, before: str, after: str) -> str:
    """A superscript ("sup"), or a subscript ("sub") next to a digit, with a mark: as ordinary text,
    10^3 would be 103.
    """
    base = before[-1:].strip()
    if script == "sup" and base and is_power(text, base):
        return f"^{text}" if SHORT.fullmatch(text) else f"^({text})"
    is_by_digit = any(map(str.isdigit, base + after[:1]))
    return f"_{text}" if script == "sub" and text and is_by_digit else text


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
