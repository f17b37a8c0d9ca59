"""One chat call: structured where the endpoint takes it, priced, within its allowance, and on the
tape.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import httpx2
import openai

from orchestra.call import current_call
from orchestra.clients import NEVER_SENT, PLAYED, RETRIES, TRIED_BY_CALLER, client, played
from orchestra.money import DEFAULT_OUTPUT_TOKENS, Purse
from orchestra.prompts import say
from orchestra.replay import Tape
from orchestra.replies import NoAnswer, Reply, billed, parsed, read
from orchestra.secrets import key_problem, scrub, scrub_url
from orchestra.vocabulary import Backend, ConfigError, EndpointError

TIMEOUT_S = 120.0
PAUSE_S = 0.2  # before the next try
NO_KEY = "none"
PATH = "/chat/completions"
REFUSALS = {400, 404, 405, 422, 500, 501}  # what endpoints answer to a field that they do not take

T = TypeVar("T")
Message = dict[str, Any]
Fields = dict[str, Any]  # of a request
Schema = tuple[str, Mapping[str, Any]]  # its name and the JSON schema


class Chat:
    """The pool's endpoints as the run uses them: `chat(backend, messages, purse)` inside a logical
    call.
    """

    def __init__(self, tape: Tape, timeout_s: float = TIMEOUT_S) -> None:
        self.tape, self.timeout_s = tape, timeout_s

    def __call__(
        self,
        backend: Backend,
        messages: Sequence[Message],
        purse: Purse,
        schema: Schema | None = None,
        logprobs: bool = False,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> Reply:
        """Ask `backend`. `schema` is that of the answer wanted; `tools`: functions to call, in the
        text where the endpoint takes none. A call comes back as text.

        Raises EndpointError, BudgetExceeded, and ConfigError where no model is named and the
        endpoint serves several.
        """
        body = {"model": self._model(backend), "messages": list(messages), **backend.options}
        wanted = _extras(schema, logprobs, tools)
        # The bound is of what is wanted, refused or not: a replay knows of a refusal from the start
        # and must come to the same limit.
        whole = _request(body, wanted, tools)
        either = (whole, _in_text(body, tools)) if tools else (whole,)
        bound = max(input_token_bound(one, backend.image_tokens) for one in either)
        limit = purse.output_tokens(backend, bound)
        most = backend.cost_usd(bound, limit or DEFAULT_OUTPUT_TOKENS)
        unsaid = most if most == 0 or purse.limit_usd is not None else None  # without a count
        again = partial(purse.affords_again, most)
        try:
            answer = self._negotiated(backend, body, wanted, tools, limit, again)
            data = parsed(backend, answer)
        except NoAnswer as failure:
            purse.charge(unsaid, failure.played)
            raise
        bill = billed(backend, data, played=PLAYED in answer.headers)
        cost_usd = unsaid if bill.cost_usd is None else bill.cost_usd
        purse.charge(cost_usd, bill.played, bill.tokens)
        return read(backend, data, bill)

    def _negotiated(
        self,
        backend: Backend,
        body: Mapping[str, Any],
        wanted: Mapping[str, Fields],
        tools: Sequence[Mapping[str, Any]],
        limit: int | None,
        again: Callable[..., bool],
    ) -> httpx2.Response:
        """The answer to the request; where the endpoint refuses a field, to one without it. What it
        refuses is learned once that answer is in.
        """
        renamed = f"{backend.name} wants max_completion_tokens"
        found: list[str] = []
        uri = str(httpx2.URL(f"{backend.base_url}{PATH}"))  # as the client writes it
        where = str(body["model"]), scrub_url(uri)
        taken = self._not_refused(backend, wanted, where)
        newer = limit is not None and (
            "openai.com" in backend.base_url or self.tape.refuses(renamed, "max_tokens", *where)
        )
        while True:
            request = _request(body, taken, tools)
            if limit:
                request["max_completion_tokens" if newer else "max_tokens"] = limit
            try:
                answer = self._post(backend, request, again)
            except openai.APIError as error:
                status = getattr(error, "status_code", None)
                rename = limit and not newer and "max_completion_tokens" in error.message
                if status not in REFUSALS or not (rename or taken):
                    raise self._endpoint_error(backend, error) from None
                if rename:
                    newer = True
                    found.append(renamed)
                    continue
                refused, *_ = taken
                del taken[refused]
                if status < 500:  # else it may be a trouble of the moment
                    found.append(f"{backend.name} refuses {refused}")
            else:
                for fact in found:
                    self.tape.learn(fact, "yes")
                return answer

    def _not_refused(
        self, backend: Backend, wanted: Mapping[str, Fields], where: tuple[str, str]
    ) -> dict[str, Fields]:
        return {
            kind: fields
            for kind, fields in wanted.items()
            if not self.tape.refuses(f"{backend.name} refuses {kind}", next(iter(fields)), *where)
        }

    def transcribe(
        self, backend: Backend, model: str, sound: tuple[str, bytes], hint: str
    ) -> tuple[str, bool]:
        """The text of a sound (name, bytes) from the endpoint's /audio/transcriptions, and whether
        it was played.

        Raises EndpointError.
        """
        endpoint = self._client(backend).audio.transcriptions.with_raw_response
        try:
            answer = _in_tries(
                lambda: endpoint.create(model=model, file=sound, prompt=hint).http_response
            )
        except openai.APIError as error:
            raise self._endpoint_error(backend, error) from None
        try:
            return scrub(str(answer.json()["text"])), PLAYED in answer.headers
        except (ValueError, KeyError, TypeError):
            said = scrub(answer.text[:200])
            raise EndpointError(
                f"{backend.name} at {backend.base_url}: no transcription but {said!r}"
            ) from None

    def _model(self, backend: Backend) -> str:
        """The backend's model; "" stands for the only one its endpoint serves, asked for once."""
        fact = f"{backend.name} serves"
        if not backend.model and fact not in self.tape.facts:
            try:
                one, kind = self._client(backend), httpx2.Response
                answer = _in_tries(lambda: one.get("/models", cast_to=kind))
                served = [str(m["id"]) for m in answer.json()["data"]]
            except openai.NotFoundError:
                served = []
            except openai.APIError as error:
                raise self._endpoint_error(backend, error) from None
            except (ValueError, KeyError, TypeError):
                served = []
            if len(served) != 1:
                listed = ", ".join(served[:10]) or "no list of models"
                raise ConfigError(f"{backend.base_url} serves {listed}: name one with --model")
            self.tape.learn(fact, served[0])
        return self._named(backend)

    def _named(self, backend: Backend) -> str:
        return backend.model or self.tape.facts.get(f"{backend.name} serves", "")

    def _client(self, backend: Backend) -> openai.OpenAI:
        key = os.environ.get(backend.api_key_env, "") if backend.api_key_env else ""
        if problem := key_problem(key):
            raise ConfigError(f"{backend.api_key_env}: {problem}")
        return client(backend.base_url, key or NO_KEY, self.timeout_s)

    def _post(
        self, backend: Backend, body: Mapping[str, Any], again: Callable[..., bool]
    ) -> httpx2.Response:
        assert current_call() is not None, "every call of ours has a name"
        one, kind = self._client(backend), httpx2.Response
        return _in_tries(lambda: one.post(PATH, body=body, cast_to=kind), again)

    def _endpoint_error(self, backend: Backend, error: openai.APIError) -> EndpointError:
        """One line: which endpoint, what it did, what to do."""
        where = f"{backend.name} at {backend.base_url}"
        if isinstance(error, openai.APIConnectionError):
            why = scrub(" ".join(str(error.__cause__ or error).split()))
            said = f"{where}: can not be reached ({why}); is it up, is the URL right?"
            if isinstance(error, openai.APITimeoutError) and _sent(error):
                said = f"{where}: no answer in time; is it up? (--timeout waits longer)"
            elif _sent(error):
                said = f"{where}: broke off its answer ({why}); see its log"
            return NoAnswer(said, played(error.__cause__)) if _sent(error) else EndpointError(said)
        status: Any = getattr(error, "status_code", "?")
        advice = {
            401: f"check the key in {backend.api_key_env or 'OPENAI_API_KEY'}",
            403: f"the key in {backend.api_key_env or 'OPENAI_API_KEY'} may not do this",
            404: f"check base_url (most end in /v1) and the model name {self._named(backend)!r}",
            429: "rate or quota limit; wait, then try again",
        }.get(status, "see its log")
        said = scrub(" ".join(str(error.message).split()))[:300]
        return EndpointError(f"{where}: refused with status {status} ({said}); {advice}")


def _in_tries(ask: Callable[[], T], again: Callable[..., bool] = lambda played: True) -> T:
    """What `ask` returns; after a time-out or a broken answer it is tried RETRIES times more, as
    long as `again(played=)`, which is asked about a try that was sent.
    """
    left = RETRIES
    while True:
        try:
            return ask()
        except openai.APIConnectionError as failure:
            ours = isinstance(failure.__cause__, TRIED_BY_CALLER)
            if not (ours and left) or (
                _sent(failure) and not again(played=played(failure.__cause__))
            ):
                raise
            left -= 1
            if not played(failure.__cause__):
                time.sleep(PAUSE_S)


def _sent(failure: openai.APIConnectionError) -> bool:
    """Whether anything may have reached the endpoint, and so be on the bill."""
    why = failure.__cause__
    return isinstance(why, TRIED_BY_CALLER) and not isinstance(why, NEVER_SENT)


def _extras(
    schema: Schema | None, logprobs: bool, tools: Sequence[Mapping[str, Any]]
) -> dict[str, Fields]:
    """The request fields an endpoint may refuse, by kind, in the order in which they are given up;
    learned once a backend and kind.
    """
    extras: dict[str, Fields] = {}
    if logprobs:
        extras["logprobs"] = {"logprobs": True, "top_logprobs": 5}
    if schema:
        name, content = schema
        described = {"name": name, "schema": content}
        extras[name] = {"response_format": {"type": "json_schema", "json_schema": described}}
    if tools:
        extras["tools"] = {"tools": list(tools)}
    return extras


def _request(
    body: Mapping[str, Any], taken: Mapping[str, Fields], tools: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    request = dict(body) if "tools" in taken else _in_text(body, tools)
    for fields in taken.values():
        request |= fields
    return request


def _in_text(body: Mapping[str, Any], tools: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The request of an endpoint that takes no `tools`: they stand in the system prompt instead."""
    if not tools:
        return dict(body)
    system, *rest = body["messages"]
    listed = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    text = say("notes", "tools_in_text", system=system["content"], tools=listed)
    return {**body, "messages": [{**system, "content": text}, *rest]}


def input_token_bound(body: Mapping[str, Any], image_tokens: int) -> int:
    """No request has more input tokens than this: a token of text is at least a byte, a picture is
    at most `image_tokens`, and no model counts a second of sound (WAV, 16 kHz) for over 100.
    """
    text = media = 0
    for message in body["messages"]:
        parts = message["content"] if isinstance(message["content"], list) else [message["content"]]
        for part in parts:
            if isinstance(part, dict) and part.get("type") == "image_url":
                media += image_tokens
            elif isinstance(part, dict) and part.get("type") == "input_audio":
                media += 1000 + len(part["input_audio"]["data"]) // 300
            else:
                text += len(str(part.get("text") if isinstance(part, dict) else part).encode()) + 16
    rest = {k: v for k, v in body.items() if k != "messages"}
    return text + media + len(json.dumps(rest, default=str).encode())
