#!/usr/bin/env python3
"""How far the greedy choices are from the best ones, by brute force: the batch of Eq. 10 (exact up
to 15 ready sub-tasks, greedy beyond) and the context of Eq. 20 (greedy).

python benchmarks/optimum.py [CASES]    10,000 cases of each; a few minutes
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable, Sequence
from itertools import combinations, product

import common  # noqa: F401  the program on the path

from orchestra.kernel.memory import select
from orchestra.kernel.placing import EXACT, batch
from orchestra.kernel.selection import Piece, choose, terms
from orchestra.kernel.vocabulary import Evidence, SubTask

WORDS = [
    "red",
    "blue",
    "green",
    "scored",
    "won",
    "lost",
    "two",
    "three",
    "four",
    "game",
    "clock",
    "prague",
    "time",
    "seven",
    "night",
]


def batch_ratio(draw: random.Random, n: int) -> float:
    """Utility of the chosen batch over that of the best one."""
    utility, cost = ([draw.randint(1, 20) for _ in range(n)] for _ in range(2))
    budget, k_max = draw.randint(20, 60), draw.randint(1, 8)
    subtasks = [SubTask(str(i), "?", priority=float(utility[i])) for i in range(n)]
    chosen = batch(subtasks, k_max, float(budget), [float(c) for c in cost])
    sizes = range(min(k_max, n) + 1)
    subsets = (s for size in sizes for s in combinations(range(n), size))
    best = max(
        sum(utility[i] for i in s) for s in subsets if sum(cost[i] for i in s) <= budget
    )
    return sum(u.priority for u in chosen) / best


def context_ratio(draw: random.Random) -> float:
    """The objective of Eq. 20 of the chosen pieces over that of the best ones."""

    def text(words: int) -> str:
        return " ".join(draw.choices(WORDS, k=words)) + "."

    def result(n: int) -> Evidence:
        summary = " ".join(text(draw.randint(2, 12)) for _ in range(draw.randint(0, 3)))
        answer, round = text(draw.randint(1, 6)), 1 + n // 2
        return Evidence(round, f"t{n}", text(4), "b", (), "done", answer, summary)

    history = [result(n) for n in range(draw.randint(2, 4))]
    question = "What time is it in Prague?"
    pieces, _ = select(question, history, 0)
    wanted = terms(question)
    room = draw.randint(30, sum(s.tokens for mine in pieces for s in mine))

    def value(kept: Iterable[tuple[int, int]]) -> float:
        parts = [pieces[i][n] for i, n in kept]
        covered = frozenset[str]().union(*(s.terms for s in parts))
        worth = sum(s.worth for s in parts)
        for mine in pieces:
            of_h = frozenset[str]().union(*(s.terms for s in mine))
            worth += len(covered & of_h) * mine[0].worth_of_term
        return worth + len(covered & wanted) / len(wanted)

    fit = (
        c
        for c in _all_choices(pieces)
        if sum(pieces[i][n].tokens for i, n in c) <= room
    )
    best = max(map(value, fit))
    greedy = choose(pieces, question, room, always=())
    return value(greedy) / best if best else 1.0


def _all_choices(pieces: Sequence[Sequence[Piece]]) -> list[set[tuple[int, int]]]:
    """Every set of pieces in which each sentence has its head."""

    def of(i: int, mine: Sequence[Piece]) -> list[set[tuple[int, int]]]:
        rest = range(1, len(mine))
        some = [s for size in range(len(mine)) for s in combinations(rest, size)]
        return [set(), *({(i, 0), *((i, n) for n in s)} for s in some)]

    each = [of(i, mine) for i, mine in enumerate(pieces)]
    return [set().union(*parts) for parts in product(*each)]


def main() -> None:
    cases, draw = int([*sys.argv, "10000"][1]), random.Random(7)
    for name, ratios in (
        (
            "Eq. 10, at most 15",
            [batch_ratio(draw, draw.randint(1, 12)) for _ in range(cases)],
        ),
        (
            "Eq. 10, 16 to 18",
            [batch_ratio(draw, draw.randint(EXACT + 1, 18)) for _ in range(400)],
        ),
        ("Eq. 20", [context_ratio(draw) for _ in range(cases // 10)]),
    ):
        worst, mean = min(ratios), sum(ratios) / len(ratios)
        print(
            f"{name}: {len(ratios)} cases, mean {mean:.3f} of the best, worst {worst:.3f}"
        )


if __name__ == "__main__":
    main()
