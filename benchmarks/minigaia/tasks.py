"""The tasks of MiniGAIA: random graphs of facts, the same on every machine.

A fact is read in a file or on a page, found by a search, or computed from other facts. A task is
made from a tree (shapes.py), from its leaves up. The sentences are in tasks.md: a
fact has the same phrase in the question and in the instruction that asks for it, but the
instruction has values in place of names. Names of held-out tasks occur in no other task.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Literal

from benchmarks.minigaia.operations import OPERATIONS, computed
from benchmarks.minigaia.shapes import HELD_OUT_SHAPES, SEEN_SHAPES, Tree, trees
from orchestra.kernel.prompts import say
from orchestra.kernel.vocabulary import Media, Modality, Task

Split = Literal["train", "valid", "held_out"]
WORDS = str(Path(__file__).with_name("tasks"))  # tasks.md
TOOL = {
    "image": "ImageAnalysisAction",
    "audio": "ParseAudioAction",
    "video": "VideoAnalysisAction",
    "page": "ExtractUrlContentAction",
    "search": "GoogleSearchAction",
    "compute": "ExecuteCodeAction",
}
ENDING: Mapping[Modality, str] = {"image": "png", "audio": "wav", "video": "mp4"}
NAMES: Mapping[str, list[str]] = json.loads(
    Path(__file__).with_name("names.json").read_text(encoding="utf-8")
)
# The part of every list of names that a split draws from.
SHARE: Mapping[Split, tuple[float, float]] = {
    "train": (0.0, 0.6),
    "valid": (0.6, 0.8),
    "held_out": (0.8, 1.0),
}
# The smallest and the largest value of a kind.
RANGES = {"number": (21, 399), "small": (3, 20), "hours": (2, 11), "year": (1700, 2020)}
ENTITIES = ("thing", "person", "town")
P_PAGE = 0.25  # that a fact is read on a page, and not in a file
P_NOISE = 0.3  # that a report has a number that nobody asked for
P_DISTRACTOR = 0.3  # that a task has a fact that the answer does not need


@dataclass(frozen=True)
class Fact:
    """`needs` are the facts it is found with. `evidence` is what the instruction of a sub-task must
    name to find it. `operation` is that of a computed fact.
    """

    id: str
    tool: str
    needs: tuple[str, ...]
    evidence: tuple[str, ...]
    instruction: str
    report: str
    value: str
    operation: str = ""


@dataclass(frozen=True)
class MiniTask:
    """`facts` are in an order in which they can be found, the answer last; some only distract.
    `entities` are the names in it. `group` says what is held out, "shape" or "operation"; else it
    is "seen".
    """

    task: Task
    facts: tuple[Fact, ...]
    entities: tuple[str, ...]
    group: str

    @property
    def answer(self) -> str:
        return self.facts[-1].value

    def needed(self) -> set[str]:
        """The facts that the answer needs, and the answer."""
        found = {self.facts[-1].id}
        for fact in reversed(self.facts):
            if fact.id in found:
                found |= set(fact.needs)
        return found


@dataclass(frozen=True)
class Operand:
    """A part of a task, as the part above it needs it. `phrase` asks for it in the question. `fact`
    None: it is a name in the question, and its own phrase and value.
    """

    phrase: str
    value: str
    fact: Fact | None

    def inner_phrase(self) -> str:
        """Its phrase within the phrase of another fact."""
        if self.fact is not None and self.fact.operation:
            return say(WORDS, "inner", what=self.phrase)
        return self.phrase


class Composer:
    """Makes the facts of one task, in which no name, number or file occurs twice."""

    def __init__(self, rng: random.Random, split: Split) -> None:
        self.rng = rng
        self.split = split
        self.drawn: set[str] = set()
        self.entities: list[str] = []
        self.facts: list[Fact] = []
        self.media: list[Media] = []

    # ---- values and names ------------------------------------------------------------------------

    def draw(self, kind: str) -> str:
        """A new value of a kind, or a new name."""
        value = self._candidate(kind)
        while value in self.drawn:
            value = self._candidate(kind)
        self.drawn.add(value)
        if kind in ENTITIES:
            self.entities.append(value)
        return value

    def _candidate(self, kind: str) -> str:
        between = self.rng.randint
        if kind in RANGES:
            smallest, largest = RANGES[kind]
            return str(between(smallest, largest))
        if kind == "time":
            return f"{between(5, 23):02}:{between(0, 59):02}"
        if kind == "date":
            return date(between(2001, 2030), between(1, 12), between(1, 28)).isoformat()
        if kind == "person":
            return f"{self._candidate('first')} {self._candidate('last')}"
        names = NAMES[kind]
        low, high = SHARE[self.split]
        start = round(low * len(names))
        end = round(high * len(names))
        return self.rng.choice(names[start:end])

    # ---- facts -----------------------------------------------------------------------------------

    def add(self, tree: Tree) -> Operand:
        """Add the facts of a tree."""
        if tree.label == "name":
            name = self.draw(tree.kind)
            return Operand(phrase=name, value=name, fact=None)
        if tree.label == "read":
            return self.add_read(tree.kind)
        operands = [self.add(child) for child in tree.children]
        if tree.label == "search":
            section = f"search_{tree.kind}_{tree.children[0].kind}"
            value = self.draw(tree.kind)
            return self._add_found("search", section, operands, value)
        values = [operand.value for operand in operands]
        value = computed(OPERATIONS[tree.label], values)
        return self._add_found("compute", tree.label, operands, value, tree.label)

    def add_read(self, kind: str) -> Operand:
        """Add a fact that is read in a file or on a page."""
        modality = self.rng.choice(list(ENDING))
        stem = f"{self.draw('stem')}{self.rng.randint(1, 9)}"
        names = {entity: self.draw(entity) for entity in ENTITIES}
        what = self.rng.choice(say(WORDS, f"read_{kind}", **names).splitlines())
        if self.rng.random() < P_PAGE:
            tool = TOOL["page"]
            place = f"https://{stem}.example"
            phrase = say(WORDS, "on_page", what=what, place=place)
        else:
            tool = TOOL[modality]
            place = f"{stem}.{ENDING[modality]}"
            phrase = say(WORDS, "in_file", what=what, place=place)
            self.media.append(Media(modality, name=place, path=Path(), sha256=""))
        value = self.draw(kind)
        fact = Fact(
            id=self._next_id(),
            tool=tool,
            needs=(),
            evidence=(place,),
            instruction=say(WORDS, "read", what=phrase),
            report=self._report(value),
            value=value,
        )
        self.facts.append(fact)
        return Operand(phrase, value, fact)

    def _report(self, value: str) -> str:
        """What a sub-agent reports that has read a value."""
        if self.rng.random() >= P_NOISE:
            return value
        thing = self.draw("thing")
        noise = self.draw("number")
        return say(WORDS, "noise", value=value, thing=thing, noise=noise)

    def _add_found(
        self,
        verb: Literal["search", "compute"],
        section: str,
        operands: Sequence[Operand],
        value: str,
        operation: str = "",
    ) -> Operand:
        """Add a fact that is searched for or computed. `section` has the wordings that ask for it,
        one a line.
        """
        phrases = _wordings(section, [operand.inner_phrase() for operand in operands])
        values = tuple(operand.value for operand in operands)
        line = self.rng.randrange(len(phrases))
        what = _wordings(section, values)[line]
        facts = [operand.fact for operand in operands]
        fact = Fact(
            id=self._next_id(),
            tool=TOOL[verb],
            needs=tuple(fact.id for fact in facts if fact is not None),
            evidence=values,
            instruction=say(WORDS, verb, what=what),
            report=value,
            value=value,
            operation=operation,
        )
        self.facts.append(fact)
        return Operand(phrases[line], value, fact)

    def _next_id(self) -> str:
        return f"n{len(self.facts) + 1}"


def _wordings(section: str, operands: Sequence[str]) -> list[str]:
    """The wordings of a section, with its operands filled in."""
    names = dict(zip("ab", operands, strict=False))
    return say(WORDS, section, **names).splitlines()


def compose(rng: random.Random, split: Split, number: int) -> MiniTask:
    """Task `number` of a split. A held-out task has a held-out shape or a held-out operation."""
    group = "seen"
    if split == "held_out":
        group = "operation" if number % 2 else "shape"
    shapes = HELD_OUT_SHAPES if group == "shape" else SEEN_SHAPES
    by_operation = trees(shapes, held_out=group == "operation")
    last_operation = rng.choice(list(by_operation))
    tree = rng.choice(by_operation[last_operation])
    composer = Composer(rng, split)
    if rng.random() < P_DISTRACTOR:
        composer.add_read("number")
    answer = composer.add(tree)
    return MiniTask(
        task=Task(
            question=say(WORDS, "question", what=answer.phrase),
            media=tuple(composer.media),
        ),
        facts=tuple(composer.facts),
        entities=tuple(composer.entities),
        group=group,
    )
