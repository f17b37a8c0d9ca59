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
from pathlib import Path
from typing import Any

from orchestra.runtime.command_line import OneLineParser, run_program
from orchestra.runtime.prompts import say
from orchestra.vocabulary import ConfigError

AXES = ("depth", "horizon", "breadth", "parallel", "robustness")
MODULUS = 23
MOST = 12  # the largest value of an axis
FILE = "evaluation/masbench"


class _Rules:
    """The counters of a problem, and the sentences about them."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.names = say(FILE, "names").split()  # not used yet
        self.values: dict[str, int] = {}
        self.sentences: list[str] = []
        rng.shuffle(self.names)

    def number(self) -> str:
        """A new counter that is a number. Returns its name."""
        name = self.names.pop()
        self.values[name] = self.rng.randrange(MODULUS)
        self._say("definition", name=name, formula=self.values[name])
        return name

    def total(self, *needs: str) -> str:
        """A new counter that is a sum over others. Returns its name."""
        name = self.names.pop()
        total = 0
        terms: list[str] = []
        for need in needs:
            factor = self.rng.randrange(1, MODULUS)
            total += factor * self.values.get(need, 0)
            terms.append(say(FILE, "term", name=need, factor=factor))
        self.values[name] = total % MODULUS
        self._say("definition", name=name, formula=" + ".join(terms))
        return name

    def undefined(self) -> str:
        """A name without a definition; its value is 0."""
        return self.names.pop()

    def chain(self, length: int) -> list[str]:
        """A number, and counters that each depend on the one before."""
        counters = [self.number()]
        while len(counters) < length:
            counters.append(self.total(counters[-1]))
        return counters

    def contradict(self, name: str) -> None:
        """Add a note that claims another value of a counter."""
        claim = (self.values[name] + self.rng.randrange(1, MODULUS)) % MODULUS
        self._say("note", name=name, value=claim)

    def _say(self, section: str, **values: Any) -> None:
        self.sentences.append(say(FILE, section, **values))


def problem(axis: str, value: int, rng: random.Random) -> tuple[str, list[int]]:
    """The text of a problem and its answer."""
    rules = _Rules(rng)
    asked = _asked(rules, axis, value)
    rules.total(rules.undefined(), rules.undefined())  # a distractor
    rng.shuffle(rules.sentences)
    ask = "several" if len(asked) > 1 else "one"
    question = say(FILE, ask, names=", ".join(asked))
    text = "\n".join([say(FILE, "rules"), *rules.sentences, question])
    return text, [rules.values[name] for name in asked]


def _asked(rules: _Rules, axis: str, value: int) -> list[str]:
    """Define the counters of an axis. Returns the names of those that are asked for."""
    if axis == "parallel":
        return [rules.chain(2)[-1] for _ in range(value)]
    if axis == "breadth":
        needs = [rules.number() for _ in range(value - 1)]
        return [rules.total(*needs, rules.undefined())]
    counters = rules.chain(value)
    if axis == "horizon":
        return counters
    if axis == "robustness":
        for name in counters:
            rules.contradict(name)
    return counters[-1:]


def write(file: Path, axis: str, values: str, count: int, seed: int) -> None:
    """`count` problems for each value (4, or 2..12) as questions in JSON lines; the same seed gives
    the same. Raises ConfigError.
    """
    lines: list[str] = []
    for value in _range(values):
        for number in range(1, count + 1):
            id = f"{axis}-{value}-{number}"
            text, answer = problem(axis, value, random.Random(f"{seed}/{id}"))
            row = {
                "id": id,
                "category": axis,
                "level": str(value),
                "question": text,
                "answer": ", ".join(map(str, answer)),
            }
            lines.append(f"{json.dumps(row)}\n")
    file.write_text("".join(lines))


def _range(values: str) -> range:
    """The values of --value: 4, or 2..12. Raises ConfigError."""
    low, _, high = values.partition("..")
    if low.isdecimal() and (high or low).isdecimal():
        found = range(int(low), int(high or low) + 1)
        if found and found[0] >= 2 and found[-1] <= MOST:
            return found
    raise ConfigError(
        f"--value {values}: needs a number from 2 to {MOST}, or 2..{MOST}"
    )


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

    return run_program(p.prog, work)
