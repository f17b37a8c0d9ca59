"""What a run remembers: the history H_t (Eq. 19), and the part that a prompt shows, C_t (Eq. 20).

C_t is the most useful part that fits into L_ctx tokens: successful and recent entries count more,
and a repetition adds nothing. No model is called. The same history gives the same context.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from heapq import heappop, heappush
from typing import NamedTuple

from orchestra.kernel.placing import in_program
from orchestra.kernel.prompts import say
from orchestra.kernel.vocabulary import FINISH, Evidence, Result, SubTask, Task

W_STATUS = {"done": 1.0, "partial": 0.7, "blocked": 0.3, "failed": 0.2}  # w(h)
W_AGE = 0.8  # w(h): each round of age takes a fifth
KEPT_FAILURES = 3  # the newest ones, which are always kept, with their reasons
REASON_CHARS = 300  # of an error or an instruction, where not everything fits
ANSWER_CHARS = 1200
LINE_TOKENS = 3  # of "- " before a line of C, " [...]" and the line break after it
BYTES_PER_TOKEN = (
    3  # English has more, CJK about 3: the estimate is high rather than low
)

SMALL_WORDS = """a an and are as at be by for from has have in is it its of on or that the this to
was were what when where which who will with"""
STOP_WORDS = frozenset(SMALL_WORDS.split())
SENTENCE_END = re.compile(r"\s(?:(?<=[.!?]\s)|(?<=\n))\s*")
HEAD = 0  # the number of the piece that names the sub-task and has its answer
Index = tuple[int, int]  # i, n: piece n of entry i


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


class Piece(NamedTuple):
    """A piece of one h that may be part of C: its head, or one sentence of its summary."""

    text: str
    terms: frozenset[str]  # its words, and the piece itself
    tokens: int
    worth: float  # what it adds to w(h) I(C;h)
    worth_of_term: float  # and each of its terms that C does not have yet


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
    pieces = [_pieces(h, history[-1].round) for h in history]
    failed = [i for i, h in enumerate(history) if h.status in ("failed", "blocked")]
    note = say("notes", "left_out", count=len(history))
    left_tokens = limit_tokens - tokens(note) - 1
    return pieces, _chosen(
        pieces, terms(question), left_tokens, failed[-KEPT_FAILURES:]
    )


def _chosen(
    pieces: Sequence[Sequence[Piece]],
    wanted: frozenset[str],
    left_tokens: int,
    always: Sequence[int],
) -> dict[Index, float]:
    """The heads of the entries `always`, and then, one by one, the fitting piece with the largest
    gain per token; on a tie, the earliest.

    A gain can only fall while C grows. So the candidates are a heap of gains that may be too high,
    and only the first one is counted again: the time is nearly linear in the text.
    """
    chosen: dict[Index, float] = {}
    covered: set[str] = set()  # the terms that C has

    def gain(at: Index) -> float:
        piece = pieces[at[0]][at[1]]
        new = piece.terms - covered
        relevance = len(new & wanted) / max(1, len(wanted))  # I(C; q)
        evidence = piece.worth + len(new) * piece.worth_of_term  # w(h) I(C; h)
        return (relevance + evidence) / piece.tokens  # Eq. 20

    heap: list[tuple[float, Index]] = []  # -gain
    to_take = [(i, HEAD) for i in always]
    candidates = [(i, HEAD) for i in range(len(pieces)) if i not in always]
    while to_take or candidates or heap:
        for at in to_take:
            chosen[at] = gain(at)
            piece = pieces[at[0]][at[1]]
            covered |= piece.terms
            left_tokens -= piece.tokens
            if at[1] == HEAD:
                candidates += _sentences_of(at[0], pieces[at[0]], left_tokens)
        to_take = []
        for at in candidates:
            heappush(heap, (-gain(at), at))
        candidates = []
        if not heap:
            break
        before, best = heappop(heap)
        if pieces[best[0]][best[1]].tokens > left_tokens:
            continue  # it will never fit
        if -gain(best) == before:
            to_take = [best]
        else:
            candidates = [best]
    return chosen


def _sentences_of(
    i: int, of_entry: Sequence[Piece], left_tokens: int
) -> Iterator[Index]:
    """The sentences of an entry. Of copies, those that would not fit together are left out."""
    copies_tokens: dict[str, int] = {}
    for n, piece in enumerate(of_entry):
        if n != HEAD:
            together = copies_tokens.get(piece.text, 0) + piece.tokens
            copies_tokens[piece.text] = together
            if together <= left_tokens:
                yield i, n


def _pieces(h: Evidence, newest_round: int) -> list[Piece]:
    """The pieces of h as Eq. 20 weighs them. Long texts in the head are cut."""
    texts = [_short_head_of(h), *_sentences(h.summary)]
    half = weight(h, newest_round) / 2
    worth_of_term = half / len(frozenset().union(*map(_terms_of_piece, texts)))
    pieces = []
    for n, text in enumerate(texts):
        size = tokens(text) + 1 + (LINE_TOKENS if n == HEAD else 0)
        worth = half if n == HEAD else 0.0
        pieces.append(Piece(text, _terms_of_piece(text), size, worth, worth_of_term))
    return pieces


@lru_cache(10_000)
def _short_head_of(h: Evidence) -> str:
    short = replace(
        h,
        instruction=_cut(h.instruction, REASON_CHARS),
        answer=_cut(h.answer, ANSWER_CHARS),
        error=_cut(h.error, REASON_CHARS),
    )
    return head_of(short)


def tokens(text: str) -> int:
    """An estimate that needs no tokenizer."""
    return math.ceil(len(text.encode()) / BYTES_PER_TOKEN)


def terms(text: str) -> frozenset[str]:
    """The content words of a text: what I(.;.) of Eq. 20 counts."""
    return frozenset(re.findall(r"\w+", text.lower())) - STOP_WORDS


@lru_cache(10_000)  # each round reads the sentences of all rounds before it
def _terms_of_piece(text: str) -> frozenset[str]:
    text = text.lower()
    return terms(text) | {" ".join(text.split())}


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
