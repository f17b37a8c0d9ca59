#!/usr/bin/env python3
"""Problems of MASBENCH, https://huggingface.co/datasets/Salesforce/MASBench (Apache 2.0,
arXiv 2601.14652), as questions that `orchestra-min evaluate` reads.

    python benchmarks/masbench.py MASBench/depth/test-*.parquet --n 10 --out depth.jsonl

A folder for each axis (and `combine`, a mixture for training) has train-*.parquet and
test-*.parquet. Each row has these texts:

    prompt_json        the chat messages of the problem, a list of {"role", "content"}
    reward_model_json  {"ground_truth": ...}; several answers have <<horizon>> between them
    extra_info_json    what the problem was made from, such as its index
    axis, value        `combine` has no value
    data               what it was made from; not used here

The program downloads nothing: name files that you have. A problem is asked in its own words. Only
if it has several answers, a last sentence says how to write them.
"""

from __future__ import annotations

import argparse
import heapq
import json
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from orchestra.command.flags import OneLineParser
from orchestra.command.programs import run_program
from orchestra.evaluation.question_files import items
from orchestra.kernel.vocabulary import ConfigError

SEPARATOR = "<<horizon>>"
SEVERAL = "Reply with the {count} answers alone, in the order of the problems, separated by commas."
COLUMNS = "prompt_json", "reward_model_json", "axis", "value"  # that a question needs
Row = dict[str, str]  # a question as a line of a file


def question(row: Mapping[str, Any], number: int) -> Row:
    """A row of the set as a question. Raises ValueError."""
    try:
        messages = json.loads(row["prompt_json"])
        truth = json.loads(row["reward_model_json"])["ground_truth"]
        texts = [str(message["content"]).strip() for message in messages]
        axis = str(row["axis"])
    except (KeyError, TypeError, ValueError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise ValueError(f"is not a row of Salesforce/MASBench ({reason})") from None
    text = "\n\n".join(part for part in texts if part)
    answers = [answer.strip() for answer in str(truth).split(SEPARATOR)]
    if not text or not all(answers):
        raise ValueError("has no problem or no answer")
    if len(answers) > 1:
        count = len(answers)
        text = f"{text}\n\n{SEVERAL.format(count=count)}"
    return {
        "id": f"{axis}-{row.get('value') or 'all'}-{number}",
        "category": axis,
        "level": str(row.get("value") or ""),
        "question": text,
        "answer": ", ".join(answers),
    }


def write(file: Path, sources: Sequence[Path], count: int, seed: int) -> None:
    """At most `count` problems for each axis and value, chosen by the seed, as JSON lines. No other
    problem is kept in memory. Raises ConfigError.
    """
    samples: dict[tuple[str, str], Sample] = {}
    for number, row in enumerate(_rows(sources), 1):
        group = row["category"], row["level"]
        if group not in samples:
            rng = random.Random(f"{seed}/{row['category']}/{row['level']}")
            samples[group] = Sample(count, rng)
        samples[group].offer(number, row)
    lines = [json.dumps(row) for sample in samples.values() for row in sample.rows()]
    if not lines:
        raise ConfigError(f"{sources[0]}: has no problem in it")
    file.write_text("\n".join([*lines, ""]))


class Sample:
    """`count` rows of those that are offered, each with the same probability: every row draws a
    number, and the largest ones stay.
    """

    def __init__(self, count: int, rng: random.Random) -> None:
        self.count = count
        self.rng = rng
        self.kept: list[
            tuple[float, int, Row]
        ] = []  # a heap: what was drawn, and the row's number

    def offer(self, number: int, row: Row) -> None:
        heapq.heappush(self.kept, (self.rng.random(), number, row))
        if len(self.kept) > self.count:
            heapq.heappop(self.kept)

    def rows(self) -> list[Row]:
        """The rows that stayed, in the order of the files."""
        in_order = sorted(self.kept, key=lambda kept: kept[1])
        return [row for _, _, row in in_order]


def _rows(sources: Sequence[Path]) -> Iterator[Row]:
    """The problems of all files, one at a time. Raises ConfigError."""
    number = 0
    for source in sources:
        for item in items(source, COLUMNS):
            number += 1
            try:
                yield question(item if isinstance(item, dict) else {}, number)
            except ValueError as error:
                raise ConfigError(f"{source}: row {number} {error}") from None


# ---- the command ---------------------------------------------------------------------------------


def parser() -> argparse.ArgumentParser:
    p = OneLineParser(
        prog="masbench.py",
        description="Writes problems of Salesforce/MASBench as questions.",
    )
    p.add_argument(
        "files", type=Path, nargs="+", metavar="FILE", help="Parquet or JSON"
    )
    p.add_argument(
        "--n", type=int, default=10, help="problems for each axis and value (10)"
    )
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
        write(a.out, a.files, a.n, a.seed)

    return run_program(p.prog, work)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
