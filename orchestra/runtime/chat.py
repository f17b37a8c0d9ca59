"""One chat call: structured output where the endpoint supports it, retries, costs, the tape.

    reply = Chat(tape)(backend, messages, purse)

`Chat.__call__` builds the request, and sends it again without a field that the endpoint refuses.
`Chat.exchange` finds the request on the tape, or makes its attempts and charges them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Generic, NamedTuple, NotRequired, TypeVar

from typing_extensions import TypedDict

from orchestra.money import DEFAULT_OUTPUT_TOKENS, Bill, Ledger, Purse
from orchestra.runtime import completion, http
from orchestra.runtime.attempts import (
    REFUSED_MEDIA,
    Kind,
    Patience,
    Problem,
    answer_or_problem,
)
from orchestra.runtime.tape import Tape, Unanswered
from orchestra.runtime.tape_file import OVER_BUDGET
from orchestra.seams import Messages, Schema
from orchestra.vocabulary import (
    Backend,
    BudgetExceeded,
    ConfigError,
    EndpointError,
    Failure,
    Reply,
)

REFUSALS = {400, 404, 405, 422, 500, 501}  # sent for a field that is not supported
WHY_CHARS = 300
EXCEEDED = (
    "{} charges more than max_tokens allows: its calls in flight can exceed --budget"
)
# These end one sub-task, with the reason
Stopped = EndpointError | BudgetExceeded | ConfigError
STOPPED = (EndpointError, BudgetExceeded, ConfigError)
T = TypeVar("T")
Body = dict[str, Any]
Send = Callable[[], http.Response]  # one attempt; raises NoAnswer


class Cost(NamedTuple):
    """What an answer cost. `usd` None: unknown."""

    usd: float | None
    tokens: int = 0


class Paid(NamedTuple):
    """The value of an answer, and what it cost."""

    value: Any
    cost_usd: float | None


class AnswerRow(TypedDict, Generic[T]):
    """The answer of an exchange on the tape, how many attempts before it may be billed, and the
    most that one of them costs.
    """

    data: T
    unanswered: Unanswered
    most_usd: NotRequired[float | None]


CHAT = Kind("chat", completion.read_completion, AnswerRow[completion.Completion])


@dataclass
class Chat:
    """The chat client of one sub-agent. It remembers only which request fields were refused in its
    own calls, so no request depends on the timing of another sub-agent.
    """

    tape: Tape
    timeout_s: float = 120.0  # of one attempt
    patience_s: float = 120.0  # of waiting at a rate limit, in one call
    ledger: Ledger = field(default_factory=Ledger)  # of the run
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
        """The reply of a model. `schema` is that of its answer; `tools` are functions that it may
        call. Tool calls are in the text of the reply, as <tool_call> JSON. `temperature` replaces
        the pool's.

        Raises EndpointError, and BudgetExceeded before a call that could exceed the purse.
        """
        optional = _optional_fields(schema, logprobs, tools, temperature)
        while True:
            request = self._request(backend, messages, purse, optional)
            post = partial(
                http.post,
                request.url,
                body=request.body,
                headers=_headers(backend),
                timeout_s=self.timeout_s,
            )
            bill = Bill(self.ledger, purse, backend.name, request.most_usd)
            cost_of = partial(_cost_of, backend, bill)
            outcome = self.exchange(CHAT, request.row, post, bill, cost_of)
            if isinstance(outcome, Paid):
                return reply_of(outcome)
            dropped = request.field_to_drop(outcome)
            if dropped is None:
                raise self.error(backend, outcome, messages)
            self.refused.add((backend.name, dropped))

    def _request(
        self,
        backend: Backend,
        messages: Messages,
        purse: Purse,
        optional: Mapping[str, Body],
    ) -> Request:
        """The request without the fields that the backend has refused. Raises BudgetExceeded."""
        fields = dict(optional)
        for name in optional:
            if (backend.name, name) in self.refused:
                del fields[name]
        if "tools" in optional and "tools" not in fields:
            listed = optional["tools"]["tools"]
            messages = completion.tools_in_text(messages, listed)
        body: Body = {"model": backend.model, "messages": messages, **backend.options}
        for value in fields.values():
            body |= value
        input_tokens = completion.input_token_bound(backend, messages, fields)
        limit = purse.output_tokens(backend, input_tokens)
        if limit is not None:
            body[self._name_of_limit(backend)] = limit
        most_usd = backend.cost_usd(input_tokens, limit or DEFAULT_OUTPUT_TOKENS)
        return Request(
            url=completion.url_of(backend),
            body=body,
            fields=list(fields),
            most_usd=most_usd,
        )

    def _name_of_limit(self, backend: Backend) -> str:
        """The field for the length limit of a reply. OpenAI has renamed it."""
        was_refused = (backend.name, "max_tokens") in self.refused
        if was_refused or ".openai.com" in backend.base_url:
            return "max_completion_tokens"
        return "max_tokens"

    def exchange(
        self,
        kind: Kind,
        request: Body,
        send: Send,
        bill: Bill,
        cost_of: Callable[[Any], Cost],
    ) -> Paid | Failure:
        """The outcome of all attempts, charged to the bill. The value of an answer is what
        `kind.read` returned; `cost_of` says what it cost.

        Raises BudgetExceeded if the first attempt could exceed the budget of the run.
        """
        ask = partial(self._attempts, kind, send, bill)
        outcome = self.tape.exchange(kind.name, request, ask, kind.shape)
        try:
            if isinstance(outcome, Failure):
                _charge_unanswered(bill, outcome.unanswered, outcome.played)
                if outcome.cause == OVER_BUDGET:
                    raise BudgetExceeded(outcome.why)
                return outcome
            value = outcome.value["data"]
            _charge_unanswered(bill, outcome.value["unanswered"], outcome.played)
            cost = cost_of(value)
            bill.charge(cost.usd, outcome.played, cost.tokens)
            if bill.is_exceeded_by(cost.usd):
                self.notify(EXCEEDED.format(bill.backend), 0)
            return Paid(value, cost.usd)
        finally:
            bill.settle()

    def _attempts(self, kind: Kind, send: Send, bill: Bill) -> Any:
        """The answer for the tape, or the Failure of all attempts."""
        if not bill.covers(attempts=1):
            why = f"budget exhausted: it cannot cover another call to {bill.backend!r}"
            return Failure(status=0, why=why, cause=OVER_BUDGET)
        unanswered = 0
        patience = Patience(self.patience_s)
        while True:
            try:
                response = send()
            except http.NoAnswer as error:
                problem = Problem.of_no_answer(error)
            else:
                found = answer_or_problem(kind, response)
                if not isinstance(found, Problem):
                    row = {"data": found, "unanswered": unanswered}
                    return {**row, "most_usd": bill.most_usd}
                problem = found
            unanswered += problem.billed
            # Redacted before it is cut: half a key is not found.
            why = self.tape.secrets.text(problem.why)
            pause_s = patience.pause_s(problem)
            if pause_s is None or not bill.affords_another(unanswered):
                return Failure(
                    status=problem.status,
                    why=why[:WHY_CHARS],
                    unanswered=unanswered,
                    cause=problem.cause,
                    most_usd=bill.most_usd,
                )
            self._notify_of_wait(bill.backend, patience, problem, why)
            self.tape.wait(pause_s)

    def _notify_of_wait(
        self, backend: str, patience: Patience, problem: Problem, why: str
    ) -> None:
        waiting = f"{self.tape.current_call} waiting for {backend}"
        code = f"status {problem.status}; " if problem.status else ""
        message = f"{waiting} ({patience}; {code}{why[:60]})"
        self.notify(message, problem.told_status)

    def error(
        self, backend: Backend, failure: Failure, messages: Messages | None = None
    ) -> EndpointError:
        """The failure as an error of one line: the endpoint, what it sent, and what to do."""
        key = backend.api_key_env or "OPENAI_API_KEY"
        advice = {
            0: "is the server running, and is its address right (most end in /v1)?",
            401: f"check the key in {key}",
            403: f"the key in {key} has no access",
            404: f"check base_url (most end in /v1) and the model name {backend.model!r}",
            429: "rate limit or quota; --patience waits longer",
        }.get(failure.status, "see the endpoint's log")
        if failure.cause == "timeout":
            advice = "--timeout waits longer"
        media = completion.media_in(messages or [])
        about_request = 400 <= failure.status < 500
        is_other = failure.status in (401, 403, 408, 429)
        is_refusal = REFUSED_MEDIA.search(failure.why) is not None
        if media and (is_refusal or about_request and not is_other):
            advice = f"if it takes no {media}, use --perception local"
        status = f"status {failure.status}: " if failure.status else ""
        endpoint = f"{backend.name} at {backend.base_url}"
        return EndpointError(f"{endpoint}: {status}{failure.why}; {advice}", failure)


# ---- the request ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Request:
    """One request, and the optional fields in it, in the order in which they are dropped."""

    url: str
    body: Body
    fields: list[str]
    most_usd: float | None  # the most that one attempt costs

    @property
    def row(self) -> Body:
        """The request as the tape has it."""
        return {"url": self.url, **self.body}

    def field_to_drop(self, failure: Failure) -> str | None:
        """The field that the endpoint may have refused; None if the request is not the reason."""
        if failure.status not in REFUSALS:
            return None
        if "max_tokens" in self.body and "max_completion_tokens" in failure.why:
            return "max_tokens"  # it has another name there
        return self.fields[0] if self.fields else None


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


def _headers(backend: Backend) -> dict[str, str]:
    key = completion.key_of(backend)
    return {"authorization": f"Bearer {key}", "content-type": "application/json"}


# ---- the reply -----------------------------------------------------------------------------------


def _charge_unanswered(bill: Bill, attempts: int, played: bool) -> None:
    for _ in range(attempts):
        bill.charge(bill.assumed_usd, played)


def _cost_of(backend: Backend, bill: Bill, answer: Mapping[str, Any]) -> Cost:
    usage = completion.usage_of(answer, backend)
    usd = usage.cost_usd if usage.is_known else bill.assumed_usd
    return Cost(usd, usage.tokens)


def reply_of(paid: Paid) -> Reply:
    """The text of a completion."""
    choice = paid.value["choices"][0]
    return Reply(
        text=completion.text_of(choice),
        cost_usd=paid.cost_usd,
        cut=completion.is_cut(choice),
        logprobs=completion.logprobs_of(choice),
    )
