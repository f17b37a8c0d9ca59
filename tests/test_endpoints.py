"""What endpoints answer beside what the format says."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest
import requests

import orchestra_min
from orchestra import transports
from orchestra.lines import read
from orchestra.replay import Tape
from orchestra.run_folder import Options
from orchestra.vocabulary import EndpointError
from tests.asking import answering, ask
from tests.conftest import pool_at
from tests.scripted import Raw, completion


@pytest.mark.parametrize("library", ["openai", "requests"])
def test_an_answer_that_can_not_be_decoded_is_on_the_tape_as_that(library, endpoint, tmp_path):
    broken = Raw(200, b"this is no gzip", content_encoding="gzip")
    server = endpoint(lambda request: Raw(200, broken.body, **broken.headers))
    for mode in ("record", "replay"):
        with closing(Tape(tmp_path / "tape.jsonl", mode)) as tape:
            if library == "openai":
                with pytest.raises(EndpointError, match="broke off its answer"):
                    ask(tape, server.url)
            else:
                with (
                    tape.logical_call("a"),
                    pytest.raises(requests.exceptions.ContentDecodingError),
                ):
                    requests.post(server.url, json={}, timeout=5)
    assert [e["error"]["type"] for e in read(tmp_path / "tape.jsonl")][-1].endswith("DecodingError")


@pytest.mark.parametrize("answer", [b"[]", b"null", b'{"organic": {"a": 1}}', b'{"organic": [3]}'])
def test_an_odd_answer_of_the_search_is_no_traceback(answer, endpoint, monkeypatch):
    from tools import ToolError, search

    server = endpoint(answering(Raw(200, answer)))
    monkeypatch.setenv("SERPER_API_KEY", "serper-key-1234567890")
    monkeypatch.setattr(search, "SERPER_URL", server.url)
    try:
        assert search.serper({"q": "x", "num": 3}) == []
    except (ToolError, requests.RequestException) as failure:
        assert isinstance(failure, ToolError)


def test_an_endpoint_that_wants_a_refusal_tried_again_replays(endpoint, tmp_path):
    server = endpoint(answering(Raw(400, {"error": {}}, x_should_retry="true"), "fine"))
    for mode in ("record", "replay", "resume", "replay"):
        with closing(Tape(tmp_path / "tape.jsonl", mode)) as tape:
            assert ask(tape, server.url) == "fine"
    assert len(server.requests) == 2


def test_an_answer_without_end_is_broken_off(endpoint, tmp_path, monkeypatch):
    monkeypatch.setattr(transports._Limits.__init__, "__defaults__", (1 << 16,))
    server = endpoint(answering("x" * (1 << 17)))
    with closing(Tape(tmp_path / "tape.jsonl", "record")) as tape:
        with pytest.raises(EndpointError, match="broke off its answer"):
            ask(tape, server.url)


def test_what_is_refused_is_given_up_one_by_one(endpoint, tmp_path):
    """An endpoint without log-probabilities keeps the schema."""

    def respond(request: dict[str, Any]) -> Any:
        return Raw(404, {"error": {}}) if "logprobs" in request else "{}"

    server = endpoint(respond)
    how = {"schema": ("action", {"type": "object"}), "logprobs": True}
    for mode in ("record", "replay"):
        with closing(Tape(tmp_path / "tape.jsonl", mode)) as tape:
            for call in ("a", "b"):
                assert ask(tape, server.url, None, call, **how) == "{}"
    assert ["response_format" in r for r in server.requests] == [True, True, True]
    assert ["logprobs" in r for r in server.requests] == [True, False, False]


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_an_answer_filed_under_the_thoughts_is_found(field, endpoint, tmp_path):
    said = completion("")
    said["choices"][0]["message"] = {"role": "assistant", "content": None, field: "42"}
    with closing(Tape(tmp_path / "tape.jsonl", "record")) as tape:
        assert ask(tape, endpoint(lambda request: said).url) == "42"


@pytest.mark.parametrize("arguments", [{"answer": "42"}, '{"answer": "42"}'])
def test_a_decision_as_a_tool_call_is_one(arguments, endpoint, tmp_path):
    said = completion("")
    call = {"type": "function", "function": {"name": "complete", "arguments": arguments}}
    said["choices"][0]["message"] = {"role": "assistant", "content": None, "tool_calls": [call]}
    pool = pool_at(endpoint(lambda request: said).url)
    assert orchestra_min.orchestrate("?", (), pool, Options(), tmp_path / "run").answer == "42"


def test_a_trouble_of_the_moment_is_not_learnt(endpoint, tmp_path):
    left = [Raw(500, {"error": {}}) for _ in range(3)]
    server = endpoint(lambda request: left.pop() if left else "{}")
    how = {"schema": ("action", {"type": "object"})}
    for mode in ("record", "replay"):
        with closing(Tape(tmp_path / "tape.jsonl", mode)) as tape:
            assert [ask(tape, server.url, None, call, **how) for call in "ab"] == ["{}", "{}"]
    assert ["response_format" in r for r in server.requests] == [True, True, True, False, True]
