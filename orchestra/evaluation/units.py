"""Units of measurement in their spellings: 5 km is 5 kilometers and 5000 m, and 5 mW is not 5 MW.

>>> unit_of("km") == unit_of("Kilometers"), unit_of("mW") == unit_of("MW")
(True, False)
>>> unit_of("km/h") == unit_of("kilometers per hour"), unit_of("apples")
(True, Unit(base='apple', factor=Fraction(1, 1)))
>>> asked_for("How long is it, in km?") == unit_of("km"), asked_for("How many apples are there?")
(True, Unit(base='apple', factor=Fraction(1, 1)))
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import cache
from typing import NamedTuple


class Unit(NamedTuple):
    """`factor`: how many of `base` it is. A unit that is not known is its own base."""

    base: str
    factor: Fraction = Fraction(1)


NO_UNIT = Unit("")
PREFIXES = {  # of a symbol: the prefix of a name, and the power of ten
    "n": ("nano", -9),
    "µ": ("micro", -6),
    "m": ("milli", -3),
    "c": ("centi", -2),
    "d": ("deci", -1),
    "h": ("hecto", 2),
    "k": ("kilo", 3),
    "M": ("mega", 6),
    "G": ("giga", 9),
    "T": ("tera", 12),
}
# A symbol, the prefixes that it is used with, its name, its base and how many of that it is
WITH_PREFIXES = (
    ("m", "nµmcdk", "metre", "metre", 1),
    ("g", "µmk", "gram", "gram", 1),
    ("s", "nµm", "second", "second", 1),
    ("L", "µmcdh", "litre", "metre3", Fraction(1, 1000)),
    ("l", "µmcdh", "litre", "metre3", Fraction(1, 1000)),
    ("W", "mkMGT", "watt", "watt", 1),
    ("Wh", "kMGT", "watt hour", "joule", 3600),
    ("V", "mkM", "volt", "volt", 1),
    ("A", "m", "ampere", "ampere", 1),
    ("Hz", "kMGT", "hertz", "hertz", 1),
    ("J", "kMG", "joule", "joule", 1),
    ("Pa", "hkM", "pascal", "pascal", 1),
    ("N", "k", "newton", "newton", 1),
    ("eV", "kMGT", "electronvolt", "electronvolt", 1),
    ("B", "kMGT", "byte", "bit", 8),
    ("b", "kMGT", "bit", "bit", 1),
    ("Sv", "mµ", "sievert", "sievert", 1),
)
# Its base, how many of that it is, and its spellings; those in lower case may be in any case
OTHERS = (
    ("joule", "4184", "kilocalorie", "kcal"),
    ("joule", "4.184", "calorie", "cal"),
    ("gram", "1000000", "tonne", "metric ton", "t"),
    ("gram", "453.59237", "pound", "lb", "lbs"),
    ("gram", "28.349523125", "ounce", "oz"),
    ("metre", "0.0254", "inch", "inches", "in"),
    ("metre", "0.3048", "foot", "feet", "ft"),
    ("metre", "0.9144", "yard", "yd"),
    ("metre", "1609.344", "mile", "mi"),
    ("metre", "1852", "nautical mile", "nmi"),
    ("second", "60", "minute", "min", "mins"),
    ("second", "3600", "hour", "h", "hr", "hrs"),
    ("second", "86400", "day", "d"),
    ("second", "604800", "week", "wk", "wks"),
    ("year", "1", "year", "yr", "yrs", "years old"),
    ("metre per second", "5/18", "kmh", "kph"),
    ("metre per second", "0.44704", "mph"),
    ("metre2", "1", "sqm"),
    ("metre2", "10000", "hectare", "ha"),
    (
        "degree celsius",
        "1",
        "°c",
        "deg c",
        "degree c",
        "degree celsius",
        "degree centigrade",
    ),
    ("degree fahrenheit", "1", "°f", "deg f", "degree f", "degree fahrenheit"),
    ("degree", "1", "degree", "°", "deg"),
    ("percent", "1", "percent", "%", "per cent", "pct"),
    ("dollar", "1", "dollar", "$", "usd", "us$", "us dollar"),
    ("euro", "1", "euro", "€", "eur"),
    ("pound sterling", "1", "pound sterling", "£", "gbp", "british pound"),
    ("yen", "1", "yen", "¥", "jpy", "japanese yen"),
    ("rupee", "1", "rupee", "₹", "inr", "indian rupee"),
)
# An answer may leave these out, unless the question asks for another unit.
SIGNS = {"percent", "dollar", "euro", "pound sterling", "yen", "rupee"}
PLURAL = re.compile(r"(?<=\w\w)(?<![siu])s(?=$| )")  # not boss, Celsius
AMERICAN = re.compile(r"(?<=met)er(?=s?\b)|(?<=lit)er(?=s?\b)")
PER = re.compile(r"/| (?:per|an?) ", re.I)
POWER = re.compile(r"(?:(?P<word>sq|square|cu|cubic) )?(?P<name>.+?)(?P<n>[23])?", re.I)
ENDS = "?.,;:!"
GOES_ON = re.compile(  # after a unit that a question asks for
    r"is|are|was|were|did|does|do|of|between|from|for|to|at|on|after|before|until|when|if",
    re.I,
)
ASKED = re.compile(
    r"\b(how many (?:more |fewer )?|in )(?=((?:\S{1,30} ?){1,3}))|\(([^()]{1,30})\)",
    re.I,
)


def unit_of(text: str) -> Unit:
    """The unit with this symbol or name, which may have a power (m2, m^2, square metres) and a
    divisor (km/h, kilometres per hour). A symbol of one letter, and those that differ only in case,
    as mW and MW, are read as they are written.
    """
    return _known(text) or Unit(singular(text.replace("^", "")))


def _known(text: str) -> Unit | None:
    text = text.replace("^", "").replace("\u03bc", "µ").strip().rstrip(".")
    symbols, in_any_case, names = _spellings()
    found = symbols.get(text) or names.get(singular(text))
    if found is None and len(text) > 1:
        found = in_any_case.get(text.casefold())
    if found or text == "":
        return found
    above, *below = PER.split(text, maxsplit=1)
    if below:
        x, y = unit_of(above), unit_of(below[0])
        return Unit(f"{x.base} per {y.base}", x.factor / y.factor)
    power = POWER.fullmatch(text)
    if power and (power["word"] or power["n"]) and (of := _known(power["name"])):
        n = int(power["n"] or (2 if power["word"][0] in "sS" else 3))
        return Unit(f"{of.base}{n}", of.factor**n)
    return None


def singular(text: str) -> str:
    """A name in lower case, in British spelling, each word in the singular.

    >>> singular("Square Meters"), singular("miles per hour"), singular("boss")
    ('square metre', 'mile per hour', 'boss')
    """
    words = " ".join(text.casefold().rstrip(".").split())
    return PLURAL.sub("", AMERICAN.sub("re", words))


def may_be_left_out(unit: Unit) -> bool:
    return unit.base in SIGNS


def asked_for(question: str) -> Unit:
    """The one unit that a question asks for: how many days, in km, (m). NO_UNIT if it names none,
    or several.
    """
    found = {unit for asked in ASKED.finditer(question) if (unit := _asked(asked))}
    return found.pop() if len(found) == 1 else NO_UNIT


def _asked(asked: re.Match[str]) -> Unit | None:
    """The unit of "in km", which must end there, or of "how many days", which is a plural."""
    before, words = (asked[1] or "").lower(), (asked[2] or asked[3]).split()
    if "many" in before and words[:1] == ["in"]:
        return None
    for end in range(len(words), 0, -1):
        name = " ".join(words[:end])
        is_last = end == len(words) or name[-1] in ENDS or GOES_ON.fullmatch(words[end])
        ends = is_last and not re.fullmatch(r"\w\.", name)  # J. Smith
        name = name.rstrip(ENDS)
        is_noun = len(name) < 4 or singular(name) != name.lower()
        if (found := _known(name)) and (is_noun if "many" in before else ends):
            return found
    if "many" in before and _known(words[0].rstrip(ENDS)) is None:
        return unit_of(words[0].rstrip(ENDS))
    return None


@cache
def _spellings() -> tuple[dict[str, Unit], dict[str, Unit], dict[str, Unit]]:
    """The units by their symbols, by those that may be in any case, and by their names."""
    symbols: dict[str, Unit] = {}
    names: dict[str, Unit] = {}
    for symbol, prefixes, name, base, factor in WITH_PREFIXES:
        symbols[symbol] = names[name] = Unit(base, Fraction(factor))
        for letter in prefixes:
            prefix, power = PREFIXES[letter]
            unit = Unit(base, factor * Fraction(10) ** power)
            symbols[letter + symbol] = names[prefix + name] = unit
    for base, of_base, *spellings in OTHERS:
        for spelling in spellings:
            unit = Unit(base, Fraction(of_base))
            if len(spelling) < 4:
                symbols[spelling] = unit
            if len(spelling) > 2:
                names[singular(spelling)] = unit
    in_any_case: dict[str, Unit | None] = {}
    for symbol, unit in symbols.items():
        key = symbol.casefold()
        is_one = in_any_case.get(key, unit) == unit and symbol[0] not in "mM"
        in_any_case[key] = unit if is_one else None
    return symbols, {key: unit for key, unit in in_any_case.items() if unit}, names
