"""What a run remembers: the history H_t (Eq. 19), and the part that a prompt shows, C_t (Eq. 20).

C_t is the most useful part that fits into L_ctx tokens: successful and recent entries count more,
and a repetition adds nothing. No model is called. The same history gives the same context.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

from orchestra.kernel.placing import in_program
from orchestra.kernel.prompts import say, tokens
from orchestra.kernel.vocabulary import FINISH, Evidence, Result, SubTask, Task

if TYPE_CHECKING:
    from orchestra.kernel.selection import Index, Piece

W_STATUS = {"done": 1.0, "partial": 0.7, "blocked": 0.3, "failed": 0.2}  # w(h)
W_AGE = 0.8  # w(h): each round of age takes a fifth
KEPT_FAILURES = 3  # the newest ones, which are always kept, with their reasons
REASON_CHARS = 300  # of an error or an instruction, where not everything fits
ANSWER_CHARS = 1200

SENTENCE_END = re.compile(r"\s(?:(?<=[.!?]\s)|(?<=\n))\s*")


# ---- Eq. 19 --------------------------------------------------------------------------------------


def summarize(u: SubTask, z: Result) -> Evidence:
    """Summarize(u, z) of Eq. 19. It keeps the opened files, but no other part of the trace."""
    return Evidence(
        round=z.round,
        id=u.id,
        instruction=u.instruction,
        backend=u.backend or "",
        tools=u.tools or (),
        status=z.status,
        answer=z.answer,
        summary=z.summary,
        error=z.error,
        media=z.media,
        steps=len(z.trace),
    )


def opened(z: Result, task: Task) -> tuple[str, ...]:
    """The names of the files that a sub-task has opened: its working steps name them."""
    found = []
    for step in z.trace:
        if not step.failed and step.action != FINISH:
            found += [task.file(str(value)) for value in step.params.values()]
            found += in_program(step.params, task)
    return tuple(m.name for m in task.media if m in found)


def weight(h: Evidence, newest_round: int) -> float:
    """w(h) of Eq. 20: successful and recent evidence weighs more."""
    age = newest_round - h.round
    return W_STATUS[h.status] * float(W_AGE**age)


def head_of(h: Evidence) -> str:
    """An entry of the history without its summary."""
    about = say(
        "notes",
        "evidence",
        id=h.id,
        round=h.round,
        status=h.status,
        steps=say("notes", "evidence_steps", steps=h.steps) if h.steps else "",
        instruction=h.instruction,
    )
    parts = [about]
    if h.answer:
        parts.append(say("notes", "evidence_answer", answer=h.answer))
    if h.error:
        parts.append(say("notes", "evidence_reason", reason=h.error))
    return " ".join(parts)


# ---- Eq. 20 --------------------------------------------------------------------------------------


def compress(question: str, history: Sequence[Evidence], limit_tokens: int) -> str:
    """C_{t+1}: argmax of I(C;q) + sum_h w(h) I(C;h) under |C| <= L_ctx (Eq. 20). If all of H fits,
    C is all of H. Otherwise it is chosen greedily, by gain per token.

    I(C;q) is the share of the question's terms that C covers. Half of I(C;h) is the share of h's
    terms that C covers; the other half counts if C has h's head. A sentence is chosen only after
    its head. Lines are in the order of H. Only the newest failures may exceed the limit.
    """
    if not history:
        return ""
    whole = [[head_of(h), *_sentences(h.summary)] for h in history]
    everything = "\n".join("- " + " ".join(texts) for texts in whole)
    if tokens(everything) <= limit_tokens:
        return everything
    pieces, chosen = select(question, history, limit_tokens)
    lines = []
    for i, of_entry in enumerate(pieces):
        kept = [piece.text for n, piece in enumerate(of_entry) if (i, n) in chosen]
        omission = "" if len(kept) == len(of_entry) else " [...]"
        if kept:
            lines.append("- " + " ".join(kept) + omission)
    if len(lines) < len(pieces):
        lines.append(say("notes", "left_out", count=len(pieces) - len(lines)))
    return "\n".join(lines)


def select(
    question: str, history: Sequence[Evidence], limit_tokens: int
) -> tuple[list[list[Piece]], dict[Index, float]]:
    """The pieces of each entry of H, and those that C has, each with its gain per token."""
    from orchestra.kernel.selection import choose, pieces_of

    newest = history[-1].round
    texts = [[_short_head_of(h), *_sentences(h.summary)] for h in history]
    weights = [weight(h, newest) for h in history]
    pieces = [pieces_of(*entry) for entry in zip(texts, weights, strict=True)]
    failed = [i for i, h in enumerate(history) if h.status in ("failed", "blocked")]
    note = say("notes", "left_out", count=len(history))
    left_tokens = limit_tokens - tokens(note) - 1
    always = failed[-KEPT_FAILURES:]
    return pieces, choose(pieces, question, left_tokens, always)


@lru_cache(10_000)
def _short_head_of(h: Evidence) -> str:
    short = replace(
        h,
        instruction=_cut(h.instruction, REASON_CHARS),
        answer=_cut(h.answer, ANSWER_CHARS),
        error=_cut(h.error, REASON_CHARS),
    )
    return head_of(short)


def _sentences(summary: str) -> list[str]:
    sentences = [sentence.strip() for sentence in SENTENCE_END.split(summary)]
    return [sentence for sentence in sentences if sentence]


def _cut(text: str, chars: int) -> str:
    text = " ".join(text.split())
    return text if len(text) <= chars else text[: chars - 6] + " [...]"


# ---- the fallback answer -------------------------------------------------------------------------


def best_supported_answer(history: Sequence[Evidence]) -> str:
    """The answer with the largest sum of w(h), on a tie the newest; "" if there is no answer."""
    votes: dict[str, float] = {}
    spelling: dict[str, str] = {}
    for h in reversed(history):
        key = " ".join(h.answer.lower().split())
        if key and h.status in ("done", "partial"):
            votes[key] = votes.get(key, 0.0) + weight(h, history[-1].round)
            spelling.setdefault(key, h.answer)
    best = max(votes, key=lambda key: votes[key], default="")
    return spelling.get(best, "")
