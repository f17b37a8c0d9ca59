"""A hint at a misspelled name.

>>> did_you_mean("--metod", ["--method", "--model"])
'; did you mean --method?'
>>> did_you_mean("xyz", ["--method"])
''
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The end of an error about an unknown name; "" if no known name is like it."""
    found = get_close_matches(word, list(known), n=1)
    return f"; did you mean {found[0]}?" if found else ""
