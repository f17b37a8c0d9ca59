"""What a resume, a fork and a replay go on from, whatever had failed before."""

from __future__ import annotations

import time
from contextlib import closing
from typing import Any

import pytest

import orchestra_min
from orchestra.backends import Chat
from orchestra.money import Purse
from orchestra.outcomes import built_on
from orchestra.replay import Tape, TapeMiss
from orchestra.run_folder import Options
from orchestra.vocabulary import EndpointError
from tests.asking import answering, ask
from tests.conftest import pool_at
from tests.scripted import Raw, complete, completion, delegate, finish, is_main, last_text


@pytest.mark.parametrize("refusal", [Raw(402, {"error": {}}), {**completion(""), "choices": []}])
def test_a_resumed_run_replays(refusal, endpoint, tmp_path):
    """The refusal and the answer after it stand under one key."""
    server = endpoint(answering(refusal, "fine"))
    for mode in ("record", "resume", "replay", "resume", "replay"):
        with closing(Tape(tmp_path / "tape.jsonl", mode)) as tape:
            if mode == "record":
                with pytest.raises(EndpointError):
                    ask(tape, server.url)
            else:
                assert ask(tape, server.url) == "fine"
    assert len(server.requests) == 2


@pytest.mark.parametrize("host", ["127.0.0.1", "LOCALHOST"])
def test_a_refusal_that_came_late_changes_no_call_before_it(host, endpoint, tmp_path):
    """An endpoint takes a schema, and later refuses it: each call replays, and resumes, as it was."""
    taken = []

    def respond(request: dict[str, Any]) -> Any:
        if "response_format" not in request:
            return "plain"
        taken.append(request)
        return "{}" if len(taken) == 1 else Raw(400, {"error": {}})

    server = endpoint(respond)
    url = server.url.replace("127.0.0.1", host)
    schema = ("action", {"type": "object"})
    for mode in ("record", "resume", "replay"):
        with closing(Tape(tmp_path / "tape.jsonl", mode)) as tape:
            said = [ask(tape, url, call=c, schema=schema) for c in ("a", "b", "c")]
            assert said == ["{}", "plain", "plain"]
    assert len(server.requests) == 4


def test_two_models_in_one_call_are_each_asked_as_they_were(endpoint, tmp_path):
    """A tool asks a model of its own in the step of a sub-agent; only that one wants the newer limit."""

    def respond(request: dict[str, Any]) -> Any:
        if request["model"] == "newer" and "max_tokens" in request:
            return Raw(400, {"error": {"message": "use max_completion_tokens"}})
        return request["model"]

    server = endpoint(respond)
    pool = pool_at(server.url, "older", "newer", max_output_tokens=99)
    for mode in ("record", "replay"):
        with closing(Tape(tmp_path / "tape.jsonl", mode)) as tape:
            chat, messages = Chat(tape), [{"role": "user", "content": "x"}]
            for call in ("a", "b"):
                with tape.logical_call(call):
                    said = [chat(pool[name], messages, Purse()).text for name in pool.names]
                assert said == ["older", "newer"]
    assert len(server.requests) == 5


def test_one_model_at_two_addresses_in_one_call_is_asked_at_each_as_it_was(endpoint, tmp_path):
    def refusing(request: dict[str, Any]) -> Any:
        return Raw(400, {"error": {}}) if "response_format" in request else "plain"

    servers = [endpoint(lambda request: "{}"), endpoint(refusing)]
    how = {"schema": ("action", {"type": "object"})}
    for mode in ("record", "replay"):
        with closing(Tape(tmp_path / "tape.jsonl", mode)) as tape:
            for call in ("a", "b"):
                said = [ask(tape, s.url, None, call, name=s.url, **how) for s in servers]
                assert said == ["{}", "plain"]
    assert [len(s.requests) for s in servers] == [2, 3]


def test_a_damaged_line_in_a_tape_is_told_once_with_its_place(tmp_path, caplog):
    file = tmp_path / "tape.jsonl"
    fact = '{"v": 1, "fact": "a", "value": "b"}'
    file.write_text("\n".join([fact, "{dama", fact, '{"cut', '{"v": 1, "resumed": true}', '{"c']))
    for mode in ("replay", "resume"):
        Tape(file, mode).close()
    [said] = caplog.messages
    assert said.startswith(f"{file}:2: a damaged line is left out")


def test_a_run_resumed_with_more_time_replays(endpoint, tmp_path):
    """What the main agent reads of a sub-agent's timeout names no number of seconds."""

    def respond(request: dict[str, Any]) -> Any:
        if is_main(request):
            told = "reason:" in last_text(request)
            return complete("42") if told else delegate("look")
        time.sleep(1.2)
        return finish("seen")

    out, pool = tmp_path / "run", pool_at(endpoint(respond).url)
    assert orchestra_min.orchestrate("?", (), pool, Options(timeout_s=0.5), out).answer == "42"
    assert orchestra_min.resume(out, timeout_s=0.6).answer == "42"
    assert orchestra_min.replay(out).answer == "42"


def test_a_resume_keeps_the_failure_that_later_rounds_were_built_on(endpoint, tmp_path):
    dead = {"main": True, "small": True}

    def respond(request: dict[str, Any]) -> Any:
        if not is_main(request):
            return Raw(400, {"error": {"message": "busy"}}) if dead["small"] else finish("seen")
        if "t2" in last_text(request):
            return Raw(401, {}) if dead["main"] else complete("42")
        return delegate("look again") if "reason:" in last_text(request) else delegate("look")

    server, out = endpoint(respond), tmp_path / "run"
    with pytest.raises(EndpointError):
        orchestra_min.orchestrate("?", (), pool_at(server.url), Options(rounds=3), out)
    dead.update(main=False, small=False)
    asked = len(server.requests)
    assert orchestra_min.resume(out).answer == "42"
    assert len(server.requests) - asked == 2  # the last sub-task, which none had gone on from
    assert orchestra_min.replay(out).answer == "42"


def test_a_fork_keeps_the_failures_of_the_rounds_before(endpoint, tmp_path):
    def respond(request: dict[str, Any]) -> Any:
        if is_main(request):
            return complete("42") if "reason:" in last_text(request) else delegate("look")
        return Raw(400, {"error": {"message": "busy"}})

    server, out = endpoint(respond), tmp_path / "run"
    orchestra_min.orchestrate("?", (), pool_at(server.url), Options(), out)
    asked = len(server.requests)
    orchestra_min.resume(out, from_round=2, out=tmp_path / "fork")
    assert len(server.requests) - asked == 1  # the decision of round 2
    assert orchestra_min.replay(tmp_path / "fork").answer == "42"


def test_parts_side_by_side_are_not_built_on_each_other():
    def entry(call: str, code: int) -> dict[str, Any]:
        status = {"code": code}
        return {"call": call, "request": {"uri": "u"}, "response": {"status": status}}

    failed, answer = entry("r1/t1/s1/part2", 400), entry("r1/t1/s1/part1", 200)
    assert built_on([failed, answer]) == built_on([answer, failed]) == set()
    assert built_on([failed, answer, entry("r1/t1/s2", 200)]) == {id(failed)}


def test_a_replay_of_a_run_that_was_not_finished_says_so(endpoint, tmp_path):
    answers = iter([delegate("look"), finish("seen"), Raw(401, {})])
    with pytest.raises(EndpointError):
        pool = pool_at(endpoint(lambda request: next(answers)).url)
        orchestra_min.orchestrate("?", (), pool, Options(), tmp_path / "run")
    rows = (tmp_path / "run" / "tape.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "run" / "tape.jsonl").write_text("".join(rows[:-1]))  # as after a kill
    with pytest.raises(TapeMiss, match="not finished: --resume"):
        orchestra_min.replay(tmp_path / "run")
