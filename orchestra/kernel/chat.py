"""One chat call: the request, its attempts, what it cost, and the tape around all of it.

    reply = Chat(tape, ledger)(backend, messages, purse, schema)

`send` makes one attempt: (url, body, key, timeout_s) -> Response, or raises NoAnswer. It is a hook:
`by_requests` (http.py) is the kernel's; a model in this process is another.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from orchestra.kernel.money import (
    DEFAULT_OUTPUT_TOKENS,
    Bill,
    Ledger,
    Purse,
    input_token_bound,
)
from orchestra.kernel.prompts import say
from orchestra.kernel.tape import (
    CONTEXT,
    NO_SYSTEM,
    OVER_BUDGET,
    Answer,
    Failure,
    Tape,
    as_dict,
)
from orchestra.kernel.vocabulary import (
    Backend,
    BudgetExceeded,
    ContextExceeded,
    EndpointError,
    Messages,
    Reply,
    Schema,
)

if TYPE_CHECKING:  # a replay sends nothing
    from orchestra.kernel.http import Body, Response, Send

REFUSALS = {400, 404, 405, 422, 500, 501}  # sent for a field that is not supported
CUT = "length", "model_length", "max_tokens"  # finish_reason of half an answer
MARKS = "<|", "<｜", "</s>", "[INST]", "_of_turn>", "<eos>"  # of chat templates


# ---- one call ------------------------------------------------------------------------------------


@dataclass
class Chat:
    """The chat client of one sub-agent. It remembers which request fields an endpoint refused in
    its own calls, so no request depends on the timing of another sub-agent.
    """

    tape: Tape
    ledger: Ledger = field(default_factory=Ledger)
    timeout_s: float = 120.0  # of one attempt
    patience_s: float = 120.0  # of waiting at a rate limit, in one call
    send: Send | None = None  # by_requests
    notify: Callable[[str], None] = lambda message: None
    too_long: set[str] = field(default_factory=set)  # backends; shared by all copies
    unsupported: set[tuple[str, str]] = field(default_factory=set)  # (backend, field)
    most_chars: dict[str, int] = field(default_factory=dict)  # by backend

    def __post_init__(self) -> None:
        if self.send is None and self.tape.mode != "replay":  # a replay sends nothing
            from orchestra.kernel.http import by_requests

            self.send = by_requests

    def copy(self) -> Chat:
        """A client for a parallel call. It starts with what is known now."""
        unsupported, most_chars = set(self.unsupported), dict(self.most_chars)
        return replace(self, unsupported=unsupported, most_chars=most_chars)

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
        """The reply of a model. `schema` is that of its answer; `tools` are functions that it may
        call, which it does as <tool_call> JSON in the text of the reply. `temperature` replaces the
        pool's. Raises EndpointError, and BudgetExceeded before a call that could exceed the purse.
        """
        optional = _optional_fields(schema, logprobs, tools, temperature)
        while True:
            fields = {
                n: v
                for n, v in optional.items()
                if (backend.name, n) not in self.unsupported
            }
            body, most_usd = self._request(backend, messages, purse, optional, fields)
            url = f"{backend.base_url.rstrip('/')}/chat/completions"
            how = url, body, key_of(backend), self.timeout_s
            send: Any = self.send and partial(self.send, *how)
            bill = Bill(self.ledger, purse, backend, most_usd)
            outcome = self.exchange("chat", {"url": url, **body}, send, bill)
            if isinstance(outcome, Reply):
                return outcome
            if outcome.cause == CONTEXT:
                self._shorten(backend, body["messages"], outcome)
                continue
            dropped = next(iter(fields), "")
            if outcome.cause == NO_SYSTEM and body["messages"][0]["role"] == "system":
                dropped = "system"
            if "max_tokens" in body and "max_completion_tokens" in outcome.why:
                dropped = "max_tokens"  # it has another name there
            if outcome.status not in REFUSALS or not dropped:
                raise endpoint_error(backend, outcome)
            self.unsupported.add((backend.name, dropped))

    def _shorten(self, backend: Backend, sent: Messages, failure: Failure) -> None:
        """Make the next prompts shorter than one that did not fit into the context. Raises
        ContextExceeded if nothing of it can be shortened.
        """
        from orchestra.kernel.shorter import chars_of, shortened

        most_chars = self.most_chars[backend.name] = chars_of(sent) * 3 // 4
        if chars_of(shortened(sent, most_chars)) >= chars_of(sent):
            raise endpoint_error(backend, failure)
        self.too_long.add(backend.name)

    def _request(
        self,
        backend: Backend,
        messages: Messages,
        purse: Purse,
        optional: Mapping[str, Body],
        fields: Mapping[str, Body],
    ) -> tuple[Body, float | None]:
        """The request, and the most that one attempt costs. Raises BudgetExceeded."""
        if "tools" in optional and "tools" not in fields:
            messages = _with_tools_in_text(messages, optional["tools"]["tools"])
        if backend.name in self.most_chars:
            from orchestra.kernel.shorter import shortened

            messages = shortened(messages, self.most_chars[backend.name])
        if (backend.name, "system") in self.unsupported:
            messages = _without_system(messages)
        body: Body = {"model": backend.model, "messages": messages, **backend.options}
        for value in fields.values():
            body |= value
        read = input_token_bound(backend, messages, fields)
        limit = purse.output_tokens(backend, read)
        if limit is not None:
            is_renamed = (backend.name, "max_tokens") in self.unsupported
            is_renamed = is_renamed or ".openai.com" in backend.base_url
            body["max_completion_tokens" if is_renamed else "max_tokens"] = limit
        return body, backend.cost_usd(read, limit or DEFAULT_OUTPUT_TOKENS)

    def exchange(
        self, kind: str, request: Body, send: Callable[[], Response], bill: Bill
    ) -> Reply | Failure:
        """The outcome of all attempts, on the tape and charged to the bill. `send` makes one, whose
        response is a completion.
        """
        ask: Any = None
        if self.tape.mode != "replay":
            from orchestra.kernel.attempts import attempts

            how = self.tape, self.patience_s, self.notify
            ask = partial(attempts, send, bill, *how)
        try:
            price = {"backend": bill.backend.name, "assumed_usd": bill.assumed_usd}
            outcome = self.tape.exchange(kind, {**request, "bill": price}, ask)
            bill.played = outcome.played
            if isinstance(outcome, Answer):
                data = outcome.value["data"]
                cost_usd = bill.charge(outcome.value["unanswered"], data)
                if bill.is_exceeded:
                    told = "billed more tokens than were asked for; calls in progress may pass"
                    self.notify(f"{bill.backend.name} {told} your budget")
                return _reply_of(data, cost_usd)
            bill.charge(outcome.unanswered)
        finally:
            bill.settle()
        if outcome.cause == OVER_BUDGET:
            raise BudgetExceeded(outcome.why)
        return outcome


def key_of(backend: Backend) -> str:
    return os.environ.get(backend.api_key_env, "").strip() or "none"


def endpoint_error(backend: Backend, failure: Failure) -> EndpointError:
    """A failure in one line: the endpoint, and what it sent. What a user can do about it is said by
    the command; models may read this line.
    """
    status = f"status {failure.status}: " if failure.status else ""
    where = f"{backend.name} at {backend.base_url}"
    kind = ContextExceeded if failure.cause == CONTEXT else EndpointError
    return kind(f"{where}: {status}{failure.why}", failure.status)


# ---- the request ---------------------------------------------------------------------------------


def _optional_fields(
    schema: Schema | None,
    logprobs: bool,
    tools: Sequence[Mapping[str, Any]],
    temperature: float | None,
) -> dict[str, Body]:
    """What an endpoint may refuse, in the order in which it is dropped."""
    fields: dict[str, Body] = {}
    if logprobs:
        fields["logprobs"] = {"logprobs": True, "top_logprobs": 5}
    if schema is not None:
        if not isinstance(schema, tuple):
            raise TypeError("a schema is a pair: (name, JSON schema)")
        name, shape = schema
        structured: Body = {"type": "json_object"}
        if shape:
            described = {"name": name, "schema": shape}
            structured = {"type": "json_schema", "json_schema": described}
        fields["schema"] = {"response_format": structured}
    if tools:
        fields["tools"] = {"tools": list(tools)}
    if temperature is not None:
        fields["temperature"] = {"temperature": temperature}
    return fields


def _without_system(messages: Messages) -> Messages:
    """The messages for a template without a system role: the user's first one begins with it."""
    if messages[0]["role"] != "system":
        return messages
    system, user, *rest = messages
    content = user["content"]
    if isinstance(content, str):
        content = f"{system['content']}\n\n{content}"
    else:
        content = [{"type": "text", "text": system["content"]}, *content]
    return [{**user, "content": content}, *rest]


def _with_tools_in_text(
    messages: Messages, tools: Sequence[Mapping[str, Any]]
) -> Messages:
    """The messages for an endpoint without the field `tools`: the system prompt lists the tools."""
    system, *rest = messages
    listed = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    content = say("notes", "tools_in_text", system=system["content"], tools=listed)
    return [{**system, "content": content}, *rest]


def _reply_of(data: Body, cost_usd: float | None) -> Reply:
    """The text of a completion without the markup of its chat template, with its tool calls as
    <tool_call> JSON. Some servers put the whole reply into another field.
    """
    choice = data["choices"][0]
    message = choice["message"]
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(str(as_dict(part).get("text") or "") for part in content)
    text = str(content or "")
    calls = _tool_calls_of(message)
    cut = str(choice.get("finish_reason")).lower() in CUT
    if not (text or calls or cut):
        others = [message.get(n) for n in ("reasoning_content", "reasoning", "refusal")]
        text = next((str(other) for other in others if other), "")
    if any(mark in text for mark in MARKS):
        from orchestra.kernel.markup import without_markup

        text = without_markup(text)
    return Reply(
        text + calls, cost_usd, cut, as_dict(choice.get("logprobs")).get("content")
    )


def _tool_calls_of(message: Mapping[str, Any]) -> str:
    calls = message.get("tool_calls")
    text = ""
    for call in calls if isinstance(calls, list) else []:
        function = as_dict(as_dict(call).get("function"))
        if function:
            named = {key: function.get(key) for key in ("name", "arguments")}
            text += f"<tool_call>{json.dumps(named, ensure_ascii=False)}</tool_call>"
    return text
