"""What a chat endpoint answered: its text, tokens and cost; EndpointError where it is no answer."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import httpx2

from orchestra.replay import PLAYED
from orchestra.secrets import scrub
from orchestra.vocabulary import Backend, EndpointError


@dataclass(frozen=True)
class Reply:
    """What a chat call gave. Tokens None: the endpoint did not say. `cut`: it hit its length limit.
    `played`: from the tape.
    """

    text: str
    cost_usd: float | None
    input_tokens: int | None
    output_tokens: int | None
    cut: bool = False
    played: bool = False
    logprobs: list[dict[str, Any]] | None = None


def read(backend: Backend, response: httpx2.Response) -> Reply:
    """A Reply, or EndpointError where the body is HTML, cut off, or without a choice."""
    where = f"{backend.name} at {backend.base_url}"
    try:
        data = response.json()
    except ValueError:
        kind = response.headers.get("content-type", "no content type")
        start = scrub(" ".join(response.text[:200].split()))
        answered = f"answered {kind} that is not JSON ({start!r})"
        raise EndpointError(f"{where}: {answered}; check base_url (most end in /v1)") from None
    try:
        choice = data["choices"][0]
        content = choice["message"].get("content")
        calls = _calls_as_text(choice["message"].get("tool_calls"))
        logprobs = (choice.get("logprobs") or {}).get("content")
    except (KeyError, IndexError, TypeError, AttributeError):
        raise EndpointError(
            f"{where}: answered without a choice ({scrub(json.dumps(data))[:200]}); see its log"
        ) from None
    if isinstance(content, list):
        content = "".join(str(p.get("text", "")) for p in content if isinstance(p, dict))
    said_text = str(content or "") + calls
    text = said_text.encode("utf-8", "replace").decode()  # no half characters
    asked, given, cached = _tokens(data.get("usage"))
    cost_usd = None
    if asked is not None and given is not None:
        cost_usd = backend.cost_usd(asked, given, cached)
    elif backend.price is not None and backend.price.input == backend.price.output == 0:
        cost_usd = 0.0  # free, however much it was
    return Reply(
        text=scrub(text),  # as a replay will see it
        cost_usd=cost_usd,
        input_tokens=asked,
        output_tokens=given,
        cut=choice.get("finish_reason") == "length",
        played=PLAYED in response.headers,
        logprobs=logprobs,
    )


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
