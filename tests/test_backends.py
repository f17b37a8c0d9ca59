"""One chat call against an endpoint on loopback: what it sends, what it costs, how it fails."""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestra import secrets
from orchestra.backends import Chat
from orchestra.clients import client
from orchestra.money import Purse
from orchestra.replay import Tape
from orchestra.replies import Reply
from orchestra.vocabulary import Backend, BudgetExceeded, ConfigError, EndpointError, Price
from tests.conftest import pool_at
from tests.scripted import Endpoint, Raw, completion

SCHEMA = ("action", {"type": "object"})
FREE = Price(0, 0, 0)


@pytest.fixture
def chat(tmp_path: Path) -> Iterator[Chat]:
    with closing(Tape(tmp_path / "tape.jsonl", "record")) as tape:
        yield Chat(tape, timeout_s=5.0)


@pytest.fixture
def secret(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("MY_MODEL_KEY", "a-secret-of-this-test")
    secrets.look_up()
    yield "a-secret-of-this-test"
    monkeypatch.undo()
    secrets.look_up()


def backend_at(server: Endpoint | str, **fields: Any) -> Backend:
    return pool_at(server if isinstance(server, str) else server.url, **fields)["small"]


def ask(chat: Chat, backend: Backend, purse: Purse | None = None, **how: Any) -> Reply:
    how = {"schema": SCHEMA, **how}
    with chat.tape.logical_call("a"):
        return chat(backend, [{"role": "user", "content": "hi"}], purse or Purse(), **how)


def error_of(chat: Chat, backend: Backend) -> str:
    """The one line of a call that fails."""
    with pytest.raises(EndpointError) as failure:
        ask(chat, backend)
    assert "\n" not in str(failure.value)
    return str(failure.value)


def in_turn(*answers: Any) -> Any:
    """A respond function: the answers one by one, the last for ever."""
    left = list(answers)
    return lambda request: left.pop(0) if len(left) > 1 else left[0]


def busy(status: int) -> Raw:
    return Raw(status, {"error": {"message": "busy"}}, retry_after_ms="1")


# ---- structured outputs --------------------------------------------------------------------------


def test_the_schema_goes_along_as_structured_output(chat, endpoint):
    server = endpoint(in_turn("{}"))
    ask(chat, backend_at(server))
    sent = server.requests[0]["response_format"]
    assert sent["type"] == "json_schema"
    assert sent["json_schema"] == {"name": "action", "schema": {"type": "object"}}


@pytest.mark.parametrize("status", [400, 422])
def test_a_refused_schema_is_learned_once_a_backend(status, chat, endpoint):
    def respond(request: dict[str, Any]) -> Any:
        return Raw(status, {"error": {}}) if "response_format" in request else "plain"

    server = endpoint(respond)
    replies = [ask(chat, backend_at(server)).text for _ in range(3)]
    assert replies == ["plain"] * 3
    assert ["response_format" in r for r in server.requests] == [True, False, False, False]


def test_a_400_that_is_about_something_else_is_reported_and_not_learned(chat, endpoint):
    answers = in_turn(*[Raw(400, {"error": {"message": "prompt too long"}})] * 2, "fine")
    server = endpoint(answers)
    assert "refused with status 400" in error_of(chat, backend_at(server))
    ask(chat, backend_at(server))
    assert "response_format" in server.requests[2]


def test_a_refused_schema_replays_under_a_budget(endpoint, tmp_path):
    """The replay knows of the refusal from the start: its max_tokens must still be the same."""

    def respond(request: dict[str, Any]) -> Any:
        return Raw(400, {"error": {}}) if "response_format" in request else "plain"

    backend = backend_at(endpoint(respond), price=Price(1, 1, 1))
    for mode in ("record", "replay"):
        with closing(Tape(tmp_path / "tape.jsonl", mode)) as tape:
            assert ask(Chat(tape), backend, Purse(0.001)).text == "plain"


def test_an_endpoint_that_wants_the_newer_limit_gets_it_learned_once(chat, endpoint):
    def respond(request: dict[str, Any]) -> Any:
        if "max_tokens" in request:
            said = "'max_tokens' is not supported with this model. Use 'max_completion_tokens'."
            return Raw(400, {"error": {"message": said}})
        return "{}"

    server = endpoint(respond)
    backend = backend_at(server, max_output_tokens=99)
    for _ in range(2):
        assert ask(chat, backend).text == "{}"
    assert [r.get("max_completion_tokens") for r in server.requests] == [None, 99, 99]
    assert all("response_format" in r for r in server.requests)


def test_both_refusals_of_one_request_are_learned(chat, endpoint):
    def respond(request: dict[str, Any]) -> Any:
        if "max_tokens" in request:
            return Raw(400, {"error": {"message": "use max_completion_tokens"}})
        return Raw(422, {"error": {}}) if "response_format" in request else "plain"

    server = endpoint(respond)
    backend = backend_at(server, max_output_tokens=99)
    assert [ask(chat, backend).text for _ in range(2)] == ["plain"] * 2
    assert len(server.requests) == 4


@pytest.mark.parametrize("head", ["content-length: 100000\r\n\r\n", "x-odd: "])
def test_an_answer_that_drips_runs_out_of_time(head, tmp_path):
    """Each byte comes within the time between two, so only the time of the whole ends it."""
    listener = socket.create_server(("127.0.0.1", 0))

    def drip() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                threading.Thread(target=one, args=(connection,), daemon=True).start()

    def one(connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            connection.recv(65536)
            connection.sendall(f"HTTP/1.1 200 OK\r\n{head}".encode())
            while True:
                connection.sendall(b" ")
                time.sleep(0.05)

    threading.Thread(target=drip, daemon=True).start()
    backend = backend_at(f"http://127.0.0.1:{listener.getsockname()[1]}/v1")
    with closing(listener), closing(Tape(tmp_path / "tape.jsonl", "record")) as tape:
        started = time.monotonic()
        assert "no answer in time" in error_of(Chat(tape, timeout_s=0.3), backend)
        assert time.monotonic() - started < 3  # three tries
    with closing(Tape(tmp_path / "tape.jsonl", "replay")) as tape:
        assert "no answer in time" in error_of(Chat(tape, timeout_s=0.3), backend)


def test_log_probabilities_are_asked_for_and_read(chat, endpoint):
    answer = completion("x")
    answer["choices"][0]["logprobs"] = {"content": [{"token": "x", "logprob": -0.1}]}
    server = endpoint(in_turn(answer))
    reply = ask(chat, backend_at(server), logprobs=True)
    assert server.requests[0]["logprobs"] is True
    assert reply.logprobs == [{"token": "x", "logprob": -0.1}]


def test_the_options_of_a_backend_go_into_every_request(chat, endpoint):
    server = endpoint(in_turn("x"))
    ask(chat, backend_at(server, options={"temperature": 0.0, "seed": 7}))
    assert server.requests[0]["temperature"] == 0.0
    assert server.requests[0]["seed"] == 7


# ---- retries and failures ------------------------------------------------------------------------


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_busy_endpoint_is_asked_again(status, chat, endpoint):
    server = endpoint(in_turn(busy(status), busy(status), "fine"))
    assert ask(chat, backend_at(server)).text == "fine"
    assert len(server.requests) == 3


def test_retry_after_is_honoured(chat, endpoint):
    server = endpoint(in_turn(Raw(429, {}, retry_after_ms="700"), "fine"))
    started = time.monotonic()
    ask(chat, backend_at(server))
    assert time.monotonic() - started >= 0.7  # without it: half a second at most


def test_429_for_ever_ends_with_what_to_do(chat, endpoint):
    server = endpoint(lambda request: busy(429))
    assert "rate or quota limit; wait, then try again" in error_of(chat, backend_at(server))
    assert len(server.requests) == 3


@pytest.mark.parametrize(
    "status, advice",
    [
        (401, "check the key in MY_MODEL_KEY"),
        (403, "the key in MY_MODEL_KEY may not do this"),
        (404, "check base_url (most end in /v1) and the model name 'small'"),
        (418, "see its log"),
    ],
)
def test_a_refusal_says_where_and_what_to_check(status, advice, chat, endpoint, secret):
    server = endpoint(lambda request: Raw(status, {"error": {"message": "no\nno"}}))
    line = error_of(chat, backend_at(server, api_key_env="MY_MODEL_KEY"))
    assert line.startswith(f"small at {server.url}: refused with status {status}")
    assert line.endswith(advice)
    assert len(server.requests) == (2 if status == 404 else 1)  # or it refuses a field


def test_the_key_goes_along_and_no_error_shows_it(chat, endpoint, secret):
    echo = endpoint(lambda request: Raw(401, {"error": {"message": f"bad key {secret}"}}))
    line = error_of(chat, backend_at(echo, api_key_env="MY_MODEL_KEY"))
    assert f"Bearer {secret}" in echo.headers[0].values()
    assert "bad key <MY_MODEL_KEY>" in line


@pytest.mark.parametrize("key", ["a-key-with-its-line-end\n", "schlüssel", "\ufeffkey", "’key’"])
def test_a_key_that_no_header_can_hold_is_said_without_showing_it(
    key, chat, endpoint, monkeypatch, tmp_path
):
    monkeypatch.setenv("MY_MODEL_KEY", key)
    server = endpoint(in_turn("x"))
    with pytest.raises(ConfigError, match="^MY_MODEL_KEY: holds a line break or") as failure:
        ask(chat, backend_at(server, api_key_env="MY_MODEL_KEY"))
    assert key.strip() not in str(failure.value) + (tmp_path / "tape.jsonl").read_text()


@pytest.mark.parametrize(
    "body, said",
    [
        ("<html>\n<b>Not here</b>", "answered application/json that is not JSON ('<html> <b>Not"),
        ('{"choices": [{"mess', 'that is not JSON (\'{"choices": [{"mess\'); check base_url'),
        ("", "that is not JSON (''); check base_url"),
        ({"choices": []}, 'answered without a choice ({"choices": []}); see its log'),
        ({"error": "no"}, "answered without a choice"),
        ("[1]", "answered without a choice ([1])"),
        ("null", "answered without a choice (null)"),
        ({"choices": [{"message": None}]}, "answered without a choice"),
        ({"choices": ["text"]}, "answered without a choice"),
    ],
)
def test_an_answer_that_is_none_is_quoted_in_one_line(body, said, chat, endpoint):
    server = endpoint(lambda request: Raw(200, body))
    line = error_of(chat, backend_at(server))
    assert line.startswith(f"small at {server.url}: ")
    assert said in line


def test_html_is_called_by_its_type_and_its_secrets_are_left_out(chat, endpoint, secret):
    page = f"<html>\n<p>{secret}</p>"
    server = endpoint(lambda request: Raw(200, page, content_type="text/html"))
    line = error_of(chat, backend_at(server))
    assert "answered text/html that is not JSON ('<html> <p><MY_MODEL_KEY></p>')" in line


def test_a_hanging_endpoint_ends_after_the_timeout(chat, endpoint):
    server = endpoint(in_turn("late"), delay_s=5.0)
    chat.timeout_s = 0.3
    started = time.monotonic()
    line = error_of(chat, backend_at(server))
    assert line.endswith("no answer in time; is it up? (--timeout waits longer)")
    assert time.monotonic() - started < 1.5


def test_a_refused_connection_says_the_url_and_the_reason(chat):

    line = error_of(chat, backend_at("http://127.0.0.1:9/v1"))
    assert line.startswith("small at http://127.0.0.1:9/v1: can not be reached (")
    assert "refused" in line and line.endswith("is it up, is the URL right?")


# ---- what an answer holds ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content, text",
    [
        (None, ""),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "ab"),
        ([{"type": "image"}, "stray"], ""),
        ("half a character: \ud83d", "half a character: ?"),
    ],
)
def test_content_of_any_kind_becomes_text(content, text, chat, endpoint):
    answer = {"choices": [{"message": {"content": content}}]}
    assert ask(chat, backend_at(endpoint(in_turn(answer)))).text == text


def test_an_answer_at_its_length_limit_is_marked_as_cut(chat, endpoint):
    answer = completion("x")
    answer["choices"][0]["finish_reason"] = "length"
    assert ask(chat, backend_at(endpoint(in_turn(answer)))).cut


@pytest.mark.parametrize(
    "price, cached, usd",
    [
        (Price(2, 8, 2), 0, (100 * 2 + 10 * 8) / 1e6),
        (Price(2, 8, 0.5), 60, (40 * 2 + 60 * 0.5 + 10 * 8) / 1e6),
        (Price(2, 8, 0.5), 5000, (100 * 0.5 + 10 * 8) / 1e6),  # never more than the input
        (FREE, 0, 0.0),
        (None, 0, None),
    ],
)
def test_a_call_costs_what_its_tokens_cost(price, cached, usd, chat, endpoint):
    details = {"prompt_tokens_details": {"cached_tokens": cached}}
    usage = {"prompt_tokens": 100, "completion_tokens": 10, **details}
    server = endpoint(in_turn(completion("x", usage=usage)))
    purse = Purse()
    assert ask(chat, backend_at(server, price=price), purse).cost_usd == pytest.approx(usd)
    assert purse.spent_usd == purse.paid_usd == pytest.approx(usd)


@pytest.mark.parametrize(
    "usage",
    [
        None,
        [],
        {},
        {"prompt_tokens": None, "completion_tokens": 10},
        {"prompt_tokens": "100", "completion_tokens": 10},
        {"prompt_tokens": -100, "completion_tokens": 10},
        {"prompt_tokens": 100, "completion_tokens": None, "prompt_tokens_details": [1]},
    ],
)
def test_usage_that_makes_no_sense_is_an_unknown_cost(usage, chat, endpoint):
    server = endpoint(in_turn(completion("x", usage=usage)))
    assert ask(chat, backend_at(server, price=Price(1, 1, 1))).cost_usd is None


def test_a_free_backend_costs_nothing_whatever_it_counts(chat, endpoint):
    server = endpoint(in_turn(completion("x", usage=None)))
    assert ask(chat, backend_at(server, price=FREE)).cost_usd == 0.0


def test_without_usage_a_budget_is_charged_the_most_it_can_have_been(chat, endpoint):
    server = endpoint(in_turn(completion("x", usage=None)))
    purse = Purse(0.01)
    ask(chat, backend_at(server, price=Price(1, 1, 1)), purse)
    assert purse.spent_usd is not None
    assert purse.spent_usd > server.requests[0]["max_tokens"] / 1e6


def test_what_is_played_from_a_tape_is_spent_but_not_paid(endpoint, tmp_path):
    backend = backend_at(endpoint(in_turn("x")), price=Price(1, 1, 1))
    with closing(Tape(tmp_path / "tape.jsonl", "record")) as tape:
        ask(Chat(tape), backend)
    purse = Purse()
    with closing(Tape(tmp_path / "tape.jsonl", "replay")) as tape:
        ask(Chat(tape), backend, purse)
    assert purse.paid_usd == 0.0 < (purse.spent_usd or 0.0)


# ---- the budget ----------------------------------------------------------------------------------


def test_a_call_that_could_pass_the_budget_is_not_started(chat, endpoint):
    server = endpoint(in_turn("x"))
    with pytest.raises(BudgetExceeded, match="is too little for a call to small"):
        ask(chat, backend_at(server, price=Price(100, 100, 100)), Purse(0.001))
    assert server.requests == []


def test_what_is_left_limits_the_answer(chat, endpoint):
    server = endpoint(in_turn("x"))
    ask(chat, backend_at(server, price=Price(0, 10, 0)), Purse(0.002))
    assert server.requests[0]["max_tokens"] == 200


def test_no_budget_leaves_the_length_to_the_endpoint(chat, endpoint):
    server = endpoint(in_turn("x"))
    ask(chat, backend_at(server, price=Price(0, 10, 0)))
    assert "max_tokens" not in server.requests[0]


def greedy(request: dict[str, Any]) -> Any:
    """An endpoint that uses all it may: a token a byte and 16 a message in, max_tokens out."""
    asked = sum(len(m["content"].encode()) + 16 for m in request["messages"])
    usage = {"prompt_tokens": asked, "completion_tokens": request["max_tokens"]}
    return completion("x", usage=usage)


@pytest.fixture(scope="module")
def greedy_server() -> Iterator[Endpoint]:
    server = Endpoint(greedy)
    yield server
    server.close()


usd = st.floats(0.0, 100.0, allow_subnormal=False)


@settings(max_examples=40, deadline=None)
@given(
    limit_usd=st.floats(0.0, 0.05),
    input=usd,
    output=usd,
    texts=st.lists(st.text(max_size=300), min_size=1, max_size=6),
)
def test_no_sum_of_calls_passes_the_budget(
    greedy_server, tmp_path_factory, limit_usd, input, output, texts
):
    backend = backend_at(greedy_server, price=Price(input, output, input))
    purse, before = Purse(limit_usd), len(greedy_server.requests)
    with closing(Tape(tmp_path_factory.mktemp("t") / "tape.jsonl", "record")) as tape:
        chat = Chat(tape)
        for n, text in enumerate(texts):
            try:
                with tape.logical_call(n):
                    chat(backend, [{"role": "user", "content": text}], purse)
            except BudgetExceeded:
                break
    used = [greedy(r)["usage"] for r in greedy_server.requests[before:]]
    bill = sum(u["prompt_tokens"] * input + u["completion_tokens"] * output for u in used) / 1e6
    assert bill <= limit_usd * (1 + 1e-9)
    assert purse.spent_usd == pytest.approx(bill)


# ---- which model, which client -------------------------------------------------------------------


def test_a_model_left_out_is_the_one_the_endpoint_serves(chat, endpoint):
    server = endpoint(in_turn("x"))
    server.models = {"data": [{"id": "only-one"}]}
    for _ in range(2):
        ask(chat, backend_at(server).__class__("small", "", server.url, price=FREE))
    assert [r["model"] for r in server.requests] == ["only-one"] * 2


@pytest.mark.parametrize(
    "models, said",
    [
        ({"data": [{"id": "a"}, {"id": "b"}]}, "serves a, b: name one with --model"),
        ({"data": []}, "serves no list of models: name one"),
        ({"object": "error"}, "serves no list of models: name one"),
        (Raw(200, "<html>"), "serves no list of models: name one"),
    ],
)
def test_a_model_left_out_where_several_are_served_is_asked_for(models, said, chat, endpoint):
    server = endpoint(in_turn("x"))
    server.models = models
    with pytest.raises(ConfigError, match=said):
        ask(chat, Backend("small", "", server.url))
    assert server.requests == []


@pytest.mark.parametrize(
    "host, field", [("api.openai.com", "max_completion_tokens"), ("models.test", "max_tokens")]
)
def test_the_length_limit_is_called_as_the_endpoint_calls_it(
    host, field, chat, endpoint, monkeypatch
):
    """Both hosts are reached through a proxy, which is the scripted endpoint."""
    server = endpoint(in_turn("x"))
    monkeypatch.setenv("http_proxy", server.url.removesuffix("/v1"))
    ask(chat, backend_at(f"http://{host}/v1", max_output_tokens=77))
    assert server.requests[0][field] == 77
    assert server.paths == [f"http://{host}/v1/chat/completions"]


def test_threads_that_start_together_share_one_client():
    together, clients = threading.Barrier(12), []

    def one() -> None:
        together.wait()
        clients.append(client("http://127.0.0.1:1/shared", "none", 1.0))

    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=one) for _ in range(12)]
        [t.start() for t in threads]
        [t.join() for t in threads]
    finally:
        sys.setswitchinterval(usual)
    assert len({id(c) for c in clients}) == 1
