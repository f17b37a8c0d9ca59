"""The right answer inside a short sentence.

    >>> question = "What is the capital of France?"
    >>> from orchestra.evaluation.values import same
    >>> says("The capital of France is Paris.", "Paris", question, same)
    True
    >>> says("It is not Paris.", "Paris", question, same)
    False
    >>> says("The one has 14, the other 28, so it is 42.", "42", "How many are it?", same)
    True

Of a sentence that draws a conclusion (", so ..."), only the conclusion is read; of a sum
("58 - 36 = 22"), only what it comes to. If the right answer has no number, a number of what the
question asks about is no other answer: "It was Friday, with 210 visitors." A sentence gives the
right answer if it has nothing else that could be an answer: all its other words are words of the
question or the usual ones around an answer, and nothing next to the answer changes it, as "not",
"or", "more than" and "to 7" do. A sentence that does not fit is no match, even if a person would
accept it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

SENTENCE_CHARS = 400
MORE_WORDS = 6  # of a spelling of the answer, compared with the right answer itself

WORD = re.compile(r"\S+")
# ", so" and ". Therefore,"; but not "is not, therefore," and ", and so is Lyon"
CONCLUDES = re.compile(
    r"(?:,\s+(?:and\s+)?(?:so|therefore|thus|hence)\b(?!,)|[;.]\s+(?:so|therefore|thus|hence)\b,?)\s+"
    r"(?!(?:is|are|was|were|has|have|had|do|does|did)\b)",
    re.IGNORECASE,
)
# how many more guests
MORE = re.compile(r"\bhow many (more|fewer) (\w+)", re.IGNORECASE)
WITH = re.compile(r",?\s+with\s+\d[\d,.]*\s+(\w+)\W*$", re.IGNORECASE)
_NUMBER = r"[-\u2212]?\d[\d.,:]*"
_SIGN = r"(?: [-\u2212\u2013] | ?[+*/x\u00d7\u00f7] ?)"
SUM = re.compile(  # 58 - 36 =, but not the end of 2 000 / 4 =
    rf"(?<!\S)(?<!\d ){_NUMBER}(?:{_SIGN}{_NUMBER})+ ?= ?(?=[-\u2212]?\d)"
)
AROUND = ".,;:!?()[]\"'*_`\u201c\u201d"
POSSESSIVE = re.compile(r"'s$")
ASKED_FOR = re.compile(r"\b(?:which|what)\s+(\w+)", re.IGNORECASE)  # which platform


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


# They change an answer, or say that there is another one. A question does not make them harmless.
NEVER = _set(
    "not no never neither nor none without except or either cannot but wrong incorrect false "
    "unlike instead rather versus vs unless possibly maybe perhaps probably"
)
# The word before an answer, and the one after it
BEFORE = _set(
    "is are was were be being equals called named by in on at from exactly = has have had"
)
AFTER = _set("is are was were in on at by from has had have did does would equals")
# Before a number that is only a limit
LIMITS = _set("than least most over under between to up")
# Around an answer, whatever the question is
USUAL = BEFORE | _set(
    "the a an answer final correct right result value total be it its it's that this there they "
    "he she so therefore thus hence which would with"
)
# Around an answer to such a question: what the answer is called
ASKED = {
    "how many": _set("number of count sum difference"),
    "how much": _set("amount of price sum"),
    "how long": _set("time duration length of"),
    "how old": _set("age of old"),
    "when": _set("time date day year of"),
}
Same = Callable[[str, str], bool]


def says(given: str, right: str, question: str, same: Same) -> bool:
    """Whether a sentence gives the right answer and no other. `same` compares two answers."""
    if len(given) > SENTENCE_CHARS or given.rstrip().endswith("?"):
        return False
    if right.casefold() in ("yes", "no"):
        return _is_yes_or_no(given, right.casefold())
    whole = given
    given = _without_count(CONCLUDES.split(given)[-1], right, question)
    if "=" not in right:
        given = SUM.sub("", given)
    if given != whole and same(given, right):
        return True
    found = list(WORD.finditer(given))
    if len(found) < 2:
        return False
    words = [_word(m[0]) for m in found]
    known = USUAL if _has(question, right) else USUAL | _words_of(question)
    known |= _called(question)
    others = [n for n, word in enumerate(words) if not _is_harmless(word, known)]
    if len(others) == 1 and _is_how_many_more(words, others[0], question):
        return same(words[others[0]], right)
    most = len(right.split()) + MORE_WORDS
    leads = BEFORE | {_word(asked[1]) for asked in ASKED_FOR.finditer(question)}
    for start, end in _parts(words, others, most, leads):
        part = given[found[start].start() : found[end - 1].end()]
        if same(part, right):
            return True
    return False


def _is_how_many_more(words: Sequence[str], n: int, question: str) -> bool:
    """Whether the word `n` stands where the question has "how many": I have 22 more books."""
    asked = MORE.search(question)
    if asked is None or n == 0 or words[n - 1] in LIMITS:
        return False
    than = _after_than(words)
    asked_than = _after_than([_word(text) for text in question.split()])
    if than and asked_than and than != asked_than:
        return False
    return list(words[n + 1 : n + 3]) == [_word(asked[1]), _word(asked[2])]


def _after_than(words: Sequence[str]) -> Sequence[str]:
    """What comes after "than": [] if there is no such word."""
    return words[words.index("than") + 1 :] if "than" in words else []


def _without_count(given: str, right: str, question: str) -> str:
    """A sentence without the number that it adds to an answer that has none."""
    count = WITH.search(given)
    if count is None or re.search(r"\d", right):
        return given
    is_asked_about = _word(count[1]) in _words_of(question)
    return given[: count.start()] if is_asked_about else given


def _parts(
    words: Sequence[str], others: Sequence[int], most: int, leads: frozenset[str]
) -> Iterator[tuple[int, int]]:
    """The parts, from `start` to before `end`, that have all `others`, and nothing next to them
    that changes them. They begin the text, or follow a word of `leads` or a colon.
    """
    count = len(words)
    first = others[0] if others else count - 1
    last = others[-1] if others else 0
    starts = [0]
    for n, word in enumerate(words[:first], 1):
        is_lead = word in leads and not _is_bound(word, words[n])
        if is_lead or word.endswith(":"):
            starts.append(n)
    for start in starts:
        for end in range(max(start, last) + 1, min(start + most, count) + 1):
            if end == count or _goes_on(words[end:]):
                yield start, end


def _goes_on(words: Sequence[str]) -> bool:
    """Whether words after an answer say something about it, and are no part of it: 5 by 7."""
    return len(words) > 1 and words[0] in AFTER and not words[1][:1].isdigit()


def _is_bound(word: str, next_word: str) -> bool:
    """Whether a word makes a bound of a number: by 1984, which is not in 1984."""
    return word in ("by", "from") and next_word[:1].isdigit()


def _word(text: str) -> str:
    """A word in lower case, without the punctuation around it. A colon after it is kept."""
    word = text.replace("\u2019", "'").casefold().strip(AROUND)
    return word if not word or not text.endswith(":") else f"{word}:"


def _words_of(question: str) -> set[str]:
    """The words of a question, and each without its possessive, and with and without an s."""
    words = {_word(text).rstrip(":") for text in question.split()}
    words |= {POSSESSIVE.sub("", word) for word in words}
    return words | {f"{word}s" for word in words} | {word.rstrip("s") for word in words}


def _called(question: str) -> frozenset[str]:
    """What the answer to a question is usually called."""
    found = [ASKED[asked] for asked in ASKED if _has(question, asked)]
    return frozenset().union(*found)


def _is_harmless(word: str, known: frozenset[str]) -> bool:
    return word.rstrip(":") in known and not _changes(word.rstrip(":"))


def _changes(word: str) -> bool:
    return word in NEVER or word.endswith("n't")


def _has(question: str, right: str) -> bool:
    """Whether a question offers the right answer, so that its other words may be answers, too."""
    words = rf"(?<!\w){re.escape(right.casefold())}(?!\w)"
    return re.search(words, question.casefold()) is not None


def _is_yes_or_no(given: str, right: str) -> bool:
    """Whether a sentence begins with "Yes," or "No," and does not change it."""
    first, *rest = given.split()
    words = [_word(text) for text in rest]
    if _word(first) != right or first[-1].isalpha():
        return False
    if right == "no":
        return "yes" not in words
    return "no" not in words and not any(map(_changes, words))
