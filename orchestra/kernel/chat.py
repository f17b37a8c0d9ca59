"""One chat call: the request, its attempts, what it cost, and the tape around all of it.

    reply = Chat(tape, ledger)(backend, messages, purse, schema)

`send` makes one attempt: (url, body, key, timeout_s) -> Response, or raises NoAnswer. It is a hook:
`by_requests`, below, is the kernel's; a model in this process is another.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cache, partial
from typing import Any, NamedTuple

import requests
import urllib3
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection

from orchestra.kernel.money import (
    DEFAULT_OUTPUT_TOKENS,
    Bill,
    Ledger,
    Purse,
    input_token_bound,
)
from orchestra.kernel.prompts import say
from orchestra.kernel.tape import OVER_BUDGET, Answer, Failure, Tape
from orchestra.kernel.vocabulary import (
    Backend,
    BudgetExceeded,
    EndpointError,
    Messages,
    Reply,
    Schema,
)

ATTEMPTS = 3  # of one call, besides those that meet a rate limit
BUSY = {0, 408, 409, 429, *range(500, 600)}  # worth another attempt; 0: no response
REFUSALS = {400, 404, 405, 422, 500, 501}  # sent for a field that is not supported
# A refusal that no further attempt changes; llama.cpp and others send it with status 500.
REFUSED_MEDIA = re.compile(
    r"(image|audio|vision)\w* .*(not|only) supported|support (image|audio|vision)"
    r"|for (image|audio) input|not a multi-?modal|unsupported content part|mmproj",
    re.IGNORECASE,
)
CUT = "length", "model_length", "max_tokens"  # finish_reason of half an answer
NO_QUOTA = "insufficient_quota"  # an error code of status 429
PAUSE_S = 0.25  # before the second attempt; doubled each time
MAX_PAUSE_S = 16.0
MAX_BYTES = 16 << 20  # of an answer
SHALLOW = 200  # brackets in an answer that cannot be nested too deep
CONNECT_S = 10.0
WHY_CHARS = 300
CONNECTIONS = 256  # kept to one endpoint
# Errors after which no request can have arrived
NEVER_SENT = (
    "NewConnectionError",
    "NameResolutionError",
    "ConnectTimeout",
    "SSLError",
    "ProxyError",
    "Invalid",
    "CA certificate",
    "UnicodeEncodeError",
)
Body = dict[str, Any]


class Response(NamedTuple):
    """A response of any status, read to its end."""

    status: int
    content: bytes
    retry_after_s: float = 0.0
    location: str = ""  # of a redirect


class NoAnswer(Exception):
    """No response came. `billed`: the request may have arrived all the same."""

    def __init__(self, why: str, billed: bool, timed_out: bool = False) -> None:
        super().__init__(why)
        self.billed = billed
        self.timed_out = timed_out


Send = Callable[[str, Body, str, float], Response]


# ---- one attempt ---------------------------------------------------------------------------------


def session(url: str) -> requests.Session:
    """The connections of this process to an endpoint, with the proxy and certificates of the
    environment, which are read once.
    """
    scheme, _, host = url.split("/")[:3]
    return _session(f"{scheme}//{host}/", os.getpid())


class Connections(HTTPAdapter):
    """The connections to one endpoint. What depends on its address alone is found once, and `send`
    returns urllib3's response as it is.
    """

    def __init__(self) -> None:
        super().__init__(pool_maxsize=CONNECTIONS)
        self.pool: Any = None
        self.targets: dict[str, str] = {}  # URL -> what a request's first line names

    def get_connection_with_tls_context(self, *how: Any, **more: Any) -> Any:
        if self.pool is None:
            self.pool = super().get_connection_with_tls_context(*how, **more)
        # Each time: the host process may use a cassette of vcrpy since the last call.
        self.pool.ConnectionCls = in_one_write(type(self.pool).ConnectionCls)
        return self.pool

    def request_url(self, request: Any, proxies: Any) -> str:
        if request.url not in self.targets:
            self.targets[request.url] = super().request_url(request, proxies)
        return self.targets[request.url]

    def build_response(self, req: Any, resp: Any) -> Any:
        return resp


@cache
def in_one_write(connection: Any) -> Any:
    """urllib3's connection, but the head of a request and its body leave in one write, within the
    time limit of the call. Another class, such as vcrpy's in the host process, is left as it is.
    """
    if connection not in (HTTPConnection, HTTPSConnection):
        return connection

    class InOneWrite(connection):  # type: ignore[misc]
        pieces: list[Any] | None = None
        timeout: Any

        def connect(self) -> None:
            """In at most CONNECT_S; to send the request may take longer."""
            whole_s = self.timeout
            self.timeout = min(CONNECT_S, whole_s)
            super().connect()
            self.timeout = whole_s
            self.sock.settimeout(whole_s)

        def request(self, *how: Any, **more: Any) -> None:
            self.pieces = []
            super().request(*how, **more)
            data = b"".join(self.pieces)
            self.pieces = None
            self.send(data)

        def send(self, data: Any) -> None:
            if self.pieces is None:
                super().send(data)
            else:
                self.pieces.append(data)

    return InOneWrite


@cache
def _session(endpoint: str, process_id: int) -> requests.Session:
    """`endpoint`: scheme, host and port. A forked child has its own."""
    made = requests.Session()
    settings = made.merge_environment_settings(endpoint, {}, True, None, None)
    made.proxies.update(settings["proxies"])
    made.verify = settings["verify"]
    made.trust_env = False  # so that it is not read again for each call
    adapter = Connections()
    made.mount("https://", adapter)
    made.mount("http://", adapter)
    return made


def by_requests(url: str, body: Body, key: str, timeout_s: float) -> Response:
    """One POST. Redirects are not followed. Raises NoAnswer."""

    def prepare() -> requests.PreparedRequest:
        request = requests.PreparedRequest()
        data = json.dumps(body).encode()
        headers: Any = {"authorization": f"Bearer {key}", "user-agent": "orchestra-min"}
        headers |= {
            "content-type": "application/json",
            "accept-encoding": "gzip, deflate",
        }
        headers["Content-Length"] = str(len(data))
        request.method, request.url, request.body = "POST", url, data
        request.headers = headers
        return request

    return deliver(url, prepare, timeout_s)


def deliver(
    url: str, prepare: Callable[[], requests.PreparedRequest], timeout_s: float
) -> Response:
    """The response to a request, over the connections of its endpoint. Raises NoAnswer."""
    connections = session(url)
    deadline = time.monotonic() + timeout_s
    try:
        response: Any = connections.get_adapter(url).send(
            prepare(),
            stream=True,
            timeout=timeout_s,
            verify=connections.verify or False,
            proxies=connections.proxies,
        )
        try:
            if response.status < 200:  # end the connection: the answer comes later
                raise NoAnswer("only an interim answer came", billed=True)
            content = _content_of(response, deadline)
        finally:
            response.close()  # the connection is kept if all of the answer was read
        headers = response.headers
        wait_s = retry_after_s(headers.get("retry-after", ""))
        return Response(response.status, content, wait_s, headers.get("location", ""))
    except (OSError, ValueError, urllib3.exceptions.HTTPError) as error:
        reason = repr(error)
        never_sent = any(name in reason for name in NEVER_SENT)
        timed_out = isinstance(error, requests.Timeout) or "timed out" in reason
        why = "timed out" if timed_out else f"no connection ({_cause(error)})"
        raise NoAnswer(why, not never_sent, timed_out) from None


def _content_of(response: Any, deadline: float) -> bytes:
    """The body, decoded. Raises NoAnswer."""
    if not isinstance(response, urllib3.HTTPResponse):
        return bytes(response.read())  # of vcrpy: the host process uses a cassette
    pieces = []
    size = 0
    while piece := response.read1(1 << 16, decode_content=True):
        pieces.append(piece)
        size += len(piece)
        if size > MAX_BYTES:
            raise NoAnswer(
                f"the answer is longer than {MAX_BYTES >> 20} MiB", billed=True
            )
        if time.monotonic() > deadline:
            raise NoAnswer("timed out", billed=True, timed_out=True)
    return b"".join(pieces)


def _cause(error: BaseException) -> str:
    """The innermost error, in one line."""
    while error.__context__ is not None:
        error = error.__context__
    return " ".join(str(error).split())[:100] or type(error).__name__


def retry_after_s(header: str) -> float:
    """Retry-After: seconds, or a date. 0: there is none that can be read."""
    if header.replace(".", "", 1).isdigit():
        return float(header)
    try:
        until = parsedate_to_datetime(header)
        return max(0.0, (until - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError):
        return 0.0


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
    send: Send = by_requests
    notify: Callable[[str], None] = lambda message: None
    unsupported: set[tuple[str, str]] = field(default_factory=set)  # (backend, field)

    def copy(self) -> Chat:
        """A client for a parallel call. It starts with what is known now."""
        return replace(self, unsupported=set(self.unsupported))

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
            send = partial(self.send, url, body, key_of(backend), self.timeout_s)
            bill = Bill(self.ledger, purse, backend, most_usd)
            outcome = self.exchange("chat", {"url": url, **body}, send, bill)
            if isinstance(outcome, Reply):
                return outcome
            dropped = next(iter(fields), "")
            if "max_tokens" in body and "max_completion_tokens" in outcome.why:
                dropped = "max_tokens"  # it has another name there
            if outcome.status not in REFUSALS or not dropped:
                raise endpoint_error(backend, outcome)
            self.unsupported.add((backend.name, dropped))

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
        try:
            outcome = self.tape.exchange(
                kind, request, partial(self._attempts, send, bill)
            )
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

    def _attempts(self, send: Callable[[], Response], bill: Bill) -> Body | Failure:
        """The answer for the tape, or the Failure of all attempts."""
        backend = bill.backend
        problem = Problem(
            f"budget exhausted: it cannot cover a call to {backend.name!r}"
        )
        problem = replace(problem, cause=OVER_BUDGET)
        patience = Patience(self.patience_s)
        unanswered = 0
        while bill.covers(unanswered + 1):
            found = attempt(send)
            if not isinstance(found, Problem):
                return {
                    "data": found,
                    "unanswered": unanswered,
                    "most_usd": bill.most_usd,
                }
            problem = found
            unanswered += problem.billed
            pause_s = patience.pause_s(problem)
            if pause_s is None:
                break
            why = (
                f"{self.tape.current_call} waits for {backend.name}: {problem.why[:80]}"
            )
            self.notify(f"{why} ({patience.told})")
            self.tape.wait(pause_s)
        # Redacted before it is cut: half a key is not found.
        why = json.loads(self.tape.redact(json.dumps(problem.why, ensure_ascii=False)))
        most_usd = bill.most_usd
        status = problem.status if problem.status >= 300 else 0  # of an error
        return Failure(status, why[:WHY_CHARS], unanswered, problem.cause, most_usd)


def key_of(backend: Backend) -> str:
    return os.environ.get(backend.api_key_env, "").strip() or "none"


def endpoint_error(backend: Backend, failure: Failure) -> EndpointError:
    """A failure in one line: the endpoint, and what it sent. What a user can do about it is said by
    the command; models may read this line.
    """
    status = f"status {failure.status}: " if failure.status else ""
    where = f"{backend.name} at {backend.base_url}"
    return EndpointError(f"{where}: {status}{failure.why}", failure.status)


# ---- the attempts --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Problem:
    """Why an attempt gave no answer. `billed`: it may be on the bill all the same. `status` is 0
    without a response.
    """

    why: str
    status: int = 0
    billed: bool = False
    retry_after_s: float = 0.0
    cause: str = ""

    @property
    def is_rate_limit(self) -> bool:
        return self.status == 429 or (self.status == 503 and self.retry_after_s > 0)

    @property
    def may_pass(self) -> bool:
        """Whether another attempt may help."""
        is_final = NO_QUOTA in self.why or REFUSED_MEDIA.search(self.why)
        return self.status in BUSY and not is_final


def attempt(send: Callable[[], Response]) -> Body | Problem:
    """One attempt: the completion, or why there is none."""
    try:
        response = send()
    except NoAnswer as error:
        cause = "timeout" if error.timed_out else ""
        return Problem(str(error), billed=error.billed, cause=cause)
    return _read(response)


class Patience:
    """How long a call waits before its next attempt. At most ATTEMPTS fail. Those that meet a rate
    limit do not count; together they wait for at most `patience_s`.
    """

    def __init__(self, patience_s: float) -> None:
        self.left_s = patience_s
        self.failures = 0
        self.next_pause_s = PAUSE_S
        self.told = ""  # what comes next, for people

    def pause_s(self, problem: Problem) -> float | None:
        """Seconds to wait after a problem; None: make no further attempt."""
        pause_s = self.next_pause_s
        self.next_pause_s = min(2 * pause_s, MAX_PAUSE_S)
        if problem.is_rate_limit:
            pause_s = problem.retry_after_s or pause_s
            self.left_s -= pause_s
            self.told = f"rate limit, for {max(self.left_s, 0):.0f} s at most"
        else:
            self.failures += 1
            self.told = f"attempt {self.failures + 1} of {ATTEMPTS}"
        is_over = self.left_s < 0 or self.failures >= ATTEMPTS
        return None if is_over or not problem.may_pass else pause_s


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


def _with_tools_in_text(
    messages: Messages, tools: Sequence[Mapping[str, Any]]
) -> Messages:
    """The messages for an endpoint without the field `tools`: the system prompt lists the tools."""
    system, *rest = messages
    listed = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    content = say("notes", "tools_in_text", system=system["content"], tools=listed)
    return [{**system, "content": content}, *rest]


# ---- the answer ----------------------------------------------------------------------------------


def _read(response: Response) -> Body | Problem:
    """The completion in a response, or the problem: an error, HTML, half an answer."""
    status = response.status
    if 300 <= status < 400:
        return Problem(f"redirects to {response.location or '?'}", status)
    start = " ".join(response.content[:2000].decode("utf-8", "replace").split())
    why = f"the answer is not JSON: {start}" if status < 300 else start or "no message"
    data: Any = None
    try:
        data = json.loads(response.content)
        brackets = response.content.count(b"[") + response.content.count(b"{")
        if brackets > SHALLOW:
            json.dumps(
                data
            )  # deep nesting raises here, and not when the tape writes it
        if status < 300 and "error" not in data:
            choice = data["choices"][0]
            if isinstance(choice["message"], dict) and not choice.get("error"):
                refused = _refusal_in(choice)
                if refused:
                    return Problem(refused, status, billed=True, cause="refused")
                return dict(data)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        pass
    return _problem_in(data, response, why)


def _refusal_in(choice: Mapping[str, Any]) -> str:
    """Why a model or a filter gave no answer, or half of one; "" if it gave one."""
    if choice.get("finish_reason") == "content_filter":
        return "the content filter of the endpoint stopped the answer"
    refusal = choice["message"].get("refusal")
    return f"the model refused: {refusal}" if refusal else ""


def _problem_in(data: Any, response: Response, why: str) -> Problem:
    """The problem that a response tells of. A router may send an error with status 200; then the
    status is the error's code, if it has one. OpenRouter puts the error into the choice.
    """
    status = response.status
    is_error = status >= 300
    error = _dict(data).get("error")
    choices = _dict(data).get("choices")
    if error is None and isinstance(choices, list) and choices:
        error = _dict(choices[0]).get("error")
    if not is_error and isinstance(data, dict) and error is None:
        short = " ".join(json.dumps(data, ensure_ascii=False)[:2000].split())
        why = f"the answer has no choice: {short}"
        return Problem(why, status, billed=True, cause="no_choice")
    if error is not None:
        code = _dict(error).get("code")
        why = " ".join(str(_dict(error).get("message") or error).split())
        if code == NO_QUOTA and code not in why:
            why = f"{why} ({code})"
        if not is_error and isinstance(code, int) and 400 <= code < 600:
            status = code
            is_error = True
    if not is_error:
        return Problem(why, status, billed=True)
    return Problem(why or "no message", status, retry_after_s=response.retry_after_s)


def _reply_of(data: Body, cost_usd: float | None) -> Reply:
    """The text of a completion, with its tool calls as <tool_call> JSON. Some servers put the whole
    reply into another field.
    """
    choice = data["choices"][0]
    message = choice["message"]
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(str(_dict(part).get("text") or "") for part in content)
    text = str(content or "") + _tool_calls_of(message)
    cut = str(choice.get("finish_reason")).lower() in CUT
    if not text and not cut:
        others = [message.get(n) for n in ("reasoning_content", "reasoning", "refusal")]
        text = next((str(other) for other in others if other), "")
    return Reply(text, cost_usd, cut, _dict(choice.get("logprobs")).get("content"))


def _tool_calls_of(message: Mapping[str, Any]) -> str:
    calls = message.get("tool_calls")
    text = ""
    for call in calls if isinstance(calls, list) else []:
        function = _dict(_dict(call).get("function"))
        if function:
            named = {key: function.get(key) for key in ("name", "arguments")}
            text += f"<tool_call>{json.dumps(named, ensure_ascii=False)}</tool_call>"
    return text


def _dict(value: Any) -> dict[str, Any]:
    """An optional object of an answer; {} for anything else."""
    return value if isinstance(value, dict) else {}
