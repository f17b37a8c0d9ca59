"""A run that has ended is not paid again; a fork keeps the rounds before it and asks the rest anew."""

import contextlib
from pathlib import Path
from typing import Any

import pytest

from orchestra_min import orchestrate
from tests.conftest import EndpointError, Options, pool_at
from tests.program import called, files_of, line_of, replay, resume
from tests.scripted import CHAIN, Endpoint, Raw, complete, delegate, finish, is_main, last_text


def test_a_resume_of_a_finished_graph_asks_no_failed_agent_again(endpoint, tmp_path):
    def respond(request: dict[str, Any]) -> Any:
        if request["messages"][0]["role"] == "system":
            return CHAIN
        return Raw(401, {}) if "first" in last_text(request) else "Answer: 42"

    server, options = endpoint(respond), Options(method="mas-orchestra")
    orchestrate("?", (), pool_at(server.url), options, tmp_path / "run")
    assert resume(tmp_path / "run").answer == "42" and len(server.requests) == 3


@pytest.mark.parametrize("made", [True, False])
def test_where_nothing_was_paid_nothing_is_kept(made, endpoint, tmp_path):
    if made:
        (tmp_path / "run").mkdir()
    server = endpoint(lambda request: Raw(401, {}))
    done = called("--question", "?", "--model", "m", "--out", tmp_path / "run", at=server.url)
    assert "--resume" not in line_of(done, 4)
    assert [p.name for p in tmp_path.rglob("*")] == ["run"] * made


@pytest.mark.parametrize("torn", ['{"v": 1, "call": "r2/ma', "{", '{"v": 1, "call": "\xff'])
@pytest.mark.parametrize("mode", [replay, resume])
def test_a_torn_last_line_of_the_tape_is_left_out(mode, torn, endpoint, tmp_path):
    server = endpoint(lambda request: complete("42"))
    orchestrate("?", (), pool_at(server.url), None, tmp_path / "run")
    with (tmp_path / "run" / "tape.jsonl").open("ab") as file:
        file.write(torn.encode("latin-1"))
    assert mode(tmp_path / "run").answer == "42"
    assert replay(tmp_path / "run").answer == "42" and len(server.requests) == 1


# ---- forks ---------------------------------------------------------------------------------------


@pytest.fixture
def three_rounds(endpoint, tmp_path) -> tuple[Path, Endpoint]:
    replies = iter([delegate("a"), delegate("b"), complete("42")])
    server = endpoint(lambda r: next(replies, complete("other")) if is_main(r) else finish("seen"))
    orchestrate("?", (), pool_at(server.url), None, tmp_path / "run")
    return tmp_path / "run", server


@pytest.mark.parametrize("round", [1, 2, 3])
def test_a_fork_keeps_the_rounds_before_and_asks_the_rest_anew(round, three_rounds):
    run, server = three_rounds
    before, asked = files_of(run), len(server.requests)
    forked = resume(run, from_round=round, out=run.parent / "fork")
    assert (forked.answer, forked.rounds, forked.run) == ("other", round, str(run.parent / "fork"))
    assert len(server.requests) == asked + 1 and files_of(run) == before
    server.close()
    assert replay(run.parent / "fork").answer == "other" and replay(run).answer == "42"


@pytest.mark.parametrize("round", [4, 99])
def test_a_fork_from_a_round_that_was_not_reached_is_refused(round, three_rounds):
    run, server = three_rounds
    fork = "--from-round", round, "--out", run.parent / "fork"
    done = called("--resume", run, *fork, at=server.url)
    assert f"--from-round {round}" in line_of(done) and not (run.parent / "fork").exists()


@pytest.mark.parametrize("resumed", [False, True])
def test_a_fork_keeps_the_failures_of_the_rounds_before(resumed, endpoint, tmp_path):
    dead = iter([Raw(401, {})] * resumed)

    def respond(request: dict[str, Any]) -> Any:
        if is_main(request):
            failed = "out of order" in last_text(request)
            return next(dead, complete("42")) if failed else delegate("look")
        return Raw(400, {"error": {"message": "out of order"}})

    server, out = endpoint(respond), tmp_path / "run"
    with contextlib.suppress(EndpointError):
        orchestrate("?", (), pool_at(server.url), None, out)
    assert resume(out).answer == "42"
    asked = len(server.requests)
    assert resume(out, from_round=2, out=tmp_path / "fork").answer == "42"
    assert len(server.requests) == asked + 1
    assert replay(tmp_path / "fork").answer == "42"
