"""What an endpoint does not take is given up, once; and which of its models is asked."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestra_min import orchestrate
from tests.conftest import Options, pool_at
from tests.program import any_method, called, line_of, replay, resume
from tests.scripted import Raw, complete, delegate, finish, is_main

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
