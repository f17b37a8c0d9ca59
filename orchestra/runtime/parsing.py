"""The JSON object in a model's reply, however it was wrapped. No text makes this raise anything but
ModelMistake.

>>> find_action('<think>{"action": 1}</think> Here: ```json\\n{"action": "complete"}\\n```')
{'action': 'complete'}
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any, SupportsIndex

from orchestra.vocabulary import ModelMistake

MAX_CHARS = 200_000  # a longer reply is cut: no decision is that long
MAX_OBJECTS = 200  # attempts to read an object
MAX_DEPTH = 64
REPAIR_CHARS = 25_000
REPAIR_READS = (
    50_000  # json-repair reads most texts twice, but takes quadratic time for some
)

THINK_START = r"<(?:(?:seed:)?think(?:ing)?|thought|reasoning)>|\[THINK\]|◁think▷"
THINK_END = r"</(?:(?:seed:)?think(?:ing)?|thought|reasoning)>|\[/THINK\]|◁/think▷"
_START = re.compile(r"\{\s*[\"}]")  # the start of a JSON object, not of LaTeX
_LATEX = re.compile(
    r"(?<!\\)((?:\\\\)*)\\(?=[bf][a-z])"
)  # \frac, \boxed: not \f, \b of JSON
_decoder = json.JSONDecoder()
TEXT: dict[str, Any] = {"type": "string"}  # JSON schema


def find_action(reply: str, cut: bool = False) -> dict[str, Any]:
    """The last of the `actions` of a reply. Raises ModelMistake."""
    return actions(reply, cut)[-1]


def actions(reply: str, cut: bool = False) -> list[dict[str, Any]]:
    """The objects with an "action" that are valid JSON; if there are none, what json-repair finds,
    unless the reply was `cut` off at its length limit: half a decision must not be guessed.

    A tool call, {"name", "arguments"}, is an action of that name. Params may be a JSON string.
    Raises ModelMistake.
    """
    text = _without_thinking(_LATEX.sub(r"\1\\\\", reply[:MAX_CHARS]), cut)
    found = _actions(_objects(text))
    if not found and not cut and "{" in text:
        value = _repaired(text[text.index("{") :])
        found = _actions(value if isinstance(value, list) else [value])
    if not found:
        if cut:
            raise ModelMistake("cut")
        raise ModelMistake("not_json", start=repr(text.strip()[:80]))
    return found


def shallow(value: Any) -> bool:
    """Whether lists and objects are nested at most MAX_DEPTH deep, so that recursion is safe."""
    level = [value]
    for _ in range(MAX_DEPTH):
        nested = (v for v in level if isinstance(v, dict | list))
        level = [v for n in nested for v in (n.values() if isinstance(n, dict) else n)]
        if not level:
            return True
    return False


def _actions(values: Iterable[Any]) -> list[dict[str, Any]]:
    found = []
    for value in values:
        if not isinstance(value, dict):
            continue
        named = "name" in value and (
            value.keys() & {"arguments", "parameters"} or len(value) == 1
        )
        if named and "action" not in value:
            params = value.get("arguments", value.get("parameters"))
            value = {"action": value["name"], "params": params}
        if "params" in value:
            value = {**value, "params": as_object(value["params"])}
        if "action" in value and shallow(value):
            found.append(_without_lone_surrogates(value))
    return found


def _without_lone_surrogates(value: Any) -> Any:
    """The same JSON with each half of a surrogate pair, as \\ud83d alone, replaced: it cannot be
    encoded.
    """
    text = json.dumps(value, ensure_ascii=False).encode("utf-16", "surrogatepass")
    return json.loads(text.decode("utf-16", "replace"))


def as_object(value: Any) -> Any:
    """A JSON string decoded, even if it was encoded twice; any other value unchanged."""
    for _ in range(2):
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except (ValueError, RecursionError):
                value = _repaired(value) or value
    return value


def after_thinking(reply: str) -> str:
    """The text after the thinking; some chat templates print only the closing tag."""
    return re.split(THINK_END, reply)[-1]


def _without_thinking(text: str, cut: bool) -> str:
    """The text outside the thinking; all of it if that has no JSON and was not cut off."""
    *thoughts, last = re.split(THINK_END, text)
    kept = [
        before
        for t in thoughts
        for before, *inside in [re.split(THINK_START, t)]
        if inside
    ]
    outside = "".join(kept) + (re.split(THINK_START, last)[0] if cut else last)
    return outside if cut or "{" in outside else text


def _objects(text: str) -> list[Any]:
    """Every outermost JSON object, left to right."""
    found, position = [], 0
    for _ in range(MAX_OBJECTS):
        if not (start := _START.search(text, position)):
            break
        try:
            value, position = _decoder.raw_decode(text, start.start())
            found.append(value)
        except (ValueError, RecursionError):
            position = start.start() + 1
    return found


def _repaired(text: str) -> Any:
    """Broken JSON, read by json-repair; None if it fails or the text is too long."""
    import json_repair  # seldom needed; takes 10 ms

    try:
        return json_repair.loads(_Metered(text)) if len(text) <= REPAIR_CHARS else None
    except (
        Exception
    ):  # it documents none; seen: AssertionError, RecursionError, ValueError
        return None


class _Metered(str):
    """A text that can be indexed REPAIR_READS times. With a time limit, a replay would depend on
    the machine.
    """

    reads = 0

    def __getitem__(self, key: SupportsIndex | slice) -> str:
        self.reads += 1
        if self.reads > REPAIR_READS:
            raise ValueError("read too often")
        return super().__getitem__(key)


# ---- JSON schemas of replies ---------------------------------------------------------------------


def closed_object(
    properties: dict[str, Any], required: Iterable[str] | None = None
) -> Any:
    """An object with these keys and no others; all are required by default."""
    needed = list(properties if required is None else required)
    closed = {"type": "object", "properties": properties, "required": needed}
    return {**closed, "additionalProperties": False}


def one_of(values: Iterable[str]) -> dict[str, Any]:
    return {"type": "string", "enum": list(values)}


def list_of(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


def const(value: str) -> dict[str, Any]:
    return {"type": "string", "const": value}
