"""What a replay did not find on its tape, next to the most similar request of the same call."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

DIFF_LINES = 40
Request = Mapping[str, Any]


def told(
    path: Path, call: str, request: Request, before: Sequence[Request]
) -> tuple[str, bool]:
    """The message of a TapeMiss, and whether the tape holds another request of this call. `before`:
    those that the call made when it was recorded.
    """
    if not before:
        problem = f"{path}: nothing is recorded for {call!r}; a resume makes this call"
        return problem, False
    now = readable(request)
    recorded = map(readable, before)
    nearest = max(recorded, key=lambda lines: len(set(lines) & set(now)))
    if nearest == now:
        problem = f"{path}: {call!r} made the same request more often than recorded"
        return problem, False
    diff = difflib.unified_diff(nearest, now, "recorded", "this run", n=1, lineterm="")
    problem = f"{path}: {call!r} differs from its recording"
    return "\n".join([problem, *list(diff)[:DIFF_LINES]]), True


def readable(request: Request) -> list[str]:
    """The lines of a request: JSON whose texts have their line breaks."""
    text = json.dumps(request, sort_keys=True, ensure_ascii=False, indent=1)
    return text.replace("\\n", "\n").splitlines()
