"""The tasks of MiniGAIA: random graphs of facts, the same on every machine.

A fact is read in a file or on a page, found by a search, or computed from other facts. The shape of
a task: "R" is a read, "N" a search for a name in the question, "S" a search for a name that must be
read first, and a tuple is an operation on its members. Held-out tasks have shapes, operations and
names that no other task has. The sentences are in prompts/training/tasks.md: a fact has the same
phrase in the question and in the sub-task, which has values in place of names.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, Literal, NamedTuple

from orchestra.runtime.prompts import say
from orchestra.vocabulary import Media, Modality, Task

Split = Literal["train", "valid", "held_out"]
WORDS = "training/tasks"
NAMES: Mapping[str, list[str]] = json.loads(
    Path(__file__).with_name("names.json").read_text(encoding="utf-8")
)
SHARE: Mapping[Split, tuple[float, float]] = {  # of every list of names
    "train": (0.0, 0.6), "valid": (0.6, 0.8), "held_out": (0.8, 1.0)
}  # fmt: skip
TOOL = {
    "image": "ImageAnalysisAction",
    "audio": "ParseAudioAction",
    "video": "VideoAnalysisAction",
    "page": "ExtractUrlContentAction",
    "search": "GoogleSearchAction",
    "compute": "ExecuteCodeAction",
}
ENDING: Mapping[Modality, str] = {"image": "png", "audio": "wav", "video": "mp4"}
RANGES = {"number": (21, 399), "small": (3, 20), "hours": (2, 11), "year": (1700, 2020)}
P_PAGE, P_NOISE, P_DISTRACTOR = 0.25, 0.3, 0.3

# ---- operations ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Operation:
    """`takes` and `gives` are kinds of values. `pattern` matches an instruction that asks for it,
    in which # stands for an operand. `factor`: a number that it may name besides its operands.
    """

    name: str
    takes: tuple[str, ...]
    gives: str
    pattern: str
    apply: Callable[..., Any]
    factor: str = ""

    @property
    def kinds(self) -> list[str]:
        """Of its operands, as far as their texts show: a year or hours are numbers."""
        return [kind if kind in PARSE else "number" for kind in self.takes]


def _unit(name: str, factor: int) -> Operation:
    pattern = rf"\b(?:in|to|into|as|of|many) {name}|{TIMES}"
    return Operation(
        name, ("number",), "number", pattern, lambda a: a * factor, str(factor)
    )


TWO, AND_SMALL = ("number", "number"), ("number", "small")
PLUS, MINUS = r"\+|\bplus|\badd", r"[-−–]\s*#|\bminus|\bsubtract"
TIMES = r"[*×]|# x #|\btimes|\bmultipl"
AFTER, BEFORE = rf"{PLUS}|\bafter|\blater|\bpast", rf"{MINUS}|\bbefore|\bearlier|\butc"
APART = rf"{MINUS}|\bdiffer|\bbetween|\bapart|\bexceed|\bhow (?:much|many)\b.*\bthan"
SPAN = rf"{APART}|\bfrom|\buntil"
LARGER, WEEKDAY = (
    r"\bmax|\b(?:larg|great|bigg|high)e",
    r"\bweekday|\bday of (?:the )?week",
)
SEEN = (
    Operation("sum", TWO, "number", rf"{PLUS}|\bsum|\btotal|\btogether", lambda a, b: a + b),
    Operation("difference", TWO, "number", APART, lambda a, b: abs(a - b)),
    Operation("product", AND_SMALL, "number", rf"{TIMES}|\bproduct", lambda a, b: a * b),
    Operation("larger", TWO, "number", LARGER, max),
    Operation("later", ("time", "number"), "time", AFTER, lambda a, b: a + timedelta(minutes=b)),
    Operation("zone", ("time", "hours"), "time", BEFORE, lambda a, b: a - timedelta(hours=b)),
    Operation("day_after", ("date", "number"), "date", AFTER, lambda a, b: a + timedelta(days=b)),
    Operation("weekday", ("date",), "weekday", WEEKDAY, lambda a: f"{a:%A}"),
    Operation("letters", ("person",), "small", r"\bletter", lambda a: sum(map(str.isalpha, a))),
    Operation("years", ("year", "year"), "number", rf"{APART}|\byears", lambda a, b: abs(a - b)),
    _unit("minutes", 60), _unit("grams", 1000), _unit("days", 7),
)  # fmt: skip
HELD_OUT = (
    Operation("mean", TWO, "decimal", r"\bmean|\baverage", lambda a, b: (a + b) / 2),
    Operation("remainder", AND_SMALL, "number", r"%|\bremainder|\bmod", lambda a, b: a % b),
    Operation("earlier", ("time", "number"), "time", BEFORE, lambda a, b: a - timedelta(minutes=b)),
    Operation("days_between", ("date", "date"), "number", SPAN, lambda a, b: abs((a - b).days)),
    _unit("pieces", 12), _unit("centimetres", 100),
)  # fmt: skip
OPERATIONS = {operation.name: operation for operation in (*SEEN, *HELD_OUT)}
NEVER_LAST = {"larger"}  # its value is one of those that were read


PARSE: Mapping[str, Callable[[str], Any]] = {
    "time": lambda text: datetime.strptime(text, "%H:%M"), "date": date.fromisoformat, "person": str
}  # fmt: skip


def computed(operation: Operation, operands: Sequence[str]) -> str:
    """The value of an operation as text."""
    parsed = [
        PARSE.get(k, int)(x) for k, x in zip(operation.takes, operands, strict=True)
    ]
    value = operation.apply(*parsed)
    return f"{value:%H:%M}" if isinstance(value, datetime) else str(value)


# ---- shapes --------------------------------------------------------------------------------------

Shape = Any  # "R", "N", "S", or a tuple of shapes
SEEN_SHAPES: tuple[Shape, ...] = (
    ("R",), ("N",), ("R", "R"), ("R", "N"), ("R", "S"), (("R",), "R"), ("R", ("R",)),
    (("R", "R"), "R"), (("R", "N"), "R"), (("S",), "R"),
)  # fmt: skip
HELD_OUT_SHAPES: tuple[Shape, ...] = (
    ("S", "S"), ("N", "N"), (("R",), ("R",)), ("R", ("R", "R")), ((("R",), "R"), "R"),
    (("R", "S"), "R"), (("R", "R"), ("R", "R")),
)  # fmt: skip
READ = {"number", "small", "time", "date", "year", "person"}
SEARCH = {"number": ("person", "town"), "year": ("person", "town"), "hours": ("town",)}


class Tree(NamedTuple):
    """A shape with its operations. `label`: an operation, or "read", "search" or "name"; `kind`: of
    its value.
    """

    label: str
    kind: str
    children: tuple[Tree, ...] = ()

    def labels(self) -> set[str]:
        return {self.label}.union(*(tree.labels() for tree in self.children))


@cache
def typed(shape: Shape, kind: str | None = None) -> tuple[Tree, ...]:
    """Every tree of a shape with a value of this kind; None: any kind, as for the answer."""
    if isinstance(shape, tuple):
        fit = [o for o in OPERATIONS.values() if len(o.takes) == len(shape)]
        return tuple(
            Tree(o.name, o.gives, children)
            for o in fit
            if (o.gives == kind if kind else o.name not in NEVER_LAST)
            for children in product(*map(typed, shape, o.takes))
        )
    if shape == "R":
        return (Tree("read", str(kind)),) if kind in READ else ()
    children = [
        Tree("read" if shape == "S" else "name", of) for of in SEARCH.get(str(kind), ())
    ]
    return tuple(Tree("search", str(kind), (tree,)) for tree in children)


@cache
def trees(shapes: tuple[Shape, ...], held_out: bool) -> Mapping[str, list[Tree]]:
    """The trees of these shapes by their last operation: with a held-out operation, or without."""
    new = {o.name for o in HELD_OUT}
    found: dict[str, list[Tree]] = {}
    for tree in (t for shape in shapes for t in typed(shape)):
        if bool(tree.labels() & new) == held_out:
            found.setdefault(tree.label, []).append(tree)
    return found


# ---- a task --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fact:
    """`evidence`: what the instruction of a sub-task must name to find it; `operation`: of a
    computed fact.
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
    """`facts`: in an order in which they can be found, the answer last; some only distract.
    `entities`: the names in it. `group`: what is held out, "shape" or "operation", else "seen".
    """

    task: Task
    facts: tuple[Fact, ...]
    entities: tuple[str, ...]
    group: str

    @property
    def answer(self) -> str:
        return self.facts[-1].value

    def needed(self) -> set[str]:
        """The facts that the answer needs."""
        found = {self.facts[-1].id}
        for fact in reversed(self.facts):
            found |= set(fact.needs) if fact.id in found else set()
        return found


class Composer:
    """Makes the facts of one task, in which no name, number or file occurs twice."""

    def __init__(self, rng: random.Random, split: Split) -> None:
        self.rng, self.split = rng, split
        self.drawn: set[str] = set()
        self.entities: list[str] = []
        self.facts: list[Fact] = []
        self.media: list[Media] = []

    def draw(self, kind: str) -> str:
        """A new value of a kind, or a new name."""
        value = self._candidate(kind)
        while value in self.drawn:
            value = self._candidate(kind)
        self.drawn.add(value)
        if kind in ("thing", "person", "town"):
            self.entities.append(value)
        return value

    def _candidate(self, kind: str) -> str:
        between = self.rng.randint
        if kind in RANGES:
            return str(between(*RANGES[kind]))
        if kind == "time":
            return f"{between(5, 23):02}:{between(0, 59):02}"
        if kind == "date":
            return date(between(2001, 2030), between(1, 12), between(1, 28)).isoformat()
        if kind == "person":
            return f"{self._candidate('first')} {self._candidate('last')}"
        low, high = (round(share * len(NAMES[kind])) for share in SHARE[self.split])
        return self.rng.choice(NAMES[kind][low:high])

    def add_read(self, kind: str) -> str:
        """Add a fact that is read. Returns the phrase that asks for it."""
        modality = self.rng.choice(list(ENDING))
        stem = f"{self.draw('stem')}{self.rng.randint(1, 9)}"
        names = {name: self.draw(name) for name in ("thing", "person", "town")}
        what = self.rng.choice(say(WORDS, f"read_{kind}", **names).splitlines())
        if self.rng.random() < P_PAGE:
            tool, place = TOOL["page"], f"https://{stem}.example"
            phrase = say(WORDS, "on_page", what=what, place=place)
        else:
            tool, place = TOOL[modality], f"{stem}.{ENDING[modality]}"
            phrase = say(WORDS, "in_file", what=what, place=place)
            self.media.append(Media(modality, place, Path(), ""))
        value = report = self.draw(kind)
        if self.rng.random() < P_NOISE:
            other = {"thing": self.draw("thing"), "noise": self.draw("number")}
            report = say(WORDS, "noise", value=value, **other)
        self._add(tool, (), (place,), say(WORDS, "read", what=phrase), report, value)
        return phrase

    def add(self, tree: Tree) -> tuple[str, Fact | None, str]:
        """Add the facts of a tree. Returns its phrase, its last fact (None: a name) and value."""
        if tree.label == "name":
            name = self.draw(tree.kind)
            return name, None, name
        if tree.label == "read":
            phrase = self.add_read(tree.kind)
            return phrase, self.facts[-1], self.facts[-1].value
        children = [self.add(tree) for tree in tree.children]
        values = tuple(value for *_, value in children)
        inner = [
            say(WORDS, "inner", what=phrase) if fact and fact.operation else phrase
            for phrase, fact, _ in children
        ]
        if tree.label == "search":
            section, verb, operation = (
                f"search_{tree.kind}_{tree.children[0].kind}",
                "search",
                "",
            )
            value = self.draw(tree.kind)
        else:
            section, verb, operation = tree.label, "compute", tree.label
            value = computed(OPERATIONS[operation], values)
        phrase, asked = (
            say(WORDS, section, **dict(zip("ab", x, strict=False)))
            for x in (inner, values)
        )
        line = self.rng.randrange(len(phrase.splitlines()))  # one of the alternatives
        asked = say(WORDS, verb, what=asked.splitlines()[line])
        needs = tuple(fact.id for _, fact, _ in children if fact)
        self._add(TOOL[verb], needs, values, asked, value, value, operation)
        return phrase.splitlines()[line], self.facts[-1], value

    def _add(self, *fields: Any) -> None:
        self.facts.append(Fact(f"n{len(self.facts) + 1}", *fields))


def compose(rng: random.Random, split: Split, number: int) -> MiniTask:
    """Task `number` of a split. A held-out task has a held-out shape or a held-out operation."""
    group = ("shape", "operation")[number % 2] if split == "held_out" else "seen"
    shapes = HELD_OUT_SHAPES if group == "shape" else SEEN_SHAPES
    by_operation = trees(shapes, group == "operation")
    tree = rng.choice(by_operation[rng.choice(list(by_operation))])
    composer = Composer(rng, split)
    if rng.random() < P_DISTRACTOR:
        composer.add_read("number")
    phrase = composer.add(tree)[0]
    task = Task(say(WORDS, "question", what=phrase), tuple(composer.media))
    return MiniTask(task, tuple(composer.facts), tuple(composer.entities), group)
