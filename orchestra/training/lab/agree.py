"""Do the rules agree with a reader, and with a judge, on 200 decisions of the laboratory?

    python -m orchestra.training.lab.agree fixtures/lab/judged.jsonl
    python -m orchestra.training.lab.agree fixtures/lab/judged.jsonl --judge POOL.toml

If the file does not exist, the decisions are drawn into it, to be read: fill in `scores` by the
words of prompts/training/judge_scores.md. With --judge, the main backend of the pool scores them
too, by the same words; its calls are on tapes next to the file.

A rule gives parts in [0, 1], a reader whole points (App. B.4): 0 or 1, or 0 to 3. A part of a rule
becomes points by rounding, halves up.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np

from orchestra.runtime.command_line import OneLineParser, run_program
from orchestra.runtime.pool import load
from orchestra.seams import Reward, Scores
from orchestra.training.judge import ALPHA, LINES
from orchestra.training.lab.correlation import kappa, points, spearman
from orchestra.training.lab.judged import Judged, drawn, read, write
from orchestra.training.rewards import make
from orchestra.training.rubric import weighted
from orchestra.vocabulary import ConfigError

PROGRAM = "orchestra.training.lab.agree"
Parts = Mapping[str, float]  # of Eq. 29, each in [0, 1]
Scored = Sequence[Parts | None]  # of each decision, None without a score
MOST = {line.part: line.most for line in LINES.values()}
WORDS = ("exact", "rubric")  # that were judged by
PAIRS = (("exact", "exact"), ("rubric", "rubric"), ("rubric", "exact"))  # words, rule
COLUMNS = ("decisions", "same, %", "within a point, %", "kappa", "Spearman")
AT_ONCE = 8  # decisions that the judge scores in parallel


# ---- scores --------------------------------------------------------------------------------------


def of_reader(rows: Sequence[Judged], words: str) -> Scored:
    """The parts that a reader gave; None for a decision that was not read."""
    found: list[Parts | None] = []
    for row in rows:
        points = row.scores.get(words)
        if points is None:
            found.append(None)
        else:
            pairs = zip(MOST.items(), points, strict=True)
            found.append({part: given / most for (part, most), given in pairs})
    return found


def of_reward(rows: Sequence[Judged], reward: Reward) -> Scored:
    """The parts of a rule or a judge; None for a decision that it did not score."""

    def score(row: Judged) -> Parts | None:
        (scores,) = reward.score(row.example(), [row.completion()])
        return scores.parts if isinstance(scores, Scores) else None

    with ThreadPoolExecutor(AT_ONCE) as executor:
        return list(executor.map(score, rows))


def judge(pool: Path, words: str, tape: Path) -> Reward:
    """The main backend of a pool as the judge of App. B.4, with the words of a rule. Raises
    ConfigError for a pool that cannot be used.
    """
    backends = load(pool)
    backend = backends[backends.main]
    return make(
        "judge",
        base_url=backend.base_url,
        model=backend.model,
        api_key_env=backend.api_key_env,
        options=json.dumps(dict(backend.options)),
        cache=tape,
        rule=words,
    )


# ---- agreement -----------------------------------------------------------------------------------


class Comparison(NamedTuple):
    """Who is compared with whom. `rule` gives the weights of the reward."""

    title: str
    one: Scored
    other: Scored
    rule: str

    def both(self) -> list[tuple[Parts, Parts]]:
        """Of the decisions that both have scored."""
        pairs = zip(self.one, self.other, strict=True)
        return [(a, b) for a, b in pairs if a is not None and b is not None]

    def lines(self) -> list[str]:
        """The agreement, part by part, as rows of a Markdown table."""
        both = self.both()
        found = []
        for part, most in MOST.items():
            mine = [a[part] for a, _ in both]
            theirs = [b[part] for _, b in both]
            cells = _cells(mine, theirs, most)
            found.append(f"| {self.title} | {part} | {' | '.join(cells)} |")
        alpha = ALPHA[self.rule]
        mine = [weighted(a, alpha) for a, _ in both]
        theirs = [weighted(b, alpha) for _, b in both]
        ranked = spearman(np.array(mine), np.array(theirs))
        found.append(f"| {self.title} | reward | {len(both)} | | | | {ranked:.3f} |")
        return found

    def differing(self, rows: Sequence[Judged]) -> list[str]:
        """The decisions whose points differ, a line a part."""
        found = []
        for part, most in MOST.items():
            numbers = []
            for row, a, b in zip(rows, self.one, self.other, strict=True):
                if a is None or b is None:
                    continue
                mine, theirs = points([a[part], b[part]], most)
                if mine != theirs:
                    numbers.append(f"#{row.number} {mine:.0f}:{theirs:.0f}")
            if numbers:
                found.append(f"{self.title}, {part}: {', '.join(numbers)}")
        return found


def _cells(mine: Sequence[float], theirs: Sequence[float], most: int) -> list[str]:
    a, b = points(mine, most), points(theirs, most)
    gap = np.abs(a - b)
    return [
        str(len(mine)),
        f"{100 * (gap == 0).mean():.1f}",
        f"{100 * (gap <= 1).mean():.1f}" if most > 1 else "",
        f"{kappa(a, b):.3f}",
        f"{spearman(np.array(mine), np.array(theirs)):.3f}",
    ]


def table(comparisons: Sequence[Comparison]) -> str:
    """All comparisons, as Markdown."""
    lines = [f"| who is compared | part | {' | '.join(COLUMNS)} |"]
    lines.append("| --- | --- |" + " ---: |" * len(COLUMNS))
    for comparison in comparisons:
        lines += comparison.lines()
    return "\n".join(lines) + "\n"


# ---- the command ---------------------------------------------------------------------------------


def with_rules(
    rows: Sequence[Judged], who: str, by_words: Mapping[str, Scored]
) -> list[Comparison]:
    """The scores that someone gave by the words of each rule, and those of the rules."""
    rules = {rule: of_reward(rows, make(rule)) for _, rule in PAIRS}
    return [
        Comparison(
            f"rule `{rule}`, {who} with the words of `{words}`",
            rules[rule],
            by_words[words],
            rule,
        )
        for words, rule in PAIRS
    ]


def comparisons(
    file: Path, rows: Sequence[Judged], pool: Path | None
) -> list[Comparison]:
    """Reader and rules; with a pool also judge and rules, and judge and reader."""
    read_by = {words: of_reader(rows, words) for words in WORDS}
    found = with_rules(rows, "reader", read_by)
    if pool is None:
        return found
    judged_by = {}
    for words in WORDS:
        tape = file.with_suffix(f".{words}.jsonl")
        judged_by[words] = of_reward(rows, judge(pool, words, tape))
    found += with_rules(rows, "judge", judged_by)
    for words in WORDS:
        title = f"judge, reader, both with the words of `{words}`"
        found.append(Comparison(title, judged_by[words], read_by[words], words))
    return found


def run(arguments: Sequence[str] | None) -> None:
    parser = OneLineParser(
        prog=f"python -m {PROGRAM}",
        description="Agreement of rules, reader and judge; see docs/training.md.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "file", metavar="FILE", type=Path, help="as fixtures/lab/judged.jsonl"
    )
    parser.add_argument(
        "--judge",
        type=Path,
        metavar="POOL",
        help="the main backend of this pool file scores the decisions, too; its calls are "
        "recorded next to FILE, as NAME.exact.jsonl and NAME.rubric.jsonl, and not paid again",
    )
    flags = parser.parse_args(arguments)
    if not flags.file.exists():
        write(flags.file, drawn())
        print(f"{flags.file}: decisions to read; fill in `scores` and run this again")
        return
    rows = read(flags.file)
    if flags.judge is None and not any(row.scores for row in rows):
        raise ConfigError(f"{flags.file}: no row has scores; fill them in")
    found = [c for c in comparisons(flags.file, rows, flags.judge) if c.both()]
    print(table(found))
    for comparison in found:
        for line in comparison.differing(rows):
            print(line)


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    return run_program(PROGRAM, lambda: run(arguments))


if __name__ == "__main__":
    sys.exit(main())
