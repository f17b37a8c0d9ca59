"""The tasks of MiniGAIA: who needs what, where it is found, and what comes out.

A template is a graph. `b: search year a` is a node b, a year, that a web search finds once a is
known; `read` is a fact in a file or on a page; `compute` follows from others. The last node is
the answer, and a node that nothing needs distracts. The words of a template are in
prompts/training/tasks_*.md. Those of the held-out templates are their own, and so are the graphs of
`savings`, `author` and `tank`.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from orchestra.vocabulary import Media, Modality, Task
from runtime.prompts import say

Split = Literal["train", "valid", "held_out"]
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

# ---- names: cut by SHARE, so no split knows one of another's -------------------------------------

NAMES: Mapping[str, list[str]] = json.loads(
    Path(__file__).with_name("names.json").read_text(encoding="utf-8")
)


@dataclass(frozen=True)
class Node:
    key: str
    kind: Literal["read", "search", "compute"]
    value: str  # what it is: number, small, year, time, person, town; or the operation
    needs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Template:
    name: str
    level: int
    seen: bool
    nodes: tuple[Node, ...]


def _templates(table: str, seen: bool) -> Iterator[Template]:
    for row in table.strip().splitlines():
        name, level, *nodes = (cell.strip() for cell in row.split("|"))
        yield Template(name, int(level), seen, tuple(map(_node, nodes)))


def _node(text: str) -> Node:
    key, kind, value, *needs = text.replace(":", "").split()
    return Node(key, kind, value, tuple(needs))  # type: ignore[arg-type]


SEEN = """
price      | 1 | a: read number
owner      | 1 | x: read number | a: read person
opening    | 1 | a: read year
basket     | 2 | a: read number | b: read number | c: compute sum a b
taller     | 2 | a: read number | b: read number | c: compute difference a b
stock      | 2 | a: read small  | b: read small  | c: compute product a b
train      | 2 | a: read time   | b: read number | c: compute later a b
younger    | 2 | a: read year   | b: read year   | c: compute difference a b
founder    | 3 | a: read person | b: read year   | c: search year a   | d: compute difference b c
route      | 3 | a: read town   | b: read number | c: search number a | d: compute sum b c
trio       | 3 | a: read number | b: read number | c: read number     | d: compute sum a b c
fee        | 3 | a: read town   | b: read small  | c: search small a  | d: compute product b c
"""
UNSEEN = """
weight     | 1 | a: read number
winner     | 1 | x: read number | a: read person
films      | 2 | a: read number | b: read number | c: compute sum a b
savings    | 2 | x: read number | a: read number | b: read number | c: compute difference a b
author     | 3 | a: read person | b: read person | c: search year a | d: search year b | e: compute difference c d
tank       | 3 | a: read small  | b: read small  | c: read number     | d: compute product_sum a b c
"""  # noqa: E501
TEMPLATES = (*_templates(SEEN, seen=True), *_templates(UNSEEN, seen=False))

# ---- one task of a template ----------------------------------------------------------------------


@dataclass(frozen=True)
class Fact:
    """A node with what came of it: the sub-task that finds it, what that reports, and the evidence
    that any sub-task for it must name.
    """

    id: str
    kind: str
    tool: str
    needs: tuple[str, ...]
    instruction: str
    report: str
    value: str
    evidence: tuple[str, ...]
    file: str = ""


@dataclass(frozen=True)
class MiniTask:
    """`facts` in the order of the template, the answer last; `entities` are the names in it."""

    template: Template
    task: Task
    facts: tuple[Fact, ...]
    answer: str
    entities: tuple[str, ...]


class Names:
    """Draws names and numbers, none twice in a task."""

    def __init__(self, rng: random.Random, split: Split) -> None:
        self.rng, self.split = rng, split
        self.drawn: set[str] = set()
        self.entities: list[str] = []

    def draw(self, kind: str) -> str:
        """A value of a kind of Node.value, or a thing, a stem."""
        value = self._any(kind)
        while value in self.drawn:
            value = self._any(kind)
        self.drawn.add(value)
        if kind in ("thing", "person", "town"):
            self.entities.append(value)
        return value

    def _any(self, kind: str) -> str:
        rng = self.rng
        match kind:
            case "number":
                return str(rng.randint(21, 399))
            case "small":
                return str(rng.randint(3, 20))
            case "year":
                return str(rng.randint(1700, 2020))
            case "time":
                return f"{rng.randint(5, 16):02}:{rng.randint(0, 59):02}"
            case "person":
                return f"{self._any('first')} {self._any('last')}"
        names = NAMES[kind]
        low, high = SHARE[self.split]
        return rng.choice(names[round(low * len(names)) : round(high * len(names))])


OPERATIONS: Mapping[str, tuple[str, tuple[str, ...]]] = {  # what stands between; what may say so
    "sum": (" + ", ("+|plus|add|adding|sum|total|together",)),
    "difference": (" - ", ("-|minus|subtract|difference|less|between",)),
    "product": (" * ", ("*|×|times|multiply|multiplied|product",)),
    "later": (" + ", ("+|plus|add|after|later",)),
    "product_sum": (" * ", ("*|×|times|multiply|multiplied|product", "+|plus|add|sum|total")),
}


def compute(operation: str, values: Sequence[str]) -> tuple[str, str]:
    """The expression in words that a program can take up, and its value."""
    if operation == "later":
        hours, minutes = map(int, values[0].split(":"))
        at = hours * 60 + minutes + int(values[1])
        return f"{values[0]} + {values[1]} minutes", f"{at // 60 % 24:02}:{at % 60:02}"
    numbers = [int(v) for v in values]
    if operation == "difference":
        return f"{numbers[0]} - {numbers[1]}", str(numbers[0] - numbers[1])
    if operation == "product":
        return f"{numbers[0]} * {numbers[1]}", str(numbers[0] * numbers[1])
    if operation == "product_sum":
        a, b, c = numbers
        return f"{a} * {b} + {c}", str(a * b + c)
    return " + ".join(values), str(sum(numbers))


def draw(template: Template, rng: random.Random, split: Split) -> MiniTask:
    """A task of the template with names and numbers of the split."""
    names = Names(rng, split)
    noise = {"noise": "number", "noise_year": "year", "thing": "thing", "other": "thing"}
    people = {"person": "person", "rival": "person", "place": "town"}
    words = {slot: names.draw(kind) for slot, kind in {**noise, **people}.items()}
    at: dict[str, tuple[str, str]] = {}
    for node in template.nodes:
        if node.kind == "read":
            page = node.key != "x" and "page" not in dict(at.values()) and rng.random() < 0.25
            at[node.key] = _place(names, page)
        if node.kind != "compute":
            words[node.key] = names.draw(node.value)
        elif node.value == "difference":  # of the first need, which is the larger, and the second
            larger, smaller = node.needs
            pair = sorted((words[larger], words[smaller]), key=int)
            words |= zip((smaller, larger), pair, strict=True)
    words |= {f"at_{key}": where for key, (_, where) in at.items()}
    text = f"training/tasks_{'seen' if template.seen else 'unseen'}"
    facts: list[Fact] = []
    for n, node in enumerate(template.nodes, 1):
        facts.append(_fact(f"n{n}", node, template, text, words, at.get(node.key)))
    media = tuple(Media(m, w, Path(), "") for m, w in at.values() if m in ENDING)  # type: ignore[arg-type]
    task = Task(say(text, template.name, **words), media)
    return MiniTask(template, task, tuple(facts), facts[-1].value, tuple(names.entities))


def _place(names: Names, page: bool) -> tuple[str, str]:
    """Where a fact is: its kind of source, and the file or the URL."""
    stem = names.draw("stem")
    if page:
        return "page", f"https://{names.draw('town').lower()}.example/{stem}"
    modality = names.rng.choice(list(ENDING))
    return modality, f"{stem}_{names.rng.randint(1, 9)}.{ENDING[modality]}"


def _fact(
    id: str,
    node: Node,
    template: Template,
    text: str,
    words: dict[str, str],
    at: tuple[str, str] | None,
) -> Fact:
    keys = tuple(f"n{1 + [x.key for x in template.nodes].index(k)}" for k in node.needs)
    if node.kind == "compute":
        values = [words[k] for k in node.needs]
        expression, value = compute(node.value, values)
        words[node.key] = value
        said = say("training/minigaia", "compute", expression=expression)
        evidence = (*values, *OPERATIONS[node.value][1])
        return Fact(id, "compute", TOOL["compute"], keys, said, value, value, evidence)
    ask, report, *must = say(text, f"{template.name}_{node.key}", **words).split(" => ")
    value = words[node.key]
    if at is None:
        said = say("training/minigaia", "search", ask=ask)
        evidence = (*(words[k] for k in node.needs), *must)
        return Fact(id, "search", TOOL["search"], keys, said, report, value, evidence)
    source, where = at
    said = say("training/minigaia", "page" if source == "page" else "read", ask=ask, at=where)
    file = "" if source == "page" else where
    return Fact(id, "read", TOOL[source], keys, said, report, value, (where, *must), file)
