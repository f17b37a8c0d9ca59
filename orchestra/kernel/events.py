"""An answer that an endpoint streams although nobody asked for a stream."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

Call = dict[str, Any]


def completion_in(content: bytes) -> bytes:
    """The completion that server-sent events add up to, as JSON; an event that is an error, or the
    content itself if it has no chunk of a completion. A stream without its last chunk is half a
    reply: its `finish_reason` is "length".
    """
    texts: dict[str, str] = defaultdict(str)  # content, reasoning_content, ...
    calls: dict[int, Call] = {}
    whole: dict[str, Any] = {}
    reason = None
    for chunk in _chunks(content):
        if "error" in chunk:
            return json.dumps(chunk).encode()
        whole |= {key: value for key, value in chunk.items() if value is not None}
        for choice in chunk.get("choices") or ():
            reason = choice.get("finish_reason") or reason
            for name, value in (choice.get("delta") or {}).items():
                if name == "tool_calls":
                    _add(calls, value or [])
                elif isinstance(value, str) and name != "role":
                    texts[name] += value
    if not whole:
        return content
    message: dict[str, Any] = {"role": "assistant", "content": "", **texts}
    if calls:
        message["tool_calls"] = [calls[n] for n in sorted(calls)]
    whole["choices"] = [{"message": message, "finish_reason": reason or "length"}]
    return json.dumps(whole).encode()


def _chunks(content: bytes) -> Iterator[dict[str, Any]]:
    for line in content.decode("utf-8", "replace").splitlines():
        name, _, data = line.partition(":")
        if name == "data" and data.strip().startswith("{"):
            yield json.loads(data)


def _add(calls: dict[int, Call], pieces: list[Call]) -> None:
    """The pieces of a tool call have its index; its arguments come in several."""
    for piece in pieces:
        empty = {"function": {"name": "", "arguments": ""}}
        function = calls.setdefault(piece.get("index", 0), empty)["function"]
        for key, value in (piece.get("function") or {}).items():
            if isinstance(value, str):
                function[key] = function.get(key, "") + value
