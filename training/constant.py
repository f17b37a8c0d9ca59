"""Decisions without a model, by one rule for every state: what a trained one must be better than.

question    the question, word for word, as one sub-task; Eq. 7 is to choose its tools
files       a sub-task for each file: its name and no more, the tool by its ending
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from training.examples import Example
from training.reading import state_at
from training.templates import TOOL


def question(example: Example) -> str:
    return _delegated([{"task_instruction": state_at(example).task.question}])


def files(example: Example) -> str:
    """Without a file it completes with 0."""
    media = state_at(example).task.media
    if not media:
        return json.dumps({"action": "complete", "reasoning": "", "params": {"answer": "0"}})
    return _delegated([{"task_instruction": m.name, "tools": [TOOL[m.modality]]} for m in media])


def _delegated(tasks: list[dict[str, Any]]) -> str:
    return json.dumps({"action": "delegate_task", "reasoning": "", "params": {"tasks": tasks}})


POLICIES: dict[str, Callable[[Example], str]] = {"question": question, "files": files}
