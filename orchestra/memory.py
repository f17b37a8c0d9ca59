"""What a run remembers: the history H_t, and the part of it that the next prompt shows, C_t.

Each result becomes one entry of the history (Eq. 19). The main agent does not read the whole
history. It reads C_t, the most useful part that fits into L_ctx tokens (Eq. 20): successful and
recent entries count more, and a repetition adds nothing. No model is called. The same history gives
the same context, so a prompt never depends on timing.

    >>> wording = Wording(
    ...     head=lambda h: f"{h.id}: {h.answer}",
    ...     left_out=lambda count: f"({count} left out)",
    ... )
    >>> summary = "The clock hangs on a town hall. It is a cloudy day, and few people walk by."
    >>> result = Result(status="done", answer="7:49", summary=summary, round=1)
    >>> history = [summarize(SubTask("t1", "Read the clock."), result)]
    >>> compress("Where is the clock?", history, wording)
    '- t1: 7:49 The clock hangs on a town hall. It is a cloudy day, and few people walk by.'
    >>> compress("Where is the clock?", history, wording, limit_tokens=25)
    '- t1: 7:49 The clock hangs on a town hall. [...]'
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import lru_cache
from heapq import heappop, heappush, heapreplace
from typing import NamedTuple

from orchestra.matching import in_program
from orchestra.vocabulary import FINISH, Evidence, Media, Result, SubTask, Task

L_CTX_TOKENS = 6000
W_STATUS = {"done": 1.0, "partial": 0.7, "blocked": 0.3, "failed": 0.2}  # w(h)
W_AGE = 0.8  # w(h): each round of age takes a fifth
KEPT_FAILURES = 3  # the newest ones, which are always kept, with their reasons
REASON_CHARS = 300  # of an error or an instruction, where not everything fits
ANSWER_CHARS = 1200
LINE_TOKENS = 3  # of "- " before a line of C, " [...]" and the line break after it
SENTENCES = 10_000  # whose terms are remembered
# English has more bytes in a token, CJK about 3: the estimate is high rather than low.
BYTES_PER_TOKEN = 3

SMALL_WORDS = """a an and are as at be by for from has have in is it its of on or that the this to
was were what when where which who will with"""
STOP_WORDS = frozenset(SMALL_WORDS.split())
WORD = re.compile(r"\w+")
# It begins with a white space, so that the search skips all else.
SENTENCE_END = re.compile(r"\s(?:(?<=[.!?]\s)|(?<=\n))\s*")


@dataclass(frozen=True)
class Wording:
    """How H_t is written. The sentences are in prompts/.

    `head` writes an entry without its summary. `left_out` says how many entries are left out.
    """

    head: Callable[[Evidence], str]
    left_out: Callable[[int], str]


class EvidenceMemory:
    """The program's Memory: H_t has every result, and C_t is the best part of it (Eq. 19-20)."""

    def __init__(self, wording: Wording) -> None:
        self.wording = wording

    def remember(
        self, history: tuple[Evidence, ...], subtask: SubTask, result: Result
    ) -> tuple[Evidence, ...]:
        """H_{t+1} = H_t + Summarize(u, z)."""
        return (*history, summarize(subtask, result))  # Eq. 19

    def context(self, question: str, history: tuple[Evidence, ...], limit: int) -> str:
        """C_{t+1}, of at most `limit` tokens."""
        return compress(question, history, self.wording, limit)  # Eq. 20


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
        steps=z.steps,
        trace_summary=z.trace_summary,
    )


def opened(z: Result, task: Task) -> tuple[str, ...]:
    """The names of the files that a sub-task has opened: its working steps name them."""
    found: list[Media | None] = []
    for step in z.trace:
        if not step.failed and step.action != FINISH:
            found += [task.file(str(value)) for value in step.params.values()]
            found += in_program(step.params, task)
    return tuple(m.name for m in task.media if m in found)


def weight(h: Evidence, newest_round: int) -> float:
    """w(h) of Eq. 20: successful and recent evidence weighs more."""
    age = newest_round - h.round
    return W_STATUS[h.status] * float(W_AGE**age)


# ---- Eq. 20: what is chosen ----------------------------------------------------------------------


def compress(
    question: str,
    history: Sequence[Evidence],
    wording: Wording,
    limit_tokens: int = L_CTX_TOKENS,
) -> str:
    """C_{t+1}: argmax of I(C;q) + sum_h w(h) I(C;h) under |C| <= L_ctx (Eq. 20). If all of H fits,
    C is all of H. Otherwise it is chosen greedily, by gain per token.

    I(C;q) is the share of the question's terms that C covers. Half of I(C;h) is the share of h's
    terms that C covers; the other half counts if C has h's head, which has the answer. A sentence
    counts as its words plus one extra term for the whole sentence. So a repeated sentence adds
    nothing, but a reordered one still does. A sentence is chosen only after its head, which names
    the sub-task. Lines are in the order of H; "[...]" marks omissions. Only the newest failures,
    with their reasons, may exceed the limit.

    Greedy is not always the best choice: over 1,000 random small histories it reached 0.983 of the
    best sum on average and 0.665 at worst (benchmarks/optimum.py).
    """
    return select(question, history, wording, limit_tokens).text


class Selection(NamedTuple):
    """C_{t+1}, and how it was chosen; None if all of H fits."""

    text: str
    choice: Choice | None = None


def select(
    question: str, history: Sequence[Evidence], wording: Wording, limit_tokens: int
) -> Selection:
    """C_{t+1} as `compress` describes it."""
    if not history:
        return Selection("")
    sentences_of = [_sentences(h.summary) for h in history]
    everything = _all_of(history, sentences_of, wording)
    if tokens(everything) <= limit_tokens:
        return Selection(everything)
    newest_round = history[-1].round
    pieces = []
    for h, sentences in zip(history, sentences_of, strict=True):
        pieces.append(_snippets(h, sentences, newest_round, wording))
    failed = [i for i, h in enumerate(history) if h.status in ("failed", "blocked")]
    note_tokens = tokens(wording.left_out(len(history))) + 1
    choice = Choice(
        pieces=pieces, wanted=terms(question), left_tokens=limit_tokens - note_tokens
    )
    choice.make(always=failed[-KEPT_FAILURES:])
    return Selection(_as_text(pieces, choice.chosen, wording), choice)


class Snippet(NamedTuple):
    """A piece of one h that may be part of C: the head with its answer, or one sentence of the
    summary. `terms`: its words, and the sentence itself.
    """

    text: str
    terms: Set[str]
    tokens: int  # including separators
    worth: float  # what it adds to w(h) I(C;h)
    worth_of_term: float  # and each of its terms that C does not have yet


Index = tuple[int, int]  # i, n: piece n of entry i
HEAD = 0  # the piece n that is the head of its entry


@dataclass
class Choice:
    """The greedy choice of Eq. 20: which pieces are part of C, and how many tokens are left.

    A gain can only fall while C grows. So `candidates` is a heap of gains that may be too high, and
    only the first one is counted again: the time is nearly linear in the text.
    """

    pieces: Sequence[Sequence[Snippet]]
    wanted: frozenset[str]  # the terms of the question
    left_tokens: int
    chosen: dict[Index, float] = field(default_factory=dict)  # and the gain of each
    covered: set[str] = field(default_factory=set)  # the terms that C has
    candidates: list[tuple[float, Index]] = field(default_factory=list)  # -gain

    def make(self, always: Sequence[int]) -> None:
        """Take the heads of the entries `always`, even if they do not fit. Then take, one by one,
        the fitting piece with the largest gain per token; on a tie, the earliest.
        """
        for i in always:
            self.take((i, HEAD))
        for i in range(len(self.pieces)):
            if i not in always:
                self.add((i, HEAD))
        smallest = min(s.tokens for snippets in self.pieces for s in snippets)
        while self.candidates and self.left_tokens >= smallest:
            before, best = self.candidates[0]
            if not self.fits(best):
                heappop(self.candidates)
                continue
            now = -self.gain(best)
            if now == before:
                heappop(self.candidates)
                self.take(best)
            else:
                heapreplace(self.candidates, (now, best))

    def take(self, at: Index) -> None:
        """Make a piece part of C. After a head, the sentences of its entry can be chosen."""
        i, n = at
        snippet = self.pieces[i][n]
        self.chosen[at] = self.gain(at)
        self.covered |= snippet.terms
        self.left_tokens -= snippet.tokens
        if n == HEAD:
            self.add_sentences(i)

    def add(self, at: Index) -> None:
        """Make a piece a candidate. (One that does not fit now will never fit.)"""
        if self.fits(at):
            heappush(self.candidates, (-self.gain(at), at))

    def add_sentences(self, i: int) -> None:
        """Make the sentences of an entry candidates. Of copies of a sentence, the first ones are
        chosen first: those that would not fit together are left out.
        """
        copies_tokens: dict[str, int] = {}  # by sentence
        for n, s in enumerate(self.pieces[i]):
            if n == HEAD:
                continue
            together = copies_tokens.get(s.text, 0) + s.tokens
            copies_tokens[s.text] = together
            if together <= self.left_tokens:
                self.add((i, n))

    def fits(self, at: Index) -> bool:
        i, n = at
        return self.pieces[i][n].tokens <= self.left_tokens

    def gain(self, at: Index) -> float:
        """How much a piece adds to the sum of Eq. 20, per token."""
        i, n = at
        s = self.pieces[i][n]
        new = s.terms - self.covered
        relevance = len(new & self.wanted) / max(1, len(self.wanted))  # I(C; q)
        evidence = s.worth + len(new) * s.worth_of_term  # w(h) I(C; h)
        return (relevance + evidence) / s.tokens  # Eq. 20


# ---- Eq. 20: the pieces of an entry --------------------------------------------------------------


def tokens(text: str) -> int:
    """An estimate that needs no tokenizer: UTF-8 bytes / 3, rounded up."""
    return math.ceil(len(text.encode()) / BYTES_PER_TOKEN)


def terms(text: str) -> frozenset[str]:
    """The content words of a text: what I(.;.) of Eq. 20 counts.

    >>> sorted(terms("The clock is in the town hall."))
    ['clock', 'hall', 'town']
    """
    return frozenset(WORD.findall(text.lower())) - STOP_WORDS


def _sentences(summary: str) -> list[str]:
    sentences = [sentence.strip() for sentence in SENTENCE_END.split(summary)]
    return [sentence for sentence in sentences if sentence]


def _snippets(
    h: Evidence, sentences: Sequence[str], newest_round: int, wording: Wording
) -> list[Snippet]:
    """The pieces of h as Eq. 20 weighs them. Long texts in the head are cut."""
    head = wording.head(_shortened(h))
    terms_of = {text: _terms_of_sentence(text) for text in {head, *sentences}}
    half = weight(h, newest_round) / 2
    worth_of_term = half / len(set().union(*terms_of.values()))

    def snippet(text: str, is_head: bool) -> Snippet:
        return Snippet(
            text=text,
            terms=terms_of[text],
            tokens=tokens(text) + 1 + (LINE_TOKENS if is_head else 0),
            worth=half if is_head else 0.0,
            worth_of_term=worth_of_term,
        )

    once = {text: snippet(text, is_head=False) for text in set(sentences)}
    return [snippet(head, is_head=True), *(once[text] for text in sentences)]


@lru_cache(SENTENCES)  # each round reads the sentences of all rounds before it
def _terms_of_sentence(text: str) -> frozenset[str]:
    """The content words, and one term for the whole sentence."""
    text = text.lower()
    return terms(text) | {" ".join(text.split())}


def _shortened(h: Evidence) -> Evidence:
    return replace(
        h,
        instruction=_cut(h.instruction, REASON_CHARS),
        answer=_cut(h.answer, ANSWER_CHARS),
        error=_cut(h.error, REASON_CHARS),
    )


def _cut(text: str, chars: int) -> str:
    text = " ".join(text.split())
    return text if len(text) <= chars else text[: chars - 6] + " [...]"


def _all_of(
    history: Sequence[Evidence], sentences_of: Sequence[Sequence[str]], wording: Wording
) -> str:
    """C, if all of H fits."""
    lines = []
    for h, sentences in zip(history, sentences_of, strict=True):
        texts = [wording.head(h), *sentences]
        lines.append(_as_line(texts, of=len(texts)))
    return "\n".join(lines)


def _as_text(
    pieces: Sequence[Sequence[Snippet]], chosen: Collection[Index], wording: Wording
) -> str:
    """C: one line an entry, and how many entries are left out."""
    lines = []
    for i, snippets in enumerate(pieces):
        kept = [s.text for n, s in enumerate(snippets) if (i, n) in chosen]
        if kept:
            lines.append(_as_line(kept, of=len(snippets)))
    left_out = len(pieces) - len(lines)
    if left_out > 0:
        lines.append(wording.left_out(left_out))
    return "\n".join(lines)


def _as_line(texts: Sequence[str], of: int) -> str:
    """The line of one entry that has `of` pieces."""
    omission = "" if len(texts) == of else " [...]"
    return "- " + " ".join(texts) + omission


# ---- the fallback answer -------------------------------------------------------------------------


def best_supported_answer(history: Sequence[Evidence]) -> str:
    """The answer with the largest sum of w(h), on a tie the newest; "" if there is no answer."""
    if not history:
        return ""
    newest_round = history[-1].round
    votes: dict[str, float] = {}
    spelling: dict[str, str] = {}
    for h in reversed(history):  # the newest is the first, and wins a tie
        key = " ".join(h.answer.lower().split())
        if key and h.status in ("done", "partial"):
            votes[key] = votes.get(key, 0.0) + weight(h, newest_round)
            spelling.setdefault(key, h.answer)
    if not votes:
        return ""
    best = max(votes, key=lambda key: votes[key])
    return spelling[best]
