"""Prompts are data: every sentence that a model reads is in a file of prompts/.

A file is one long text, which `render` fills in, or many short ones under `## name`, of which `say`
fills in one. Both use string.Template: a missing variable raises KeyError.

What comes from outside enters a prompt in one of three ways: `fenced` marks a text of a page or a
recording, `quoted` the output of a program, `outside` a name or a reason within a sentence. A mark
is a hash of the text, so nobody can forge it, and the same text gives the same prompt.
"""

from __future__ import annotations

import hashlib
import math
import re
import unicodedata
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from string import Template

from orchestra.kernel.vocabulary import Messages, ModelMistake

ROOT = Path(__file__).parent.parent / "prompts"
DATA_CHARS = 7000  # of text quoted in one observation
OUTSIDE_CHARS = 200  # of a name or a reason within a sentence
MARK = re.compile(r"(?:(?<!\s)\s+)?</?data [0-9a-f]{8,64}>\s*")
BYTES_PER_TOKEN = (
    3  # English has more, CJK about 3: the estimate is high rather than low
)
OPENING_MARK = re.compile("<data ([0-9a-f]{8,64})>")
# What is not marked: a word, or up to three numbers and the short word of a unit after them.
WORD = r"['(\[b-]{0,2}[a-z0-9]{1,16}['.,:%)\]]{0,2}"
NUMBER = r"[-+.('\[]{0,2}\d[\dTZe.,:+*/%()'\]-]{0,39}"
PLAIN = re.compile(
    rf"{WORD}|{NUMBER}(?: {NUMBER}){{0,2}}(?: [a-z]{{1,5}})?", re.ASCII | re.I
)
NAME = re.compile(
    r"[\w.+~@/-]{1,40}"
)  # an ordinary name of a file is not marked either
FOREIGN_LETTERS = 8  # of a name: some scripts put no space between words
NOT_ASCII = re.compile(r"[^\t\n -~]")
INVISIBLE = {"Cc", "Cf", "Cs", "Zl", "Zp"}  # categories of Unicode
THINK_END = r"</(?:(?:seed:)?think(?:ing)?|thought|reasoning)>|\[/THINK\]|◁/think▷"
BLANK = re.compile(  # invisible characters of other categories
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2065\u2800\u3164\ufe00-\ufe0f\uffa0\ufff0-\ufff8"
    "\U000e0000-\U000e0fff]"
)
JOINERS = "\u200c\u200d"  # Persian, Indian languages and emoji need them


@cache
def _template(path: str) -> Template:
    return Template((ROOT / path).read_text(encoding="utf-8").strip())


@cache
def _sections(path: str) -> dict[str, Template]:
    """A file of short texts: `## name`, then the text."""
    whole = (ROOT / path).read_text(encoding="utf-8")
    _, *parts = re.split(r"^## (\w+)\n", whole, flags=re.M)
    texts = [Template(text.strip()) for text in parts[1::2]]
    return dict(zip(parts[0::2], texts, strict=True))


def render(path: str, /, **values: object) -> str:
    """The prompt file `path`, with its ${variables} filled in."""
    return _filled(_template(path), path, values)


def say(file: str, name: str, /, **values: object) -> str:
    """One short text: section `name` of prompts/<file>.md."""
    return _filled(_sections(f"{file}.md")[name], f"{file}.md, {name}", values)


def _filled(template: Template, where: str, values: Mapping[str, object]) -> str:
    try:
        return template.substitute(values)
    except (KeyError, ValueError) as error:
        error.add_note(f"in the prompt {where}")
        raise


def as_messages(system: str, user: str) -> Messages:
    return [
        {"role": "system", "content": system},
        {"role": "user", "content": user},
    ]


def explained(mistake: ModelMistake) -> str:
    """The sentence about a mistake; a rule without one is shown as it is."""
    if mistake.rule not in _sections(f"{mistake.file}.md"):
        return mistake.rule
    return say(mistake.file, mistake.rule, **mistake.values)


def tokens(text: str) -> int:
    """An estimate that needs no tokenizer."""
    return math.ceil(len(text.encode()) / BYTES_PER_TOKEN)


def capped(text: str, limit: int) -> str:
    """The beginning of a long text, with a note of how much there is."""
    if len(text) <= limit:
        return text
    head = closed(text[:limit])
    return say("notes", "capped", text=head, shown=limit, total=len(text))


def closed(text: str) -> str:
    """A text whose end was cut off, with the mark of its last quotation closed."""
    for opening in OPENING_MARK.finditer(text):
        closing = f"</data {opening[1]}>"
        if closing not in text[opening.end() :]:
            return f"{text}\n{closing}"
    return text


# ---- text from outside ---------------------------------------------------------------------------


def fenced(text: str, limit: int = DATA_CHARS) -> str:
    """A text between marks that it cannot forge. What is over the limit is cut inside the marks."""
    text = capped(text, limit)
    return say("notes", "data", mark=_mark_of(text), text=text)


def _mark_of(text: str) -> str:
    digest = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()
    marks = (digest[:length] for length in range(8, len(digest) + 1))
    return next(mark for mark in marks if mark not in text)


def outside(text: str) -> str:
    """A name, a URL or a reason within a sentence: in one line, cut and marked."""
    line = visible(text[: OUTSIDE_CHARS + 1])
    line = line.replace("\t", r"\t").replace("\n", r"\n")
    if len(line) > OUTSIDE_CHARS:
        line = line[:OUTSIDE_CHARS] + " [...]"
    return say("notes", "data_in_line", mark=_mark_of(line), text=line)


def named(name: str) -> str:
    """The name of a file. An ordinary one, of at most four words, is not marked."""
    words = re.findall(r"[^\W\d_]{3,}", name)
    foreign = sum(not char.isascii() for char in name)
    is_ordinary = NAME.fullmatch(name) is not None and visible(name) == name
    is_short = len(words) <= 4 and foreign <= FOREIGN_LETTERS
    return name if is_ordinary and is_short else outside(name)


def quoted(text: str, limit: int = DATA_CHARS) -> str:
    """Output of a program as data. A word, or up to three numbers with a unit, are not marked."""
    shown = visible(text)
    if not shown or PLAIN.fullmatch(shown):
        return shown
    return fenced(shown, limit)


def quoted_whole(text: str) -> str:
    """A report between one pair of marks, without the marks inside it."""
    plain = without_marks(text)
    return fenced(plain, len(plain))


def visible(text: str) -> str:
    """A text with the escape of each character that a reader would not see."""

    def shown(found: re.Match[str]) -> str:
        char = found[0]
        if char in JOINERS:
            return char
        is_hidden = unicodedata.category(char) in INVISIBLE or BLANK.match(char)
        return char.encode("unicode_escape").decode() if is_hidden else char

    return NOT_ASCII.sub(shown, text)


def cut_in_the_middle(text: str, max_chars: int) -> str:
    """The beginning and end of a long text, with a note of how many characters are left out."""
    if len(text) <= max_chars:
        return text
    half = max_chars // 2
    parts = {"head": text[:half], "tail": text[-half:], "count": len(text) - 2 * half}
    return say("tools/notes", "cut", **parts)


def without_marks(answer: str) -> str:
    """An answer without the data marks that a model copied into it."""
    if "data " not in answer:
        return answer
    return MARK.sub(lambda mark: "\n" if "\n" in mark[0] else " ", answer).strip()


def after_thinking(reply: str) -> str:
    """The text after the thinking; some chat templates print only the closing tag."""
    return re.split(THINK_END, reply)[-1]
