"""--method react: one agent with all tools, no main agent above it."""

from __future__ import annotations

import pytest

from orchestra import trajectory
from orchestra.run_folder import Options
from orchestra.vocabulary import ConfigError, EndpointError
from orchestra_min import orchestrate, replay, resume
from tests.conftest import ROOT, pool_at
from tests.scripted import Raw, act, finish, last_text

CLOCK = ROOT / "fixtures" / "media" / "clock.png"


def run(endpoint, tmp_path, *replies, media=(), names=("small",), **options):
    queue = iter(replies)
    server = endpoint(lambda request: next(queue))
    options = Options(method="react", **options)
    pool = pool_at(server.url, *names)
    return orchestrate("What is it?", media, pool, options, tmp_path / "run"), server


def test_one_agent_answers_with_all_tools(endpoint, tmp_path):
    work = act("ExecuteCodeAction", code="print(6 * 7)"), finish("42")
    result, server = run(endpoint, tmp_path, *work, names=("small", "large"))
    assert (result.answer, result.fallback, result.rounds, result.calls) == ("42", False, 1, 2)
    system = server.requests[0]["messages"][0]["content"]
    assert all(t in system for t in ("ExecuteCodeAction(", "GoogleSearchAction(", "ExtractUrl"))
    assert {r["model"] for r in server.requests} == {"small"} and "main agent has" not in system
    assert "Observation: 42" in last_text(server.requests[1])


def test_files_are_seen_by_its_own_tools(endpoint, tmp_path):
    look = act("ImageAnalysisAction", query="time?", image_path="clock.png")
    result, server = run(
        endpoint, tmp_path, look, "12:34", finish("12:34"), media=[("image", CLOCK)]
    )
    assert result.answer == "12:34" and "clock.png" in last_text(server.requests[0])


def test_a_plain_question_that_it_knows_is_answered_at_once(endpoint, tmp_path):
    result, server = run(endpoint, tmp_path, finish("Paris"))
    assert (result.answer, result.fallback, result.calls) == ("Paris", False, 1)
    schema = server.requests[0]["response_format"]["json_schema"]["schema"]
    assert "finish" in [a["properties"]["action"]["const"] for a in schema["anyOf"]]
    assert "main agent" not in last_text(server.requests[0])


def test_a_question_about_files_is_not_answered_before_a_look(endpoint, tmp_path):
    look = act("ImageAnalysisAction", query="time?", image_path="clock.png")
    work = finish("from thin air"), look, "12:34", finish("12:34")
    result, _ = run(endpoint, tmp_path, *work, media=[("image", CLOCK)])
    assert (result.answer, result.calls) == ("12:34", 4)


@pytest.mark.parametrize("status", ["blocked", "done"])
def test_a_blocked_agent_gives_a_fallback(status, endpoint, tmp_path):
    work = act("ExecuteCodeAction", code="print(1)"), finish("no idea", status=status)
    result, _ = run(endpoint, tmp_path, *work)
    assert (result.answer, result.fallback) == ("no idea", status == "blocked")


def test_an_agent_whose_endpoint_fails_ends_the_run_and_goes_on_from_there(endpoint, tmp_path):
    work = act("ExecuteCodeAction", code="print(1)"), Raw(401, {}), finish("1")
    with pytest.raises(EndpointError, match="status 401"):
        run(endpoint, tmp_path, *work)
    assert resume(tmp_path / "run").answer == "1"
    assert replay(tmp_path / "run").answer == "1"


def test_replays_under_any_number_of_threads_have_the_same_content(endpoint, tmp_path):
    work = act("ExecuteCodeAction", code="print(1)"), act("Nothing"), finish("1")
    result, _ = run(endpoint, tmp_path, *work)
    for threads in (1, 5, 17):
        again = replay(tmp_path / "run", parallel=threads)
        assert trajectory.content(again.events) == trajectory.content(result.events)


@pytest.mark.parametrize("options", [{"dom": "middle"}, {"mode": "x"}, {"context": ""}])
def test_an_option_that_is_unknown_is_refused(options, endpoint, tmp_path):
    with pytest.raises(ConfigError, match="is none of"):
        run(endpoint, tmp_path, **options)
    assert not (tmp_path / "run").exists()
