"""What a short text says: a number with its unit, a time, a date, or a name; in any usual spelling.

>>> same("5,000 kilometers", "5 000 km"), same("3 pm", "15:00"), same("5 mW", "5 MW")
(True, True, False)
>>> same("1.10", "1.1"), same("v1.10", "v1.1")
(True, False)
>>> same("$5 \\\\times 10^{3}$", "5000"), same("10\u00b3", "103"), same("1\u00bd", "1.5")
(True, False, True)
"""

from __future__ import annotations

import contextlib
import re
import unicodedata
from datetime import datetime
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

from orchestra.evaluation.units import SIGNS, differ, named_in, unit_of
from orchestra.methods.answers import clean

DATES = ("%Y-%m-%d", "%Y/%m/%d", "%d %B %Y", "%B %d %Y", "%d %b %Y", "%b %d %Y")
MULTIPLES = {
    "dozen": 12,
    "hundred": 100,
    "thousand": 10**3,
    "million": 10**6,
    "billion": 10**9,
    "trillion": 10**12,
}

# ---- the patterns of an amount: sign, currency, number, unit -------------------------------------

CURRENCY = r"US\$|USD|EUR|GBP|[$€£¥₹]"
NUMBER = r"(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?"
UNIT = r"%|[^\d\s,.;%](?:(?!\s\d).){0,30}"
DIGITS = 400  # of a number; a longer one is none
AMOUNT = re.compile(rf"([-+]?)({CURRENCY})?\s*({NUMBER})\s*({UNIT})?", re.I)
MULTIPLE = re.compile(rf"({'|'.join(MULTIPLES)})s?\b\s*(?:of\b\s*)?", re.I)

# ---- a time of day -------------------------------------------------------------------------------

TIME = re.compile(
    r"(\d{1,2})(?::([0-5]\d))?(?::([0-5]\d))?\s*(am|pm|o'clock)?\s*([A-Z]{3,4})?",
    re.I,
)
HALF = re.compile(r"(?<=\d)(\s*)([ap])\.?m\b\.?", re.I)  # a.m.
WHEN = re.compile(
    r"(?:what|which|exact|local) time|what hour|o'clock|"
    r"(?:^|[.,;?!] |\band )when (?:did|does|do|was|were|is|are|will|should|can)\b",
    re.I,
)

# ---- what differs only in spelling ---------------------------------------------------------------

MARKS = " *_`\"'\u201c\u201d\u2018"  # around an answer
DASH = re.compile("[\u2010-\u2015\u2212]")
DASH_IN_RANGE = re.compile(r"(?<=\d) +- +(?=\d)")
BARE_POINT = re.compile(r"(?<![\w.])\.(?=\d)")  # .5
SPACE_BEFORE_NUMBER = re.compile(r"(?<=[$€£])\s+(?=\d)")  # $ 5
GROUPS = re.compile(r"(?<![\d.,])[1-9]\d{0,2}([ '_])\d{3}(?:\1\d{3})*(?!\d)")  # 5 000
POWER = re.compile(r"(?<![\w.])\d+(?:\.\d+)?e[-+]?\d{1,2}(?!\w)", re.ASCII | re.I)
# A power of ten, which may have a factor; and powers in print, but not the mass of an isotope
TEN_TO = re.compile(
    r"(?<![\w.,^])(?:(\d+(?:\.\d+)?) ?[×x·⋅*] ?)?10\^([-+]?\d{1,2})(?!\w|\.\d)",
    re.ASCII,
)
SUPERSCRIPT = re.compile(r"(?<=[^\W⁰¹²³⁴-⁹])[⁺⁻]?[⁰¹²³⁴-⁹]+")
LATEX_POWER = re.compile(r"\^\{([-+]?\w+)\}")
LATEX_TIMES = re.compile(r"\\(?:times|cdot)(?![a-zA-Z])")
# A fraction in one character, which may follow a number: 1½
EVEN = re.compile(r"(?:(?<!\d)(\d{1,9}) ?)?([¼½¾⅕⅖⅗⅘⅛⅜⅝⅞])", re.ASCII)
UNEVEN = re.compile(r"(?<=\d)(?=[⅐⅑⅓⅔⅙⅚])", re.ASCII)
FRACTION = re.compile(
    r"(-?)(?:(\d{1,9}) )?(\d{1,9})/(0*[1-9]\d{0,8})(?![\d/])", re.ASCII
)
LEADING_ZEROS = re.compile(r"(?<![\d.,:])0+(?=\d)(?!\d*:)")  # 007, not 07:49
YEAR = re.compile(r"\d{4}")
AROUND_A_DATE = re.compile(r"(?<=\d)(st|nd|rd|th)\b|\bof\b|[.,]|(?<=\bsep)t\b")
# An article may be left out, but not that of The Who, The 1975, or A and B.
ARTICLE = re.compile(
    r"^(?:the|an|a) (?!(?:and|or|who|what|that|this|these|those|it|he|she|they|we|us|you|i|me|one|"
    r"all|some|same|other|the|an|a|in|on|of|to|no|not|\d+)\b(?:$| ))",
    re.I,
)
# A question about these is answered by a name, though it looks like a number: version 1.10
LABELS = re.compile(
    r"\b(?:which|what)\b[^.?!]{0,40}\b(?:version|release number|section|chapter|clause|verse)\b",
    re.I,
)


class Amount(NamedTuple):
    """A number and the name of its unit, or "" if there is none."""

    number: Decimal
    unit: str


class Time(NamedTuple):
    """A time of day. `half`: am or pm; "" if it is not said. `zone`: in lower case. `is_bare`: it
    is nothing but an hour, so it may be a number. `is_24h`: it can only be on a 24-hour clock.
    """

    hour: int
    minute: int
    second: int
    half: str
    zone: str
    is_bare: bool
    is_24h: bool


# ---- the same value ------------------------------------------------------------------------------


def same(a: str, b: str, question: str = "") -> bool:
    """Whether two texts are the same name, number, time or date, apart from spelling. Empty ones
    are not. The unit of a number may be missing from one if the question names it, and am or pm
    from a time.
    """
    a = spelled(a)
    b = spelled(b)
    if b == "":
        return False
    if _same_time(a, b, question):
        return True
    if bool(FRACTION.match(a)) != bool(FRACTION.match(b)):
        a, b = _as_decimal(a), _as_decimal(b)
    x = amount(a)
    y = amount(b)
    if x is not None and y is not None and not LABELS.search(question):
        return x.number == y.number and _units_agree(x.unit, y.unit, question)
    date = date_of(b)
    if date is not None:
        return date_of(a) == date
    return _same_words(a, b)


@lru_cache(maxsize=256)
def spelled(text: str) -> str:
    """A text without the marks and the article around it, with one spelling for dashes and for
    numbers: -0.5 for a typographic minus and .5, 0.00001 for 1e-05, 7 for 007, 5000 for 5 × 10³,
    0.5 for ½. A power stays one: x^2 for x².
    """
    text = _without_latex(text)
    text = EVEN.sub(_with_decimals, UNEVEN.sub(" ", text))
    text = SUPERSCRIPT.sub(r"^\g<0>", text.replace("\u2019", "'"))
    text = unicodedata.normalize("NFKC", text).replace("\u2044", "/")
    text = DASH.sub("-", text.strip(MARKS))
    text = DASH_IN_RANGE.sub("-", text)
    text = HALF.sub(r"\2m", text)
    text = BARE_POINT.sub("0.", text)
    text = GROUPS.sub(lambda found: found[0].replace(found[1], ""), text)
    text = SPACE_BEFORE_NUMBER.sub("", text)
    text = ARTICLE.sub("", text.strip(f"{MARKS}.,;!"))
    text = TEN_TO.sub(lambda found: f"{found[1] or 1}e{found[2]}", text)
    text = POWER.sub(_without_exponent, text)
    return LEADING_ZEROS.sub("", text)


def _without_latex(text: str) -> str:
    """A text without the commands of LaTeX that a number may have."""
    if "\\" in text or text[:1] == "$":
        text = LATEX_TIMES.sub("×", clean(text.rstrip(f"{MARKS}.,;!")))
    return LATEX_POWER.sub(r"^\1", text)


def _with_decimals(mixed: re.Match[str]) -> str:
    return str(int(mixed[1] or 0) + Decimal(str(unicodedata.numeric(mixed[2]))))


def _as_decimal(text: str) -> str:
    """A text that begins with a fraction with its decimal number, if that has an end."""
    found = FRACTION.match(text)
    if found is None:
        return text
    sign, whole, top, bottom = found.groups(default="0")
    number = int(whole) + Fraction(int(top), int(bottom))
    if 10**27 % number.denominator:
        return text
    decimal = Decimal(number.numerator) / number.denominator
    return f"{sign}{decimal:f}{text[found.end() :]}"


def _without_exponent(number: re.Match[str]) -> str:
    return f"{Decimal(number[0]):f}"


def _same_words(a: str, b: str) -> bool:
    """Whether two texts have the same words in any case, but for units such as mW and MW."""
    if a.casefold().split() != b.casefold().split():
        return False
    pairs = zip(a.split(), b.split(), strict=False)
    return not any(differ(x, y) for x, y in pairs)


# ---- numbers -------------------------------------------------------------------------------------


def amount(text: str) -> Amount | None:
    """The number and unit of a text that is nothing else."""
    found = AMOUNT.fullmatch(text)
    if found is None or len(found[3]) > DIGITS:
        return None
    sign, currency, digits, rest = found.groups(default="")
    number = Decimal(sign + digits.replace(",", ""))
    multiple = MULTIPLE.match(rest)
    if multiple is not None:
        number *= MULTIPLES[multiple[1].lower()]
        rest = rest[multiple.end() :]
    units = [unit_of(unit) for unit in (currency, rest.strip()) if unit]
    return Amount(number, unit=" ".join(dict.fromkeys(units)))


def _units_agree(a: str, b: str, question: str) -> bool:
    """Two units must be the same. One may be missing if it is a sign or the question names it."""
    if a == b:
        return True
    if a and b:
        return False
    unit = a or b
    return unit in SIGNS or named_in(unicodedata.normalize("NFKC", question), unit)


# ---- times and dates -----------------------------------------------------------------------------


def time_of(text: str) -> Time | None:
    """The time of day that a text is: 7:49, 7 am, noon; or a bare hour, which may be a number."""
    text = {"noon": "12 pm", "midnight": "12 am"}.get(text.casefold(), text)
    found = TIME.fullmatch(text)
    if found is None or int(found[1]) > 24:
        return None
    is_bare = found[2] is None and found[4] is None
    if is_bare and found[5]:  # 5 USD
        return None
    half = (found[4] or "").lower().replace("o'clock", "")
    return Time(
        hour=int(found[1]),
        minute=int(found[2] or 0),
        second=int(found[3] or 0),
        half=half,
        zone=(found[5] or "").lower(),
        is_bare=is_bare,
        is_24h=not half and (text.startswith("0") or int(found[1]) > 12),
    )


def _same_time(a: str, b: str, question: str) -> bool:
    """Whether two texts are the same time of day. A bare hour is one only where the question asks
    for a time, or the other text is the right answer and a time.
    """
    x = time_of(a)
    y = time_of(b)
    if x is None or y is None or (y.is_bare and not WHEN.search(question)):
        return False
    if x.zone != y.zone and not _zone_is_known(x.zone, y.zone, question):
        return False
    if (x.minute, x.second) != (y.minute, y.second):
        return False
    if x.half != "" and y.half != "" or x.half == y.half or x.is_24h or y.is_24h:
        return _hour_of_day(x) == _hour_of_day(y)
    return x.hour == y.hour


def _zone_is_known(a: str, b: str, question: str) -> bool:
    """Whether only one of two times has a zone, and the question names it."""
    return "" in (a, b) and named_in(question, a or b)


def _hour_of_day(time: Time) -> int:
    if not time.half:
        return time.hour
    return time.hour % 12 + (12 if time.half == "pm" else 0)


def date_of(text: str) -> datetime | None:
    """The date that a text is; None if it is not one."""
    if not YEAR.search(text):
        return None
    words = " ".join(AROUND_A_DATE.sub(" ", text.casefold()).split())
    for form in DATES:
        with contextlib.suppress(ValueError):
            return datetime.strptime(words, form)
    return None
