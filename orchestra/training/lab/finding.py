"""Finds the value that a phrase asks for in a text, by rules.

    >>> value_in("the minutes that the film lasts", "Begins at 19:45\\nLasts 95 minutes")
    '95'
    >>> value_in("the sculptor of the statue", "bronze statue\\nmade by Hugo Fonseca")
    'Hugo Fonseca'

The first words of a phrase say what kind of value it asks for. Of the values of this kind in the
text, the one counts that is nearest to the other words of the phrase. The rules understand no
sentence: they do not know who said something, or what a picture shows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from typing import NamedTuple

MONTHS = (
    "January|February|March|April|May|June|July|August|September|October|November"
    "|December"
)
WEEKDAYS = "Monday|Tuesday|Wednesday|Thursday|Friday|Saturday|Sunday"
NUMBERS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
KINDS = (  # the beginning of a phrase -> the kind of its value, the first that matches
    ("the (?:date|birthday)", "date"),
    ("the (?:planned )?time", "time"),
    ("the year", "year"),
    ("the day (?:of|with)", "weekday"),
    (
        "the (?:number|minutes|hours|days|dozens|visitors|price|height|platform)"
        "|the (?:first|second) of the",
        "number",
    ),
    ("the (?:sculptor|writer|painter|winner|name of the woman)", "person"),
)
PATTERN = {
    "date": rf"\b\d{{1,2}}(?:st|nd|rd|th)? (?:{MONTHS}),? \d{{4}}\b"
    rf"|\b(?:{MONTHS}) \d{{1,2}}(?:st|nd|rd|th)?,? \d{{4}}\b",
    "time": r"\b\d{1,2}:\d\d\b",
    "year": r"\b1\d{3}\b|\b20\d\d\b",
    "weekday": rf"\b(?:{WEEKDAYS})\b",
    "number": rf"(?<![\w.:])\d+(?:\.\d+)?(?![\w:]|\.\d)|\b(?:{'|'.join(NUMBERS)})\b",
    "name": r"\b[A-Z][a-z]+(?: [A-Z][a-z]+)*",
    "person": r"\b[A-Z][a-z]+(?: [A-Z][a-z]+)+",
}
LITTLE = {"the", "a", "an", "of", "in", "at", "by", "to", "is", "was", "which", "that"}
BEFORE_A_NAME = re.compile(r"\b(?:by|is|to|in|of|shop|at)(?: the)? $")
SAME, EARLIER, LATER = 1.0, 0.6, 0.3  # what a word counts, by the part that it is in
PER_WORD = 0.03  # is lost for each word between a value and a word of the phrase


class Found(NamedTuple):
    """A value, and how well it fits. On a tie the later one counts: films show what is new."""

    score: float
    position: int
    value: str


def value_in(phrase: str, text: str) -> str:
    """The value that a phrase asks for; "" if the text has none."""
    kind = kind_of(phrase)
    cues = {stem(word) for word in words(phrase)} - LITTLE
    parts = parts_of(text)
    found: list[Found] = []
    for number in range(len(parts)):
        for score, value in _candidates(kind, cues, parts, number):
            found.append(Found(score, len(found), value))
    if not found:
        return ""
    ordinal = re.match("the (first|second) of the", phrase)
    if ordinal:
        values = [each.value for each in found]
        return values[min(len(values), 1 if ordinal[1] == "first" else 2) - 1]
    return max(found).value


def kind_of(phrase: str) -> str:
    """The kind of value that a phrase asks for.

    >>> kind_of("the minutes that the film lasts"), kind_of("the town on the ticket")
    ('number', 'name')
    """
    for beginning, kind in KINDS:
        if re.match(beginning, phrase):
            return kind
    return "name"


def parts_of(text: str) -> list[str]:
    """Lines, sentences and the lines of a frame, without their times."""
    plain = re.sub(r"\[[\d:-]+\] ?", "", text)
    pieces = re.split(r"\n| / |(?<=[a-z\d])[.?!](?: |$)", plain)
    return [piece.strip() for piece in pieces if piece.strip()]


def words(text: str) -> list[str]:
    return re.findall(r"[\w:]+", text.lower())


def stem(word: str) -> str:
    """A word without its ending, roughly: leaves, leave -> leave."""
    return re.sub(r"(?:ed|s|ing)$", "", word) or word


# ---- candidates ----------------------------------------------------------------------------------


def _candidates(
    kind: str, cues: set[str], parts: list[str], number: int
) -> Iterator[tuple[float, str]]:
    """The values in one part of a text, and how well each fits."""
    part = parts[number]
    for match in re.finditer(PATTERN[kind], part):
        value = _plain(kind, match[0], cues)
        if not value:
            continue
        score = _nearness(cues, part, match.start())
        for other, weight in ((number - 1, EARLIER), (number + 1, LATER)):
            if 0 <= other < len(parts):
                near = cues & {stem(word) for word in words(parts[other])}
                score += weight * len(near)
        if kind in ("name", "person") and BEFORE_A_NAME.search(part[: match.start()]):
            score += SAME
        if kind == "name" and match.start() == 0 and match[0] != part:
            score -= SAME  # any word is written so at the beginning of a sentence
        yield score, value


def _nearness(cues: set[str], part: str, start: int) -> float:
    """The words of the phrase in the part of a value, the nearer the better."""
    before = len(words(part[:start]))
    score = 0.0
    for cue in cues:
        places = [n for n, word in enumerate(words(part)) if stem(word) == cue]
        if places:
            score += SAME - PER_WORD * min(abs(place - before) for place in places)
    return score


def _plain(kind: str, text: str, cues: set[str]) -> str:
    """A value as answers have it; "" if it is not one.

    >>> _plain("date", "6 February 2005", set()), _plain("time", "9:00", set())
    ('2005-02-06', '09:00')
    """
    if kind == "date":
        day = re.sub(r"(?<=\d)(?:st|nd|rd|th)|,", "", text)
        order = "%d %B %Y" if day[0].isdigit() else "%B %d %Y"
        try:
            return datetime.strptime(day, order).date().isoformat()
        except ValueError:  # 31 June
            return ""
    if kind == "time":
        return text.zfill(5)
    if kind == "number" and text in NUMBERS:
        return str(NUMBERS.index(text) + 1)
    if kind == "person":  # "Sculptor Greta Jansky"
        names = text.split()
        while names and stem(names[0].lower()) in cues:
            del names[0]
        return " ".join(names) if len(names) > 1 else ""
    if kind == "name":
        is_asked_for = all(stem(word) in cues for word in words(text))
        return "" if is_asked_for else text
    return text
