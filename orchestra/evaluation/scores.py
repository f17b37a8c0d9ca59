"""Whether an answer is right, by rules, without a model.

>>> exact("  PARIS ", "Paris"), exact("2", "2 years")
(True, False)
>>> matches("March 5th, 2011", "2011-03-05"), matches("12,718 km", "12718 kilometers")
(True, True)
>>> matches("2", "2 years", "How many years is it?"), matches("2", "2 years", "How long is it?")
(True, False)
>>> gaia("$1,234.50", "1234.5"), gaia("17 km", "17"), gaia("Sea-Gull", "sea gull")
(True, False, True)
>>> matches("blue and red", "blue; red"), matches("It is Paris.", "Paris")
(True, False)

Several answers may be right: `exact(given, ("Holland", "the Netherlands"))`. One of them is enough.
"""

from __future__ import annotations

import re
import string
from collections.abc import Sequence

from orchestra.evaluation.values import amount, date_of, same, spelled

NOT_IN_A_NUMBER = str.maketrans("", "", "$%,")
PUNCTUATION = str.maketrans("", "", string.punctuation)
DIVIDER = re.compile(r";\s*|\n|,\s+(?:and )?| and ")
GROUPED_NUMBER = re.compile(r"\W*\d{1,3}(,\d{3})+(\.\d+)?\W*")  # 1,234
Right = str | Sequence[str]  # the right answer, or each that is accepted


def exact(given: str, right: Right, question: str = "") -> bool:
    """OmniGAIA's exact match. It ignores letter case and repeated white space."""
    words = given.lower().split()
    return any(words == one.lower().split() for one in _each(right))


def gaia(given: str, right: Right, question: str = "") -> bool:
    """The rule of GAIA's official scorer (arXiv 2311.12983). The right answer decides what is
    compared: a number, else a list if it has a comma or semicolon, else a text. Units must not be
    there, but for $ and %.
    """
    return any(_is_right(given, one) for one in _each(right))


def matches(given: str, right: Right, question: str = "") -> bool:
    """Whether an answer is the right name, number, time, date or list, apart from spelling. A
    sentence around it does not match: that is what a judge is for.
    """
    return any(_matches(given, one, question) for one in _each(right))


RULES = {"exact": exact, "gaia": gaia, "match": matches}


def scores_of(given: str, right: Right, question: str) -> dict[str, bool]:
    """An answer by each rule."""
    return {name: rule(given.strip(), right, question) for name, rule in RULES.items()}


def _each(right: Right) -> Sequence[str]:
    return (right,) if isinstance(right, str) else right


# ---- gaia ----------------------------------------------------------------------------------------


def _is_right(given: str, right: str) -> bool:
    if _number(right) is not None:
        return _same_number(given, right)
    if re.search("[,;]", right):
        given_items, items = re.split("[,;]", given), re.split("[,;]", right)
        if len(given_items) != len(items):
            return False
        return all(map(_same_item, given_items, items))
    return _plain(given).translate(PUNCTUATION) == _plain(right).translate(PUNCTUATION)


def _same_item(given: str, right: str) -> bool:
    """Two items of a list: here the punctuation of a text counts."""
    if _number(right) is not None:
        return _same_number(given, right)
    return _plain(given) == _plain(right)


def _same_number(given: str, right: str) -> bool:
    return _number(given.translate(NOT_IN_A_NUMBER)) == _number(right)


def _number(text: str) -> float | None:
    """A text as a number, as Python reads it; None if it is not one."""
    try:
        return float(text)
    except ValueError:
        return None


def _plain(text: str) -> str:
    """In lower case, without white space."""
    return "".join(text.split()).lower()


# ---- match ---------------------------------------------------------------------------------------


def _matches(given: str, right: str, question: str) -> bool:
    given, right = spelled(given), spelled(right)
    items = _items(right)
    if len(items) < 2 or amount(right) or date_of(right):
        return same(given, right, question)
    given_items = _items(given)
    if len(given_items) != len(items):
        return False
    pairs = zip(given_items, items, strict=True)
    return all(same(a, b, question) for a, b in pairs)


def _items(text: str) -> list[str]:
    """The items of a list. A comma between digits may be part of a number."""
    text = text.strip(" .[]()")
    items = DIVIDER.split(text)
    if len(items) == 1 and not GROUPED_NUMBER.fullmatch(text):
        items = text.split(",")
    return [item for item in items if spelled(item)]
