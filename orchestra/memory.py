"""H_t, the compressed context C_t under L_ctx tokens, and when to stop (Eq. 19, 20, 22).

No model is called: the same history gives the same context, so a prompt never depends on timing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from orchestra.prompts import say
from orchestra.vocabulary import Evidence, Result, SubTask, Task

L_CTX_TOKENS = 6000
W_STATUS = {
    "done": 1.0,
    "partial": 0.7,
    "blocked": 0.3,
    "failed": 0.2,
}  # w(h): successful evidence counts more
W_AGE = 0.8  # w(h): each round of age takes a fifth
KEPT_FAILURES = 3  # the reasons of the newest failures are kept whatever they weigh
REASON_CHARS = 300
BYTES_PER_TOKEN = 3  # low for English, about right for CJK: the budget errs on the safe side

_STOP = frozenset(
    [
        "a",
        "an",
        "and",
        "are",
        "as",
        "at",
        "be",
        "by",
        "for",
        "from",
        "has",
        "have",
        "in",
        "is",
        "it",
        "its",
        "of",
        "on",
        "or",
        "that",
        "the",
        "this",
        "to",
        "was",
        "were",
        "what",
        "when",
        "where",
        "which",
        "who",
        "will",
        "with",
    ]
)


def tokens(text: str) -> int:
    """An estimate that needs no tokenizer: UTF-8 bytes / 3, rounded up."""
    return math.ceil(len(text.encode()) / BYTES_PER_TOKEN)


def terms(text: str) -> frozenset[str]:
    """The content words of a text: what I(.;.) of Eq. 20 counts."""
    return frozenset(w for w in re.findall(r"\w+", text.lower()) if w not in _STOP)


def summarize(round: int, u: SubTask, z: Result, task: Task) -> Evidence:
    """Summarize(u, z) of Eq. 19: the trace is left behind, but for the files it opened with success."""
    named = {str(v) for step in z.trace if not step.failed for v in step.params.values()}
    opened = tuple(m.name for m in task.media if m.name in named)
    executor = u.backend or "", u.tools or ()
    return Evidence(
        round, u.id, u.instruction, *executor, z.status, z.answer, z.summary, z.error, opened
    )


def weight(h: Evidence, newest_round: int) -> float:
    """w(h) of Eq. 20: up-weights successful and recent evidence."""
    return W_STATUS[h.status] * float(W_AGE ** (newest_round - h.round))


# ---- Eq. 20 --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Snippet:
    """A piece of one h that C may take or leave: the head with its answer, or one sentence of the
    summary.
    """

    owner: int  # index into H
    text: str
    terms: frozenset[str]


def compress(question: str, history: Sequence[Evidence], limit_tokens: int = L_CTX_TOKENS) -> str:
    """C_{t+1}: argmax of I(C;q) + sum_h w(h) I(C;h) under |C| <= L_ctx, greedily by gain per token
    (Eq. 20).

    I(C;q) is the share of the question's terms that C covers, I(C;h) the share of h's. Coverage has
    diminishing returns, so a sentence said before is worth little. Lines stand in the order of H;
    "[...]" marks what was left out.
    """
    if not history:
        return ""
    newest = history[-1].round
    weights = [weight(h, newest) for h in history]
    wanted = terms(question)
    snippets = [s for i, h in enumerate(history) for s in _snippets(i, h)]
    own_terms = [
        frozenset().union(*(s.terms for s in snippets if s.owner == i)) for i in range(len(history))
    ]
    chosen = set(_failure_heads(history, snippets))
    left = limit_tokens - sum(tokens(snippets[j].text) + 1 for j in chosen)
    covered = frozenset().union(*(snippets[j].terms for j in chosen))

    def gain(s: Snippet) -> float:
        new = s.terms - covered
        value = len(new & wanted) / max(1, len(wanted))  # I(C; q)
        value += weights[s.owner] * len(new) / max(1, len(own_terms[s.owner]))  # w(h) I(C; h)
        return value / (tokens(s.text) + 1)

    while open_ := [
        j for j, s in enumerate(snippets) if j not in chosen and tokens(s.text) + 1 <= left
    ]:
        best = max(
            open_, key=lambda j: (gain(snippets[j]), -j)
        )  # Eq. 20: marginal relevance per token
        if gain(snippets[best]) <= 0:
            break
        chosen.add(best)
        covered |= snippets[best].terms
        left -= tokens(snippets[best].text) + 1
    return _lay_out(history, snippets, chosen)


def _snippets(owner: int, h: Evidence) -> list[Snippet]:
    head = f"[{h.id}, round {h.round}, {h.status}] {_clip(h.instruction, REASON_CHARS)}"
    head += f" => {_clip(h.answer, 4 * REASON_CHARS)}" if h.answer else ""
    head += f" (reason: {_clip(h.error, REASON_CHARS)})" if h.error else ""
    sentences = [s for s in re.split(r"(?<=[.!?])\s+|\n+", h.summary) if s.strip()]
    return [Snippet(owner, text, terms(text)) for text in (head, *sentences)]


def _clip(text: str, chars: int) -> str:
    text = " ".join(text.split())
    return text if len(text) <= chars else text[: chars - 6] + " [...]"


def _failure_heads(history: Sequence[Evidence], snippets: Sequence[Snippet]) -> list[int]:
    failed = [i for i, h in enumerate(history) if h.status in ("failed", "blocked")][
        -KEPT_FAILURES:
    ]
    first = {s.owner: j for j, s in reversed(list(enumerate(snippets)))}
    return [first[i] for i in failed]


def _lay_out(history: Sequence[Evidence], snippets: Sequence[Snippet], chosen: set[int]) -> str:
    lines = []
    for i in range(len(history)):
        mine = [j for j, s in enumerate(snippets) if s.owner == i]
        kept = [snippets[j].text for j in mine if j in chosen]
        if kept:
            lines.append("- " + " ".join(kept) + ("" if len(kept) == len(mine) else " [...]"))
    dropped = len(history) - len(lines)
    return "\n".join([*lines, say("notes", "left_out", count=dropped)] if dropped else lines)


# ---- the answer when no more may be asked, and Eq. 22 --------------------------------------------


def best_supported_answer(history: Sequence[Evidence]) -> str:
    """The answer with the most evidence behind it: the largest sum of w(h), the newest on a tie; ""
    without any.
    """
    votes: dict[str, float] = {}
    spelled: dict[str, str] = {}
    for h in history:
        if h.answer and h.status in ("done", "partial"):
            key = " ".join(h.answer.lower().split())
            votes[key] = votes.pop(key, 0.0) + weight(
                h, history[-1].round
            )  # re-inserted: the newest stands last
            spelled[key] = h.answer
    return spelled[max(reversed(votes), key=lambda k: votes[k])] if votes else ""


def stop_probability(logprobs: Sequence[dict[str, object]] | None) -> float | None:
    """p_stop(s_t) = p(a_t = complete | s_t), Eq. 22, from the decision's token log-probabilities.

    `logprobs` is `choices[0].logprobs.content` of a chat completion whose text holds `"action":
    "..."`.
    The action is told apart by its first letters: the product of the probabilities of the tokens of
    `complete` if that was said, else what the alternatives at the first token of `delegate_task`
    gave
    to `c...`. None: the endpoint gave no log-probabilities or the text has no action.
    """
    text = "".join(str(entry["token"]) for entry in logprobs or ())
    match = re.search(r'"action"\s*:\s*"(?=(complete|delegate_task)")', text)
    if not match or not logprobs:
        return None
    position, said = 0, match[1]
    log_p = 0.0
    for entry in logprobs:
        token = str(entry["token"])
        start, position = position, position + len(token)
        if position <= match.end():
            continue
        if start >= match.end() + len(said):
            break
        if said == "delegate_task":
            prefix = text[
                start : match.end()
            ]  # what of the token stands before the action's first letter
            return _mass_of_complete(entry, prefix)
        log_p += float(entry["logprob"])  # type: ignore[arg-type]
    return math.exp(log_p)  # Eq. 22


def _mass_of_complete(entry: dict[str, object], prefix: str) -> float:
    """The probability that the first token of the action would have begun `complete`."""
    alternatives = entry.get("top_logprobs") or []
    assert isinstance(alternatives, list)
    begins = [
        a
        for a in alternatives
        if (word := str(a["token"]).removeprefix(prefix)) and "complete".startswith(word)
    ]
    return sum(math.exp(float(a["logprob"])) for a in begins)
