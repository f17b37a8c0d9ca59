"""One chat call: structured output where the endpoint supports it, retries, costs, the tape."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, Any, Generic, NamedTuple, TypeVar

from pydantic import Field
from typing_extensions import TypedDict

from orchestra.money import DEFAULT_OUTPUT_TOKENS, Purse
from orchestra.runtime import http
from orchestra.runtime.parsing import shallow
from orchestra.runtime.prompts import say
from orchestra.runtime.tape import Failure, Tape, Unanswered, adapter
from orchestra.seams import Messages, Schema
from orchestra.vocabulary import (
    Backend,
    BudgetExceeded,
    ConfigError,
    EndpointError,
    Reply,
)

ATTEMPTS = 3
BUSY = {408, 409, 429, *range(500, 600)}  # worth another attempt
REFUSALS = {
    400,
    404,
    405,
    422,
    500,
    501,
}  # what endpoints send for a field they do not support
PAUSE_S = 0.25  # before the second attempt; doubled each time
STOPPED = (
    EndpointError,
    BudgetExceeded,
    ConfigError,
)  # these end one sub-task, with the reason
T = TypeVar("T")
Body = dict[str, Any]
Send = Callable[[], http.Answer]  # one attempt; raises NoAnswer


class _Choice(TypedDict):
    message: dict[str, Any]


class _Completion(TypedDict):
    choices: Annotated[list[_Choice], Field(min_length=1)]


class Outcome(TypedDict, Generic[T]):
    """The answer of an exchange on the tape."""

    data: T
    unanswered: Unanswered


class Kind(NamedTuple):
    """A kind of exchange. `read` raises ValueError for what is not an answer."""

    name: str
    read: Callable[[http.Answer], Any]
    shape: Any


@dataclass
class Chat:
    """The chat client of one sub-agent. It remembers only which request fields were refused in its
    own calls, so no request depends on the timing of another sub-agent.
    """

    tape: Tape
    timeout_s: float = 120.0  # of one attempt
    patience_s: float = 120.0  # of waiting at a rate limit, in one call
    notify: Callable[[str, int], None] = lambda message, status: None
    refused: set[tuple[str, str]] = field(default_factory=set)  # (backend, field)

    def copy(self) -> Chat:
        """A client for a parallel call. It starts with the refusals known now."""
        return replace(self, refused=set(self.refused))

    def __call__(
        self,
        backend: Backend,
        messages: Messages,
        purse: Purse,
        schema: Schema | None = None,
        logprobs: bool = False,
        tools: Sequence[Mapping[str, Any]] = (),
        temperature: float | None = None,
    ) -> Reply:
        """`schema`: of the answer; `tools`: functions to call. Tool calls are in the text of the
        reply, as <tool_call> JSON. `temperature`: instead of the pool's.

        Raises EndpointError, and BudgetExceeded before a call that could exceed the purse.
        """
        described = {"name": schema[0], "schema": schema[1]} if schema else {}
        structured = {"type": "json_schema", "json_schema": described}
        wanted: dict[
            str, Body
        ] = {  # what an endpoint may refuse, in the order it is dropped
            "logprobs": {"logprobs": True, "top_logprobs": 5} if logprobs else {},
            "schema": {"response_format": structured} if schema else {},
            "tools": {"tools": list(tools)} if tools else {},
            "temperature": {} if temperature is None else {"temperature": temperature},
        }
        wanted = {k: v for k, v in wanted.items() if v}
        name = backend.name
        while True:
            fields = {k: v for k, v in wanted.items() if (name, k) not in self.refused}
            body: Body = {
                "model": backend.model,
                "messages": messages,
                **backend.options,
            }
            if tools and "tools" not in fields:
                body["messages"] = tools_in_text(messages, tools)
            for value in fields.values():
                body |= value
            input_tokens = input_token_bound(backend, body["messages"], fields)
            limit = purse.output_tokens(backend, input_tokens)
            most_usd = backend.cost_usd(input_tokens, limit or DEFAULT_OUTPUT_TOKENS)
            if limit:
                newer = (
                    ".openai.com" in backend.base_url
                    or (name, "max_tokens") in self.refused
                )
                body["max_completion_tokens" if newer else "max_tokens"] = limit
            request, post = (
                {"url": url_of(backend), **body},
                partial(self._post, backend, body),
            )
            outcome, played = self.exchange(CHAT, name, request, post, purse, most_usd)
            if "data" in outcome:
                return reply_of(backend, outcome["data"], purse, most_usd, played)
            renamed = "max_tokens" in body and "max_completion_tokens" in outcome["why"]
            if outcome["status"] not in REFUSALS or not (renamed or fields):
                raise EndpointError(
                    self.advice(backend, outcome, messages)
                ) from Failure(outcome)
            self.refused.add((name, "max_tokens" if renamed else next(iter(fields))))

    def _post(self, backend: Backend, body: Body) -> http.Answer:
        headers = {
            "authorization": f"Bearer {key_of(backend)}",
            "content-type": "application/json",
        }
        return http.post(
            url_of(backend), json.dumps(body).encode(), headers, self.timeout_s
        )

    def exchange(
        self,
        kind: Kind,
        backend: str,
        request: Body,
        send: Send,
        purse: Purse,
        usd: float | None,
    ) -> tuple[Any, bool]:
        """The outcome of all attempts: an Outcome, or a Problem; and whether the tape had it.
        Attempts without an answer are charged. `usd`: the most that one attempt costs.
        """
        ask = partial(self._attempts, kind, backend, send, purse, usd)
        outcome, played = self.tape.exchange(kind.name, request, ask, kind.shape)
        for _ in range(outcome["unanswered"]):
            purse.charge(assumed_usd(purse, usd), played)
        return outcome, played

    def _attempts(
        self, kind: Kind, backend: str, send: Send, purse: Purse, usd: float | None
    ) -> Any:
        """At most ATTEMPTS attempts; those that meet a rate limit do not count, and go on for
        `patience_s`. Raises Failure with the outcome of all of them.
        """
        unanswered, failures, waited_s, backoff_s = 0, 0, 0.0, PAUSE_S
        while True:
            try:
                answer = send()
                if not 200 <= answer.status < 300:
                    raise ValueError
                return {"data": kind.read(answer), "unanswered": unanswered}
            except http.NoAnswer as error:
                (why, sent), status, retry, retry_after = error.args, 0, True, ""
                unanswered += sent
            except (
                ValueError
            ) as error:  # an error, HTML, half of an answer, no choice in it
                status, why = http.error_of(answer)
                retry_after = answer.headers.get("retry-after", "")
                retry = status in BUSY and b"insufficient_quota" not in answer.content
                if not status:
                    unanswered, why = unanswered + 1, str(error)
            why = self.tape.secrets.text(why)[
                :300
            ]  # redact, then cut: half a key is not found
            pause_s, backoff_s = backoff_s, min(2 * backoff_s, 64 * PAUSE_S)
            if status == 429 or (status == 503 and retry_after):  # a rate limit
                pause_s = http.retry_after_s(retry_after) or pause_s
                waited_s += pause_s
                patience = f"rate limit, for {self.patience_s - waited_s:.0f} s at most"
            else:
                failures += 1
                patience = f"attempt {failures + 1} of {ATTEMPTS}"
            retry &= waited_s <= self.patience_s and failures < ATTEMPTS
            if not retry or not purse.affords((unanswered + 1) * (usd or 0.0)):
                raise Failure({"status": status, "why": why, "unanswered": unanswered})
            problem = f"status {status}; {why[:60]}" if status else why[:60]
            place = f"{self.tape.current_call} waiting for {backend}"
            self.notify(f"{place} ({patience}; {problem})", status)
            self.tape.wait(pause_s)

    def advice(self, backend: Backend, o: Mapping[str, Any], messages: Messages) -> str:
        """One line: the endpoint, its error, and what to do."""
        key = backend.api_key_env or "OPENAI_API_KEY"
        advice = {
            0: "is it up, is base_url right (most end in /v1)? --timeout waits longer",
            401: f"check the key in {key}",
            403: f"the key in {key} has no access",
            404: f"check base_url (most end in /v1) and the model name {backend.model!r}",
            429: "rate limit or quota; --patience waits longer",
        }.get(o["status"], "see the endpoint's log")
        media = media_in(messages)
        if (
            media
            and 400 <= o["status"] < 500
            and o["status"] not in (401, 403, 408, 429)
        ):
            advice = f"if it takes no {media}, use --perception local"
            message = f"{backend.name} refused a request with {media}; {advice}"
            self.notify(message, o["status"])
        status = f"status {o['status']}: " if o["status"] else ""
        return f"{backend.name} at {backend.base_url}: {status}{o['why']}; {advice}"


def url_of(backend: Backend) -> str:
    return f"{backend.base_url.rstrip('/')}/chat/completions"


def key_of(backend: Backend) -> str:
    return os.environ.get(backend.api_key_env, "").strip() or "none"


# ---- the request ---------------------------------------------------------------------------------


def tools_in_text(messages: Messages, tools: Sequence[Mapping[str, Any]]) -> Messages:
    """For an endpoint without the field `tools`: they are listed in the system prompt instead."""
    system, *rest = messages
    listed = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    content = say("notes", "tools_in_text", system=system["content"], tools=listed)
    return [{**system, "content": content}, *rest]


def _parts(messages: Messages) -> list[Any]:
    contents = [m["content"] for m in messages]
    return [p for c in contents for p in (c if isinstance(c, list) else [c])]


def media_in(messages: Messages) -> str:
    kinds = {p["type"] for p in _parts(messages) if isinstance(p, dict)}
    named = {"image_url": "images", "input_audio": "sound"}
    return " and ".join(name for kind, name in named.items() if kind in kinds)


def input_token_bound(
    backend: Backend, messages: Messages, fields: Mapping[str, Any]
) -> int:
    """An upper bound: one token per byte of text, `image_tokens` per image, 100 tokens per second
    of sound (WAV, 16 kHz).
    """
    total = len(json.dumps(fields).encode()) + len(
        json.dumps(dict(backend.options)).encode()
    )
    for part in _parts(messages):
        match part:
            case {"type": "image_url"}:
                total += backend.image_tokens
            case {"type": "input_audio"}:
                total += 1000 + len(part["input_audio"]["data"]) // 300
            case _:
                total += 16 + len(
                    str(part["text"] if isinstance(part, dict) else part).encode()
                )
    return total


# ---- the answer ----------------------------------------------------------------------------------


def read_completion(answer: http.Answer) -> Any:
    """The JSON of a completion. Raises ValueError."""
    problem = "is not JSON"
    with contextlib.suppress(ValueError, RecursionError):
        data = json.loads(answer.content)
        if shallow(data):
            problem = "has no choice"
            adapter(_Completion).validate_python(data)
            if not data["choices"][0].get("error"):
                return data
            problem = "holds an error"
    start = " ".join(answer.content[:2000].decode("utf-8", "replace").split())
    raise ValueError(f"the answer {problem}: {start}")


CHAT = Kind("chat", read_completion, Outcome[_Completion])


def assumed_usd(purse: Purse, most_usd: float | None) -> float | None:
    """The cost booked if the endpoint reports no tokens: under a budget the most it can be, else
    unknown, unless the call is free.
    """
    return most_usd if purse.limit_usd is not None or most_usd == 0 else None


def reply_of(
    backend: Backend, data: Any, purse: Purse, most_usd: float | None, played: bool
) -> Reply:
    """The text of a completion, charged to the purse."""
    read, written, cached = tokens_of(data)
    cost_usd = assumed_usd(purse, most_usd)
    if read is not None and written is not None:
        cost_usd = backend.cost_usd(read, written, cached)
    purse.charge(cost_usd, played, (read or 0) + (written or 0))
    choice = data["choices"][0]
    cut, logprobs = (
        choice.get("finish_reason") == "length",
        _dict(choice.get("logprobs")),
    )
    return Reply(_text(choice["message"], cut), cost_usd, cut, logprobs.get("content"))


def _text(message: Body, cut: bool) -> str:
    """The content and the tool calls of a message."""
    content, calls = message.get("content"), message.get("tool_calls")
    if isinstance(content, list):
        content = "".join(str(_dict(part).get("text") or "") for part in content)
    text = str(content or "")
    for call in calls if isinstance(calls, list) else []:
        if function := _dict(_dict(call).get("function")):
            named = {k: function.get(k) for k in ("name", "arguments")}
            text += f"<tool_call>{json.dumps(named, ensure_ascii=False)}</tool_call>"
    if not text and not cut:  # some servers put the whole reply into the reasoning
        others = (message.get(k) for k in ("reasoning_content", "reasoning", "refusal"))
        text = str(next(filter(None, others), ""))
    return text


def tokens_of(data: Any) -> tuple[int | None, int | None, int]:
    """Input, output and cached input tokens; None where the endpoint does not report them."""
    usage = _dict(data.get("usage"))
    names = "prompt_tokens", "completion_tokens", "total_tokens"
    read, written, total = (_count(usage.get(name)) for name in names)
    cached = _count(_dict(usage.get("prompt_tokens_details")).get("cached_tokens"))
    if read is not None and written is not None:
        written = max(
            written, (total or 0) - read
        )  # some count reasoning in the total alone
    return read, written, min(cached or 0, read or 0)


def _count(value: Any) -> int | None:
    """A plausible token count; None for anything else."""
    return value if type(value) is int and 0 <= value < 1 << 40 else None


def _dict(value: Any) -> dict[str, Any]:
    """An optional object of an answer; {} for anything else."""
    return value if isinstance(value, dict) else {}
