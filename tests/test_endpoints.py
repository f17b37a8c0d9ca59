"""Whatever an endpoint answers is an answer or a failure in one line, and replays as it was recorded.

The main agent's endpoint is sound; the odd one serves the model `odd`, which gets the sub-tasks.
"""

import gzip
import json
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import pytest

from orchestra_min import orchestrate
from tests.attacks import hostile
from tests.conftest import Options, Pool, Price, pool_at
from tests.program import any_method, called, content, line_of, program, replay, resume
from tests.scripted import Endpoint, Raw, complete, completion, delegate, finish, is_main, last_text

SEEN = finish("seen it")
AGAIN = {"retry_after_ms": "1", "retry_after": "0"}


@pytest.fixture
def told(endpoint: Callable[..., Endpoint], tmp_path: Path) -> Callable[..., str]:
    """What the main agent reads of sub-tasks of the model at `url`; the run replays as it was."""

    def run(url: str, *tasks: str, run_options: Options | None = None, **fields: Any) -> str:
        rows = [{"task_instruction": t, "model": "odd", "tools": []} for t in tasks or ("look",)]
        replies = iter([delegate(*rows), complete("42")])
        main = endpoint(lambda request: next(replies))
        odd = replace(pool_at(url, **fields).backends[0], name="odd", model="odd")
        pool = Pool(backends=(*pool_at(main.url).backends, odd), main="small")
        result = orchestrate("?", (), pool, run_options, tmp_path / "run")
        main.close()
        assert result.answer == "42" and not result.fallback
        again = replay(tmp_path / "run")
        assert content(again.events) == content(result.events)
        assert again.cost_usd == result.cost_usd
        return last_text(main.requests[1])

    return run


def in_turn(*answers: Any) -> Callable[[Any], Any]:
    """One by one, the last for ever."""
    left = chain(answers, repeat(answers[-1]))
    return lambda request: next(left)


def message(**fields: Any) -> dict[str, Any]:
    return completion("", choices=[{"message": {"role": "assistant", **fields}}])


# ---- failures of the moment, and for ever --------------------------------------------------------


@pytest.mark.parametrize("trouble", [
    [Raw(429, {}, retry_after="1")], [Raw(408, {})], [Raw(409, {})], [Raw(500, {})], [Raw(503, "<html>")],
    [Raw(200, {"error": {"message": "busy", "code": 502}})], [Raw(200, {"error": {"code": 429}}, retry_after="1")],
    [Raw(429, {}), Raw(429, {}), Raw(500, {})],  # waiting at a rate limit uses up no attempt
])  # fmt: skip
def test_a_trouble_of_the_moment_is_passed_over(trouble, told, endpoint):
    for raw in trouble:
        raw.headers.setdefault("retry-after-ms", "1")
    server = endpoint(in_turn(*trouble, SEEN))
    assert "seen it" in told(server.url) and len(server.requests) == len(trouble) + 1


def test_thoughts_that_only_the_total_counts_are_paid(told, endpoint, tmp_path):
    usage = {"prompt_tokens": 500, "completion_tokens": 30, "total_tokens": 1530}
    told(endpoint(lambda request: completion(SEEN, usage=usage)).url, price=Price(0.0, 1.0, 0.0))
    assert replay(tmp_path / "run").cost_usd == pytest.approx(1030e-6)


# fails at d04ee41
def test_a_status_that_there_is_not_replays_as_it_was(told, endpoint):
    text = told(endpoint(in_turn(Raw(600, {}, **AGAIN), SEEN)).url)
    assert "seen it" in text or "600" in text


@pytest.mark.parametrize("answer, said", [
    (Raw(400, {"error": {"message": "no\nnot\nthis"}}), "no not this"), (Raw(401, {"error": {"message": "who are you"}}), "MY_MODEL_KEY"),
    (Raw(402, {"error": "no money"}), "402"), (Raw(404, {"error": {"message": "gone"}}), "/v1"), (Raw(418, b"\xff\xfe"), "418"),
    (Raw(429, {}, **AGAIN), "429"), (Raw(500, {"error": {"message": "broken"}}, **AGAIN), "500"), (Raw(600, {"error": {}}), "600"),
    (Raw(302, b""), "302"), (Raw(302, b"", location="http://127.0.0.1:9/v1"), ""),
    (Raw(302, b"", location="ftp://example.test/"), ""),  # fails at d04ee41
    (Raw(200, "<html>\n<b>Not here</b>", content_type="text/html"), "<b>Not here"), (Raw(200, '{"choices": [{"mess'), '{"choices"'),
    (Raw(200, ""), "JSON"), (Raw(200, b"\x00\xff\xfe"), "JSON"), (Raw(200, b"this is no gzip", content_encoding="gzip"), ""),
    (Raw(200, b"{}", content_length="999"), ""), (Raw(200, "null"), "choice"), (Raw(200, "[" * 100_000), ""),
    *((Raw(200, odd), "choice") for odd in ({"choices": []}, {"choices": [None]}, {"choices": [{"message": None}]}, {"error": "no"})),
])  # fmt: skip
def test_what_is_no_answer_is_one_line_that_says_why(answer, said, told, endpoint, monkeypatch):
    monkeypatch.setenv("MY_MODEL_KEY", "a-secret-of-this-test")
    server = endpoint(in_turn(answer))
    text = told(server.url, run_options=Options(patience_s=0.5), api_key_env="MY_MODEL_KEY")
    [line] = [row for row in text.splitlines() if server.url in row]
    assert said in line and "a-secret-of-this-test" not in text


def test_a_refused_connection_says_the_address(told):
    assert "http://127.0.0.1:9/v1" in told("http://127.0.0.1:9/v1")


def test_an_answer_that_drips_ends_at_the_deadline(told):
    with hostile.serving({"/v1/chat/completions": hostile.slow_body}) as server:
        assert "timed out" in told(f"{server.url}/v1", run_options=Options(timeout_s=0.5))


@pytest.mark.parametrize("status, attempts", [(429, 1), (502, 3)])
def test_no_endpoint_makes_a_call_wait_for_a_day(status, attempts, told, endpoint):
    server = endpoint(lambda request: Raw(status, {}, retry_after="86400"))
    assert str(status) in told(server.url) and len(server.requests) == attempts


def test_an_endpoint_is_reached_through_a_proxy(told, endpoint, monkeypatch):
    proxy = endpoint(lambda request: SEEN)
    monkeypatch.setenv("HTTP_PROXY", proxy.url.removesuffix("/v1"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    assert "seen it" in told("http://llm.internal:8000/v1")
    assert proxy.paths == ["http://llm.internal:8000/v1/chat/completions"]


# fails at d04ee41
def test_a_header_may_hold_any_byte(told, endpoint):
    odd = {"x_note": "caf\xe9 \xff", "content_type": "application/json; \xe9"}
    assert "seen it" in told(endpoint(in_turn(Raw(200, completion(SEEN), **odd))).url)


# fails at d04ee41
def test_a_gzip_bomb_is_one_line_and_takes_little_memory(told, endpoint):
    bomb = gzip.compress(b" " * 1_000_000, 9) * 200
    assert len(bomb) < 300_000
    server = endpoint(lambda request: Raw(200, bomb, content_encoding="gzip"))
    tracemalloc.start()
    try:
        assert server.url in told(server.url)
        assert tracemalloc.get_traced_memory()[1] < 150_000_000
    finally:
        tracemalloc.stop()


# ---- answers that are odd ------------------------------------------------------------------------


def tool_call(arguments: Any) -> dict[str, Any]:
    function = {"name": "finish", "arguments": arguments}
    return message(content=None, tool_calls=[{"type": "function", "function": function}])


PARTS = [{"type": "text", "text": SEEN[:20]}, {"type": "text", "text": SEEN[20:]}]
STRAY = ["stray", {"type": "image"}, None, {"type": "text", "text": SEEN}]
ZIPPED = gzip.compress(json.dumps(completion(SEEN)).encode())


@pytest.mark.parametrize("answer", [
    *(message(content=content) for content in (PARTS, STRAY, f"<think>hm {{</think>\n{SEEN}", SEEN + "\ud83d", finish("seen it, half \ud83d of it"))),
    message(content=None, reasoning_content=SEEN), message(content="", reasoning=SEEN), message(content=SEEN, tool_calls=7),
    *(tool_call(arguments) for arguments in ({"result": "seen it", "status": "done"}, '{"result": "seen it", "status": "done"}')),
    {"choices": [{"message": {"content": SEEN}, "logprobs": None}]}, completion(SEEN, model=None, id=7, extra={"x": [1]}),
    Raw(200, completion(SEEN), content_type="text/plain"), Raw(200, ZIPPED, content_encoding="gzip"),
])  # fmt: skip
def test_an_answer_of_any_form_is_found(answer, told, endpoint):
    assert "seen it" in told(endpoint(in_turn(answer)).url)


USED = {"prompt_tokens": 100, "completion_tokens": 10}


@pytest.mark.parametrize("usage, known", [
    (USED, True), ({**USED, "prompt_tokens_details": [1]}, True), ({**USED, "prompt_tokens": -100}, False),
    ({**USED, "prompt_tokens": "100"}, False), ({**USED, "prompt_tokens": None}, False), ({"prompt_tokens": 100}, False),
    ({"prompt_tokens": 1e400, "completion_tokens": 1e308}, False), ([], False), (None, False),
    ({**USED, "prompt_tokens": 10**400}, False),  # fails at d04ee41
])  # fmt: skip
def test_usage_that_makes_no_sense_is_an_unknown_cost(usage, known, told, endpoint, tmp_path):
    server = endpoint(lambda request: completion(SEEN, usage=usage))
    assert "seen it" in told(server.url, price=Price(1.0, 1.0, 1.0))
    cost = replay(tmp_path / "run").cost_usd
    assert cost == pytest.approx(110e-6) if known else cost is None


# fails at d04ee41
def test_a_flood_of_what_looks_like_keys_does_not_hang(endpoint, tmp_path):
    def respond(request: dict[str, Any]) -> Any:
        if is_main(request):
            return complete("42") if "flooded" in last_text(request) else delegate("look")
        return finish("flooded " + "sk-" * 10_000)

    flags = "--question", "?", "--model", "m", "--out", "run"
    done = program(tmp_path, *flags, at=endpoint(respond).url, timeout_s=30)
    assert done.stdout == "42\n"


# ---- what it does not take is given up, once -----------------------------------------------------

Requests = list[dict[str, Any]]
REFUSED = Raw(400, {"error": {}})


@pytest.fixture
def asked(endpoint: Any, tmp_path: Path) -> Callable[..., Requests]:
    """What an endpoint is sent in a run, where `refusal(request)` answers if it can; it replays."""

    def run(refusal: Callable[[Any], Any], how: Options | None = None, **fields: Any) -> Requests:
        server = endpoint(lambda request: refusal(request) or any_method(request))
        result = orchestrate("?", (), pool_at(server.url, **fields), how, tmp_path / "run")
        assert result.answer == replay(tmp_path / "run").answer == "42"
        return server.requests

    return run


@pytest.mark.parametrize("status", [400, 404, 422, 500])
def test_a_refused_schema_is_given_up(status, asked):
    refused = Raw(status, {"error": {}}, retry_after_ms="1", retry_after="0")
    first, *_, last = asked(lambda r: "response_format" in r and refused)
    assert "response_format" not in last
    assert first == {**last, "response_format": first["response_format"]}


def test_what_is_refused_is_given_up_one_by_one(asked):
    """An endpoint without log-probabilities keeps the schema."""
    requests = asked(lambda r: "logprobs" in r and REFUSED, Options(stop_threshold=0.5))
    assert ["logprobs" in r for r in requests] == [True, False]
    assert all("response_format" in r for r in requests)


def test_tools_that_are_refused_are_told_in_the_text(asked):
    refused, taken, *_ = asked(lambda r: "tools" in r and REFUSED, Options(method="toolorchestra"))
    assert '"enhance_reasoning"' not in str(refused["messages"]) and "tools" not in taken
    assert '"enhance_reasoning"' in str(taken["messages"])


def test_an_endpoint_that_wants_the_newer_limit_gets_it(asked):
    said = "'max_tokens' is not supported. Use 'max_completion_tokens' instead."
    refused = Raw(400, {"error": {"message": said}})
    first, *_, last = asked(lambda r: "max_tokens" in r and refused, max_output_tokens=99)
    assert (first["max_tokens"], last["max_completion_tokens"]) == (99, 99)
    assert "max_tokens" not in last and "response_format" in last


def test_what_a_later_refusal_teaches_changes_no_earlier_call(endpoint, tmp_path):
    """The schema is taken once and refused from then on: a resume asks each call as it was."""
    taken: list[Any] = []

    def respond(request: dict[str, Any]) -> Any:
        if "response_format" in request:
            taken.append(request)
            return delegate("look") if len(taken) == 1 else REFUSED
        return complete("42") if is_main(request) else finish("seen it")

    server, out = endpoint(respond), tmp_path / "run"
    orchestrate("?", (), pool_at(server.url), None, out)
    asked = len(server.requests)
    assert [f(out).answer for f in (replay, resume, replay)] == ["42"] * 3
    assert len(server.requests) == asked


# ---- which model ---------------------------------------------------------------------------------


def test_a_model_left_out_is_the_one_that_is_served(endpoint, tmp_path):
    server = endpoint(any_method)
    server.models = {"data": [{"id": "only-one"}]}
    done = called("--question", "?", "--out", tmp_path / "run", at=server.url)
    assert done.stdout == "42\n" and {r["model"] for r in server.requests} == {"only-one"}
    server.close()
    assert replay(tmp_path / "run").answer == "42"


@pytest.mark.parametrize("models", [
    {"data": [{"id": "a"}, {"id": "b"}]}, {"data": []}, {"object": "error"}, Raw(200, "<html>"), Raw(404, {}), Raw(200, "[1]"),
])  # fmt: skip
def test_a_model_left_out_where_not_one_is_served_is_asked_for(models, endpoint, tmp_path):
    server = endpoint(any_method)
    server.models = models
    line = line_of(called("--question", "?", "--out", tmp_path / "run", at=server.url))
    assert "--model" in line and server.url in line
    assert server.requests == [] and not (tmp_path / "run").exists()
