"""One chat call: structured where the endpoint takes it, retried, priced, and on the tape."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from orchestra.main_agent import Messages, Schema
from orchestra.money import DEFAULT_OUTPUT_TOKENS, Purse
from orchestra.vocabulary import Backend, ConfigError, EndpointError, Reply
from runtime import http
from runtime.parsing import shallow
from runtime.prompts import say
from runtime.tape import Failure, Tape

ATTEMPTS = 3
BUSY = {408, 409, 429, *range(500, 600)}  # worth another attempt
REFUSALS = {400, 404, 405, 422, 500, 501}  # what endpoints answer to a field that they do not take
PAUSE_S = 0.25  # before the second attempt; doubled each time
Body = dict[str, Any]


def _quiet(message: str) -> None:
    pass


@dataclass
class Chat:
    """The pool's endpoints as one sub-agent uses them. What it learns of an endpoint, a refused
    field, it learns in its own calls: no request depends on the timing of another sub-agent.
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
        """`schema`: of the answer; `tools`: functions to call. A call comes back as text.

        Raises EndpointError, and BudgetExceeded before a call that could exceed the purse.
        """
        wanted = _optional_fields(schema, logprobs, tools)
        limit = purse.output_tokens(backend, bound := input_token_bound(backend, messages, wanted))
        most_usd = backend.cost_usd(bound, limit or DEFAULT_OUTPUT_TOKENS)
        unknown = most_usd if purse.limit_usd is not None or most_usd == 0 else None
        gave_up: set[tuple[str, str]] = set()
        while True:
            given_up = self.refused | gave_up
            left = {k: v for k, v in wanted.items() if (backend.name, k) not in given_up}
            body: Body = {"model": backend.model, "messages": messages, **backend.options}
            if tools and "tools" not in left:
                body["messages"] = _tools_in_text(messages, tools)
            for fields in left.values():
                body |= fields
            if limit:
                newer = "openai.com" in backend.base_url or (backend.name, "max_tokens") in given_up
                body["max_completion_tokens" if newer else "max_tokens"] = limit
            ask = partial(self._attempts, backend, body, purse, most_usd)
            try:
                outcome, played = self.tape.exchange("chat", {"url": _url(backend), **body}, ask)
            except Failure as failure:
                o = failure.outcome
                for _ in range(o["unanswered"]):  # it may be on the bill
                    purse.charge(unknown, failure.played)
                renamed = "max_tokens" in body and "max_completion_tokens" in o["why"]
                if o["status"] not in REFUSALS or not (renamed or left):
                    raise EndpointError(self._advice(backend, o, messages)) from None
                gave_up.add((backend.name, "max_tokens" if renamed else next(iter(left))))
                if o["status"] < 500:  # a 500 may be a trouble of the moment
                    self.refused |= gave_up
                continue
            for _ in range(outcome["unanswered"]):
                purse.charge(unknown, played)
            return _reply(backend, outcome["data"], purse, unknown, played)

    def _attempts(self, backend: Backend, body: Body, purse: Purse, most_usd: float | None) -> Any:
        """The answer's JSON, after at most ATTEMPTS attempts, and further ones at a rate limit for
        as long as `patience_s` lasts. Raises Failure with the outcome of all of them.
        """
        headers = {"authorization": f"Bearer {_key(backend)}", "content-type": "application/json"}
        url, data = _url(backend), json.dumps(body).encode()
        unanswered, attempt, waited_s = 0, 1, 0.0
        while True:
            retry_after: str | None = None
            try:
                answer = http.post(url, data, headers, self.timeout_s)
                status, retry_after = answer.status, answer.headers.get("retry-after")
                if 200 <= status < 300:
                    return {"data": _checked(answer), "unanswered": unanswered}
                why, retry = _message(answer), status in BUSY
            except http.NoAnswer as error:
                status, why, retry = 0, error.why, True
                unanswered += error.sent
            except ValueError as error:  # HTML, half of an answer, no choice in it
                unanswered, retry, status, why = unanswered + 1, False, 0, str(error)
            limited = status == 429 or (status == 503 and retry_after is not None)
            pause_s = _retry_after_s(retry_after) or PAUSE_S * 2 ** min(attempt - 1, 6)
            enough = waited_s + pause_s > self.patience_s if limited else attempt >= ATTEMPTS
            affordable = purse.affords((unanswered + 1) * (most_usd or 0.0))
            if not retry or enough or not affordable:
                raise Failure({"status": status, "why": why, "unanswered": unanswered})
            attempt, waited_s = attempt + 1, waited_s + pause_s
            of = (
                f"{waited_s:.0f} of {self.patience_s:.0f} s"
                if limited
                else f"attempt {attempt} of {ATTEMPTS}"
            )
            self.notify(f"waiting for {backend.name} ({of}; {why[:60]})")
            self.tape.wait(pause_s)

    # ---- what the openai package does better -----------------------------------------------------

    def transcribe(
        self, backend: Backend, model: str, sound: bytes, sha256: str, hint: str
    ) -> tuple[str, bool]:
        """The text of a WAV file by /audio/transcriptions, and whether it was played from the tape.

        Raises EndpointError.
        """
        request = {"url": backend.base_url, "model": model, "prompt": hint, "sha256": sha256}

        def ask() -> str:
            transcriptions = self._client(backend).audio.transcriptions
            return str(
                transcriptions.create(model=model, file=("audio.wav", sound), prompt=hint).text
            )

        try:
            return self.tape.exchange("transcription", request, lambda: _asked_openai(ask))
        except Failure as failure:
            raise EndpointError(self._advice(backend, failure.outcome)) from None

    def with_model(self, backend: Backend) -> Backend:
        """The backend with the name of its model; "" stands for the only one the endpoint serves.

        Raises ConfigError where it serves several, EndpointError.
        """
        if backend.model:
            return backend

        def ask() -> list[str]:
            return [m.id for m in self._client(backend).models.list().data or ()]

        try:
            with self.tape.call("models"):
                request = {"url": backend.base_url}
                served, _ = self.tape.exchange("models", request, lambda: _asked_openai(ask))
        except Failure as failure:
            if (status := failure.outcome["status"]) in (0, 401, 403, 429) or status >= 500:
                raise EndpointError(self._advice(backend, failure.outcome)) from None
            served = []
        if len(served) != 1:
            listed = ", ".join(served[:10]) or "no list of models"
            raise ConfigError(f"{backend.base_url} serves {listed}: name one with --model")
        return replace(backend, model=served[0])

    def _client(self, backend: Backend) -> Any:
        import openai  # 0.6 s to import

        return openai.OpenAI(
            base_url=backend.base_url, api_key=_key(backend), timeout=self.timeout_s
        )

    # ---- what an error says ----------------------------------------------------------------------

    def _advice(self, backend: Backend, o: Mapping[str, Any], messages: Messages = ()) -> str:  # type: ignore[assignment]
        """One line: which endpoint, what it did, what to do."""
        key = backend.api_key_env or "OPENAI_API_KEY"
        media = _media_in(messages)
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


def _checked(answer: http.Answer) -> Any:
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


def _asked_openai(ask: Callable[[], Any]) -> Any:
    """What `ask` returns, with the openai client's own retries. Raises Failure."""
    import openai

    try:
        return ask()
    except openai.APIStatusError as error:
        outcome = {"status": error.status_code, "why": str(error.message)[:300]}
    except openai.APIConnectionError as error:
        outcome = {"status": 0, "why": str(error.__cause__ or error)[:300]}
    except (openai.APIError, ValueError, TypeError, AttributeError) as error:
        outcome = {"status": 200, "why": f"no usable answer ({type(error).__name__})"}
    raise Failure({**outcome, "unanswered": 0})


def _url(backend: Backend) -> str:
    return f"{backend.base_url.rstrip('/')}/chat/completions"


def _key(backend: Backend) -> str:
    return os.environ.get(backend.api_key_env, "").strip() or "none"


def _retry_after_s(header: str | None) -> float:
    from urllib3.exceptions import HTTPError
    from urllib3.util import Retry

    try:
        return Retry().parse_retry_after(header) if header else 0.0
    except (ValueError, OverflowError, HTTPError):
        return 0.0


def _message(answer: http.Answer) -> str:
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


# ---- the request ---------------------------------------------------------------------------------


def _optional_fields(
    schema: Schema | None, logprobs: bool, tools: Sequence[Mapping[str, Any]]
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
    return fields


def _tools_in_text(messages: Messages, tools: Sequence[Mapping[str, Any]]) -> Messages:
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


def _media_in(messages: Messages) -> str:
    kinds = {p["type"] for p in _parts(messages) if isinstance(p, dict)}
    named = {"image_url": "images", "input_audio": "sound"}
    return " and ".join(name for kind, name in named.items() if kind in kinds)


def input_token_bound(backend: Backend, messages: Messages, fields: Mapping[str, Any]) -> int:
    """No request has more input tokens: a token is at least a byte, a picture at most
    `image_tokens`, and no model counts a second of sound (WAV, 16 kHz) for over 100.
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


# ---- the answer ----------------------------------------------------------------------------------


def _reply(
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
    functions = [r.get("function") for r in rows or () if isinstance(r, dict)]
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
