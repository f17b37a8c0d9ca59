"""Evidence: the file names, numbers and words that tell what a sub-task is for, found in texts.

"sum|add" stands for either. All is compared in lower case.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

from orchestra.memory import terms
from orchestra.vocabulary import State, SubTask
from training.templates import TOOL

GRAMMAR = frozenset([  # words of some length that no question is about
    "about", "could", "https", "other", "shall", "should", "their", "there", "these", "those",
    "would",
])  # fmt: skip
CALLED: Mapping[str, str] = {  # what one may call a file of a modality
    "image": "image|picture|photo",
    "audio": "audio|recording|sound|speech|spoken|heard",
    "video": "video|clip|film",
}

# ---- in a text -----------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def _pattern(evidence: str) -> re.Pattern[str]:
    """Finds a piece of evidence, in a text of lower case: words and numbers as wholes only, and a
    sign, where words may stand for it, between two numbers only.
    """
    words = [re.escape(e) for e in evidence.lower().split("|") if re.search(r"\w", e)]
    signs = [re.escape(e) for e in evidence.lower().split("|") if e and not re.search(r"\w", e)]
    whole = [rf"(?a:(?<!\w)(?<!\d[.:,])(?:{'|'.join(words)})(?!\w|[.:,]\d))"] if words else []
    if words and signs:
        number, unit = r"(?a:(?<![\w.:,/-])\d[\d.:,]*)", r"(?:\s*[^\W\d]+)?"
        signs = [rf"{number}{unit}[\s()]*(?:{'|'.join(signs)})[\s()]*\d"]
    return re.compile("|".join([*whole, *signs]))


def found(evidence: frozenset[str], text: str) -> set[str]:
    """Which pieces of evidence a text of lower case holds."""
    return {e for e in evidence if _pattern(e).search(text)}


def numbers(text: str) -> frozenset[str]:
    """The numbers in a text, times and decimals whole, but not those inside of names."""
    return frozenset(re.findall(r"(?a:(?<![\w.:,/-])\d+(?:[.:,]\d+)*(?!\w|[.:,]\d))", text))


# ---- of a question and of a recorded sub-task ----------------------------------------------------


def subjects(state: State) -> frozenset[str]:
    """What the question is about: its files, numbers and names, and its words of some length."""
    question = state.task.question
    names = re.findall(r"(?<![.!?:] )(?<!^)\b[^\W\d_]\w*", question)
    capital = {w.lower() for w in names if w[0].isupper()}
    files = {m.name.lower() for m in state.task.media}
    words = {w for w in terms(question) - GRAMMAR if len(w) >= 5 or w in capital or w.isdigit()}
    return frozenset(files | words - {f.rpartition(".")[2] for f in files})


def evidence_of(u: SubTask, state: State) -> list[str]:
    """What a recorded sub-task was told: the files and numbers of its instruction; or the files
    that its tools are for, where its words are of such; or its words.
    """
    text = u.instruction.lower()
    named = frozenset(m.name.lower() for m in state.task.media) | numbers(text)
    if told := found(named, text):
        return sorted(told)
    meant = _files_meant(u, state)
    if meant and found(meant, text) == meant:
        return sorted(meant)
    return sorted(found(terms(text), text) or {text})


def _files_meant(u: SubTask, state: State) -> frozenset[str]:
    """For each file that a tool of u is for: its name, or what one calls such a file."""
    called = {m: words for m, words in CALLED.items() if TOOL[m] in (u.tools or ())}
    of_tools = [m for m in state.task.media if m.modality in called]
    return frozenset(f"{m.name}|{called[m.modality]}".lower() for m in of_tools)
