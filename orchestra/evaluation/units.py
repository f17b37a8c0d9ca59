"""Units of measurement in their spellings: 5 km is 5 kilometers, and 5 mW is not 5 MW.

    >>> unit_of("km"), unit_of("Kilometers"), unit_of("mW"), unit_of("MW")
    ('kilometre', 'kilometre', 'milliwatt', 'megawatt')
    >>> unit_of("km/h") == unit_of("kilometers per hour"), unit_of("apples")
    (True, 'apple')

Nothing is converted: 5 km is not 5000 m.
"""

from __future__ import annotations

import re
from functools import cache

PREFIXES = {
    "n": "nano",
    "µ": "micro",
    "m": "milli",
    "c": "centi",
    "d": "deci",
    "h": "hecto",
    "k": "kilo",
    "M": "mega",
    "G": "giga",
    "T": "tera",
}
# The symbol of a unit, the prefixes that it is used with, and its name
WITH_PREFIXES = (
    ("m", "nµmcdk", "metre"),
    ("g", "µmk", "gram"),
    ("s", "nµm", "second"),
    ("L", "µmcdh", "litre"),
    ("l", "µmcdh", "litre"),
    ("W", "mkMGT", "watt"),
    ("Wh", "kMGT", "watt hour"),
    ("V", "mkM", "volt"),
    ("A", "m", "ampere"),
    ("Hz", "kMGT", "hertz"),
    ("J", "kMG", "joule"),
    ("Pa", "hkM", "pascal"),
    ("N", "k", "newton"),
    ("eV", "kMGT", "electronvolt"),
    ("B", "kMGT", "byte"),
    ("b", "kMGT", "bit"),
    ("Sv", "mµ", "sievert"),
)
# Other units: name, then its other spellings. Those in lower case may be in any case.
OTHERS = (
    ("kilocalorie", "kcal"),
    ("calorie", "cal"),
    ("tonne", "metric ton", "t"),
    ("inch", "inches", "in"),
    ("foot", "feet", "ft"),
    ("yard", "yd"),
    ("mile", "mi"),
    ("nautical mile", "nmi"),
    ("pound", "lb", "lbs"),
    ("ounce", "oz"),
    ("hectare", "ha"),
    ("minute", "min", "mins"),
    ("hour", "h", "hr", "hrs"),
    ("day", "d"),
    ("week", "wk", "wks"),
    ("year", "yr", "yrs", "years old"),
    ("kilometre per hour", "km/h", "kmh", "kph", "kilometres an hour"),
    ("mile per hour", "mph", "mi/h", "miles an hour"),
    ("metre per second", "m/s"),
    ("square metre", "m2", "sq m", "sqm"),
    ("square kilometre", "km2", "sq km"),
    ("square mile", "mi2", "sq mi"),
    ("square foot", "square feet", "ft2", "sq ft"),
    ("cubic metre", "m3", "cu m"),
    ("degree celsius", "°c", "deg c", "degree c", "degree centigrade"),
    ("degree fahrenheit", "°f", "deg f", "degree f"),
    ("degree", "°", "deg"),
    ("percent", "%", "per cent", "pct"),
    ("dollar", "$", "usd", "us$", "us dollar"),
    ("euro", "€", "eur"),
    ("pound sterling", "£", "gbp", "british pound"),
    ("yen", "¥", "jpy", "japanese yen"),
    ("rupee", "₹", "inr", "indian rupee"),
)
# An answer may leave these out, whatever the question says.
SIGNS = {"percent", "dollar", "euro", "pound sterling", "yen", "rupee"}
PLURAL = re.compile(r"(?<=\w\w)(?<![siu])s(?=$| )")  # not boss, Celsius
AMERICAN = re.compile(r"(?<=met)er(?=s?\b)|(?<=lit)er(?=s?\b)")
NAME_WORDS = 4  # of the longest name of a unit


def unit_of(text: str) -> str:
    """The name of a unit in the singular; of an unknown one, its own text in lower case. Symbols
    of one letter, and those that differ only in case, as mW and MW, are read as they are written.
    A power may be m^2 or m2.
    """
    text = text.replace("^", "")
    known = symbol(text)
    if known:
        return known
    name = singular(text)
    return _names().get(name, name)


def symbol(text: str) -> str:
    """The name of the unit with this symbol; "" if there is none."""
    text = text.strip().rstrip(".").replace("\u03bc", "µ")
    exact = _symbols().get(text)
    if exact or len(text) < 2:
        return exact or ""
    keys = [key for key in _folded().get(text.casefold(), ()) if _may_be(text, key)]
    names = {_symbols()[key] for key in keys}
    return names.pop() if len(names) == 1 else ""


def _may_be(text: str, key: str) -> bool:
    """Whether a text with the letters of a symbol can be meant for it: M is never m."""
    return text[0] == key[0] or "m" not in (text[0], key[0])


def differ(a: str, b: str) -> bool:
    """Whether two spellings with the same letters are the symbols of two units, as mW and MW."""
    x = _symbols().get(a)
    y = _symbols().get(b)
    return x != y and None not in (x, y)


def singular(text: str) -> str:
    """A name in lower case, in British spelling, each word in the singular.

    >>> singular("Square Meters"), singular("miles per hour"), singular("boss")
    ('square metre', 'mile per hour', 'boss')
    """
    words = " ".join(text.casefold().rstrip(".").split())
    return PLURAL.sub("", AMERICAN.sub("re", words))


def named_in(text: str, unit: str) -> bool:
    """Whether a text has a unit, as `unit_of` names it, in any spelling."""
    raw = text.split()
    words = [word.strip(".,;:!?()\"'") for word in raw]
    for start in range(len(words)):
        for end in range(start + 1, min(start + NAME_WORDS, len(words)) + 1):
            spelling = " ".join(words[start:end])
            is_word_too = len(spelling) < 2 or spelling.casefold() == "in"
            if is_word_too and "(" not in raw[start]:  # (m) is a unit, a is not
                continue
            if unit_of(spelling) == unit:
                return True
    return False


@cache
def _symbols() -> dict[str, str]:
    """The name of each symbol that is read as it is written."""
    found = {}
    for base, prefixes, name in WITH_PREFIXES:
        found[base] = name
        for prefix in prefixes:
            found[prefix + base] = PREFIXES[prefix] + name
    for name, *spellings in OTHERS:
        for spelling in spellings:
            if len(spelling) < 4 and " " not in spelling:
                found[spelling] = name
    return found


@cache
def _folded() -> dict[str, list[str]]:
    """The symbols by their letters in lower case."""
    found: dict[str, list[str]] = {}
    for key in _symbols():
        found.setdefault(key.casefold(), []).append(key)
    return found


@cache
def _names() -> dict[str, str]:
    """The name of each spelling in words, in the singular."""
    names = {base: base for _, _, base in WITH_PREFIXES}
    for _, prefixes, name in WITH_PREFIXES:
        full = [PREFIXES[prefix] + name for prefix in prefixes]
        names |= dict(zip(full, full, strict=True))
    for name, *spellings in OTHERS:
        names |= {singular(spelling): name for spelling in (name, *spellings)}
    return names
