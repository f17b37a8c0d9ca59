"""Parameter problems along the five axes of MASBENCH (MAS-Orchestra, arXiv 2601.14652).

A problem defines counters by numbers and sums, modulo 23; a counter without a definition is 0. The
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
from pathlib import Path

from orchestra.vocabulary import ConfigError
from runtime.prompts import say

AXES = ("depth", "horizon", "breadth", "parallel", "robustness")
MODULUS = 23
MOST = 12  # the largest value of an axis
FILE = "evaluation/masbench"
Formula = int | dict[str, int]  # a number, or the factor of each counter


def problem(axis: str, value: int, rng: random.Random) -> tuple[str, list[int]]:
    """The text of a problem and its answer."""
    names = say(FILE, "names").split()
    rng.shuffle(names)
    values: dict[str, int] = {}
    sentences: list[str] = []

    def define(*needs: str) -> str:
        """A new counter: a number, or a sum over others."""
        name, factors = names.pop(), {need: rng.randrange(1, MODULUS) for need in needs}
        number = sum(factor * values.get(need, 0) for need, factor in factors.items())
        values[name] = number % MODULUS if needs else rng.randrange(MODULUS)
        terms = [say(FILE, "term", name=need, factor=factor) for need, factor in factors.items()]
        formula = " + ".join(terms) or values[name]
        sentences.append(say(FILE, "definition", name=name, formula=formula))
        return name

    def chain(length: int) -> list[str]:
        counters = [define()]
        while len(counters) < length:
            counters.append(define(counters[-1]))
        return counters

    if axis == "parallel":
        asked = [chain(2)[-1] for _ in range(value)]
    elif axis == "breadth":
        asked = [define(*(define() for _ in range(value - 1)), names.pop())]
    else:
        counters = chain(value)
        asked = counters if axis == "horizon" else counters[-1:]
        for name in counters if axis == "robustness" else ():
            claim = (values[name] + rng.randrange(1, MODULUS)) % MODULUS
            sentences.append(say(FILE, "note", name=name, value=claim))
    define(names.pop(), names.pop())  # leads nowhere, and uses counters that are 0
    rng.shuffle(sentences)
    ask = say(FILE, "several" if len(asked) > 1 else "one", names=", ".join(asked))
    return "\n".join([say(FILE, "rules"), *sentences, ask]), [values[name] for name in asked]


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
    low, _, high = values.partition("..")
    ends = range(2, MOST + 1)
    numbers = range(int(low), int(high or low) + 1) if (low + high).isdecimal() else range(0)
    if not numbers or numbers[0] not in ends or numbers[-1] not in ends:
        raise ConfigError(f"--value {values}: needs a number from 2 to {MOST}, or 2..{MOST}")
    rows = problems(axis, numbers, count, seed)
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


# ---- an independent solver -----------------------------------------------------------------------


def read(text: str) -> tuple[dict[str, Formula], list[str]]:
    """The definition of each counter, and those that are asked for, from the text alone."""
    defined: dict[str, Formula] = {}
    for name, formula in re.findall(r"^The counter (\w+) is (.*)\.$", text, re.M):
        terms = re.findall(r"(\d+) times the counter (\w+)", formula)
        defined[name] = {need: int(factor) for factor, need in terms} or int(formula)
    asked = re.findall(r"\w+", re.findall(r"of the counters? (.*)\?", text)[-1])
    return defined, asked


def solve(text: str) -> list[int]:
    """The values that are asked for."""
    defined, asked = read(text)

    def value(name: str) -> int:
        formula = defined.get(name, 0)
        if isinstance(formula, int):
            return formula
        return sum(factor * value(need) for need, factor in formula.items()) % MODULUS

    return [value(name) for name in asked]
