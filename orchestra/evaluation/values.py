"""What a short text says: a number with its unit, a time, a date, or a name; in any usual spelling.

>>> same("5,000 kilometers", "5 000 km"), same("5 km", "5000 m"), same("5 mW", "5 MW")
(True, True, False)
>>> same("$5 \\\\times 10^{3}$", "5000"), same("10\u00b3", "103"), same("1\u00bd", "1.5")
(True, False, True)
>>> same("3 pm", "15:00"), same("March 5th, 2011", "2011-03-05"), same("Sea-Gull", "sea gull")
(True, True, True)
"""

from __future__ import annotations

import contextlib
import re
import unicodedata
from datetime import datetime, time
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

from orchestra.evaluation.units import (
    NO_UNIT,
    Unit,
    asked_for,
    may_be_left_out,
    unit_of,
)
from orchestra.methods.answers import clean

# ---- what differs only in spelling ---------------------------------------------------------------

MARKS = " *_`\"'\u201c\u201d\u2018"  # around an answer
DASH = re.compile(r"[\u2010-\u2015]|\u2212(?=\s?[\d.$€£])")  # a minus before a number
DASH_IN_RANGE = re.compile(r"(?<=\d) +- +(?=\d)")
SUPERSCRIPT = re.compile(r"(?<=[^\W⁰¹²³⁴-⁹])[⁺⁻]?[⁰¹²³⁴-⁹]+")
LATEX_POWER = re.compile(r"\^\{([-+]?\w+)\}")
LATEX_TIMES = re.compile(r"\\(?:times|cdot)(?![a-zA-Z])")
MIXED = re.compile(r"(?<=\d)(?=[¼-¾⅐-⅞])")  # 1½
GROUPS = re.compile(r"(?<![\d.,])[1-9]\d{0,2}([ '_])\d{3}(?:\1\d{3})*(?!\d)")  # 5 000
TEN_TO = re.compile(  # 10^3, which may have a factor
    r"(?<![\w.,^])(?:(\d+(?:\.\d+)?) ?[×x·⋅*] ?)?10\^([-+]?\d{1,2})(?!\w|\.\d)",
    re.ASCII,
)
# An article may be left out, but not that of The Who, The 1975, or A and B.
ARTICLE = re.compile(
    r"^(?:the|an|a) (?!(?:and|or|who|what|that|this|these|those|it|he|she|they|we|us|you|i|me|one|"
    r"all|some|same|other|the|an|a|in|on|of|to|no|not|vs|few|little|half|hundred|thousand|million|"
    r"minor|major|flat|sharp|positive|negative|\w|\d+)\b(?:$| ))",
    re.I,
)
# What a name may lack: a hyphen between letters, and marks that are not between two digits
LOOSE = re.compile(
    r"(?<=[^\W\d_])\s*-\s*(?=[^\W\d_])"
    r"|(?!(?<=\d)[^\w\s]\d|(?<=\d)\s+\d)[\s.,;:!?'\"`()\[\]{}*_/\\]+"
)
MARKED = re.compile(r"(?=\w).*\d['\"*!]+")  # 5! and 6" are no 5 and 6
SUBSCRIPT = re.compile(r"(?<=\d)(?=[₀-₉])")  # 101₂


# ---- numbers, times and dates --------------------------------------------------------------------

MULTIPLES = {
    "dozen": 12,
    "hundred": 100,
    "thousand": 10**3,
    "million": 10**6,
    "billion": 10**9,
    "trillion": 10**12,
}
CURRENCY = r"US\$|USD|EUR|GBP|[$€£¥₹]"
RATIO = r"(?:\d{1,9} )?\d{1,9}/0*[1-9]\d{0,8}(?![\d/])"
WHOLE = r"(?:\d{1,3}(?:,\d{3})+|\d{1,400})"
DECIMAL = rf"(?:{WHOLE}(?:\.\d{{1,400}})?|\.\d{{1,400}})(?:e[-+]?\d{{1,2}}(?!\w))?"
UNIT = r"%|(?:[^\W\d_]|[°$€£¥₹])(?:(?!\s\d).){0,30}"
AMOUNT = re.compile(
    rf"([-+]?)({CURRENCY})?\s*(?:({RATIO})|({DECIMAL}))\s*({UNIT})?", re.I
)
MULTIPLE = re.compile(rf"({'|'.join(MULTIPLES)})s?\b\s*(?:of\b\s*)?", re.I)
HALF = re.compile(r"(?<=\d)(\s*)([ap])\.?m\b\.?", re.I)  # a.m.
TIME = re.compile(
    r"([01]?\d|2[0-3])(?::([0-5]\d))?(?::([0-5]\d))?\s*(am|pm)?\s*([A-Z]{3,4})?", re.I
)
ZONE = re.compile(r"\b[Tt]ime\b[^.?!;]{0,60}?\bin ([A-Z]{3,4})\b")  # time in UTC
AROUND_A_DATE = re.compile(r"(?<=\d)(st|nd|rd|th)\b|\bof\b|[.,]|(?<=\bsep)t\b")
DATES = ("%Y-%m-%d", "%Y/%m/%d", "%d %B %Y", "%B %d %Y", "%d %b %Y", "%b %d %Y")


class Amount(NamedTuple):
    """A number and its unit. `ratio`: the number as it is written, if that is a fraction."""

    number: Fraction
    unit: Unit
    ratio: str


# ---- the same value ------------------------------------------------------------------------------


def same(given: str, right: str, question: str = "") -> bool:
    """Whether two texts are the same name, number, time or date, apart from spelling. Empty ones
    are not. One of two numbers may be without its unit if that is what the question asks for.
    """
    a, b = spelled(given), spelled(right)
    x, y = amount(a), amount(b)
    if x and y:
        return _same_amount(x, y, question)
    if (at := time_of(a)) and (right_at := time_of(b)):
        return _same_time(at, right_at, question)
    if day := date_of(b):
        return date_of(a) == day
    return x is y and b != "" and _name(a) == _name(b)  # neither is a number


@lru_cache(maxsize=256)
def spelled(text: str) -> str:
    """A text without the marks and the article around it, with one spelling for dashes, powers of
    ten and the digits of a number: 5e3 for 5 × 10³, 1 1/2 for 1½. x² is x^2.
    """
    if "\\" in text or text[:1] == "$":
        text = LATEX_TIMES.sub("×", clean(text.rstrip(f"{MARKS}.,;!")))
    text = MIXED.sub(" ", LATEX_POWER.sub(r"^\1", text))
    text = SUPERSCRIPT.sub(r"^\g<0>", text.replace("\u2019", "'"))
    text = SUBSCRIPT.sub("_", text)
    text = unicodedata.normalize("NFKC", text).replace("\u2044", "/")
    if MARKED.fullmatch(text.strip()):
        return text.strip()
    text = DASH_IN_RANGE.sub("-", DASH.sub("-", text.strip(MARKS)))
    text = HALF.sub(r"\2m", text)
    text = GROUPS.sub(lambda found: found[0].replace(found[1], ""), text)
    text = ARTICLE.sub("", text.strip(f"{MARKS},;!").rstrip("."))
    return TEN_TO.sub(lambda found: f"{found[1] or 1}e{found[2]}", text)


def _name(text: str) -> str:
    return LOOSE.sub("", text.casefold())


def amount(text: str) -> Amount | None:
    """The number and unit of a text that has nothing else, as `spelled` spells it."""
    found = AMOUNT.fullmatch(text)
    if found is None:
        return None
    sign, currency, ratio, decimal, rest = found.groups(default="")
    parts = (ratio or decimal.replace(",", "")).split()
    number = sum(map(Fraction, parts), Fraction())
    multiple = MULTIPLE.match(rest)
    if multiple is not None:
        number *= MULTIPLES[multiple[1].lower()]
        rest = rest[multiple.end() :]
    unit = unit_of(currency or rest.strip())
    if currency and rest.strip() and unit_of(rest.strip()) != unit:
        return None
    return Amount(-number if sign == "-" else number, unit, ratio)


def _same_amount(x: Amount, y: Amount, question: str) -> bool:
    if x.ratio and y.ratio and x.ratio != y.ratio:  # 6/8 is not 3/4
        return False
    if bool(x.ratio) != bool(y.ratio) and x.number.denominator == 1:  # 10/2 is not 5
        return False
    if x.unit.base == y.unit.base:
        return x.number * x.unit.factor == y.number * y.unit.factor
    unit = x.unit if y.unit == NO_UNIT else y.unit
    asked = asked_for(question)
    is_known = unit == asked or (may_be_left_out(unit) and asked == NO_UNIT)
    return is_known and NO_UNIT in (x.unit, y.unit) and x.number == y.number


def time_of(text: str) -> tuple[time, str] | None:
    """The time of day that a text is, on a 24-hour clock if it has neither am nor pm, and its zone
    in lower case. A bare hour is a number.
    """
    text = {"noon": "12 pm", "midnight": "12 am"}.get(text.casefold(), text)
    found = TIME.fullmatch(text)
    if found is None or not (found[2] or found[4]):
        return None
    hour, half = int(found[1]), (found[4] or "").lower()
    if half and not 1 <= hour <= 12:
        return None
    if half:
        hour = hour % 12 + (12 if half == "pm" else 0)
    minute, second = int(found[2] or 0), int(found[3] or 0)
    return time(hour, minute, second), (found[5] or "").lower()


def _same_time(x: tuple[time, str], y: tuple[time, str], question: str) -> bool:
    """One of two times may be without its zone if that is the one that the question asks for."""
    zones = {x[1], y[1]}
    asked = {zone.lower() for zone in ZONE.findall(question)}
    is_known = len(zones) == 1 or (len(asked) == 1 and zones == {"", *asked})
    return is_known and x[0] == y[0]


def date_of(text: str) -> datetime | None:
    """The date that a text is; None if it is not one."""
    words = " ".join(AROUND_A_DATE.sub(" ", text.casefold()).split())
    for form in DATES:
        with contextlib.suppress(ValueError):
            return datetime.strptime(words, form)
    return None
