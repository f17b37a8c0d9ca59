"""The context of ToolOrchestra: what the experts have found so far. The main agent and the experts
read it. It has one block per kind, each with its own limit, so that no kind erases another.

    >>> kind_of("search2")
    'search'
"""

from __future__ import annotations

from collections.abc import Sequence

from orchestra.kernel.prompts import capped, closed, say
from orchestra.kernel.vocabulary import Evidence, State
from orchestra.methods.files_as_text import files_found

PROMPTS = "toolorchestra/messages"
# How much of the context each kind may take
CAP_CHARS = {"search": 16_000, "enhance_reasoning": 16_000, "answer": 2_000}
OLDER_CHARS = 1_000  # of older results, where the newest one takes all


def gathered(state: State) -> str:
    """The context: files, documents, reasoning, and answers that failed; the newest are kept."""
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
