"""What a chat endpoint answered: its text, tokens and cost; EndpointError where it is no answer."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import httpx2

from orchestra.clients import PLAYED
from orchestra.secrets import scrub
from orchestra.vocabulary import Backend, EndpointError


class NoAnswer(EndpointError):
    """Asked, and nothing that can be read came back: it may be on the bill. Its text names no
    number of seconds: another --timeout replays it as well. `played`: so it was on the tape.
    """

    def __init__(self, text: str, played: bool) -> None:
        super().__init__(text)
        self.played = played


@dataclass(frozen=True)
class Bill:
    """What an answer cost. None: nobody says. `played`: it came from the tape."""

    cost_usd: float | None
    input_tokens: int | None
    output_tokens: int | None
    played: bool = False

    @property
    def tokens(self) -> int:
        return (self.input_tokens or 0) + (self.output_tokens or 0)


@dataclass(frozen=True)
class Reply:
    """What a chat call gave. `cut`: it hit its length limit."""

    text: str
    bill: Bill
    cut: bool = False
    logprobs: list[dict[str, Any]] | None = None

    @property
    def cost_usd(self) -> float | None:
        return self.bill.cost_usd


def parsed(backend: Backend, response: httpx2.Response) -> Any:
    """The JSON of an answer. Raises NoAnswer where it is HTML or cut off."""
    where = f"{backend.name} at {backend.base_url}"
    try:
        return response.json()
    except (ValueError, RecursionError):
        kind = response.headers.get("content-type", "no content type")
        start = scrub(" ".join(response.text[:200].split()))
        answered = f"answered {kind} that is not JSON ({start!r})"
        advice = f"{where}: {answered}; check base_url (most end in /v1)"
        raise NoAnswer(advice, played=PLAYED in response.headers) from None


def billed(backend: Backend, data: Any, played: bool) -> Bill:
    """What an answer cost by its own count, whether it can be read or not."""
    asked, given, cached = _tokens(data.get("usage") if isinstance(data, dict) else None)
    cost_usd = None
    if asked is not None and given is not None:
        cost_usd = backend.cost_usd(asked, given, cached)
    elif backend.price is not None and backend.price.input == backend.price.output == 0:
        cost_usd = 0.0  # free, however much it was
    return Bill(cost_usd, asked, given, played)


def read(backend: Backend, data: Any, bill: Bill) -> Reply:
    """A Reply. Raises EndpointError for an answer without a choice."""
    where = f"{backend.name} at {backend.base_url}"
    try:
        choice = data["choices"][0]
        message = choice["message"]
        content = message.get("content")
        calls = _calls_as_text(message.get("tool_calls"))
        logprobs = (choice.get("logprobs") or {}).get("content")
    except (KeyError, IndexError, TypeError, AttributeError):
        raise EndpointError(
            f"{where}: answered without a choice ({scrub(json.dumps(data))[:200]}); see its log"
        ) from None
    if isinstance(content, list):
        content = "".join(str(p.get("text") or "") for p in content if isinstance(p, dict))
    cut = choice.get("finish_reason") == "length"
    said = str(content or "") + calls
    if not said and not cut:  # some servers file all of it under the thoughts
        said = str(message.get("reasoning_content") or message.get("reasoning") or "")
    text = said.encode("utf-8", "replace").decode()  # no half characters
    return Reply(scrub(text), bill, cut, logprobs)  # scrubbed: as a replay will see it


def _tokens(usage: Any) -> tuple[int | None, int | None, int]:
    """Input, output and cached input tokens; None where the endpoint gives no sensible number."""
    used = usage if isinstance(usage, dict) else {}
    asked, said = (_count(used.get(k)) for k in ("prompt_tokens", "completion_tokens"))
    details = used.get("prompt_tokens_details")
    cached = _count(details.get("cached_tokens")) if isinstance(details, dict) else 0
    return asked, said, min(cached or 0, asked or 0)


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and value >= 0 else None


def _calls_as_text(calls: Any) -> str:
    """Tool calls as the text in which models write them: one form for whoever reads the reply."""
    functions = [c.get("function") for c in calls or () if isinstance(c, dict)]
    rows = [{k: f.get(k) for k in ("name", "arguments")} for f in functions if isinstance(f, dict)]
    return "".join(f"<tool_call>{json.dumps(r, ensure_ascii=False)}</tool_call>" for r in rows)
