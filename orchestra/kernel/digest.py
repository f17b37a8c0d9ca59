"""What a sub-agent that ended without a report has seen, in a few lines for the main agent."""

from __future__ import annotations

from collections.abc import Sequence

from orchestra.kernel.prompts import (
    capped,
    cut_in_the_middle,
    quoted,
    say,
    without_marks,
)
from orchestra.kernel.vocabulary import Step

SHOWN_STEPS = 4  # the newest ones
DIGEST_CHARS = 300  # of an observation
Seen = tuple[int, Step]  # a step with an observation, and its number


def newest_steps(seen: Sequence[Seen], chars: int) -> list[str]:
    """A text of each of the newest observations, which are data, cut."""
    rows = []
    for number, step in seen[-SHOWN_STEPS:]:
        text = cut_in_the_middle(without_marks(step.observation), chars)
        shown = {"action": step.action, "observation": quoted(text, limit=2 * chars)}
        rows.append(say("trace_summary/messages", "step", number=number, **shown))
    return rows


def digest(seen: Sequence[Seen], memory: str) -> str:
    """The newest note and the newest observations. "" without an observation."""
    rows = newest_steps(seen, DIGEST_CHARS)
    if not rows:
        return ""
    parts = [say("trace_summary/messages", "digest", steps="\n".join(rows))]
    if memory:
        notes = without_marks(capped(memory, DIGEST_CHARS))
        parts.insert(0, say("trace_summary/messages", "notes", memory=notes))
    return "\n".join(parts)
