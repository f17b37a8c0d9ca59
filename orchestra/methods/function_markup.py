"""Tool calls as <function=NAME>, the markup of some chat templates, made JSON.

>>> as_tool_calls("<function=search><parameter=model>search-1</parameter></function> now")
'<tool_call>{"name": "search", "arguments": {"model": "search-1"}}</tool_call> now'
>>> as_tool_calls('<function=add>{"n": 1}')
'<tool_call>{"name": "add", "arguments": "{\\\\"n\\\\": 1}"}</tool_call>'
"""

from __future__ import annotations

import json
import re

from orchestra.kernel.prompts import THINK_END

FUNCTION = re.compile(r"<function=([^<>\n]{1,80})>")
PARAMETER = re.compile(r"<parameter=([^<>\n]{1,80})>")
FUNCTION_END = re.compile(rf"</function>|(?=</tool_call>|{THINK_END})")


def as_tool_calls(reply: str) -> str:
    """The reply with each <function=...> as a <tool_call> of JSON. The closing tags may be missing.
    Other text is left as it is.
    """
    before, *parts = FUNCTION.split(reply)
    texts = [before]
    for name, rest in zip(parts[0::2], parts[1::2], strict=True):
        inside, *after = FUNCTION_END.split(rest, maxsplit=1)
        call = json.dumps({"name": name.strip(), "arguments": _arguments(inside)})
        texts.append(f"<tool_call>{call}</tool_call>")
        texts += after
    return "".join(texts)


def _arguments(inside: str) -> object:
    """The parameters by name; without any, the text itself, which may be JSON."""
    _, *parts = PARAMETER.split(inside)
    if not parts:
        return inside.strip() or {}
    arguments = {}
    for name, rest in zip(parts[0::2], parts[1::2], strict=True):
        value, _, _ = rest.partition("</parameter>")
        arguments[name.strip()] = value.strip()
    return arguments
