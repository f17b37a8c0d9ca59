"""The format of a chat completion: the fields of a request that endpoints may refuse, an upper
bound of its tokens, and what can be read from an answer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from orchestra.main_agent import Messages, Schema
from orchestra.money import Purse
from orchestra.vocabulary import Backend, Reply
from runtime.http import Answer
from runtime.parsing import shallow
from runtime.prompts import say

Body = dict[str, Any]


def optional_fields(
    schema: Schema | None,
    logprobs: bool,
    tools: Sequence[Mapping[str, Any]],
    temperature: float | None,
) -> dict[str, Body]:
    """What an endpoint may refuse, in the order in which it is given up."""
    fields: dict[str, Body] = {}
    if logprobs:
        fields["logprobs"] = {"logprobs": True, "top_logprobs": 5}
    if schema:
        described = {"name": schema[0], "schema": schema[1]}
        fields["schema"] = {"response_format": {"type": "json_schema", "json_schema": described}}
    if tools:
        fields["tools"] = {"tools": list(tools)}
    if temperature is not None:
        fields["temperature"] = {"temperature": temperature}
    return fields


def tools_in_text(messages: Messages, tools: Sequence[Mapping[str, Any]]) -> Messages:
    """For an endpoint that takes no `tools`: they are listed in the system prompt instead."""
    system, *rest = messages
    listed = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    return [
        {
            **system,
            "content": say("notes", "tools_in_text", system=system["content"], tools=listed),
        },
        *rest,
    ]


def _parts(messages: Messages) -> list[Any]:
    contents = [m["content"] for m in messages]
    return [p for c in contents for p in (c if isinstance(c, list) else [c])]


def media_in(messages: Messages) -> str:
    kinds = {p["type"] for p in _parts(messages) if isinstance(p, dict)}
    named = {"image_url": "images", "input_audio": "sound"}
    return " and ".join(name for kind, name in named.items() if kind in kinds)


def input_token_bound(backend: Backend, messages: Messages, fields: Mapping[str, Any]) -> int:
    """An upper bound: a token for each byte of text, `image_tokens` for each picture, 100 tokens
    for each second of sound (WAV, 16 kHz).
    """
    total = len(json.dumps(fields).encode()) + len(json.dumps(dict(backend.options)).encode())
    for part in _parts(messages):
        match part:
            case {"type": "image_url"}:
                total += backend.image_tokens
            case {"type": "input_audio"}:
                total += 1000 + len(part["input_audio"]["data"]) // 300
            case _:
                total += 16 + len(str(part["text"] if isinstance(part, dict) else part).encode())
    return total


def reply_of(
    backend: Backend, data: Any, purse: Purse, unknown_usd: float | None, played: bool
) -> Reply:
    """The text of a completion, charged to the purse."""
    usage = data.get("usage")
    used = usage if isinstance(usage, dict) else {}
    details = used.get("prompt_tokens_details")
    given, said = _count(used.get("prompt_tokens")), _count(used.get("completion_tokens"))
    cached = _count(details.get("cached_tokens")) if isinstance(details, dict) else 0
    cost_usd = unknown_usd
    if given is not None and said is not None:
        cost_usd = backend.cost_usd(given, said, min(cached or 0, given))
    purse.charge(cost_usd, played, (given or 0) + (said or 0))
    choice = data["choices"][0]
    message, content, logprobs = choice["message"], choice["message"].get("content"), None
    if isinstance(content, list):
        content = "".join(str(p.get("text") or "") for p in content if isinstance(p, dict))
    rows = message.get("tool_calls")
    rows = rows if isinstance(rows, list) else []
    functions = [r.get("function") for r in rows if isinstance(r, dict)]
    calls = [{k: f.get(k) for k in ("name", "arguments")} for f in functions if isinstance(f, dict)]
    if isinstance(choice.get("logprobs"), dict):
        logprobs = choice["logprobs"].get("content")
    cut = choice.get("finish_reason") == "length"
    text = str(content or "")
    text += "".join(f"<tool_call>{json.dumps(c, ensure_ascii=False)}</tool_call>" for c in calls)
    if not text and not cut:  # some servers put all of it into the thoughts
        text = str(message.get("reasoning_content") or message.get("reasoning") or "")
    return Reply(text, cost_usd, cut, logprobs)


def _count(value: Any) -> int | None:
    """A token count that an endpoint may mean; None for anything else."""
    plausible = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 40
    return value if plausible else None


def read_completion(answer: Answer) -> Any:
    """The JSON of a completion. Raises ValueError."""
    start = " ".join(answer.content[:120].decode("utf-8", "replace").split())
    try:
        data = json.loads(answer.content)
    except (ValueError, RecursionError):
        raise ValueError(f"the answer is not JSON: {start}") from None
    try:
        whole = isinstance(data["choices"][0]["message"], dict) and shallow(data)
    except (KeyError, IndexError, TypeError):
        whole = False
    if not whole:
        raise ValueError(f"the answer has no choice: {start}")
    return data


def error_message(answer: Answer) -> str:
    """What an error answer says, in a line."""
    text = answer.content[:2000].decode("utf-8", "replace")
    try:
        error = json.loads(answer.content)["error"]
        text = str(error.get("message") or error) if isinstance(error, dict) else str(error)
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    if 300 <= answer.status < 400:
        text = f"redirects to {answer.headers.get('location', '?')}"
    return " ".join(text.split())[:300] or "no message"
