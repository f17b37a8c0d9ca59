"""An answer that an endpoint streams although nobody asked for a stream."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

Row = dict[str, Any]
FIELD = re.compile(rb"\s*(data|event|id|retry)?:")  # how server-sent events begin
BOM = b"\xef\xbb\xbf"


def is_stream(content: bytes) -> bool:
    return FIELD.match(content.removeprefix(BOM)) is not None


def completion_in(content: bytes) -> bytes:
    """The completion that server-sent events add up to, or an error among them, as JSON; the
    content itself if they are neither. A stream without its last chunk is half a reply: its
    `finish_reason` is "length".
    """
    try:
        rows = list(_rows(content.removeprefix(BOM).decode("utf-8", "replace")))
        return json.dumps(_completion(rows)).encode() if rows else content
    except (ValueError, TypeError, AttributeError, RecursionError):
        return content


def _rows(text: str) -> Iterator[Row]:
    """The JSON object of each event, up to one that is cut off; or the one behind comments."""
    lines = re.split(r"\r\n|\n|\r", text)
    plain = [line for line in lines if not line.startswith(":")]
    if "".join(plain).lstrip().startswith("{"):
        yield json.loads("\n".join(plain))
        return
    for event in "\n".join(plain).split("\n\n"):
        fields = [line.partition(":") for line in event.split("\n")]
        data = "\n".join(value for name, _, value in fields if name == "data").strip()
        is_error = ("event", "error") in [(name, v.strip()) for name, _, v in fields]
        if data.startswith("{"):
            try:
                row = json.loads(data)
            except ValueError:
                return
            yield {"error": row} if is_error and "error" not in row else row


def _completion(rows: Iterable[Row]) -> Row:
    whole: Row = {}
    texts: dict[str, str] = defaultdict(str)  # content, reasoning_content, ...
    calls: list[Row] = []
    logprobs: list[Any] = []
    reason = None
    for row in rows:
        if row.get("error"):
            return {"error": row["error"]}
        whole |= {key: value for key, value in row.items() if value is not None}
        for choice in row.get("choices") or ():
            if choice.get("index", 0) != 0:
                continue
            reason = choice.get("finish_reason") or reason
            logprobs += (choice.get("logprobs") or {}).get("content") or []
            delta = choice.get("delta") or choice.get("message") or {}
            _add_calls(calls, delta.get("tool_calls") or ())
            for name, value in delta.items():
                if isinstance(value, str) and name != "role":
                    texts[name] += value
    message: Row = {"role": "assistant", "content": "", **texts, "tool_calls": calls}
    choice = {"message": message, "finish_reason": reason or "length"}
    if logprobs:
        choice["logprobs"] = {"content": logprobs}
    return {**whole, "choices": [choice] if any(texts.values()) or calls else []}


def _add_calls(calls: list[Row], pieces: Iterable[Row]) -> None:
    """The pieces of a tool call have its index, or come right after its name; its arguments come
    in several.
    """
    for piece in pieces:
        function = piece.get("function") or {}
        index = piece.get("index")
        same = [call for call in calls if index is not None and call["index"] == index]
        if index is None and not function.get("name"):
            same = calls[-1:]
        if not same:
            same = [{"index": index, "function": {"name": "", "arguments": ""}}]
            calls += same
        held = same[0]["function"]
        held["name"] = held["name"] or function.get("name") or ""
        arguments = function.get("arguments") or ""
        is_text = isinstance(arguments, str)
        held["arguments"] += arguments if is_text else json.dumps(arguments)
