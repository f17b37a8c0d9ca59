"""Whether an answer is right, by rules, without a model.

>>> exact("  PARIS ", "Paris"), exact("2", "2 years")
(True, False)
>>> matches("March 5th, 2011", "2011-03-05"), matches("12,718 km", "12718 kilometers")
(True, True)
>>> matches("2", "2 years", "How many years is it?"), matches("2", "2 years", "How long is it?")
(True, False)
>>> matches("It is Paris.", "Paris"), matches("It is not Paris.", "Paris")
(True, False)

Several answers may be right: `exact(given, ("Holland", "the Netherlands"))`. One of them is enough.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial

from orchestra.evaluation.sentences import says
from orchestra.evaluation.values import date_of, same, spelled

DIVIDER = re.compile(r";\s*|\n|,\s+(?:and )?| and ")
GROUPED_NUMBER = re.compile(r"\W*\d{1,3}(,\d{3})+(\.\d+)?\W*")  # 1,234
Right = str | Sequence[str]  # the right answer, or each that is accepted


def exact(given: str, right: Right) -> bool:
    """OmniGAIA's exact match. It ignores letter case and repeated white space."""
    words = given.lower().split()
    return any(words == one.lower().split() for one in _each(right))


def matches(given: str, right: Right, question: str = "") -> bool:
    """Whether an answer is the right text, number, time, date or list, apart from spelling; or a
    short sentence that gives it and nothing else. The right one among several does not match.
    """
    return any(_matches(given, one, question) for one in _each(right))


def _each(right: Right) -> Sequence[str]:
    return (right,) if isinstance(right, str) else right


def _matches(given: str, right: str, question: str) -> bool:
    whole = partial(_is_whole, question=question)
    return whole(given, right) or says(given, spelled(right), question, whole)


def _is_whole(given: str, right: str, question: str) -> bool:
    """Whether two answers, without a sentence around them, are the same."""
    if same(given, right, question):
        return True
    if date_of(spelled(right)) is not None:
        return False
    given_items = _items(spelled(given))
    right_items = _items(spelled(right))
    if len(given_items) != len(right_items) or len(right_items) < 2:
        return False
    pairs = zip(given_items, right_items, strict=True)
    return all(same(a, b, question) for a, b in pairs)


def _items(text: str) -> list[str]:
    """The items of a list. A comma between digits may be part of a number."""
    text = text.strip(" .[]()")
    items = DIVIDER.split(text)
    if len(items) == 1 and not GROUPED_NUMBER.fullmatch(text):
        items = text.split(",")
    return items
