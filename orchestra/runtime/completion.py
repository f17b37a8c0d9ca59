"""A chat completion on the wire: what is sent to an endpoint, and how its answer is read.

Endpoints differ in what they leave out and where they put things. The functions here take what is
usable and raise ValueError for what is not a completion.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field, ValidationError
from typing_extensions import TypedDict

from orchestra.contracts import adapter
from orchestra.runtime import http, outside
from orchestra.runtime.parsing import shallow
from orchestra.runtime.prompts import say
from orchestra.seams import Messages
from orchestra.vocabulary import Backend

TOKENS_OF_SOUND = 1000  # of a sound, besides those of its length
SOUND_BYTES_PER_TOKEN = 300  # in base64: 100 tokens a second of WAV at 16 kHz
TOKENS_OF_MESSAGE = 16  # of its role and separators
MAX_TOKENS = 1 << 40  # no plausible count is larger
MAX_USD = 1e6  # nor an amount


class Choice(TypedDict):
    """One reply of a completion. Only the message is certain."""

    message: dict[str, Any]


class Completion(TypedDict):
    """The part of an answer that every endpoint sends."""

    choices: Annotated[list[Choice], Field(min_length=1)]


class NoChoice(ValueError):
    """A well-formed answer without a choice, as after a content filter."""


# ---- the request ---------------------------------------------------------------------------------


def url_of(backend: Backend) -> str:
    return f"{backend.base_url.rstrip('/')}/chat/completions"


def key_of(backend: Backend) -> str:
    return os.environ.get(backend.api_key_env, "").strip() or "none"


def tools_in_text(messages: Messages, tools: Sequence[Mapping[str, Any]]) -> Messages:
    """The messages for an endpoint without the field `tools`: the system prompt lists the tools."""
    system, *rest = messages
    listed = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    content = say("notes", "tools_in_text", system=system["content"], tools=listed)
    return [{**system, "content": content}, *rest]


def _parts(messages: Messages) -> list[Any]:
    """The contents of the messages; those with images or sound are lists of parts."""
    parts: list[Any] = []
    for message in messages:
        content = message["content"]
        parts += content if isinstance(content, list) else [content]
    return parts


def media_in(messages: Messages) -> str:
    """What media the messages have, in words; "" if they have none."""
    kinds = {part["type"] for part in _parts(messages) if isinstance(part, dict)}
    named = {"image_url": "images", "input_audio": "sound"}
    return " and ".join(name for kind, name in named.items() if kind in kinds)


def input_token_bound(
    backend: Backend, messages: Messages, fields: Mapping[str, Any]
) -> int:
    """An upper bound: one token per byte of text, `image_tokens` per image, 100 tokens per second
    of sound (WAV, 16 kHz).
    """
    total = _bytes_of(json.dumps(fields)) + _bytes_of(json.dumps(dict(backend.options)))
    for part in _parts(messages):
        match part:
            case {"type": "image_url"}:
                total += backend.image_tokens
            case {"type": "input_audio"}:
                data = part["input_audio"]["data"]
                total += TOKENS_OF_SOUND + len(data) // SOUND_BYTES_PER_TOKEN
            case {"text": text}:
                total += TOKENS_OF_MESSAGE + _bytes_of(str(text))
            case _:
                total += TOKENS_OF_MESSAGE + _bytes_of(str(part))
    return total


def _bytes_of(text: str) -> int:
    return len(
        text.encode("utf-8", "surrogatepass")
    )  # the user's Python may have written it


# ---- the answer ----------------------------------------------------------------------------------


def read_completion(response: http.Response) -> Any:
    """The JSON of a completion. Raises ValueError, and NoChoice, which is one."""
    start = " ".join(response.content[:2000].decode("utf-8", "replace").split())
    outside.values_in(response.content)  # as many as a tape may have
    try:
        data = json.loads(response.content)
    except (ValueError, RecursionError):
        raise ValueError(f"the answer is not JSON: {start}") from None
    if not shallow(data):
        raise ValueError(f"the answer is not JSON: {start}")
    try:
        adapter(Completion).validate_python(data)
    except ValidationError:
        raise NoChoice(f"the answer has no choice: {start}") from None
    if data["choices"][0].get("error"):
        raise ValueError(f"the answer holds an error: {start}")
    return data


def text_of(choice: Mapping[str, Any]) -> str:
    """The content and the tool calls of a choice. A tool call is written as <tool_call> JSON."""
    message = choice["message"]
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(str(_dict(part).get("text") or "") for part in content)
    text = str(content or "") + _tool_calls_of(message)
    if text or is_cut(choice):
        return text
    for field in ("reasoning_content", "reasoning", "refusal"):
        if message.get(field):  # some servers put the whole reply there
            return str(message[field])
    return ""


def _tool_calls_of(message: Mapping[str, Any]) -> str:
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return ""
    text = ""
    for call in calls:
        function = _dict(_dict(call).get("function"))
        if function:
            named = {key: function.get(key) for key in ("name", "arguments")}
            text += f"<tool_call>{json.dumps(named, ensure_ascii=False)}</tool_call>"
    return text


def is_cut(choice: Mapping[str, Any]) -> bool:
    """Whether the reply stopped at its length limit."""
    return bool(choice.get("finish_reason") == "length")


def logprobs_of(choice: Mapping[str, Any]) -> Any:
    return _dict(choice.get("logprobs")).get("content")


def tokens_of(completion: Mapping[str, Any]) -> tuple[int | None, int | None, int]:
    """Input, output and cached input tokens; None where the endpoint does not report them."""
    usage = _dict(completion.get("usage"))
    read = _count(usage.get("prompt_tokens"))
    written = _count(usage.get("completion_tokens"))
    total = _count(usage.get("total_tokens")) or 0
    cached = _count(_dict(usage.get("prompt_tokens_details")).get("cached_tokens")) or 0
    if read is not None and written is not None:
        written = max(written, total - read)  # some count reasoning in the total alone
    return read, written, min(cached, read or 0)


@dataclass(frozen=True)
class Usage:
    """The tokens of a completion and what it cost, as far as the endpoint reports them.
    `is_known`: it reports enough; then a cost of None means that the price is unknown.
    """

    input_tokens: int | None
    output_tokens: int | None
    cost_usd: float | None
    is_known: bool

    @property
    def tokens(self) -> int:
        return (self.input_tokens or 0) + (self.output_tokens or 0)


def usage_of(completion: Mapping[str, Any], backend: Backend) -> Usage:
    """The endpoint's own figure in `usage.cost`, in USD, counts before the prices of the pool."""
    read, written, cached = tokens_of(completion)
    cost_usd = amount(_dict(completion.get("usage")).get("cost"))
    is_known = cost_usd is not None
    if cost_usd is None and read is not None and written is not None:
        cost_usd = backend.cost_usd(read, written, cached)
        is_known = True
    return Usage(read, written, cost_usd, is_known)


def amount(value: Any) -> float | None:
    """A plausible amount of USD; None for anything else."""
    is_number = type(value) in (int, float) and 0 <= value < MAX_USD
    return float(value) if is_number else None


def _count(value: Any) -> int | None:
    """A plausible token count; None for anything else."""
    return value if type(value) is int and 0 <= value < MAX_TOKENS else None


def _dict(value: Any) -> dict[str, Any]:
    """An optional object of an answer; {} for anything else."""
    return value if isinstance(value, dict) else {}
