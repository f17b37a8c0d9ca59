"""The answer in the reply of a reasoning agent or an expert, which is free text.

The places where an answer can be, in the order in which they are tried:

1. the last line that begins with "Answer:" and is not empty, with the lines below it up to a blank
   one;
2. the last \\boxed{...} of LaTeX, which may have braces inside;
3. the last JSON object with an "answer", which comes first where the whole reply is JSON;
4. what is between <answer> and </answer>, the last time;
5. the last line that is more than markup; of a long line, its last sentence. A line that ends
   with a colon is none: it announces what should follow;
6. the last sentence that says what the answer is.

    >>> answer_of("17 of 100 are 17.\\n**Answer:** 17"), answer_of("I think\\n17")
    ('17', '17')
    >>> answer_of(r"So \\[ x = \\boxed{\\frac{1}{2}} \\]"), answer_of('{"answer": ["a", 2]}')
    ('1/2', 'a, 2')

A reply that was cut off has no answer, whatever it holds: see reasoning.py, which asks for it. A
reply that is JSON and ends within it was cut off, too, even if the endpoint does not say so. Where
such JSON comes after a text, only a label or a box has the answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from orchestra.kernel.prompts import after_thinking
from orchestra.methods.repair import is_open
from orchestra.methods.replies import OBJECT_START, as_text, objects

LINE_CHARS = 200  # of a longer last line, the last sentence is the answer

ANSWER = re.compile(
    r"^[^\w\n{]*_*(?:the[ \t]+)?(?:final[ \t]+)?answer\b(?:[ \t]+is\b)?(?![\"'])"
    r"[^\w\n]*?:[ \t*_]*",
    flags=re.I | re.M,
)
STATED = re.compile(
    r"\banswer\b[^.:\n]{0,80}? is:?[ \t]+(?![ \t]|not\b)(.+)", flags=re.I
)
PLACEHOLDER = re.compile(r"</?answer>", flags=re.I)  # as prompts write it
BLANK_LINE = re.compile(r"\n[ \t]*\n")
SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=\S)")
# A line without content: brackets of LaTeX, a code fence, the sides of an environment
MARKUP = re.compile(r"[\s*_#`~|>=\[\](){}$\\.-]*|```\w*|\\(?:begin|end)\{\w+\*?\}")
AROUND = " \t\n*`"
MATHS = ("\\(", "\\)"), ("\\[", "\\]"), ("$$", "$$"), ("$", "$")

BRACES = re.compile(r"(?P<box>\\{1,2}(?:boxed|fbox)[ \t]*\{)|\\.|[{}]", flags=re.S)
FRACTION = re.compile(r"\\[dt]?frac\{([^{}]*)\}\{([^{}]*)\}")
TEXT = re.compile(r"\\(?:text|textbf|mathrm|mathbf|mbox)\{([^{}]*)\}")
SPACE = re.compile(r"\\[,;:! ]|(?<!\\)~")
SYMBOLS = {"{,}": ",", "\\%": "%", "\\$": "$", "^\\circ": "°", "^{\\circ}": "°"}
KEY = re.compile(r"[\"'](?:final[_ ])?answer[\"']\s*:", flags=re.I)
JSON = re.compile(
    rf"\s*(?:```\w*\s*)?\[?\s*{OBJECT_START.pattern}"
)  # it begins a reply
KEYS = "answer", "final_answer", "Answer", "final answer"


def answer_of(reply: str) -> str:
    """The answer in a complete reply; "" if it has none."""
    text = after_thinking(reply)
    places = [_labelled, _boxed, _in_json, _tagged, _last_line, _stated]
    is_json = JSON.match(text)
    if is_half(text):
        places = [] if is_json else [_labelled, _boxed]
    elif is_json and text.rstrip("`\n ]").endswith("}"):
        places.insert(0, _in_json)
    for candidates in places:
        for candidate in reversed(candidates(text)):
            answer = clean(candidate)
            if answer and not is_half(answer):
                return answer
    return ""


def is_half(text: str) -> bool:
    """Whether a text ends within a JSON object."""
    start = OBJECT_START.search(text)
    return start is not None and is_open(text[start.start() :])


# ---- the six places ------------------------------------------------------------------------------


def _labelled(text: str) -> list[str]:
    """What follows each "Answer:", up to a blank line; all of it if that only introduces a list."""
    found = []
    for part in ANSWER.split(text)[1:]:
        first = BLANK_LINE.split(part.strip(), maxsplit=1)[0]
        found.append(part if first.endswith(":") else first)
    return found


def _boxed(text: str) -> list[str]:
    """The content of each box whose braces are closed."""
    found = []
    open_braces: list[
        int | None
    ] = []  # where the content of a box starts; None: no box
    for token in BRACES.finditer(text):
        if token["box"]:
            open_braces.append(token.end())
        elif token[0] == "{":
            open_braces.append(None)
        elif token[0] == "}" and open_braces:
            start = open_braces.pop()
            if start is not None:
                found.append(text[start : token.start()])
    return found


def _in_json(text: str) -> list[str]:
    """The answer of each JSON object that has one."""
    found: list[str] = []
    if not KEY.search(text):
        return found
    for value in objects(text):
        if isinstance(value, dict):
            found += [_as_text(value[key]) for key in KEYS if key in value]
    return found


def _as_text(value: Any) -> str:
    """A JSON value as an answer; "" for one that is none."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return ", ".join(_as_text(item) for item in value)
    is_value = isinstance(value, int | float)  # true and false are
    return as_text(value) if is_value else ""


def _tagged(text: str) -> list[str]:
    """What is between <answer> and </answer>."""
    found = []
    start = None
    for tag in PLACEHOLDER.finditer(text):
        if not tag[0].startswith("</"):
            start = tag.end()
        elif start is not None:
            found.append(text[start : tag.start()])
            start = None
    return found


def _last_line(text: str) -> list[str]:
    before, *_ = ANSWER.split(text)  # what follows is empty
    lines = _contents(before.splitlines())
    if not lines:
        return []
    last = lines[-1]
    if len(last) > LINE_CHARS:
        last = SENTENCE_END.split(last)[-1]
    return [] if last.endswith(":") else [last]


def _stated(text: str) -> list[str]:
    """What a sentence says that the answer is."""
    return [answer.rstrip().removesuffix(".") for answer in STATED.findall(text)]


# ---- an answer without its markup ----------------------------------------------------------------


def _contents(lines: Iterable[str]) -> list[str]:
    """The lines that are more than markup."""
    stripped = [line.strip() for line in lines]
    return [line for line in stripped if not MARKUP.fullmatch(line)]


def clean(text: str) -> str:
    """An answer without what surrounds it, and without the commands of LaTeX in it."""
    text = PLACEHOLDER.sub("", text)
    boxes = _boxed(text)
    text = boxes[-1] if boxes else text
    text = "\n".join(_contents(text.splitlines())).strip(AROUND)
    for opening, closing in MATHS:
        inside = text.removeprefix(opening).removesuffix(closing)
        if len(inside) == len(text) - len(opening + closing):
            text = inside.strip(AROUND)
    return _plain(text) if "\\" in text or "{,}" in text else text


def _plain(text: str) -> str:
    """The usual spelling of what a number in LaTeX has: 1{,}234\\,\\text{km} is 1,234 km."""
    text = TEXT.sub(r"\1", text)
    text = FRACTION.sub(r"\1/\2", text)
    for command, symbol in SYMBOLS.items():
        text = text.replace(command, symbol)
    return SPACE.sub(" ", text).strip()
