"""One chat call: structured where the endpoint takes it, retried, priced, and on the tape."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, Any

from pydantic import Field
from typing_extensions import TypedDict

from orchestra.main_agent import Messages, Schema
from orchestra.money import DEFAULT_OUTPUT_TOKENS, Purse
from orchestra.vocabulary import Backend, EndpointError, Reply
from runtime import http
from runtime.completion import (
    Body,
    error_message,
    input_token_bound,
    media_in,
    optional_fields,
    read_completion,
    reply_of,
    tools_in_text,
)
from runtime.tape import Failure, Tape

ATTEMPTS = 3
BUSY = {408, 409, 429, *range(500, 600)}  # worth another attempt
REFUSALS = {400, 404, 405, 422, 500, 501}  # what endpoints answer to a field that they do not take
PAUSE_S = 0.25  # before the second attempt; doubled each time


class _Choice(TypedDict):
    message: dict[str, Any]


class _Completion(TypedDict):
    choices: Annotated[list[_Choice], Field(min_length=1)]


class Outcome(TypedDict):
    """The answer of a chat exchange on the tape."""

    data: _Completion
    unanswered: Annotated[int, Field(ge=0, le=10_000, strict=True)]


def _quiet(message: str) -> None:
    pass


@dataclass
class Chat:
    """The chat client of one sub-agent. It remembers which request fields an endpoint refused in
    its own calls, so no request depends on the timing of another sub-agent.
    """

    tape: Tape
    timeout_s: float = 120.0  # of one attempt
    patience_s: float = 120.0  # of waiting at a rate limit, in one call
    notify: Callable[[str], None] = _quiet
    refused: set[tuple[str, str]] = field(default_factory=set)  # (backend, field)

    def copy(self) -> Chat:
        """For a parallel call: it knows what is known now, and nothing it learns reaches others."""
        return replace(self, refused=set(self.refused))

    def __call__(
        self,
        backend: Backend,
        messages: Messages,
        purse: Purse,
        schema: Schema | None = None,
        logprobs: bool = False,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> Reply:
        """`schema`: of the answer; `tools`: functions to call. Tool calls are in the text of the
        reply, as <tool_call> JSON.

        Raises EndpointError, and BudgetExceeded before a call that could exceed the purse.
        """
        wanted = optional_fields(schema, logprobs, tools)
        gave_up: set[tuple[str, str]] = set()
        while True:
            given_up = self.refused | gave_up
            left = {k: v for k, v in wanted.items() if (backend.name, k) not in given_up}
            body: Body = {"model": backend.model, "messages": messages, **backend.options}
            if tools and "tools" not in left:
                body["messages"] = tools_in_text(messages, tools)
            for value in left.values():
                body |= value
            input_tokens = input_token_bound(backend, body["messages"], left)
            limit = purse.output_tokens(backend, input_tokens)
            most_usd = backend.cost_usd(input_tokens, limit or DEFAULT_OUTPUT_TOKENS)
            unknown = most_usd if purse.limit_usd is not None or most_usd == 0 else None
            if limit:
                newer = "openai.com" in backend.base_url or (backend.name, "max_tokens") in given_up
                body["max_completion_tokens" if newer else "max_tokens"] = limit
            ask = partial(self._attempts, backend, body, purse, most_usd)
            try:
                request = {"url": _url(backend), **body}
                outcome, played = self.tape.exchange("chat", request, ask, Outcome)
            except Failure as failure:
                o = failure.outcome
                for _ in range(o["unanswered"]):  # it may be on the bill
                    purse.charge(unknown, failure.played)
                renamed = "max_tokens" in body and "max_completion_tokens" in o["why"]
                if o["status"] not in REFUSALS or not (renamed or left):
                    raise EndpointError(self.advice(backend, o, messages)) from None
                # A 500 may be an accident: it counts in this call alone.
                known = self.refused if o["status"] < 500 else gave_up
                known.add((backend.name, "max_tokens" if renamed else next(iter(left))))
                continue
            for _ in range(outcome["unanswered"]):
                purse.charge(unknown, played)
            return reply_of(backend, outcome["data"], purse, unknown, played)

    def _attempts(self, backend: Backend, body: Body, purse: Purse, most_usd: float | None) -> Any:
        """The answer's JSON, after at most ATTEMPTS attempts, and further ones at a rate limit for
        as long as `patience_s` lasts. Raises Failure with the outcome of all of them.
        """
        headers = {"authorization": f"Bearer {key_of(backend)}", "content-type": "application/json"}
        url, data = _url(backend), json.dumps(body).encode()
        unanswered, attempt, limits, waited_s = 0, 1, 0, 0.0
        while True:
            retry_after: str | None = None
            try:
                answer = http.post(url, data, headers, self.timeout_s)
                status, retry_after = answer.status, answer.headers.get("retry-after")
                if 200 <= status < 300:
                    return {"data": read_completion(answer), "unanswered": unanswered}
                why, retry = error_message(answer), status in BUSY
            except http.NoAnswer as error:
                status, why, retry = 0, error.why, True
                unanswered += error.sent
            except ValueError as error:  # HTML, half of an answer, no choice in it
                unanswered, retry, status, why = unanswered + 1, False, 0, str(error)
            limited = status == 429 or (status == 503 and retry_after is not None)
            pause_s = PAUSE_S * 2 ** min(limits if limited else attempt - 1, 6)
            pause_s = (limited and _retry_after_s(retry_after)) or pause_s
            enough = waited_s + pause_s > self.patience_s if limited else attempt >= ATTEMPTS
            affordable = purse.affords((unanswered + 1) * (most_usd or 0.0))
            if not retry or enough or not affordable:
                raise Failure({"status": status, "why": why, "unanswered": unanswered})
            if limited:
                waited_s, limits = waited_s + pause_s, limits + 1
                patience = f"rate limit, for {self.patience_s - waited_s:.0f} s at most"
            else:
                attempt += 1
                patience = f"attempt {attempt} of {ATTEMPTS}"
            place = f"{self.tape.current_call} waiting for {backend.name}"
            self.notify(f"{place} (status {status}, {patience}; {why[:60]})")
            self.tape.wait(pause_s)

    def advice(self, backend: Backend, o: Mapping[str, Any], messages: Messages) -> str:
        """One line: which endpoint, what it did, what to do."""
        key = backend.api_key_env or "OPENAI_API_KEY"
        media = media_in(messages)
        advice = {
            0: "is it up, is base_url right (most end in /v1)? --timeout waits longer",
            401: f"check the key in {key}",
            403: f"the key in {key} has no access",
            404: f"check base_url (most end in /v1) and the model name {backend.model!r}",
            429: "rate limit or quota; --patience waits longer",
        }.get(o["status"], "see the endpoint's log")
        if media and 400 <= o["status"] < 500 and o["status"] not in (401, 403, 408, 429):
            advice = f"if it takes no {media}, use --perception local"
            self.notify(f"{backend.name} refused a request with {media}; {advice}")
        status = f"status {o['status']}: " if o["status"] else ""
        return f"{backend.name} at {backend.base_url}: {status}{o['why']}; {advice}"


def _url(backend: Backend) -> str:
    return f"{backend.base_url.rstrip('/')}/chat/completions"


def key_of(backend: Backend) -> str:
    return os.environ.get(backend.api_key_env, "").strip() or "none"


def _retry_after_s(header: str | None) -> float:
    from urllib3.exceptions import HTTPError
    from urllib3.util import Retry

    try:
        return Retry().parse_retry_after(header) if header else 0.0
    except (ValueError, OverflowError, HTTPError):
        return 0.0
