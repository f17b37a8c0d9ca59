"""The JSON object in a model's reply, however it was wrapped. No text makes this raise anything but
ModelMistake.

>>> find_action('<think>{"action": 1}</think> Here: ```json\\n{"action": "complete"}\\n```')
{'action': 'complete'}
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from typing import Any, SupportsIndex

from orchestra.prompts import say
from orchestra.vocabulary import ModelMistake

MAX_CHARS = 200_000  # longer replies are cut: no decision is that long
MAX_TRIES = 200  # braces tried as the start of an object
REPAIR_CHARS = 50_000
REPAIR_READS = 200_000  # json-repair reads a character once or twice, or, lost, quadratically often

_OPEN, _CLOSE = r"<think(?:ing)?>", r"</think(?:ing)?>"
_START = re.compile(r"\{\s*[\"}]")  # of JSON: most other braces of a text, as LaTeX's, are not
_decoder = json.JSONDecoder()


def find_action(reply: str, cut: bool = False) -> dict[str, Any]:
    """The last object with an "action" that is valid JSON; else what json-repair makes of the
    reply, unless it was cut off at its length limit: half a decision is not what the model decided.

    Raises ModelMistake, which says how the reply began (or that it was cut off).
    """
    text = _without_thinking(reply[:MAX_CHARS], cut)
    objects = [_as_action(o) for o in _objects(text)]
    found = [o for o in objects if "action" in o] or ([] if cut else _repaired(text))
    with suppress(IndexError, RecursionError):  # none, or nested deeper than any decision
        action: dict[str, Any] = _whole_characters(found[-1])
        return action
    raise ModelMistake(
        say("mistakes", "cut")
        if cut
        else say("mistakes", "not_json", start=repr(text.strip()[:80]))
    )


def _as_action(value: dict[str, Any]) -> dict[str, Any]:
    """A tool call, {"name", "arguments"}, is an action of that name."""
    if "action" in value or not isinstance(value.get("name"), str) or "arguments" not in value:
        return value
    params = value["arguments"]
    with suppress(ValueError, RecursionError):
        params = json.loads(params) if isinstance(params, str) else params
    return {"action": value["name"], "params": params}


def behind_thinking(reply: str) -> str:
    """What stands behind the thinking; some templates print only its closing tag."""
    return re.split(_CLOSE, reply)[-1]


def _without_thinking(text: str, cut: bool) -> str:
    """What stands around the thinking, or the thinking itself where nothing does: not that of a
    reply which was cut off before it decided.
    """
    *thoughts, last = re.split(_CLOSE, text)
    kept: list[str] = []
    for thought in thoughts:
        before, *inside = re.split(_OPEN, thought)
        kept = [*kept, before] if inside else []  # some templates print only the closing tag
    outside = "".join(kept) + (re.split(_OPEN, last)[0] if cut else last)
    return outside if cut or "{" in outside else text


def _whole_characters(value: Any) -> Any:
    """`value` without half characters (\\ud83d alone): no file and no request takes one."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [_whole_characters(v) for v in value]
    if isinstance(value, dict):
        return {_whole_characters(k): _whole_characters(v) for k, v in value.items()}
    return value


def _objects(text: str) -> list[dict[str, Any]]:
    """Every outermost JSON object, left to right."""
    found = []
    position = 0
    for _ in range(MAX_TRIES):
        start = _START.search(text, position)
        if not start:
            break
        try:
            value, position = _decoder.raw_decode(text, start.start())
            found.append(value)
        except (ValueError, RecursionError):
            position = start.start() + 1
    return found


def _repaired(text: str) -> list[dict[str, Any]]:
    start = text.find("{")
    value = repaired(text[start:]) if start >= 0 else None
    values = value if isinstance(value, list) else [value]
    objects = [_as_action(v) for v in values if isinstance(v, dict)]
    return [o for o in objects if "action" in o]


def repaired(text: str) -> Any:
    """What json-repair makes of broken JSON; None where it gets lost."""
    import json_repair  # seldom needed, and a hundredth of a second to load

    try:
        return json_repair.loads(_Metered(text[:REPAIR_CHARS]))
    except (ValueError, RecursionError, _ReadTooOften):
        return None


class _ReadTooOften(Exception):
    pass


class _Metered(str):
    """A text that may be read REPAIR_READS times. A limit in seconds would make the outcome, and so
    a replay, depend on the machine.
    """

    reads = 0

    def __getitem__(self, key: SupportsIndex | slice) -> str:
        self.reads += 1
        if self.reads > REPAIR_READS:
            raise _ReadTooOften
        return super().__getitem__(key)
