"""The context of ToolOrchestra: what the experts have found so far. The main agent and the experts
read it. It has one block per kind, each with its own limit, so that no kind erases another.

    >>> kind_of("search2")
    'search'
"""

from __future__ import annotations

from collections.abc import Sequence

from orchestra.methods.files_as_text import files_found
from orchestra.runtime.prompts import capped, closed, say, without_marks
from orchestra.runtime.texts import Texts
from orchestra.vocabulary import Evidence, State

PROMPTS = "toolorchestra/messages"
# How much of the context each kind may take
CAP_CHARS = {"search": 16_000, "enhance_reasoning": 16_000, "answer": 2_000}
OLDER_CHARS = 1_000  # of older results, where the newest one takes all


def gathered(state: State, texts: Texts | None = None, for_expert: bool = False) -> str:
    """The context: files, documents, reasoning, and answers that failed; the newest are kept.
    `texts`: in the user's words, which may be others `for_expert`.
    """
    if texts:
        return _gathered_in(texts, state, for_expert)
    blocks = [files_found(state)]
    for kind in CAP_CHARS:
        found = [h for h in state.history if kind_of(h.id) == kind]
        blocks.append(_block(kind, found))
    return "\n\n".join(block for block in blocks if block)


def _block(kind: str, found: Sequence[Evidence]) -> str:
    """The results of one kind, and below them why searches failed."""
    rows: list[str] = []
    failures: list[str] = []
    for h in found:
        text = h.answer or _without_answer(h)
        has_nothing = not h.answer and not h.summary
        if kind == "search" and has_nothing:
            failures.append(text)
        else:
            row = say(PROMPTS, f"{kind}_row", n=len(rows) + 1, text=text)
            rows.append(row)
    blocks = failures
    if rows:
        shown = _fitted(rows, CAP_CHARS[kind])
        blocks = [say(PROMPTS, f"{kind}_block", rows=shown), *failures]
    return "\n\n".join(blocks)


def _fitted(rows: Sequence[str], limit: int) -> str:
    """The rows; if they are too long together, the newest one, and what fits of the older ones."""
    together = "\n\n".join(rows)
    if len(together) <= limit:
        return closed(together)
    *older, newest = rows
    kept = [capped(newest, limit)]
    left = max(limit - len(newest), OLDER_CHARS)
    for row in reversed(older):
        if left > 0:
            kept.append(capped(row, left))
        left -= len(row)
    return "\n\n".join(reversed(kept))


def _without_answer(h: Evidence) -> str:
    """Why an expert gave no answer, and the summary of what it had found."""
    if not h.summary:
        return say(PROMPTS, "failed", id=h.id, error=h.error)
    return say(
        PROMPTS,
        "unfinished",
        id=h.id,
        steps=h.steps,
        error=h.error,
        summary=h.summary,
    )


def kind_of(id: str) -> str:
    """The tool of a sub-task."""
    return id.rstrip("0123456789")


# ---- in the user's texts -------------------------------------------------------------------------


def _gathered_in(texts: Texts, state: State, for_expert: bool) -> str:
    blocks = [files_found(state)]
    for kind in CAP_CHARS:
        of_kind = [h for h in state.history if kind_of(h.id) == kind]
        found = [h for h in of_kind if h.answer or h.summary]
        limit = None
        if kind == "search" and not for_expert:
            limit = texts.layout.limits.document_chars or None
        rows = []
        for number, h in enumerate(_newest_in(found, CAP_CHARS[kind]), 1):
            text = without_marks(h.answer or h.summary)[:limit]
            rows.append({"n": number, "text": text, "model": h.backend})
        own = f"expert_{kind}"
        has_own = for_expert and f"{own}_row" in texts.layout.pieces
        blocks.append(texts.rows(own if has_own else kind, rows))
        for h in of_kind:
            if h not in found:
                default = say(PROMPTS, "failed", id=h.id, error=h.error)
                blocks.append(texts.piece("failed", default, id=h.id, error=h.error))
    context = texts.piece("context_join", "\n\n").join(filter(None, blocks))
    return context.strip() if for_expert else context


def _newest_in(found: Sequence[Evidence], limit: int) -> Sequence[Evidence]:
    """The newest results that fit the limit together, and at least the newest one."""
    lengths = [len(h.answer or h.summary) for h in found]
    first = 0
    while first < len(found) - 1 and sum(lengths[first:]) > limit:
        first += 1
    return found[first:]
