"""Parameter problems along the five axes of MASBENCH (MAS-Orchestra, arXiv 2601.14652).

A problem defines counters by numbers and sums, modulo 23; a counter without a definition is 0. The
paper's generator is not public, this one is our own. With an axis at value v:

    depth       the longest chain of dependencies has v counters
    horizon     v counters of one component are asked for, and all must be right
    breadth     the counter that is asked for depends on v others
    parallel    v components that share no counter; one counter of each is asked for
    robustness  v of the 12 counters that the answer needs are poisoned: a note contradicts them

Only parallel moves a second quantity, the number of answers: components that share nothing have no
common answer. Everything else stays as it is while v grows; SHAPE says how.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from orchestra.command.flags import OneLineParser, run_program
from orchestra.curation import masbench_set
from orchestra.kernel.prompts import say
from orchestra.kernel.vocabulary import ConfigError

AXES = ("depth", "horizon", "breadth", "parallel", "robustness")
MODULUS = 23
MOST = 12  # the largest value of an axis
FILE = "evaluation/masbench"
# The graph of a robustness problem: CHAINS chains of LENGTH counters, and a sum of their ends. Its
# counters but the sum are as many as can be poisoned.
CHAINS = 4
LENGTH = 3

Claims = Mapping[str, int]  # the values that notes claim, by counter


class _Rules:
    """The counters of a problem, and the sentences about them."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.names = say(FILE, "names").split()  # not used yet
        self.numbers: dict[str, int] = {}
        self.sums: dict[str, list[tuple[int, str]]] = {}  # (factor, counter) each
        self.sentences: list[str] = []
        rng.shuffle(self.names)

    def number(self) -> str:
        """A new counter that is a number. Returns its name."""
        name = self.names.pop()
        self.numbers[name] = self.rng.randrange(MODULUS)
        self._say("definition", name=name, formula=self.numbers[name])
        return name

    def total(self, *needs: str) -> str:
        """A new counter that is a sum over others. Returns its name."""
        name = self.names.pop()
        terms = [(self.rng.randrange(1, MODULUS), need) for need in needs]
        self.sums[name] = terms
        spelled = [say(FILE, "term", name=need, factor=k) for k, need in terms]
        self._say("definition", name=name, formula=" + ".join(spelled))
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

    def value(self, name: str, claims: Claims | None = None) -> int:
        """The value of a counter, for someone who believes these claims."""
        if claims and name in claims:
            return claims[name]
        if name in self.numbers:
            return self.numbers[name]
        terms = self.sums.get(name, [])
        return sum(k * self.value(need, claims) for k, need in terms) % MODULUS

    def poison(self, names: Sequence[str], asked: str) -> None:
        """Add a note for each of these counters that claims another value. Who believes all the
        notes gets a wrong answer.
        """
        claims: dict[str, int] = {}
        while not claims or self.value(asked, claims) == self.value(asked):
            claims = {name: self._another_value(name) for name in names}
        for name, claim in claims.items():
            self._say("note", name=name, value=claim)

    def _another_value(self, name: str) -> int:
        return (self.value(name) + self.rng.randrange(1, MODULUS)) % MODULUS

    def _say(self, section: str, **values: Any) -> None:
        self.sentences.append(say(FILE, section, **values))


def problem(axis: str, value: int, rng: random.Random) -> tuple[str, list[int]]:
    """The text of a problem and its answer."""
    rules = _Rules(rng)
    asked = SHAPE[axis](rules, value)
    rules.total(rules.undefined(), rules.undefined())  # a distractor
    rng.shuffle(rules.sentences)
    ask = "several" if len(asked) > 1 else "one"
    question = say(FILE, ask, names=", ".join(asked))
    text = "\n".join([say(FILE, "rules"), *rules.sentences, question])
    return text, [rules.value(name) for name in asked]


# ---- the counters of each axis; a function returns the names of those that are asked for ---------


def _depth(rules: _Rules, value: int) -> list[str]:
    """One chain."""
    return rules.chain(value)[-1:]


def _horizon(rules: _Rules, value: int) -> list[str]:
    """A number, a counter that depends on it, and others that depend on that one: always 3 deep."""
    middle = rules.chain(2)[-1]
    return [middle, *(rules.total(middle) for _ in range(value - 1))]


def _breadth(rules: _Rules, value: int) -> list[str]:
    """A sum of numbers and of a counter without a definition: always 2 deep."""
    needs = [rules.number() for _ in range(value - 1)]
    return [rules.total(*needs, rules.undefined())]


def _parallel(rules: _Rules, value: int) -> list[str]:
    """Chains of two."""
    return [rules.chain(2)[-1] for _ in range(value)]


def _robustness(rules: _Rules, value: int) -> list[str]:
    """The same graph for each value; only the number of notes grows."""
    chains = [rules.chain(LENGTH) for _ in range(CHAINS)]
    asked = rules.total(*(chain[-1] for chain in chains))
    counters = [name for chain in chains for name in chain]
    rules.poison(rules.rng.sample(counters, value), asked)
    return [asked]


SHAPE = {
    "depth": _depth,
    "horizon": _horizon,
    "breadth": _breadth,
    "parallel": _parallel,
    "robustness": _robustness,
}


# ---- the command ---------------------------------------------------------------------------------


def write(file: Path, axes: Sequence[str], values: str, count: int, seed: int) -> None:
    """`count` problems for each axis and value (4, or 2..12) as questions in JSON lines; the same
    seed gives the same. Raises ConfigError.
    """
    lines: list[str] = []
    for axis in axes:
        for value in _range(values):
            for number in range(1, count + 1):
                lines.append(_line(axis, value, number, seed))
    file.write_text("".join(lines))


def _line(axis: str, value: int, number: int, seed: int) -> str:
    """A problem as a line of the file."""
    id = f"{axis}-{value}-{number}"
    text, answer = problem(axis, value, random.Random(f"{seed}/{id}"))
    row = {
        "id": id,
        "category": axis,
        "level": str(value),
        "question": text,
        "answer": ", ".join(map(str, answer)),
    }
    return f"{json.dumps(row)}\n"


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


def parser() -> argparse.ArgumentParser:
    p = OneLineParser(
        prog="orchestra-min masbench",
        description="Problems along the axes of MASBENCH.",
    )
    what = p.add_mutually_exclusive_group(required=True)
    what.add_argument("--axis", choices=(*AXES, "all"), help="write problems of ours")
    what.add_argument(
        "--public",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="write problems of Salesforce/MASBench, from its parquet files or JSON lines",
    )
    p.add_argument("--value", default="2..12", help="V or V..W (2..12)")
    p.add_argument("--n", type=int, default=10, help="problems for each value (10)")
    p.add_argument("--seed", type=int, default=0, help="(0)")
    p.add_argument("--out", type=Path, required=True, help="file to write")
    return p


def main(argv: Sequence[str]) -> int:
    """Returns the exit code."""
    p = parser()

    def work() -> None:
        a = p.parse_args(argv)
        if a.n < 1:
            p.error(f"--n {a.n}: needs a number above 0")
        if a.public:
            masbench_set.write(a.out, a.public, a.n, a.seed)
            return
        write(a.out, AXES if a.axis == "all" else [a.axis], a.value, a.n, a.seed)

    return run_program(p.prog, work)
