#!/usr/bin/env python3
"""Mangled replies and runaway texts through everything that reads the text of a model.

python benchmarks/mangled_replies.py [N=100000] [BYTES=1000000]

N mutations of the replies in fixtures/: cuts, repetitions, nesting, unbalanced tags, fences and
brackets, control characters, halves of surrogate pairs. A reader may raise ModelMistake, or what
its docstring names; anything else ends the program. Then runaway texts of BYTES characters: each
reader may take LIMIT_S of processor time for each. Exits with 1 if one takes longer.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import common  # noqa: F401  the program on the path

from tests.mangled import READERS, cpu_s, mangled_replies, recorded_replies, runaway

LIMIT_S = 0.5  # processor time of one reader for one text
SHOWN = 12  # of the slowest


def measured(texts: Iterator[tuple[str, str]]) -> list[tuple[float, str, str]]:
    """Seconds, reader and text; the slowest first."""
    rows = []
    for name, text in texts:
        for reader, read in READERS.items():
            try:
                rows.append((cpu_s(read, text), reader, name))
            except BaseException:
                print(f"{reader} of {text[:300]!r}", file=sys.stderr)
                raise
    return sorted(rows, reverse=True)


def show(title: str, rows: list[tuple[float, str, str]]) -> None:
    print(f"{title}: {len(rows)} readings, the slowest:")
    for seconds, reader, name in rows[:SHOWN]:
        print(f"  {seconds:7.3f} s  {reader:24} {name}", flush=True)


def main(count: int, size: int) -> None:
    list(
        measured((text[:9], text) for text in recorded_replies()[:3])
    )  # imports what is needed
    runaways = measured(runaway(size))
    show(f"runaway texts of {size} characters", runaways)
    short = measured((repr(text[:30]), text) for text in mangled_replies(count))
    show(f"{count} mangled replies", short)
    slowest_s = max(runaways[0][0], short[0][0])
    print(f"mark: {LIMIT_S} s")
    sys.exit(slowest_s > LIMIT_S)


if __name__ == "__main__":
    main(*map(int, [*sys.argv[1:], *["100000", "1000000"][len(sys.argv) - 1 :]]))
