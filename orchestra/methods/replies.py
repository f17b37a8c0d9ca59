"""The JSON object in a model's reply, however it was wrapped: in a code fence, after thinking, in
prose, as a tool call, or slightly broken. And the JSON schemas that ask for such replies.

    >>> find_action('<think>{"action": 1}</think> Here: ```json\\n{"action": "complete"}\\n```')
    {'action': 'complete'}
    >>> find_action('{"name": "finish", "arguments": "{\\\\"status\\\\": \\\\"done\\\\"}"}')
    {'action': 'finish', 'params': {'status': 'done'}}

Numbers keep their spelling:

    >>> as_text(find_action('{"action": "complete", "answer": 1.10}')["answer"])
    '1.10'
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from orchestra.kernel.prompts import THINK_END
from orchestra.kernel.vocabulary import ModelMistake

MAX_CHARS = 200_000  # a longer reply is cut: no decision is that long
MAX_OBJECTS = 200  # attempts to read an object
MAX_DEPTH = 64
THINK_START = r"<(?:(?:seed:)?think(?:ing)?|thought|reasoning)>|\[THINK\]|◁think▷"
OBJECT_START = re.compile(r"\{\s*(?:[\"'“}]|\w+[\"']?\s*:|\Z)")  # of JSON, not of LaTeX
# A tool call that is more than JSON, see calls.py; or an object
CALL = re.compile(
    r"(<(?:function=|invoke |tool_call>\s*[\w.-]|\|tool_call_begin|｜tool▁call▁begin)"
    rf"|\[TOOL_CALLS\]\s*\w)|{OBJECT_START.pattern}"
)
# A backslash of LaTeX, which JSON reads as a control character or not at all: \frac, \times, \rho,
# \neq, "\,". A line break before a word or a variable ("\nu = 3") stays one.
LATEX = re.compile(
    r"""(?<!\\)((?:\\\\)*)\\(?=
        [bfr][a-z] | u(?![0-9a-fA-F]{4}) | [^"\\/bfnrtu]
        | t(?:imes|heta|ext|au|frac|ilde|riangle|o(?![a-z])|an(?=[({\\]))
        | n(?:eq(?![a-z]|\ ?=)|abla|eg(?![a-z])|otin|mid|e(?=\ ?[\d\\$(-]))
        | nu(?=["$})_^.,\\]|\ [-+*/<>])
    )""",
    re.VERBOSE,
)
PARAMS = "params", "arguments", "parameters", "action_input", "args"
JsonSchema = dict[str, Any]
TEXT: JsonSchema = {"type": "string"}


class Spelled(float):
    """A number of JSON with a point or an exponent: its text is as the model wrote it."""

    def __init__(self, spelling: str) -> None:
        self.spelling = spelling

    def __str__(self) -> str:
        return self.spelling


DECODER = json.JSONDecoder(parse_float=Spelled, strict=False)


def as_text(value: Any) -> str:
    """A value of JSON as text; "" for null."""
    if value is None:
        return ""
    return value.strip() if isinstance(value, str) else as_json(value)


def as_json(value: Any) -> str:
    """A value as JSON, in which numbers keep their spelling."""
    if isinstance(value, dict):
        rows = [f"{as_json(key)}: {as_json(item)}" for key, item in value.items()]
        return f"{{{', '.join(rows)}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(as_json, value))}]"
    if isinstance(value, Spelled):
        return str(value)
    return json.dumps(value, ensure_ascii=False)


def find_action(reply: str, cut: bool = False) -> dict[str, Any]:
    """The last of the `actions` of a reply. Raises ModelMistake."""
    return actions(reply, cut)[-1]


def actions(reply: str, cut: bool = False) -> list[dict[str, Any]]:
    """The objects with an "action": of the valid JSON, or else of what json-repair finds, unless
    the reply was `cut` off or ends within its JSON: half a decision must not be guessed. A tool
    call, {"name", "arguments"}, is an action of that name. Raises ModelMistake if there is none.
    """
    text = _without_thinking(reply[:MAX_CHARS], cut)
    first = CALL.search(text)
    if first is not None and first[1] and not cut:
        from orchestra.methods import calls

        text = calls.as_objects(text)
    found = _actions(_objects(text))
    if not found and cut:
        raise ModelMistake("cut")
    found = found or _actions(_repaired_objects(text))
    if not found:
        raise ModelMistake("not_json", start=repr(text.strip()[:80]))
    return found


def objects(text: str) -> list[Any]:
    """The outermost JSON objects of a text, left to right; if none is valid, what json-repair finds
    from the first one on. Raises ModelMistake if the text ends within an object.
    """
    return _objects(text) or _repaired_objects(text)


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
    return outside if cut or "{" in outside or CALL.search(outside) else text


def _objects(text: str) -> list[Any]:
    """Every outermost JSON object, left to right, up to one that does not end."""
    text = LATEX.sub(r"\1\\\\", text[:MAX_CHARS])
    found = []
    position = 0
    for _ in range(MAX_OBJECTS):
        start = OBJECT_START.search(text, position)
        if start is None:
            break
        try:
            value, position = DECODER.raw_decode(text, start.start())
            found.append(value)
        except (ValueError, RecursionError) as error:
            rest = text[getattr(error, "pos", 0) :]
            if "Unterminated" in str(error) or "}" not in rest:
                break
            position = start.start() + 1
    return found


def _repaired_objects(text: str) -> list[Any]:
    """What json-repair finds from the first object on."""
    start = OBJECT_START.search(text)
    if start is None:
        return []
    if text[: start.start()].strip() and text[start.start() :].strip() == "{":
        return []  # prose that ends with a brace
    from orchestra.methods import repair  # seldom needed

    return repair.objects(LATEX.sub(r"\1\\\\", text[start.start() :]))


def _actions(values: Iterable[Any]) -> list[dict[str, Any]]:
    """{"action", "params", ...} of each value that is one; a tool call is an action of its name."""
    found = []
    for value in values:
        if not isinstance(value, dict):
            continue
        keys = [key for key in PARAMS if key in value]
        params = value[keys[0]] if keys else None
        if "action" not in value and "name" in value and (keys or len(value) == 1):
            value = {"action": value["name"]}
        if keys:
            value["params"] = _decoded(params) if isinstance(params, str) else params
        if "action" in value and shallow(value):
            found.append(_encodable(value))
    return found


def _decoded(params: str) -> Any:
    """Params that are a JSON string, even if it was encoded twice; another text stays as it is.
    Raises ModelMistake for half of one.
    """
    value: Any = params
    for _ in range(2):
        if isinstance(value, str):
            try:
                value = DECODER.decode(LATEX.sub(r"\1\\\\", value))
            except (ValueError, RecursionError):
                value = (_repaired_objects(value) or [value])[0]
    return value if isinstance(value, dict) else params


def shallow(value: Any, depth: int = MAX_DEPTH) -> bool:
    """Whether lists and objects are nested at most so deep, so that recursion is safe."""
    inside = value.values() if isinstance(value, dict) else value
    if not isinstance(value, dict | list):
        return True
    return depth > 0 and all(shallow(part, depth - 1) for part in inside)


def _encodable(value: dict[str, Any]) -> dict[str, Any]:
    """The same JSON with each half of a surrogate pair, as \\ud83d alone, replaced."""
    text = as_json(value).encode("utf-16", "surrogatepass")
    clean: dict[str, Any] = DECODER.decode(text.decode("utf-16", "replace"))
    return clean


# ---- schemas -------------------------------------------------------------------------------------


def closed_object(
    properties: dict[str, Any], required: Iterable[str] | None = None
) -> JsonSchema:
    """An object with these keys and no others; all are required by default."""
    needed = properties if required is None else required
    return {
        "type": "object",
        "properties": properties,
        "required": list(needed),
        "additionalProperties": False,
    }


def one_of(values: Iterable[str]) -> JsonSchema:
    return {"type": "string", "enum": list(values)}


def list_of(items: JsonSchema) -> JsonSchema:
    return {"type": "array", "items": items}


def const(value: str) -> JsonSchema:
    return {"type": "string", "const": value}
