"""How far a sweep is, in one line for each question that ends."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from orchestra.command import terminal
from orchestra.command.terminal import printable, usd
from orchestra.command.way_on import command
from orchestra.evaluation.questions import Question, QuestionRow
from orchestra.evaluation.sweep import Budget
from orchestra.evaluation.sweep_folder import newest

LINE_CHARS = 200


class Progress:
    """How far a sweep is. A question whose newest row failed is still to do."""

    def __init__(
        self, asked: Sequence[Question], past: Sequence[QuestionRow], budget: Budget
    ) -> None:
        rows = newest(past)
        done = [q for q in asked if is_done(rows.get(q.key))]
        self.todo = [q for q in asked if not is_done(rows.get(q.key))]
        self.asked = len(asked)
        self.budget = budget
        self.rows = len(done)
        self.done = len(done)
        self.right = sum(is_right(rows[q.key]) for q in done)
        self.ended = 0  # in this sweep
        self.began_s = time.monotonic()

    def after(self, row: QuestionRow) -> str:
        """One line about a question that has ended, and the sweep so far."""
        self.rows += 1
        self.ended += 1
        self.done += is_done(row)
        self.right += is_right(row)
        each_s = (time.monotonic() - self.began_s) / self.ended
        left_s = each_s * (self.asked - self.rows)
        so_far = f"{self.rows} of {self.asked} done, {self.right} right"
        spent = usd(self.budget.spent_usd)
        left = f", {left_s:.0f} s left" if left_s >= 1 else ""
        return f"{so_far}, {spent}{left} | {described(row)}"

    @property
    def all_done(self) -> bool:
        return self.done == self.asked

    def next_step(self, out: Path) -> str:
        """What to do after the sweep."""
        report = command(["evaluate", "report", out])
        if self.all_done:
            return f"next: {report}"
        count = self.asked - self.done
        again = "the same command again answers them"
        total_usd, each_usd = self.budget.total_usd, self.budget.least_usd
        if total_usd is not None and self.budget.is_exhausted:
            larger_usd = total_usd + max(count * each_usd, total_usd)
            again = f"the same command with --budget {larger_usd:.2g} goes on"
        missing = f"{count} of {self.asked} questions have no answer"
        return f"{missing}: {again}; what there is: {report}"


def is_done(row: QuestionRow | None) -> bool:
    return row is not None and row["status"] == "done"


def is_right(row: QuestionRow) -> bool:
    """By `match`; a failed row has no score."""
    return bool(row.get("match"))


def described(row: QuestionRow) -> str:
    """The row of a question as one line."""
    name = f"question {row['id']}"
    if row.get("repeat", 1) > 1:
        name = f"{name} (repeat {row['repeat']})"
    if row["status"] == "failed":
        return f"{name} failed: {row['why']}"
    if not row["answer"]:
        return f"{name}: no answer ({row['why']})"
    if is_right(row):
        return f"{name}: right, {row['answer']!r}"
    return f"{name}: wrong, {row['answer']!r} for {row['right']!r}"


def tell(line: str) -> None:
    """One line on standard error."""
    terminal.tell(printable(line)[:LINE_CHARS])
