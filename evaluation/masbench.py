"""Parameter problems along the five axes of MASBENCH (MAS-Orchestra, arXiv 2601.14652).

A problem defines counters by values and sums, modulo 23; a counter without a definition is 0. The
paper's generator is not public, this one is our own. With an axis at value v:

    depth       the longest chain of dependencies has v counters
    horizon     v values of one chain are asked for, and all must be right
    breadth     the counter that is asked for depends on v others
    parallel    v chains of two that share no counter; the end of each is asked for
    robustness  v counters of a chain are contradicted by a note in the text
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from orchestra.vocabulary import ConfigError
from runtime.prompts import say

AXES = ("depth", "horizon", "breadth", "parallel", "robustness")
MODULUS = 23
MOST = 12  # the largest value of an axis
FILE = "evaluation/masbench"
Terms = dict[str, int]  # counter -> factor


@dataclass
class Builder:
    """The sentences of one problem, and the value of each counter."""

    dice: random.Random
    sentences: list[str] = field(default_factory=list)
    values: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.unused = say(FILE, "names").split()
        self.dice.shuffle(self.unused)

    def value(self) -> str:
        name, value = self.unused.pop(), self.dice.randrange(MODULUS)
        self.values[name] = value
        self.sentences.append(say(FILE, "value", name=name, value=value))
        return name

    def formula(self, *names: str) -> str:
        """A counter that depends on these."""
        name, total, terms = self.unused.pop(), 0, []
        for other in names:
            factor = self.dice.randrange(1, MODULUS)
            total += factor * self.values.get(other, 0)
            terms.append(say(FILE, "term", name=other, factor=factor))
        self.values[name] = total % MODULUS
        self.sentences.append(say(FILE, "formula", name=name, terms=" + ".join(terms)))
        return name

    def chain(self, length: int) -> list[str]:
        names = [self.value()]
        while len(names) < length:
            names.append(self.formula(names[-1]))
        return names

    def contradict(self, name: str) -> None:
        claim = (self.values[name] + self.dice.randrange(1, MODULUS)) % MODULUS
        self.sentences.append(say(FILE, "note", name=name, value=claim))

    def text(self, asked: list[str]) -> str:
        self.dice.shuffle(self.sentences)
        ask = say(FILE, "several" if len(asked) > 1 else "one", names=", ".join(asked))
        return "\n".join([say(FILE, "rules"), *self.sentences, ask])


def problem(axis: str, value: int, dice: random.Random) -> tuple[str, list[int]]:
    """The text of a problem and its answer."""
    b = Builder(dice)
    match axis:
        case "depth":
            asked = b.chain(value)[-1:]
        case "horizon":
            asked = b.chain(value)
        case "breadth":
            asked = [b.formula(*(b.value() for _ in range(value - 1)), b.unused.pop())]
        case "parallel":
            asked = [b.chain(2)[-1] for _ in range(value)]
        case _:
            chain = b.chain(value)
            for name in chain:
                b.contradict(name)
            asked = chain[-1:]
    b.formula(b.unused.pop(), b.unused.pop())  # leads nowhere, and uses counters that are 0
    return b.text(asked), [b.values[name] for name in asked]


def problems(axis: str, values: range, count: int, seed: int = 0) -> Iterator[dict[str, str]]:
    """`count` questions for each value, as rows of a data file; the same seed gives the same."""
    for value in values:
        for number in range(1, count + 1):
            id = f"{axis}-{value}-{number}"
            text, answer = problem(axis, value, random.Random(f"{seed}/{id}"))
            assert solve(text) == answer, id
            row = {"id": id, "category": axis, "level": str(value), "question": text}
            yield row | {"answer": ", ".join(map(str, answer))}


def write(file: Path, axis: str, values: str, count: int, seed: int) -> None:
    """`problems` as JSON lines. `values`: 4, or 2..12. Raises ConfigError."""
    found = re.fullmatch(r"(\d+)(?:\.\.(\d+))?", values)
    low, high = (int(n or found[1]) for n in found.groups()) if found else (0, 0)
    if not 2 <= low <= high <= MOST:
        raise ConfigError(f"--value {values}: needs a number from 2 to {MOST}, or 2..{MOST}")
    rows = problems(axis, range(low, high + 1), count, seed)
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


# ---- an independent solver -----------------------------------------------------------------------


def read(text: str) -> tuple[dict[str, int | Terms], list[str]]:
    """The definition of each counter, and those that are asked for, from the text alone."""
    defined: dict[str, int | Terms] = {}
    *lines, ask = text.splitlines()
    for line in lines:
        if found := re.fullmatch(r"The counter (\w+) is (.*)\.", line):
            terms = re.findall(r"(\d+) times the counter (\w+)", found[2])
            defined[found[1]] = {n: int(f) for f, n in terms} if terms else int(found[2])
    asked = re.findall(r"\w+", re.split(r"of the counters? ", ask)[1].partition("?")[0])
    return defined, asked


def solve(text: str) -> list[int]:
    """The values that are asked for."""
    defined, asked = read(text)

    def value(name: str) -> int:
        terms = defined.get(name, 0)
        if isinstance(terms, int):
            return terms
        return sum(factor * value(n) for n, factor in terms.items()) % MODULUS

    return [value(name) for name in asked]
