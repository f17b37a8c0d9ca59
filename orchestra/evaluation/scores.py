"""Whether an answer is right, by rules, without a model.

>>> exact("  PARIS ", "Paris"), exact("2", "2 years")
(True, False)
>>> matches("March 5th, 2011", "2011-03-05"), matches("12,718 km", "12718km")
(True, True)
>>> matches("2", "2 years", "How many years is it?"), matches("2", "2 years", "How long is it?")
(True, False)
"""

from __future__ import annotations

import contextlib
import re
import unicodedata
from datetime import datetime
from decimal import Decimal
from typing import NamedTuple

DATES = ("%Y-%m-%d", "%Y/%m/%d", "%d %B %Y", "%B %d %Y", "%d %b %Y", "%b %d %Y")
SIGNS = {"$", "€", "£", "%"}
# Part of the number, not its unit: it must not be missing.
MULTIPLES = {"dozen", "hundred", "thousand", "million", "billion", "trillion"}

# ---- the patterns of an amount: sign, currency, number, unit -------------------------------------

NUMBER = r"(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?"
UNIT = r"%|[^\d\s,.;%](?:(?!\s\d).){0,30}"
AMOUNT = re.compile(rf"([-+]?)([$€£]?)({NUMBER})\s*({UNIT})?")
PLURAL = re.compile(r"(?<=\w\w)s$")

# ---- what differs only in spelling ---------------------------------------------------------------

MARKS = " *_`\"'\u201c\u201d\u2018"  # around an answer
LEADING_DASH = re.compile("^[\u2012-\u2015](?=\\d)")
BARE_POINT = re.compile(r"(?<![\w.])\.(?=\d)")  # .5
SPACE_AFTER_NUMBER = re.compile(r"(?<=\d)[^\S\n]+(?=%|[ap]m\b)")  # 5 %, 7:49 am
SPACE_BEFORE_NUMBER = re.compile(r"(?<=[$€£])\s+(?=\d)")  # $ 5
ARTICLE = re.compile(r"^(?:the|an|a) (?!and |or )")
POWER = re.compile(r"(?<![\w.])\d+(?:\.\d+)?e[-+]?\d{1,2}(?!\w)", re.ASCII)  # 1e-05
LEADING_ZEROS = re.compile(r"(?<![\d.,])0+(?=\d)")  # 007
AROUND_A_DATE = re.compile(r"(?<=\d)(st|nd|rd|th)\b|\bof\b|[.,]|(?<=\bsep)t\b")
DIVIDER = re.compile(r";\s*|\n|,\s+(?:and )?| and ")
GROUPED_NUMBER = re.compile(r"\W*\d{1,3}(,\d{3})+(\.\d+)?\W*")  # 1,234


class Amount(NamedTuple):
    """A number and its unit: a word in the singular, a sign, or "" if there is none."""

    number: Decimal
    unit: str


def exact(given: str, right: str) -> bool:
    """OmniGAIA's exact match. It ignores letter case and repeated white space."""
    return given.lower().split() == right.lower().split()


def matches(given: str, right: str, question: str = "") -> bool:
    """Whether both are the same text, number, date or list, apart from spelling. The right answer
    among several others does not match.
    """
    given = _plain(given)
    right = _plain(right)
    if _same(given, right, question):
        return True
    right_date = _date(right)
    if right_date is not None:
        return _date(given) == right_date
    given_items = _items(given)
    right_items = _items(right)
    if len(given_items) != len(right_items):
        return False
    pairs = zip(given_items, right_items, strict=True)
    return all(_same(_plain(a), _plain(b), question) for a, b in pairs)


def _plain(text: str) -> str:
    """In lower case, without marks and the article around it. Numbers have one spelling: -0.5 for a
    typographic minus and .5, 0.00001 for 1e-05, 7 for 007.
    """
    text = unicodedata.normalize("NFKC", text.replace("\u2019", "'")).casefold()
    text = LEADING_DASH.sub("-", text.strip(MARKS))
    text = text.replace("\u2212", "-")
    text = BARE_POINT.sub("0.", text)
    text = SPACE_AFTER_NUMBER.sub("", text)
    text = SPACE_BEFORE_NUMBER.sub("", text)
    text = ARTICLE.sub("", text.strip(" .,;!"))
    text = POWER.sub(_without_exponent, text)
    return LEADING_ZEROS.sub("", text)


def _without_exponent(number: re.Match[str]) -> str:
    return f"{Decimal(number[0]):f}"


def _same(a: str, b: str, question: str) -> bool:
    """Whether two answers in plain spelling are the same and not empty."""
    x = _amount(a)
    y = _amount(b)
    if x is None or y is None:
        return b != "" and a.split() == b.split()
    return x.number == y.number and _units_agree(x.unit, y.unit, question)


def _amount(text: str) -> Amount | None:
    """The number and unit of a text that is nothing else."""
    found = AMOUNT.fullmatch(text)
    if found is None:
        return None
    sign, currency, digits, unit = found.groups(default="")
    number = Decimal(sign + digits.replace(",", ""))
    return Amount(number, unit=PLURAL.sub("", currency + unit.rstrip()))


def _units_agree(a: str, b: str, question: str) -> bool:
    """Two units must be the same. One may be missing if it is a sign or the question names it."""
    if a == b:
        return True
    units = {a, b} - {""}
    signs = units & SIGNS
    words = units - SIGNS
    if len(signs) > 1 or len(words) > 1:
        return False
    return all(_names(question, word) for word in words)


def _names(question: str, unit: str) -> bool:
    """Whether a question names a unit, so that an answer need not repeat it."""
    if unit in MULTIPLES:
        return False
    word = re.compile(rf"(?<!\w){re.escape(unit)}s?(?!\w)")
    return word.search(_plain(question)) is not None


def _items(text: str) -> list[str]:
    """The items of a list. A comma between digits may be part of a number."""
    text = text.strip(" .[]()")
    items = DIVIDER.split(text)
    if len(items) == 1 and not GROUPED_NUMBER.fullmatch(text):
        items = text.split(",")
    return items


def _date(text: str) -> datetime | None:
    """The date that a text is; None if it is not one."""
    words = " ".join(AROUND_A_DATE.sub(" ", text).split())
    for form in DATES:
        with contextlib.suppress(ValueError):
            return datetime.strptime(words, form)
    return None
