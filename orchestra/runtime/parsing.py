"""The JSON object in a model's reply, however it was wrapped: in a code fence, after thinking, in
prose, as a tool call, or slightly broken. No text makes this raise anything but ModelMistake.

    >>> find_action('<think>{"action": 1}</think> Here: ```json\\n{"action": "complete"}\\n```')
    {'action': 'complete'}
    >>> find_action('{"name": "finish", "arguments": "{\\\\"status\\\\": \\\\"done\\\\"}"}')
    {'action': 'finish', 'params': {'status': 'done'}}
    >>> find_action("{'action': 'complete', 'params': {'answer': '4'}")
    {'action': 'complete', 'params': {'answer': '4'}}

JSON schemas, which ask for such replies, are in reply_schema.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any, SupportsIndex

from orchestra.vocabulary import ModelMistake

MAX_CHARS = 200_000  # a longer reply is cut: no decision is that long
MAX_OBJECTS = 200  # attempts to read an object
MAX_READ = 20 * MAX_CHARS  # of all attempts that fail
MAX_DEPTH = 64
REPAIR_CHARS = 25_000
# Of one reply. json-repair reads most texts twice, but takes quadratic time for some.
REPAIR_READS = 100_000

THINK_START = r"<(?:(?:seed:)?think(?:ing)?|thought|reasoning)>|\[THINK\]|◁think▷"
THINK_END = r"</(?:(?:seed:)?think(?:ing)?|thought|reasoning)>|\[/THINK\]|◁/think▷"
# The start of a JSON object, not of LaTeX
_OBJECT_START = re.compile(r"\{\s*[\"}]")
# The backslash of \frac or \boxed, which are not \f or \b of JSON
_LATEX = re.compile(r"(?<!\\)((?:\\\\)*)\\(?=[bf][a-z])")
_decoder = json.JSONDecoder()


def find_action(reply: str, cut: bool = False) -> dict[str, Any]:
    """The last of the `actions` of a reply. Raises ModelMistake."""
    return actions(reply, cut)[-1]


def actions(reply: str, cut: bool = False) -> list[dict[str, Any]]:
    """The objects with an "action" that are valid JSON; if there are none, what json-repair finds,
    unless the reply was `cut` off at its length limit: half a decision must not be guessed.

    A tool call, {"name", "arguments"}, is an action of that name. Params may be a JSON string.
    Raises ModelMistake.
    """
    text = _LATEX.sub(r"\1\\\\", reply[:MAX_CHARS])
    text = _without_thinking(text, cut)
    repair = _Repair()
    found = _actions(_objects(text), repair)
    if not found and not cut and "{" in text:
        repaired = repair(text[text.index("{") :])
        values = repaired if isinstance(repaired, list) else [repaired]
        found = _actions(values, repair)
    if not found and cut:
        raise ModelMistake("cut")
    if not found:
        raise ModelMistake("not_json", start=repr(text.strip()[:80]))
    return found


def objects(reply: str) -> list[Any]:
    """The outermost JSON objects of a text, left to right; if none is valid, what json-repair finds
    from the first brace on.
    """
    text = _LATEX.sub(r"\1\\\\", reply[:MAX_CHARS])
    found = _objects(text)
    if found or "{" not in text:
        return found
    repaired = _Repair()(text[text.index("{") :])
    return repaired if isinstance(repaired, list) else [repaired]


# ---- thinking ------------------------------------------------------------------------------------


def after_thinking(reply: str) -> str:
    """The text after the thinking; some chat templates print only the closing tag."""
    return re.split(THINK_END, reply)[-1]


def _without_thinking(text: str, cut: bool) -> str:
    """The text outside the thinking; all of it if that has no JSON and was not cut off."""
    *thoughts, last = re.split(THINK_END, text)
    kept = []
    for thought in thoughts:
        before, *inside = re.split(THINK_START, thought)
        if inside:  # without an opening tag, all of it is thinking
            kept.append(before)
    if cut:  # the thinking may not have ended
        last = re.split(THINK_START, last)[0]
    outside = "".join(kept) + last
    return outside if cut or "{" in outside else text


# ---- JSON in a text ------------------------------------------------------------------------------


def _objects(text: str) -> list[Any]:
    """Every outermost JSON object, left to right."""
    found = []
    position = 0
    read = 0
    for _ in range(MAX_OBJECTS):
        start = _OBJECT_START.search(text, position)
        if start is None or read > MAX_READ:
            break
        try:
            value, position = _decoder.raw_decode(text, start.start())
            found.append(value)
        except (ValueError, RecursionError) as error:
            position = start.start() + 1
            read += _end_of_reading(error, text) - position
    return found


def _end_of_reading(error: Exception, text: str) -> int:
    """How far the decoder has read at most. It reports an open string at its start."""
    is_open = "Unterminated" in str(error)
    if isinstance(error, json.JSONDecodeError) and not is_open:
        return error.pos
    return len(text)


class _Repair:
    """Reads broken JSON with json-repair. The texts of one reply can be indexed REPAIR_READS times
    together. With a time limit, a replay would depend on the machine.
    """

    def __init__(self) -> None:
        self.reads_left = REPAIR_READS

    def __call__(self, text: str) -> Any:
        """None if it fails, or if the text is too long."""
        import json_repair  # seldom needed; takes 10 ms

        if len(text) > REPAIR_CHARS or self.reads_left < 0:
            return None
        metered = _Metered(text)
        metered.repair = self
        try:
            return json_repair.loads(metered)
        except Exception:  # none is documented; seen: AssertionError, RecursionError
            return None


class _Metered(str):
    """A text that counts how often it is indexed."""

    repair: _Repair

    def __getitem__(self, key: SupportsIndex | slice) -> str:
        self.repair.reads_left -= 1
        if self.repair.reads_left < 0:
            raise ValueError("read too often")
        return super().__getitem__(key)


# ---- from JSON to actions ------------------------------------------------------------------------


def _actions(values: Iterable[Any], repair: _Repair) -> list[dict[str, Any]]:
    found = []
    for value in values:
        action = _as_action(value, repair)
        if action is not None:
            found.append(action)
    return found


def _as_action(value: Any, repair: _Repair) -> dict[str, Any] | None:
    """{"action", "params", ...}, or None for a value that is not an action."""
    if not isinstance(value, dict):
        return None
    if "action" not in value and _is_tool_call(value):
        params = value.get("arguments", value.get("parameters"))
        value = {"action": value["name"], "params": params}
    if "params" in value:
        value = {**value, "params": as_object(value["params"], repair)}
    if "action" not in value or not shallow(value):
        return None
    return _without_lone_surrogates(value)


def _is_tool_call(value: dict[str, Any]) -> bool:
    """Whether it has a name and arguments. A task may have a name, too, but no arguments."""
    if "name" not in value:
        return False
    return "arguments" in value or "parameters" in value or len(value) == 1


def as_object(value: Any, repair: _Repair) -> Any:
    """A JSON string decoded, even if it was encoded twice; any other value unchanged."""
    for _ in range(2):
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except (ValueError, RecursionError):
                value = repair(value) or value
    return value


def shallow(value: Any) -> bool:
    """Whether lists and objects are nested at most MAX_DEPTH deep, so that recursion is safe."""
    level = [value]
    for _ in range(MAX_DEPTH):
        below: list[Any] = []
        for outer in level:
            if isinstance(outer, dict):
                below += outer.values()
            elif isinstance(outer, list):
                below += outer
        if not below:
            return True
        level = below
    return False


def _without_lone_surrogates(value: dict[str, Any]) -> dict[str, Any]:
    """The same JSON with each half of a surrogate pair, as \\ud83d alone, replaced: it cannot be
    encoded.
    """
    text = json.dumps(value, ensure_ascii=False).encode("utf-16", "surrogatepass")
    clean: dict[str, Any] = json.loads(text.decode("utf-16", "replace"))
    return clean
