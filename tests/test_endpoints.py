"""Whatever an endpoint sends becomes an answer or a one-line failure, and replays as recorded.

The main agent's endpoint works; the faulty one serves the model `odd`, which gets the sub-tasks.
"""

import gzip
import json
from dataclasses import replace
from itertools import chain, repeat

import pytest

from orchestra.kernel.folder import read_events, read_manifest
from orchestra.kernel.tape import exchanges
from orchestra_min import orchestrate
from tests.attacks import hostile
from tests.conftest import EndpointError, Options, Pool, Price, pool_at
from tests.program import any_method, called, content, line_of, replay
from tests.scripted import (
    DEBATE,
    Raw,
    complete,
    completion,
    delegate,
    finish,
    free_port,
    is_main,
    last_text,
)

SEEN = finish("seen it")


@pytest.fixture
def report(endpoint, tmp_path):
    """What the main agent reads about a sub-task whose endpoint, at `url` or a new one, sends these
    answers in turn and repeats the last. The run is replayed.
    """

    def run(*answers, url="", fields=None, **options):
        left = chain(answers, repeat(answers[-1] if answers else SEEN))
        run.server = endpoint(lambda request: next(left))
        task = {"task_instruction": "look", "model": "odd", "tools": []}
        replies = iter([delegate(task), complete("42")])
        main = endpoint(lambda request: next(replies))
        (odd,) = pool_at(url or run.server.url, **fields or {}).backends
        backends = *pool_at(main.url).backends, replace(odd, name="odd", model="odd")
        pool = Pool(backends, main="small")
        result = orchestrate("?", (), pool, Options.of(**options), tmp_path / "run")
        assert result.answer == "42" and not result.fallback
        run.again = replay(tmp_path / "run")
        assert content(run.again.events) == content(result.events)
        assert run.again.cost_usd == result.cost_usd
        return last_text(main.requests[1])

    return run


def message(**fields):
    return completion("", choices=[{"message": {"role": "assistant", **fields}}])


# ---- temporary and permanent failures ------------------------------------------------------------


@pytest.mark.parametrize("trouble", [
    [Raw(429, {}, retry_after="0.01")], [Raw(408, {})], [Raw(409, {})], [Raw(500, {})], [Raw(503, "<html>")],
    [Raw(200, {"error": {"message": "busy", "code": 502}})], [Raw(200, {"error": {"code": 429}}, retry_after="0.01")],
    [completion("", choices=[{"message": {"content": ""}, "error": {"code": 502, "message": "died"}, "finish_reason": "error"}])],
    [Raw(429, {}), Raw(429, {}), Raw(500, {})],  # waiting at a rate limit uses up no attempt
])  # fmt: skip
def test_a_temporary_failure_is_retried(trouble, report):
    assert "seen it" in report(*trouble, SEEN)
    assert len(report.server.requests) == len(trouble) + 1


BOMB = gzip.compress(b" " * 1_000_000, 9) * 200


@pytest.mark.parametrize("answer, expected", [
    (Raw(200, BOMB, content_encoding="gzip"), "longer than 16 MiB"),
    (Raw(400, {"error": {"message": "no\nnot\nthis"}}), "no not this"), (Raw(401, {"error": {"message": "who are you"}}), "status 401: who are you"),
    (Raw(402, {"error": "no money"}), "402"), (Raw(404, {"error": {"message": "gone"}}), "/v1"), (Raw(418, b"\xff\xfe"), "418"),
    (Raw(429, {}), "429"), (Raw(500, {"error": {"message": "broken"}}), "500"), (Raw(600, {"error": {}}), "600"), (Raw(200, '{"error": {"code": 1e999, "message": "x"}}'), "x"),
    (Raw(302, b""), "302"), (Raw(302, b"", location="http://127.0.0.1:9/v1"), ""),
    (Raw(302, b"", location="ftp://example.test/"), ""),
    (Raw(200, "<html>\n<b>Not here</b>", content_type="text/html"), "<b>Not here"), (Raw(200, '{"choices": [{"mess'), '{"choices"'),
    (Raw(200, ""), "JSON"), (Raw(200, b"\x00\xff\xfe"), "JSON"), (Raw(200, b"this is no gzip", content_encoding="gzip"), ""),
    (Raw(200, b"{}", content_length="999"), ""), (Raw(200, "null"), "null"), (Raw(200, "[" * 100_000), ""),
    *((Raw(200, odd), "choice") for odd in ({"choices": []}, {"choices": [None]}, {"choices": [{"message": None}]})),
])  # fmt: skip
def test_a_failure_is_one_line_with_the_reason(answer, expected, report, monkeypatch):
    monkeypatch.setenv("MY_MODEL_KEY", "a-secret-of-this-test")
    text = report(answer, patience_s=0.5, fields={"api_key_env": "MY_MODEL_KEY"})
    [line] = [row for row in text.splitlines() if report.server.url in row]
    assert expected in line and "a-secret-of-this-test" not in text


def test_a_refused_connection_says_the_address(report):
    assert "http://127.0.0.1:9/v1" in report(url="http://127.0.0.1:9/v1")


def test_an_answer_that_drips_ends_at_the_deadline(report):
    with hostile.serving({"/v1/chat/completions": hostile.SLOW["body"]}) as server:
        assert "timed out" in report(url=f"{server.url}/v1", timeout_s=0.5)


QUOTA = {"message": "You exceeded your current quota", "code": "insufficient_quota"}


@pytest.mark.parametrize("answer, expected, attempts", [
    (Raw(429, {}, retry_after="86400"), "429", 1), (Raw(502, {}, retry_after="86400"), "502", 3),
    (Raw(429, {"error": QUOTA}), "your current quota", 1),
])  # fmt: skip
def test_a_call_does_not_wait_for_a_day_or_a_new_quota(answer, expected, attempts, report):
    assert expected in report(answer)
    assert len(report.server.requests) == attempts


def test_an_endpoint_is_reached_through_a_proxy(report, endpoint, monkeypatch):
    proxy = endpoint(lambda request: SEEN)
    monkeypatch.setenv("HTTP_PROXY", proxy.url.removesuffix("/v1"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    assert "seen it" in report(url="http://llm.internal:8000/v1")
    assert proxy.paths == ["http://llm.internal:8000/v1/chat/completions"]


# ---- unusual answers -----------------------------------------------------------------------------


def tool_call(arguments):
    function = {"name": "finish", "arguments": arguments}
    return message(content=None, tool_calls=[{"type": "function", "function": function}])


PARTS = [{"type": "text", "text": SEEN[:20]}, {"type": "text", "text": SEEN[20:]}]
STRAY = ["stray", {"type": "image"}, None, {"type": "text", "text": SEEN}]


@pytest.mark.parametrize("answer", [
    *(message(content=content) for content in (PARTS, STRAY, f"<think>hm {{</think>\n{SEEN}", SEEN + "\ud83d", finish("seen it, half \ud83d of it"))),
    message(content=None, reasoning_content=SEEN), message(content="", reasoning=SEEN), message(content=SEEN, tool_calls=7),
    *(tool_call(arguments) for arguments in ({"result": "seen it", "status": "done"}, '{"result": "seen it", "status": "done"}')),
    {"choices": [{"message": {"content": SEEN}, "logprobs": None}]}, completion(SEEN, model=None, id=7, extra={"x": [1]}),
    Raw(200, completion(SEEN), content_type="text/plain"), Raw(200, gzip.compress(json.dumps(completion(SEEN)).encode()), content_encoding="gzip"),
    Raw(200, completion(SEEN), x_note="caf\xe9 \xff", content_type="application/json; \xe9"),
])  # fmt: skip
def test_an_answer_in_an_unusual_form_is_read(answer, report):
    assert "seen it" in report(answer)


USED = {"prompt_tokens": 100, "completion_tokens": 10}


@pytest.mark.parametrize("usage, tokens", [
    (USED, 110), ({**USED, "prompt_tokens_details": [1]}, 110), ({**USED, "total_tokens": 1000}, 1000),  # reasoning is only in the total
    ({**USED, "prompt_tokens": -100}, None), ({**USED, "prompt_tokens": "100"}, None), ({**USED, "prompt_tokens": None}, None),
    ({"prompt_tokens": 100}, None), ({"prompt_tokens": 1e400, "completion_tokens": 1e308}, None), ([], None), (None, None),
    ({**USED, "prompt_tokens": 10**400}, None),
])  # fmt: skip
def test_usage_that_makes_no_sense_is_an_unknown_cost(usage, tokens, report):
    assert "seen it" in report(completion(SEEN, usage=usage), fields={"price": Price(1, 1, 1)})
    assert report.again.cost_usd == (tokens and pytest.approx(tokens / 1e6))


# ---- a refused field is dropped, once ------------------------------------------------------------

REFUSED = Raw(400, {"error": {}})


def without(field, refused=REFUSED):
    return lambda request: refused if field in request else any_method(request)


@pytest.mark.parametrize("status", [400, 404, 422, 500])
def test_a_refused_schema_is_dropped_and_not_sent_again(status, run):
    decisions = iter([delegate("look"), complete("42")])

    def respond(request):
        if "response_format" in request:
            return Raw(status, {"error": {}})
        return next(decisions) if is_main(request) else SEEN

    assert run(respond=respond).answer == "42"
    attempts = 3 if status == 500 else 1
    first, last, *later = run.requests[attempts - 1 :]
    assert first == {**last, "response_format": first["response_format"]}
    assert len(later) == 2 and not any("response_format" in r for r in later)


def test_refused_fields_are_dropped_one_by_one(run):
    """An endpoint without log-probabilities keeps the schema."""
    assert run(respond=without("logprobs"), stop_threshold=0.5).answer == "42"
    assert ["logprobs" in r for r in run.requests] == [True, False]
    assert all("response_format" in r for r in run.requests)


def test_a_field_refused_in_one_round_of_samples_is_not_sent_in_the_next(run):
    def respond(request):
        if "temperature" in request:
            return REFUSED
        return DEBATE if "DebateAgent" in str(request["messages"][0]) else "Answer: 42"

    assert run(respond=respond, method="mas-orchestra").answer == "42"
    assert ["temperature" in r for r in run.requests].count(True) == 2  # of 11 calls


def test_refused_tools_are_listed_in_the_system_prompt(run):
    assert run(respond=without("tools"), method="toolorchestra").answer == "42"
    refused, taken, *_ = run.requests
    assert '"enhance_reasoning"' not in str(refused["messages"]) and "tools" not in taken
    assert '"enhance_reasoning"' in str(taken["messages"])


def test_max_tokens_is_renamed_for_an_endpoint_that_wants_it(run):
    expected = "'max_tokens' is not supported. Use 'max_completion_tokens' instead."
    respond = without("max_tokens", Raw(400, {"error": {"message": expected}}))
    assert run(respond=respond, fields={"max_output_tokens": 99}).answer == "42"
    first, *_, last = run.requests
    assert (first["max_tokens"], last["max_completion_tokens"]) == (99, 99)
    assert "max_tokens" not in last and "response_format" in last


def test_a_refused_connection_is_not_a_timeout(tmp_path):
    with pytest.raises(EndpointError, match="Connection refused") as refused:
        orchestrate("?", pool=pool_at(f"http://127.0.0.1:{free_port()}/v1"), out=tmp_path / "run")
    assert refused.value.cause == "endpoint"


# ---- which model ---------------------------------------------------------------------------------


@pytest.mark.parametrize("models", [
    {"data": [{"id": "a"}, {"id": "b"}]}, {"data": []}, {"object": "error"}, Raw(200, "<html>"), Raw(404, {}), Raw(200, "[1]"), {"data": [7]}, {"data": None},
])  # fmt: skip
def test_an_unnamed_model_is_an_error_if_not_exactly_one_is_served(models, endpoint, tmp_path):
    server = endpoint(any_method)
    server.models = models
    line = line_of(called("--question", "?", "--out", tmp_path / "run", at=server.url))
    assert "--model" in line and server.url in line
    assert server.requests == [] and not (tmp_path / "run").exists()


@pytest.mark.parametrize("status", [401, 429, 500])
def test_an_endpoint_without_its_list_of_models_is_an_error(status, endpoint, tmp_path):
    server = endpoint(any_method)
    server.models = Raw(status, {})
    done = called("?", "--out", tmp_path / "run", at=server.url)
    assert f"status {status}" in line_of(done, 4) and not (tmp_path / "run").exists()


def test_the_model_is_in_run_json_and_not_on_the_tape(endpoint, tmp_path):
    assert called("?", "--out", tmp_path / "run", at=endpoint(any_method).url).stdout == "42\n"
    pool = read_manifest(tmp_path / "run").pool
    assert (pool.main, pool["scripted"].model) == ("scripted", "scripted")
    kinds = [exchange.request["kind"] for exchange in exchanges(tmp_path / "run/tape.jsonl")]
    assert kinds == ["chat"]


def test_the_list_of_models_is_asked_through_the_proxy_of_chat(endpoint, tmp_path):
    proxy = endpoint(any_method)
    paths = []
    proxy.models = lambda path: paths.append(path) or {"data": [{"id": "m"}]}
    where = {"HTTP_PROXY": proxy.url.removesuffix("/v1"), "NO_PROXY": "127.0.0.1"}
    flags = "--out", tmp_path / "run"
    assert called("?", *flags, at="http://llm.internal:8001/v1", **where).stdout == "42\n"
    assert paths == ["http://llm.internal:8001/v1/models"]
    assert proxy.paths == ["http://llm.internal:8001/v1/chat/completions"]


@pytest.mark.parametrize("answer", [Raw(200, "<html>busy</html>"), {"choices": []}, Raw(200, '{"choices": [{"mess')])  # fmt: skip
def test_an_answer_that_cannot_be_read_is_paid_once(answer, run):
    """It was billed, and the next one may be alike; only what did not come is asked for again."""
    run(delegate("look"), complete("42"), work=answer)
    assert len(run.requests) == 3


@pytest.mark.parametrize(("choice", "told"), [
    ({"finish_reason": "content_filter", "message": {"content": ""}}, "the content filter of the endpoint stopped"),
    ({"finish_reason": "content_filter", "message": {"content": "It was bu"}}, "the content filter of the endpoint stopped"),
    ({"finish_reason": "stop", "message": {"content": None, "refusal": "I cannot."}}, "the model refused: I cannot."),
])  # fmt: skip
def test_a_refusal_is_named_and_not_asked_again(choice, told, run):
    run(delegate("look"), complete("42"), work={"choices": [choice]})
    (result,) = [e for e in read_events(run.folder) if e["event"] == "result"]
    assert told in result["error"] and len(run.requests) == 3


@pytest.mark.parametrize("reason", ["length", "model_length", "max_tokens", "MAX_TOKENS"])
def test_an_answer_is_cut_off_whatever_the_endpoint_calls_it(reason, run):
    half = completion(
        '{"reasoning": "r", "action": "complete", "params": {"answer": "built in 18"}}'
    )
    half["choices"][0]["finish_reason"] = reason
    assert run(respond=lambda request: half).answer == "built in 18"  # its JSON is whole
    half["choices"][0]["message"]["content"] = "It was built in 18"
    run(respond=lambda request: half, out="second", rounds=1)
    assert all("cut off" in text for text in run.mains[-2:])
