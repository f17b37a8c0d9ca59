"""Decisions without a model, by one rule for every state: what a trained one must be better than.

question    the question, word for word, as one sub-task; Eq. 7 is to choose its tools
files       a sub-task for each file: its name and no more, the tool by its ending
places      a sub-task for each file and URL: the question without these, and the place; the tool
            by its ending, or the one for pages

None looks at what was found. These are rules one can think of, not the strongest there may be.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from runtime.prompts import say
from training.examples import Example
from training.reading import state_at
from training.templates import TOOL

_URL = re.compile(r"https?://[^\s()]*[^\s().,;:!?]")


def question(example: Example) -> str:
    return _delegated([{"task_instruction": state_at(example).task.question}])


def files(example: Example) -> str:
    """Without a file it completes with 0."""
    media = state_at(example).task.media
    return _delegated([{"task_instruction": m.name, "tools": [TOOL[m.modality]]} for m in media])


def places(example: Example) -> str:
    """Without a file and a URL it completes with 0."""
    task = state_at(example).task
    tool = {m.name: TOOL[m.modality] for m in task.media}
    tool |= dict.fromkeys(_URL.findall(task.question), TOOL["page"])
    named = sorted(tool, key=len, reverse=True)  # a name may stand in another
    words = re.sub("|".join(map(re.escape, named)), "", task.question) if named else ""
    ask = " ".join(words.split())
    rows = [(say("training/minigaia", "read", ask=ask, at=place), t) for place, t in tool.items()]
    return _delegated([{"task_instruction": said, "tools": [t]} for said, t in rows])


def _delegated(tasks: list[dict[str, Any]]) -> str:
    if not tasks:
        return json.dumps({"action": "complete", "reasoning": "", "params": {"answer": "0"}})
    return json.dumps({"action": "delegate_task", "reasoning": "", "params": {"tasks": tasks}})


POLICIES: dict[str, Callable[[Example], str]] = {
    "question": question,
    "files": files,
    "places": places,
}
