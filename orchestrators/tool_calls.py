"""The tool call in a reply, in every form in which Orchestrator-8B's calls arrive.

    <tool_call>{"name": "search", "arguments": {"model": "search-1"}}</tool_call>

`arguments` may be a JSON string, even twice, the closing tag may be missing, thinking and prose may
stand around it; a good call after broken ones counts, and without any, what json-repair makes of
one behind a tag. Calls in the endpoint's own `tool_calls` come as the same text
(orchestra/replies.py).

    >>> read_call('<tool_call>{"name": "search", "arguments": {"model": "search-1"}}',
    ...           {"search": ("search-1",)})
    ('search', 'search-1')
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from orchestra.parsing import MAX_CHARS, MAX_TRIES, behind_thinking, repaired
from orchestra.prompts import say
from orchestra.vocabulary import ModelMistake

_decoder = json.JSONDecoder()
MAX_MENDED = 5  # tags: what is behind one may take json-repair a tenth of a second
Decode = Callable[[str], Any]
_FENCE = re.compile(r"\s*```(?:json)?")


def read_call(
    reply: str, slots: Mapping[str, Collection[str]], cut: bool = False
) -> tuple[str, str]:
    """(tool, slot) of the first usable call; `slots` are those of each tool.

    Raises ModelMistake for what is wrong with the first one, where none is usable; or that the
    reply was `cut` off at its length limit.
    """
    text = behind_thinking(reply[:MAX_CHARS])
    ways = ((_decoded, MAX_TRIES), (_mended, MAX_MENDED))
    for decode, tries in ways[:1] if cut else ways:  # half a call is not what the model decided
        mistakes = []
        for row in _rows(text, decode, tries):
            try:
                return _checked(row, slots, decode)
            except ModelMistake as mistake:
                mistakes.append(mistake)
    if cut:
        raise ModelMistake(say("mistakes", "cut"))
    if mistakes:
        raise mistakes[0]
    raise _mistake("no_call", start=repr(text.strip()[:80]))


def _rows(text: str, decode: Decode, tries: int) -> Iterator[Any]:
    """What stands behind each <tool_call>; without a tag, a bare object with a name."""
    tagged = text.split("<tool_call>", tries)[1:tries]
    for part in tagged or [text[text.find("{") :] if "{" in text else ""]:
        start = _FENCE.match(part)
        row = (decode if tagged else _decoded)(part[start.end() :] if start else part)
        for call in row if isinstance(row, list) else [row]:
            if tagged or (isinstance(call, dict) and "name" in call):
                yield call


def _decoded(text: str) -> Any:
    """The JSON value that `text` begins with, or None."""
    try:
        return _decoder.raw_decode(text.lstrip())[0]
    except (ValueError, RecursionError):
        return None


def _mended(text: str) -> Any:
    """The same of broken JSON: single quotes, a comma too many, a brace too few."""
    found = _decoded(text)
    return repaired(text.split("</tool_call>")[0]) if found is None else found


def _checked(row: Any, slots: Mapping[str, Collection[str]], decode: Decode) -> tuple[str, str]:
    if not isinstance(row, dict):
        raise _mistake("broken_call")
    name, arguments = row.get("name"), row.get("arguments", row.get("parameters"))
    if not isinstance(name, str) or name.strip() not in slots:
        raise _mistake("unknown_function", name=repr(name)[:80], known=", ".join(slots))
    known = slots[name.strip()]
    given = arguments
    for _ in range(2):  # JSON within JSON
        if isinstance(arguments, str):
            arguments = decode(arguments)
    if given is not None and not isinstance(arguments, dict):
        raise _mistake("broken_arguments", name=name.strip(), given=repr(given)[:80])
    slot = arguments.get("model") if isinstance(arguments, dict) else None
    if not isinstance(slot, str) or slot.strip() not in known:
        told = {"name": name.strip(), "slot": repr(slot)[:80], "known": ", ".join(known)}
        raise _mistake("unknown_slot", **told)
    return name.strip(), slot.strip()


def _mistake(rule: str, **values: str) -> ModelMistake:
    return ModelMistake(say("toolorchestra/messages", rule, **values))
