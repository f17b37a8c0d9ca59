"""The JSON object in a model's reply, however it was wrapped. No text makes this raise anything but
ModelMistake.

>>> find_action('<think>{"action": 1}</think> Here: ```json\\n{"action": "complete"}\\n```')
{'action': 'complete'}
"""

from __future__ import annotations

import json
import re
from typing import Any

from orchestra.prompts import say
from orchestra.vocabulary import ModelMistake

MAX_CHARS = 200_000  # longer replies are cut: no decision is that long
MAX_TRIES = 200  # braces tried as the start of an object

_decoder = json.JSONDecoder()


def find_action(reply: str, cut: bool = False) -> dict[str, Any]:
    """The last object with an "action" that is valid JSON; else what json-repair makes of the
    reply.

    Raises ModelMistake, which says how the reply began (or that it was cut off).
    """
    text = _without_thinking(reply[:MAX_CHARS])
    found = [o for o in _objects(text) if "action" in o] or _repaired(text)
    if not found:
        raise ModelMistake(
            say("mistakes", "cut")
            if cut
            else say("mistakes", "not_json", start=repr(text.strip()[:80]))
        )
    return found[-1]


def _without_thinking(text: str) -> str:
    """What stands behind the thinking, or the thinking itself where nothing does."""
    outside = re.sub(r"<think(?:ing)?>.*?</think(?:ing)?>", "", text, flags=re.S)
    outside = re.split(r"</think(?:ing)?>", outside)[
        -1
    ]  # templates that print only the closing tag
    return outside if "{" in outside else text


def _objects(text: str) -> list[dict[str, Any]]:
    """Every outermost JSON object, left to right."""
    found = []
    position = 0
    for _ in range(MAX_TRIES):
        position = text.find("{", position)
        if position < 0:
            break
        try:
            value, position = _decoder.raw_decode(text, position)
            found.append(value)
        except (ValueError, RecursionError):
            position += 1
    return found


def _repaired(text: str) -> list[dict[str, Any]]:
    start = text.find("{")
    if start < 0:
        return []
    import json_repair  # seldom needed, and a hundredth of a second to load

    try:
        value = json_repair.loads(text[start : start + MAX_CHARS // 4])
    except (ValueError, RecursionError):
        return []
    values = value if isinstance(value, list) else [value]
    return [v for v in values if isinstance(v, dict) and "action" in v]
