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
from collections.abc import Sequence
from itertools import product
from pathlib import Path

from orchestra.runtime.command_line import OneLineParser, ended
from orchestra.runtime.prompts import say
from orchestra.vocabulary import ConfigError

AXES = ("depth", "horizon", "breadth", "parallel", "robustness")
MODULUS = 23
MOST = 12  # the largest value of an axis
FILE = "evaluation/masbench"


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
        terms = [
            say(FILE, "term", name=need, factor=factor)
            for need, factor in factors.items()
        ]
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
    define(names.pop(), names.pop())  # a distractor: a sum of undefined counters
    rng.shuffle(sentences)
    ask = say(FILE, "several" if len(asked) > 1 else "one", names=", ".join(asked))
    return "\n".join([say(FILE, "rules"), *sentences, ask]), [
        values[name] for name in asked
    ]


def write(file: Path, axis: str, values: str, count: int, seed: int) -> None:
    """`count` problems for each value (4, or 2..12) as questions in JSON lines; the same seed gives
    the same. Raises ConfigError.
    """
    low, _, high = values.partition("..")
    asked = (
        range(int(low), int(high or low) + 1)
        if low and (low + high).isdecimal()
        else range(0)
    )
    if not asked or asked[0] < 2 or asked[-1] > MOST:
        raise ConfigError(
            f"--value {values}: needs a number from 2 to {MOST}, or 2..{MOST}"
        )
    lines = []
    for value, number in product(asked, range(1, count + 1)):
        id = f"{axis}-{value}-{number}"
        text, answer = problem(axis, value, random.Random(f"{seed}/{id}"))
        row = {"id": id, "category": axis, "level": str(value), "question": text}
        lines.append(json.dumps({**row, "answer": ", ".join(map(str, answer))}))
    file.write_text("\n".join([*lines, ""]))


def main(argv: Sequence[str]) -> int:
    """Write a file of problems. Returns the exit code."""
    p = OneLineParser(
        prog="orchestra-min masbench", description="Problems along an axis of MASBENCH."
    )
    p.add_argument("--axis", choices=AXES, required=True)
    p.add_argument("--value", default="2..12", help="V or V..W (2..12)")
    p.add_argument("--n", type=int, default=10, help="problems for each value (10)")
    p.add_argument("--seed", type=int, default=0, help="(0)")
    p.add_argument("--out", type=Path, required=True, help="file to write")

    def work() -> None:
        a = p.parse_args(argv)
        write(a.out, a.axis, a.value, a.n, a.seed)

    return ended(p.prog, work)
