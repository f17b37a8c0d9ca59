"""Whether an answer is right, by rules, without a model.

>>> exact("  PARIS ", "Paris"), exact("2", "2 years")
(True, False)
>>> matches("March 5th, 2011", "2011-03-05"), matches("12,718 km", "12718 kilometers")
(True, True)
>>> matches("2", "2 years", "How many years is it?"), matches("2", "2 years", "How long is it?")
(True, False)
>>> matches("blue and red", "blue; red"), matches("It is Paris.", "Paris")
(True, False)

Several answers may be right: `exact(given, ("Holland", "the Netherlands"))`. One of them is enough.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from orchestra.evaluation.values import amount, date_of, same, spelled

DIVIDER = re.compile(r";\s*|\n|,\s+(?:and )?| and ")
GROUPED_NUMBER = re.compile(r"\W*\d{1,3}(,\d{3})+(\.\d+)?\W*")  # 1,234
Right = str | Sequence[str]  # the right answer, or each that is accepted


def exact(given: str, right: Right) -> bool:
    """OmniGAIA's exact match. It ignores letter case and repeated white space."""
    words = given.lower().split()
    return any(words == one.lower().split() for one in _each(right))


def matches(given: str, right: Right, question: str = "") -> bool:
    """Whether an answer is the right name, number, time, date or list, apart from spelling. A
    sentence around it does not match: that is what a judge is for.
    """
    return any(_matches(given, one, question) for one in _each(right))


def _each(right: Right) -> Sequence[str]:
    return (right,) if isinstance(right, str) else right


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
