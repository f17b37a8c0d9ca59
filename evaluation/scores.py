"""Whether an answer is right, by rules: no model is asked."""

from __future__ import annotations

import re
from datetime import datetime
from decimal import Decimal

from training.reading import MULTIPLES, same_answer

LONG = 1000  # longer answers are only compared whole
DATES = ("%Y-%m-%d", "%Y/%m/%d", "%d %B %Y", "%B %d %Y", "%d %b %Y", "%b %d %Y")


def exact(given: str, right: str) -> bool:
    """OmniGAIA's exact match: letter case and repeated white space aside."""
    return given.lower().split() == right.lower().split()


def matches(given: str, right: str, question: str = "") -> bool:
    """The normalised match: numbers, units that the question names, dates, and lists in order."""
    given, right = _plain(given), _plain(right)
    if exact(given, right) or max(len(given), len(right)) > LONG:
        return exact(given, right)
    if same_answer(given, right, question):
        return True
    if date := _date(right):
        return date == _date(given)
    a, b = (_items(_without_unit(text, question)) for text in (given, right))
    return len(a) == len(b) and all(map(lambda x, y: same_answer(x, y, question), a, b))


def _plain(text: str) -> str:
    """With numbers as people write them: -0.5 for a typeset minus and .5, 0.00001 for 1e-05."""
    text = re.sub("^[\u2012-\u2015](?=\\d)", "-", text.strip(" *_`\"'\u201c\u201d\u2018\u2019"))
    text = re.sub(r"(?<![\w.])\.(?=\d)", "0.", text.replace("\u2212", "-"))
    text = re.sub(r"(?<=\d)\s+(?=%|[ap]m\b)|(?<=[$\u20ac\u00a3])\s+(?=\d)", "", text, flags=re.I)
    power = re.compile(r"(?<![\w.])\d+(?:\.\d+)?e[-+]?\d{1,2}(?!\w)", re.I | re.A)
    return power.sub(lambda number: f"{Decimal(number[0]):f}", text)


def _without_unit(text: str, question: str) -> str:
    """A number without the unit behind it, as km/h, where the question names that."""
    measured = re.fullmatch(r"([-+]?[\d.,]*\d)\s*([^\d\s,.;].{0,30})", text)
    unit = re.escape(measured[2].casefold().rstrip(" .")) if measured else ""
    named = unit and re.search(rf"(?<!\w){unit}(?!\w)", question.casefold())
    return measured[1] if measured and named and unit not in MULTIPLES else text


def _items(text: str) -> list[str]:
    """Of a list; a comma between digits may be part of a number."""
    items = re.split(r";\s*|\n|,\s+(?:and )?| and ", text.strip(" .[]()"))
    return (
        text.strip(" .[]()").split(",") if len(items) == 1 and not _has_thousands(text) else items
    )


def _has_thousands(text: str) -> bool:
    return bool(re.fullmatch(r"\W*\d{1,3}(,\d{3})+(\.\d+)?\W*", text))


def _date(text: str) -> datetime | None:
    plain = re.sub(r"(?<=\d)(st|nd|rd|th)\b|\bof\b|[.,]|(?<=\bSep)t\b", " ", text, flags=re.I)
    for form in DATES:
        try:
            return datetime.strptime(" ".join(plain.split()), form)
        except ValueError:
            continue
    return None
