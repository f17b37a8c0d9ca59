"""Whether an answer is right, by rules, without a model."""

from __future__ import annotations

import contextlib
import re
import unicodedata
from datetime import datetime
from decimal import Decimal
from itertools import repeat

DATES = ("%Y-%m-%d", "%Y/%m/%d", "%d %B %Y", "%B %d %Y", "%d %b %Y", "%b %d %Y")
MULTIPLES = {
    "dozen",
    "hundred",
    "thousand",
    "million",
    "billion",
    "trillion",
}  # are not units
SIGNS = {"$", "€", "£", "%"}
VALUE = re.compile(
    r"([-+]?)([$€£]?)((?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?)\s*(%|[^\d\s,.;%](?:(?!\s\d).){0,30})?"
)


def exact(given: str, right: str) -> bool:
    """OmniGAIA's exact match: letter case and repeated white space aside."""
    return given.lower().split() == right.lower().split()


def matches(given: str, right: str, question: str = "") -> bool:
    """Whether both are the same text, number, date or list, apart from spelling. The right answer
    among several others does not match.
    """
    given, right = _plain(given), _plain(right)
    if _same(given, right, question):
        return True
    if date := _date(right):
        return date == _date(given)
    a, b = ([_plain(item) for item in _items(text)] for text in (given, right))
    return len(a) == len(b) and all(map(_same, a, b, repeat(question)))


def _plain(text: str) -> str:
    """In lower case, without marks and the article around it; numbers in one spelling: -0.5 for a
    typographic minus and .5, 0.00001 for 1e-05, 7 for 007.
    """
    text = unicodedata.normalize("NFKC", text.replace("\u2019", "'")).casefold()
    text = re.sub(
        "^[\u2012-\u2015](?=\\d)", "-", text.strip(" *_`\"'\u201c\u201d\u2018")
    )
    text = re.sub(r"(?<![\w.])\.(?=\d)", "0.", text.replace("\u2212", "-"))
    text = re.sub(
        r"(?<=\d)[^\S\n]+(?=%|[ap]m\b)|(?<=[$\u20ac\u00a3])\s+(?=\d)", "", text
    )
    power = re.compile(r"(?<![\w.])\d+(?:\.\d+)?e[-+]?\d{1,2}(?!\w)", re.A)
    text = re.sub(r"^(?:the|an|a) (?!and |or )", "", text.strip(" .,;!"))
    return re.sub(
        r"(?<![\d.,])0+(?=\d)", "", power.sub(lambda n: f"{Decimal(n[0]):f}", text)
    )


def _same(a: str, b: str, question: str) -> bool:
    """Whether two answers in plain spelling are the same and not empty. A unit may be missing if it
    is a sign or the question names it; two units must be the same.
    """
    x, y = VALUE.fullmatch(a), VALUE.fullmatch(b)
    if not x or not y:
        return bool(b) and " ".join(a.split()) == " ".join(b.split())
    units = [re.sub(r"(?<=\w\w)s$", "", m[2] + (m[4] or "").rstrip()) for m in (x, y)]
    words, signs = {*units} - SIGNS - {""}, {*units} & SIGNS
    asked = rf"(?<!\w)(?:{'|'.join(map(re.escape, words))})s?(?!\w)"
    named = not words or (re.search(asked, _plain(question)) and not words & MULTIPLES)
    fit = units[0] == units[1] or (max(len(words), len(signs)) < 2 and named)
    return (
        bool(fit) and len({Decimal(m[1] + m[3].replace(",", "")) for m in (x, y)}) == 1
    )


def _items(text: str) -> list[str]:
    """The items of a list. A comma between digits may be part of a number."""
    text = text.strip(" .[]()")
    items = re.split(r";\s*|\n|,\s+(?:and )?| and ", text)
    whole = len(items) > 1 or re.fullmatch(r"\W*\d{1,3}(,\d{3})+(\.\d+)?\W*", text)
    return items if whole else text.split(",")


def _date(text: str) -> datetime | None:
    plain = re.sub(r"(?<=\d)(st|nd|rd|th)\b|\bof\b|[.,]|(?<=\bsep)t\b", " ", text)
    for form in DATES:
        with contextlib.suppress(ValueError):
            return datetime.strptime(" ".join(plain.split()), form)
    return None
