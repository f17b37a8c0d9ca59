"""The answers of a sweep, judged by a model without answering again.

    orchestra-min evaluate score sweeps/o1 --scorer omnigaia --judge gpt-5

DIR/scores/SCORER.jsonl gets a line for each answer; rows.jsonl stays as it is. The calls of a judge
are on a tape in the folder of each run, so the same command pays only for what is missing.
"""

from __future__ import annotations

import argparse
import json
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed, wait
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from orchestra.command import terminal
from orchestra.command.redact import Redact
from orchestra.command.terminal import printable, usd
from orchestra.command.way_on import command
from orchestra.evaluation.executors import MOST
from orchestra.evaluation.judge import RULES, forget_budget, judge_of, verdict
from orchestra.evaluation.questions import QuestionRow, accepted_of, key_of
from orchestra.evaluation.running import checked_pool
from orchestra.evaluation.scores import exact
from orchestra.evaluation.sweep_folder import (
    newest,
    rows_of,
    score_rows,
    scores_file,
    settings_of,
)
from orchestra.kernel.chat import Chat
from orchestra.kernel.folder import read_manifest, write_whole
from orchestra.kernel.money import DEFAULT_OUTPUT_TOKENS, Ledger, Purse, add_usd
from orchestra.kernel.tape import Answer, Tape, exchanges
from orchestra.kernel.vocabulary import (
    Backend,
    BudgetExceeded,
    ConfigError,
    EndpointError,
)

GRACE_S = 2.0  # after Ctrl-C: how long calls in flight may take to reach their tape
ScoreRow = dict[str, Any]  # a line of scores/SCORER.jsonl
FLAGS: dict[str, dict[str, Any]] = {  # of `score`
    "scorer": {
        "choices": RULES,
        "default": "judge",
        "help": "judge and omnigaia give verdicts, bare copies answers out of replies (judge)",
    },
    "judge": {
        "metavar": "MODEL",
        "help": "who judges: a backend, or another model at the endpoint (bare: the main model)",
    },
    "backends": {"type": Path, "help": "a pool of models, as docs/models.md says"},
    "budget": {"type": float, "help": "spending limit of all verdicts in USD"},
    "workers": {"type": int, "default": 8, "help": "verdicts in parallel (8)"},
    "timeout": {"type": float, "default": 120.0, "help": "of one attempt (120 s)"},
    "patience": {"type": float, "default": 120.0, "help": "at rate limits (120 s)"},
}


def score(a: argparse.Namespace) -> int:
    """Score a sweep by --scorer. Returns 1 if an answer has no verdict."""
    _check_flags(a)
    settings_of(a.folder)
    rows = [r for r in newest(rows_of(a.folder)).values() if r["status"] == "done"]
    if not rows:
        raise ConfigError(f"{a.folder} has no answers yet")
    _forget_missing(a.folder, a.scorer)
    scored = list(_by_judge(rows, _judging(a), a.workers))
    file = scores_file(a.folder, a.scorer)
    file.parent.mkdir(exist_ok=True)
    order = {key_of(row): n for n, row in enumerate(rows)}
    scored.sort(key=lambda row: order[key_of(row)])
    write_whole(file, "".join(f"{json.dumps(r, ensure_ascii=False)}\n" for r in scored))
    terminal.put(_summary(a.scorer, scored))
    missing = sum(row["score"] is None for row in scored)
    if missing:
        terminal.tell(
            f"once that is corrected, the same command asks for the {missing}"
        )
    terminal.tell(f"next: {command(['evaluate', 'report', a.folder])}")
    return 1 if missing else 0


def _forget_missing(folder: Path, scorer: str) -> None:
    """Take the calls off the tapes whose replies were all no verdict: they are made again. Where a
    call failed, the tape goes on after those that were answered.
    """
    rule = RULES[scorer]
    for row in score_rows(folder, scorer):
        tape = folder / "runs" / row["run"] / rule.tape
        if row["score"] is None:
            answered = [c for c in exchanges(tape) if isinstance(c.outcome, Answer)]
            if len(answered) == rule.attempts:
                tape.unlink()


def _check_flags(a: argparse.Namespace) -> None:
    """Raises ConfigError."""
    for name in ("budget", "workers", "timeout"):
        given = getattr(a, name)
        if given is not None and not given > 0:
            raise ConfigError(f"--{name} {given}: needs a number above 0")
    if a.judge is None and a.scorer != "bare":
        raise ConfigError(f"--scorer {a.scorer}: needs --judge MODEL")
    if a.workers > MOST:
        raise ConfigError(f"--workers {a.workers}: needs at most {MOST}")


def _summary(scorer: str, scored: Sequence[ScoreRow]) -> str:
    """What was found and what it cost, in one line."""
    right = sum(row["score"] is True for row in scored)
    missing = sum(row["score"] is None for row in scored)
    found = f"{scorer}: {right} of {len(scored)} answers right"
    if scorer == "bare":
        changed = sum(row["score"] not in (None, row["answer"]) for row in scored)
        found = f"bare: {changed} of {len(scored)} answers were shortened"
    if missing:
        reasons = [row["why"] for row in scored if row["score"] is None]
        what = "copy" if scorer == "bare" else "verdict"
        found = f"{found}, {missing} without a {what} ({printable(reasons[0])[:200]})"
    cost_usd = add_usd(*(row["cost_usd"] for row in scored))
    paid = usd(add_usd(*(row["paid_usd"] for row in scored)))
    now = "" if cost_usd is None else f", {paid} of it paid now"
    return f"{found}; {usd(cost_usd)}{now}"


def _question_of(row: QuestionRow, runs: Path) -> str:
    """Rows of earlier versions have no question; their run has it. Raises ConfigError."""
    found = row.get("question")
    return found or read_manifest(runs / row["run"]).question


# ---- verdicts ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Judging:
    """What all verdicts share. The ledger keeps them within --budget together."""

    scorer: str
    runs: Path
    judge: Backend
    ledger: Ledger
    timeout_s: float
    patience_s: float
    cancelled: threading.Event = field(default_factory=threading.Event)

    def scored(self, row: QuestionRow) -> ScoreRow:
        purse = Purse()  # the ledger has the limit of all verdicts
        why = "no reply of the model was a verdict"
        if self.scorer == "bare":
            why = "the model's copy is no part of the reply"
        found: bool | str | None = None
        try:
            found = self._verdict(row, purse)
        except (EndpointError, BudgetExceeded) as error:
            why = " ".join(str(error).split())
        return {
            "id": row["id"],
            "repeat": key_of(row)[1],
            "run": row["run"],
            "answer": row["answer"],
            "right": row.get("right", ""),
            "scorer": self.scorer,
            "judge": self.judge.model,
            "cost_usd": add_usd(*purse.costs),
            "paid_usd": add_usd(*purse.paid),
            "score": found,
            **({"why": why} if found is None else {}),
        }

    def _verdict(self, row: QuestionRow, purse: Purse) -> bool | str | None:
        """An empty answer needs no call, nor an exact one to be right. Raises EndpointError,
        BudgetExceeded, ConfigError.
        """
        rule = RULES[self.scorer]
        given: str = row["answer"].strip()
        accepted = accepted_of(row)
        is_bare = self.scorer == "bare"
        if not given:
            return "" if is_bare else False
        if not is_bare and exact(given, accepted):
            return True
        question = _question_of(row, self.runs)
        file = self.runs / row["run"] / rule.tape
        forget_budget(file)
        redact = Redact([self.judge.api_key_env])
        tape = Tape(file, "resume", redact=redact, cancelled=self.cancelled)
        with closing(tape):
            chat = Chat(tape, self.ledger, self.timeout_s, self.patience_s)
            found = verdict(rule, question, accepted, given, self.judge, chat, purse)
        return found if isinstance(found, bool) or _is_part(found, given) else None


def _is_part(found: str | None, given: str) -> bool:
    """Whether a bare answer was copied out of the reply: a model may invent one."""
    copied, reply = (
        " ".join((text or "").casefold().split()) for text in (found, given)
    )
    return copied != "" and copied in reply


def _judging(a: argparse.Namespace) -> _Judging:
    """Raises ConfigError."""
    pool = checked_pool(a.backends, None, a.budget)
    judge = judge_of(a.judge or pool.main, pool, a.budget)
    # One limit, with --budget and without: else the same verdict would be another request
    limit = judge.max_output_tokens or DEFAULT_OUTPUT_TOKENS
    return _Judging(
        scorer=a.scorer,
        runs=a.folder / "runs",
        judge=replace(judge, max_output_tokens=limit),
        ledger=Ledger(a.budget),
        timeout_s=a.timeout,
        patience_s=a.patience,
    )


def _by_judge(
    rows: Sequence[QuestionRow], judging: _Judging, workers: int
) -> Iterator[ScoreRow]:
    threads = ThreadPoolExecutor(workers, thread_name_prefix="verdict")
    futures: list[Future[ScoreRow]] = []
    try:
        futures = [threads.submit(judging.scored, row) for row in rows]
        for future in as_completed(futures):
            yield future.result()
    finally:
        judging.cancelled.set()
        threads.shutdown(wait=False, cancel_futures=True)
        wait(futures, timeout=GRACE_S)
