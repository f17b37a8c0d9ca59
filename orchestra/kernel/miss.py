"""What a replay did not find on its tape, next to the most similar request of the same call."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestra.kernel.tape import TapeMiss, exchanges

DIFF_LINES = 40


def miss(path: Path, call: str, text: str) -> TapeMiss:
    """The miss of a tape; `text`: the request as JSON."""
    now = readable(json.loads(text))
    before = [readable(e.request) for e in exchanges(path) if e.call == call]
    if not before:
        problem = f"{path}: nothing is recorded for {call!r}; a resume makes this call"
        return TapeMiss(problem, differs=False)
    nearest = max(before, key=lambda lines: len(set(lines) & set(now)))
    if nearest == now:
        problem = f"{path}: {call!r} made the same request more often than recorded"
        return TapeMiss(problem, differs=False)
    diff = difflib.unified_diff(nearest, now, "recorded", "this run", n=1, lineterm="")
    problem = f"{path}: {call!r} differs from its recording"
    return TapeMiss("\n".join([problem, *list(diff)[:DIFF_LINES]]))


def readable(request: Mapping[str, Any]) -> list[str]:
    """The lines of a request: JSON whose texts have their line breaks."""
    text = json.dumps(request, sort_keys=True, ensure_ascii=False, indent=1)
    return text.replace("\\n", "\n").splitlines()
