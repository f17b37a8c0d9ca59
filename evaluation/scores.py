"""Whether an answer is right, by rules: no model is asked."""

from __future__ import annotations

import re
import unicodedata
from datetime import datetime
from decimal import Decimal

LONG = 1000  # longer answers are only compared whole
DATES = ("%Y-%m-%d", "%Y/%m/%d", "%d %B %Y", "%B %d %Y", "%d %b %Y", "%b %d %Y")
MULTIPLES = {"dozen", "hundred", "thousand", "million", "billion", "trillion"}  # are not units
NUMBER = r"[-+]?[$€£]?(?:\d{1,3}(?:,\d{3})+|\d{1,30})(?:\.\d{1,30})?%?"


def exact(given: str, right: str) -> bool:
    """OmniGAIA's exact match: letter case and repeated white space aside."""
    return given.lower().split() == right.lower().split()


def matches(given: str, right: str, question: str = "") -> bool:
    """The normalised match: numbers, units that the question names, articles, dates, and lists in
    order. Several answers in the place of one are none.
    """
    if exact(given, right) or max(len(given), len(right)) > LONG:
        return exact(given, right)
    given, right = (_without_unit(_plain(text), question) for text in (given, right))
    if _same(given, right):
        return True
    if date := _date(right):
        return date == _date(given)
    a, b = ([_without_unit(_plain(i), question) for i in _items(t)] for t in (given, right))
    return len(a) == len(b) and all(map(_same, a, b))


def _plain(text: str) -> str:
    """In small letters without articles, with numbers as people write them: -0.5 for a typeset
    minus and .5, 0.00001 for 1e-05, 7 for 007.
    """
    text = unicodedata.normalize("NFKC", text).casefold().strip(" *_`\"'\u201c\u201d\u2018\u2019")
    text = re.sub("^[\u2012-\u2015](?=\\d)", "-", text)
    text = re.sub(r"(?<![\w.])\.(?=\d)", "0.", text.replace("\u2212", "-"))
    text = re.sub(r"(?<=\d)[^\S\n]+(?=%|[ap]m\b)|(?<=[$\u20ac\u00a3])\s+(?=\d)", "", text)
    power = re.compile(r"(?<![\w.])\d+(?:\.\d+)?e[-+]?\d{1,2}(?!\w)", re.A)
    text = re.sub(r"^(?:the|an|a) ", "", text.strip(" .,;!"))
    return re.sub(r"(?<![\d.,])0+(?=\d)", "", power.sub(lambda n: f"{Decimal(n[0]):f}", text))


def _without_unit(text: str, question: str) -> str:
    """A number without the unit behind it, as km/h, where the question names that."""
    measured = re.fullmatch(rf"({NUMBER})\s*([^\d\s,.;].{{0,30}})", text)
    unit = re.escape(measured[2].rstrip(" .")) if measured else ""
    named = unit and re.search(rf"(?<!\w){unit}(?!\w)", _plain(question))
    return measured[1] if measured and named and unit not in MULTIPLES else text


def _same(a: str, b: str) -> bool:
    """Two answers in plain spelling, not both empty."""
    if (x := _number(a)) and (y := _number(b)):
        return x[0] == y[0] and ("" in (x[1], y[1]) or x[1] == y[1])
    return bool(b) and " ".join(a.split()) == " ".join(b.split())


def _number(text: str) -> tuple[Decimal, str] | None:
    """A number, and its sign of money or percent."""
    if not re.fullmatch(NUMBER, text, re.A):
        return None
    return Decimal(re.sub(r"[$€£,%]", "", text)), re.sub(r"[^$€£%]", "", text)


def _items(text: str) -> list[str]:
    """Of a list; a comma between digits may be part of a number."""
    text = text.strip(" .[]()")
    items = re.split(r";\s*|\n|,\s+(?:and )?| and ", text)
    whole = len(items) > 1 or re.fullmatch(r"\W*\d{1,3}(,\d{3})+(\.\d+)?\W*", text)
    return items if whole else text.split(",")


def _date(text: str) -> datetime | None:
    plain = re.sub(r"(?<=\d)(st|nd|rd|th)\b|\bof\b|[.,]|(?<=\bsep)t\b", " ", text)
    for form in DATES:
        try:
            return datetime.strptime(" ".join(plain.split()), form)
        except ValueError:
            continue
    return None
