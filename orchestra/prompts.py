"""Prompts are data: every sentence a model reads lies under prompts/, filled in by string.Template.

A missing variable raises KeyError; JSON braces need no escape.
"""

from __future__ import annotations

import hashlib
import re
from functools import cache
from pathlib import Path
from string import Template

ROOT = Path(__file__).resolve().parent.parent / "prompts"
DATA_CHARS = 7000  # of text quoted in one observation


@cache
def _template(path: str) -> Template:
    return Template((ROOT / path).read_text(encoding="utf-8").strip())


@cache
def _sections(path: str) -> dict[str, Template]:
    """A file of short texts: `## name`, then the text."""
    parts = re.split(r"^## (\w+)\n", (ROOT / path).read_text(encoding="utf-8"), flags=re.M)
    return {
        name: Template(text.strip()) for name, text in zip(parts[1::2], parts[2::2], strict=True)
    }


def render(path: str, /, **values: object) -> str:
    """The prompt file `path` (as in "react/system.md") with its ${variables} filled in."""
    return _template(path).substitute(values)


def say(file: str, name: str, /, **values: object) -> str:
    """One short text: section `name` of prompts/<file>.md."""
    return _sections(f"{file}.md")[name].substitute(values)


def fenced(text: str, limit: int = DATA_CHARS) -> str:
    """Text of a page, a file or a recording as data: inside marks that it can not close.

    The mark is a hash of the text, longer while the text holds it, so the same text gives the same
    prompt. What is over the limit is cut inside the marks.
    """
    if len(text) > limit:
        text = say("notes", "capped", text=text[:limit], shown=limit, total=len(text))
    digest = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()
    mark = next(m for n in range(8, 65) if (m := digest[:n]) not in text)
    return say("notes", "data", mark=mark, text=text)
