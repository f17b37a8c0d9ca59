"""One chat call: structured where the endpoint takes it, priced, within its allowance, and on the
tape.

Retries are the openai client's (408, 409, 429, 5xx, broken connections, Retry-After). One client
per endpoint.
"""

from __future__ import annotations

import atexit
import json
import os
import ssl
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any
from urllib.request import getproxies

import httpx2
import openai

from orchestra.call import current_call
from orchestra.money import DEFAULT_OUTPUT_TOKENS, Purse
from orchestra.prompts import say
from orchestra.replay import PLAYED, Tape
from orchestra.secrets import scrub
from orchestra.vocabulary import Backend, ConfigError, EndpointError

TIMEOUT_S = 120.0
RETRIES = 2
IMAGE_TOKENS = 3000  # a bound for one downscaled image
NO_KEY = "none"

Message = dict[str, Any]


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


class OneEachTransport(httpx2.BaseTransport):
    """A connection each for requests that run side by side, leased without a lock. httpx2's own
    pool looks at all its connections under one lock for every request, which at 128 sub-tasks costs
    more than the requests themselves.
    """

    def __init__(self) -> None:
        self._idle: dict[str, deque[httpx2.HTTPTransport]] = {"http": deque(), "https": deque()}

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        return httpx2.create_ssl_context()

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        scheme = request.url.scheme
        try:
            transport = self._idle[scheme].pop()
        except IndexError:
            transport = httpx2.HTTPTransport(verify=self._tls if scheme == "https" else False)
        try:
            return transport.handle_request(request)
        finally:
            self._idle[scheme].append(transport)

    def close(self) -> None:
        for idle in self._idle.values():
            while idle:
                idle.pop().close()


_making = threading.Lock()


def client(base_url: str, api_key: str, timeout_s: float) -> openai.OpenAI:
    """The one client of an endpoint: a client per call would cost 20-35 ms each."""
    with _making:  # a cache alone lets threads that start together make one each
        return _client(base_url, api_key, timeout_s)


@cache
def _client(base_url: str, api_key: str, timeout_s: float) -> openai.OpenAI:
    timeout = httpx2.Timeout(timeout_s, connect=10.0)
    transport = None if getproxies() else OneEachTransport()  # httpx2 finds proxies on its own
    http = openai.DefaultHttpxClient(timeout=timeout, transport=transport)
    atexit.register(http.close)
    return openai.OpenAI(
        base_url=base_url, api_key=api_key, http_client=http, max_retries=RETRIES, timeout=timeout
    )


class Chat:
    """The pool's endpoints as the run uses them: `chat(backend, messages, purse)` inside a logical
    call.
    """

    def __init__(self, tape: Tape, timeout_s: float = TIMEOUT_S) -> None:
        self.tape, self.timeout_s = tape, timeout_s
        # A replay plays the last outcome of a call at once: it neither tries again nor waits.
        self.options: Any = {"max_retries": 0} if tape.mode == "replay" else {}

    def __call__(
        self,
        backend: Backend,
        messages: Sequence[Message],
        purse: Purse,
        schema: tuple[str, Mapping[str, Any]] | None = None,
        logprobs: bool = False,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> Reply:
        """Ask `backend`. `schema` is (name, JSON schema) of the answer wanted; `tools`: functions
        to call, in the text where the endpoint takes none. A call comes back as text.

        Raises EndpointError, BudgetExceeded, and ConfigError where no model is named and the
        endpoint serves several.
        """
        body: dict[str, Any] = {
            "model": self._model(backend),
            "messages": list(messages),
            **backend.options,
        }
        wanted = _extras(schema, logprobs, tools)
        plain = self._plain_fact(backend, schema, tools)
        extras = {} if plain in self.tape.facts else wanted
        # The bound is of what is wanted, refused or not: a replay knows of a refusal from the start
        # and must come to the same limit.
        either = {**body, **wanted}, _in_text(body, tools)
        bound = max(map(input_token_bound, either)) if tools else input_token_bound(either[0])
        if limit := purse.output_tokens(backend, bound):
            field = "max_completion_tokens" if "openai.com" in backend.base_url else "max_tokens"
            body[field] = limit
        try:
            data = self._post(backend, {**(body if extras else _in_text(body, tools)), **extras})
        except (openai.BadRequestError, openai.UnprocessableEntityError) as refusal:
            if not extras:
                raise self._endpoint_error(backend, refusal) from None
            data = self._post_plain(backend, _in_text(body, tools))
            self.tape.learn(plain, "yes")
        except openai.APIError as error:
            raise self._endpoint_error(backend, error) from None
        reply = _read(backend, data)
        worst = (
            backend.cost_usd(bound, limit or DEFAULT_OUTPUT_TOKENS)
            if purse.limit_usd is not None
            else None
        )
        tokens = (reply.input_tokens or 0) + (reply.output_tokens or 0)
        purse.charge(worst if reply.cost_usd is None else reply.cost_usd, reply.played, tokens)
        return reply

    def transcribe(
        self, backend: Backend, model: str, sound: tuple[str, bytes], hint: str
    ) -> tuple[str, bool]:
        """The text of a sound (name, bytes) from the endpoint's /audio/transcriptions, and whether
        it was played.

        Raises EndpointError.
        """
        one = self._client(backend)
        if "max_retries" in self.options:
            one = one.with_options(max_retries=self.options["max_retries"])
        endpoint = one.audio.transcriptions.with_raw_response
        try:
            answer = endpoint.create(model=model, file=sound, prompt=hint).http_response
        except openai.APIError as error:
            raise self._endpoint_error(backend, error) from None
        try:
            return scrub(str(answer.json()["text"])), PLAYED in answer.headers
        except (ValueError, KeyError, TypeError):
            said = scrub(answer.text[:200])
            raise EndpointError(
                f"{backend.name} at {backend.base_url}: no transcription but {said!r}"
            ) from None

    def _plain_fact(
        self,
        backend: Backend,
        schema: tuple[str, Mapping[str, Any]] | None,
        tools: Sequence[Mapping[str, Any]],
    ) -> str:
        kind = "tools" if tools else schema[0] if schema else "logprobs"
        return f"{backend.name} refuses {kind}"

    def _model(self, backend: Backend) -> str:
        """The backend's model; "" stands for the only one its endpoint serves, asked for once."""
        fact = f"{backend.name} serves"
        if not backend.model and fact not in self.tape.facts:
            try:
                answer = self._client(backend).get(
                    "/models", cast_to=httpx2.Response, options=self.options
                )
                served = [str(m["id"]) for m in answer.json()["data"]]
            except openai.APIError as error:
                raise self._endpoint_error(backend, error) from None
            except (ValueError, KeyError, TypeError):
                served = []
            if len(served) != 1:
                listed = ", ".join(served[:10]) or "no list of models"
                raise ConfigError(f"{backend.base_url} serves {listed}: name one with --model")
            self.tape.learn(fact, served[0])
        return backend.model or self.tape.facts[fact]

    def _client(self, backend: Backend) -> openai.OpenAI:
        key = os.environ.get(backend.api_key_env, "") if backend.api_key_env else ""
        if not (key.isascii() and key.isprintable()):  # no header takes it, and errors quote it
            odd = "holds a line break or a character that is not ASCII, as no key does"
            raise ConfigError(f"{backend.api_key_env}: {odd}; set it again")
        return client(backend.base_url, key or NO_KEY, self.timeout_s)

    def _post(self, backend: Backend, body: dict[str, Any]) -> httpx2.Response:
        assert current_call() is not None, "every call of ours has a name"
        return self._client(backend).post(
            "/chat/completions", body=body, cast_to=httpx2.Response, options=self.options
        )

    def _post_plain(self, backend: Backend, body: dict[str, Any]) -> httpx2.Response:
        try:
            return self._post(backend, body)
        except openai.APIError as error:
            raise self._endpoint_error(backend, error) from None

    def _endpoint_error(self, backend: Backend, error: openai.APIError) -> EndpointError:
        """One line: which endpoint, what it did, what to do."""
        where = f"{backend.name} at {backend.base_url}"
        if isinstance(error, openai.APITimeoutError):
            waited = f"no answer within {self.timeout_s:g} s"
            return EndpointError(f"{where}: {waited}; is it up? (--timeout waits longer)")
        if isinstance(error, openai.APIConnectionError):
            why = scrub(" ".join(str(error.__cause__ or error).split()))
            return EndpointError(
                f"{where}: can not be reached ({why}); is it up, is the URL right?"
            )
        status: Any = getattr(error, "status_code", "?")
        advice = {
            401: f"check the key in {backend.api_key_env or 'OPENAI_API_KEY'}",
            403: f"the key in {backend.api_key_env or 'OPENAI_API_KEY'} may not do this",
            404: f"check base_url (most end in /v1) and the model name {backend.model!r}",
            429: "rate or quota limit; wait, then --resume",
        }.get(status, "see its log")
        said = scrub(" ".join(str(error.message).split()))[:300]
        return EndpointError(f"{where}: refused with status {status} ({said}); {advice}")


def _extras(
    schema: tuple[str, Mapping[str, Any]] | None,
    logprobs: bool,
    tools: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """The request fields an endpoint may refuse; learned once a backend and kind of answer."""
    extras: dict[str, Any] = {"logprobs": True, "top_logprobs": 5} if logprobs else {}
    if schema:
        name, content = schema
        described = {"name": name, "schema": content}
        extras["response_format"] = {"type": "json_schema", "json_schema": described}
    if tools:
        extras["tools"] = list(tools)
    return extras


def _in_text(body: dict[str, Any], tools: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The request of an endpoint that takes no `tools`: they stand in the system prompt instead."""
    if not tools:
        return body
    system, *rest = body["messages"]
    listed = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    text = say("notes", "tools_in_text", system=system["content"], tools=listed)
    return {**body, "messages": [{**system, "content": text}, *rest]}


def _calls_as_text(calls: Any) -> str:
    """Tool calls as the text in which models write them: one form for whoever reads the reply."""
    functions = [c.get("function") for c in calls or () if isinstance(c, dict)]
    rows = [{k: f.get(k) for k in ("name", "arguments")} for f in functions if isinstance(f, dict)]
    return "".join(f"<tool_call>{json.dumps(r, ensure_ascii=False)}</tool_call>" for r in rows)


def input_token_bound(body: Mapping[str, Any]) -> int:
    """No request has more input tokens than this: a token is at least a byte, a picture at most
    IMAGE_TOKENS.
    """
    text = media = 0
    for message in body["messages"]:
        parts = message["content"] if isinstance(message["content"], list) else [message["content"]]
        for part in parts:
            if isinstance(part, dict) and part.get("type") == "image_url":
                media += IMAGE_TOKENS
            elif isinstance(part, dict) and part.get("type") == "input_audio":
                media += 1000 + len(part["input_audio"]["data"]) // 300
            else:
                text += len(str(part.get("text") if isinstance(part, dict) else part).encode()) + 16
    rest = {k: v for k, v in body.items() if k != "messages"}
    return text + media + len(json.dumps(rest, default=str).encode())


def _read(backend: Backend, response: httpx2.Response) -> Reply:
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
