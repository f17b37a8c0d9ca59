"""Tool calls in the markup of chat templates, made JSON objects of "name" and "arguments".

    Qwen3-Coder  <function=NAME><parameter=KEY>VALUE</parameter></function>
    MiniMax      <invoke name="NAME"><parameter name="KEY">VALUE</parameter></invoke>
    GLM          <tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value></tool_call>
    Llama 3      <function=NAME>{...}</function>
    Mistral      [TOOL_CALLS]NAME{...}, also with [CALL_ID] and [ARGS]
    DeepSeek     <｜tool▁call▁begin｜>NAME<｜tool▁sep｜>{...}<｜tool▁call▁end｜>; before V3.1, a
                 type comes before the name, and the JSON is in a fence
    Kimi         <|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>{...}
                 <|tool_call_end|>

The end of a call may be missing after JSON, whose own end shows that it is whole.

    >>> as_objects("<function=search><parameter=model>search-1</parameter></function> now")
    '{"name": "search", "arguments": {"model": "search-1"}} now'
    >>> as_objects('[TOOL_CALLS]add[ARGS]{"n": 1.10}')
    '{"name": "add", "arguments": {"n": 1.10}}'
"""

from __future__ import annotations

import json
import re

from orchestra.kernel.vocabulary import ModelMistake

NAME = r"\s*[\"']?(?:functions\.)?([\w.-]{1,80}?)(?::\d+)?[\"']?\s*"
START = re.compile(
    rf"<(?:function=|invoke name=){NAME}>"
    rf"|<tool_call>{NAME}(?=<arg_key>|</tool_call>)"
    rf"|\[TOOL_CALLS\]{NAME}(?:\[CALL_ID\]\w+\s*)?(?:\[ARGS\]\s*)?(?=\{{)"
    rf"|<｜tool▁call▁begin｜>(?:function<｜tool▁sep｜>)?{NAME}(?:<｜tool▁sep｜>|```json)\s*"
    rf"|<\|tool_call_begin\|>{NAME}<\|tool_call_argument_begin\|>"
)
END = re.compile(
    r"</function>|</invoke>|</tool_call>|<｜tool▁call▁end｜>|<\|tool_call_end\|>"
)
VALUE = re.compile(
    r"""<(?:parameter(?:=|\ name=)"?|arg_key>)([^<>"\n]{1,80})
    (?:[^<>\n]{0,80}>|</arg_key>\s*<arg_value>)
    (.*?)(?:</(?:parameter|arg_value)>|(?=<parameter|<arg_key)|\Z)""",
    re.S | re.X,
)


def as_objects(text: str) -> str:
    """The text with each call as an object. Raises ModelMistake for half a call."""
    found = list(START.finditer(text))
    limits = [*(start.start() for start in found), len(text)]
    parts = [text[: limits[0]]]
    for start, limit in zip(found, limits[1:], strict=True):
        inside, *after = END.split(text[start.end() : limit], maxsplit=1)
        arguments, rest = _arguments(inside, is_whole=bool(after))
        name = json.dumps(start[start.lastindex or 0])
        parts += [f'{{"name": {name}, "arguments": {arguments}}}', rest, *after]
    return "".join(parts)


def _arguments(inside: str, is_whole: bool) -> tuple[str, str]:
    """The arguments of a call as JSON, and the text after them. JSON that does not end stays so,
    which its reader sees.
    """
    values = VALUE.findall(inside)
    if not values and "{" in inside:
        end = inside.rfind("}") + 1
        return inside[:end], inside[end:]
    if not is_whole:
        raise ModelMistake("open")
    rows = [
        f"{json.dumps(key.strip())}: {_value(text.strip())}" for key, text in values
    ]
    return f"{{{', '.join(rows)}}}", ""


def _value(text: str) -> str:
    """A list or an object as it is, any other text as a string."""
    if text[:1] in ("[", "{"):
        try:
            json.loads(text)
            return text
        except (ValueError, RecursionError):
            pass
    return json.dumps(text)
