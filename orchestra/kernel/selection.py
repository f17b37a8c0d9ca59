"""The most useful sentences of a history that is too long: the argmax of Eq. 20, chosen greedily.
memory.py says what is maximized.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from heapq import heappop, heappush
from typing import NamedTuple

from orchestra.kernel.prompts import tokens

SMALL_WORDS = """a an and are as at be by for from has have in is it its of on or that the this to
was were what when where which who will with"""
STOP_WORDS = frozenset(SMALL_WORDS.split())
LINE_TOKENS = 3  # of "- " before a line of C, " [...]" and the line break after it
HEAD = 0  # the number of the piece that names the sub-task and has its answer
Index = tuple[int, int]  # i, n: piece n of entry i


class Piece(NamedTuple):
    """A piece of one h that may be part of C: its head, or one sentence of its summary."""

    text: str
    terms: frozenset[str]  # its words, and the piece itself
    tokens: int
    worth: float  # what it adds to w(h) I(C;h)
    worth_of_term: float  # and each of its terms that C does not have yet


def pieces_of(texts: Sequence[str], weight: float) -> list[Piece]:
    """The pieces of an entry, its head and its sentences, as Eq. 20 weighs them."""
    half = weight / 2
    worth_of_term = half / len(frozenset().union(*map(_terms_of_piece, texts)))
    pieces = []
    for n, text in enumerate(texts):
        size = tokens(text) + 1 + (LINE_TOKENS if n == HEAD else 0)
        worth = half if n == HEAD else 0.0
        pieces.append(Piece(text, _terms_of_piece(text), size, worth, worth_of_term))
    return pieces


def choose(
    pieces: Sequence[Sequence[Piece]],
    question: str,
    left_tokens: int,
    always: Sequence[int],
) -> dict[Index, float]:
    """The heads of the entries `always`, and then, one by one, the fitting piece with the largest
    gain per token; on a tie, the earliest.

    A gain can only fall while C grows. So the candidates are a heap of gains that may be too high,
    and only the first one is counted again: the time is nearly linear in the text.
    """
    wanted = terms(question)
    found: dict[Index, float] = {}
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
            found[at] = gain(at)
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
    return found


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


def terms(text: str) -> frozenset[str]:
    """The content words of a text: what I(.;.) of Eq. 20 counts."""
    return frozenset(re.findall(r"\w+", text.lower())) - STOP_WORDS


@lru_cache(10_000)  # each round reads the sentences of all rounds before it
def _terms_of_piece(text: str) -> frozenset[str]:
    text = text.lower()
    return terms(text) | {" ".join(text.split())}
