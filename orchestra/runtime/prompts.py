"""Prompts are data: every sentence a model reads is in prompts/, filled in by string.Template.

A missing variable raises KeyError; JSON braces need no escape.
"""

from __future__ import annotations

import hashlib
import re
from functools import cache
from pathlib import Path
from string import Template

from orchestra.memory import Wording
from orchestra.seams import Messages
from orchestra.vocabulary import Evidence, ModelMistake

ROOT = Path(__file__).resolve().parent.parent / "prompts"
DATA_CHARS = 7000  # of text quoted in one observation
DATA_MARK = re.compile(r"(?:(?<!\s)\s+)?</?data [0-9a-f]{8,64}>\s*")


@cache
def _template(path: str) -> Template:
    return Template((ROOT / path).read_text(encoding="utf-8").strip())


@cache
def _sections(path: str) -> dict[str, Template]:
    """A file of short texts: `## name`, then the text."""
    parts = re.split(
        r"^## (\w+)\n", (ROOT / path).read_text(encoding="utf-8"), flags=re.M
    )
    rows = zip(parts[1::2], parts[2::2], strict=True)
    return {name: Template(text.strip()) for name, text in rows}


def render(path: str, instead: str | None = None, /, **values: object) -> str:
    """The prompt file `path` (as in "react/system.md"), or a text `instead` of it, with its
    ${variables} filled in.
    """
    return (Template(instead.strip()) if instead else _template(path)).substitute(
        values
    )


def say(file: str, name: str, /, **values: object) -> str:
    """One short text: section `name` of prompts/<file>.md."""
    return _sections(f"{file}.md")[name].substitute(values)


def as_messages(system: str, user: str) -> Messages:
    return [{"role": "system", "content": system}, {"role": "user", "content": user}]


def explained(mistake: ModelMistake) -> str:
    """The sentence in prompts/ about a mistake; a rule without one is shown as it is."""
    if mistake.rule not in _sections(f"{mistake.file}.md"):
        return mistake.rule
    return say(mistake.file, mistake.rule, **mistake.values)


def capped(text: str, limit: int) -> str:
    """The beginning of a long text, with a note of how much there is."""
    if len(text) <= limit:
        return text
    return say("notes", "capped", text=text[:limit], shown=limit, total=len(text))


def fenced(text: str, limit: int = DATA_CHARS) -> str:
    """Text of a page, a file or a recording, between marks that it cannot forge.

    The mark is a hash of the text, longer while the text contains it, so the same text gives the
    same prompt. What is over the limit is cut inside the marks.
    """
    text = capped(text, limit)
    digest = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()
    mark = next(m for n in range(8, 65) if (m := digest[:n]) not in text)
    return say("notes", "data", mark=mark, text=text)


def quoted_whole(text: str) -> str:
    """A report between one pair of marks, without the marks inside it."""
    plain = without_marks(text)
    return fenced(plain, len(plain))


def without_marks(answer: str) -> str:
    """An answer without the data marks that a model copied into it."""
    if "data " not in answer:
        return answer
    return DATA_MARK.sub(
        lambda found: "\n" if "\n" in found[0] else " ", answer
    ).strip()


def _head(h: Evidence) -> str:
    answer = say("notes", "evidence_answer", answer=h.answer) if h.answer else ""
    reason = say("notes", "evidence_reason", reason=h.error) if h.error else ""
    about = {
        "id": h.id,
        "round": h.round,
        "status": h.status,
        "instruction": h.instruction,
    }
    return " ".join(p for p in (say("notes", "evidence", **about), answer, reason) if p)


WORDING = Wording(
    head=_head, left_out=lambda count: say("notes", "left_out", count=count)
)
