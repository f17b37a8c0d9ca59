"""The operations of MiniGAIA: how a computed fact follows from other facts, and how a sub-task asks
for it.

>>> computed(OPERATIONS["later"], ["09:30", "45"])
'10:15'
>>> computed(OPERATIONS["weekday"], ["2001-02-03"])
'Saturday'

Held-out operations occur in held-out tasks alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any

# How a value of this kind is read from its text. A value of any other kind is an integer.
PARSE: Mapping[str, Callable[[str], Any]] = {
    "time": lambda text: datetime.strptime(text, "%H:%M"),
    "date": date.fromisoformat,
    "person": str,
}


@dataclass(frozen=True)
class Operation:
    """`takes` and `gives` are kinds of values. `pattern` matches an instruction that asks for the
    operation; # stands for an operand. `factor` is a number that the instruction may name besides
    the operands, or "".
    """

    name: str
    takes: tuple[str, ...]
    gives: str
    pattern: str
    apply: Callable[..., Any]
    factor: str = ""

    @property
    def kinds(self) -> list[str]:
        """The kinds of the operands, as far as their texts show: a year or hours are numbers."""
        return [kind if kind in PARSE else "number" for kind in self.takes]


def computed(operation: Operation, operands: Sequence[str]) -> str:
    """The value of an operation as text."""
    values = []
    for kind, text in zip(operation.takes, operands, strict=True):
        parse = PARSE.get(kind, int)
        values.append(parse(text))
    value = operation.apply(*values)
    if isinstance(value, datetime):
        return f"{value:%H:%M}"
    return str(value)


# ---- words that ask for an operation -------------------------------------------------------------

PLUS = r"\+|\bplus|\badd"
MINUS = r"[-−–]\s*#|\bminus|\bsubtract"
TIMES = r"[*×]|# x #|\btimes|\bmultipl"
AFTER = rf"{PLUS}|\bafter|\blater|\bpast"
BEFORE = rf"{MINUS}|\bbefore|\bearlier|\butc"
APART = rf"{MINUS}|\bdiffer|\bbetween|\bapart|\bexceed|\bhow (?:much|many)\b.*\bthan"
SPAN = rf"{APART}|\bfrom|\buntil"
SUM = rf"{PLUS}|\bsum|\btotal|\btogether"
PRODUCT = rf"{TIMES}|\bproduct"
LARGER = r"\bmax|\b(?:larg|great|bigg|high)e"
WEEKDAY = r"\bweekday|\bday of (?:the )?week"
LETTERS = r"\bletter"
YEARS = rf"{APART}|\byears"
MEAN = r"\bmean|\baverage"
REMAINDER = r"%|\bremainder|\bmod"


def conversion(name: str, factor: int) -> Operation:
    """A number of a large unit in a small one, such as hours in minutes."""
    return Operation(
        name=name,
        takes=("number",),
        gives="number",
        pattern=rf"\b(?:in|to|into|as|of|many) {name}|{TIMES}",
        apply=lambda a: a * factor,
        factor=str(factor),
    )


def count_letters(text: str) -> int:
    return sum(character.isalpha() for character in text)


# ---- the operations ------------------------------------------------------------------------------

SEEN = (  # name, kinds of the operands, kind of the value, pattern, function
    Operation("sum", ("number", "number"), "number", SUM, lambda a, b: a + b),
    Operation("difference", ("number", "number"), "number", APART, lambda a, b: abs(a - b)),
    Operation("product", ("number", "small"), "number", PRODUCT, lambda a, b: a * b),
    Operation("larger", ("number", "number"), "number", LARGER, max),
    Operation("later", ("time", "number"), "time", AFTER, lambda a, b: a + timedelta(minutes=b)),
    Operation("zone", ("time", "hours"), "time", BEFORE, lambda a, b: a - timedelta(hours=b)),
    Operation("day_after", ("date", "number"), "date", AFTER, lambda a, b: a + timedelta(days=b)),
    Operation("weekday", ("date",), "weekday", WEEKDAY, lambda a: f"{a:%A}"),
    Operation("letters", ("person",), "small", LETTERS, count_letters),
    Operation("years", ("year", "year"), "number", YEARS, lambda a, b: abs(a - b)),
    conversion("minutes", 60),
    conversion("grams", 1000),
    conversion("days", 7),
)  # fmt: skip
HELD_OUT = (
    Operation("mean", ("number", "number"), "decimal", MEAN, lambda a, b: (a + b) / 2),
    Operation("remainder", ("number", "small"), "number", REMAINDER, lambda a, b: a % b),
    Operation("earlier", ("time", "number"), "time", BEFORE, lambda a, b: a - timedelta(minutes=b)),
    Operation("days_between", ("date", "date"), "number", SPAN, lambda a, b: abs((a - b).days)),
    conversion("pieces", 12),
    conversion("centimetres", 100),
)  # fmt: skip
OPERATIONS = {operation.name: operation for operation in (*SEEN, *HELD_OUT)}
NEVER_LAST = {"larger"}  # its value is one of those that were read
# The order of their operands does not matter.
ANY_ORDER = {"sum", "difference", "product", "larger", "years", "mean", "days_between"}
