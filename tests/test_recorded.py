"""`recorded` and its pytest fixture: record once, replay from then on, refuse what differs."""

import json
import os
import shutil

import pytest

from orchestra_min import recorded
from tests.conftest import ROOT, ConfigError, EndpointError, Options, TapeMiss, pool_at
from tests.program import CLOCK, any_method, called
from tests.scripted import Raw, complete, delegate, finish, is_main

HOW = {"options": Options(method="react")}


@pytest.fixture
def server(endpoint):
    return endpoint(any_method)


def test_a_run_is_recorded_once_then_replayed_and_continued_if_it_was_cut_off(server, tmp_path):
    how = {"out": tmp_path / "run", "pool": pool_at(server.url), **HOW}
    with pytest.raises(ConfigError, match="nothing is recorded"):
        recorded("?", record_mode="none", **how)
    runs = [recorded("?", **how) for _ in range(2)]
    assert [run.answer for run in runs] == ["42", "42"] and len(server.requests) == 1
    for name in ("tape.jsonl", "trajectory.jsonl"):
        lines = (tmp_path / "run" / name).read_text().splitlines(keepends=True)
        (tmp_path / "run" / name).write_text("".join(lines[:-1]))
    with pytest.raises(TapeMiss, match="--resume makes"):
        recorded("?", record_mode="none", **how)
    assert recorded("?", **how).answer == "42" and len(server.requests) == 2


@pytest.mark.parametrize("question, media, options", [
    ("??", (), {}), ("?", [CLOCK], {}), ("?", (), {"steps": 3}), ("?", (), {"method": "aorchestra"}),
])  # fmt: skip
def test_another_run_than_the_recorded_one_is_refused(question, media, options, server, tmp_path):
    recorded("?", out=tmp_path / "run", pool=pool_at(server.url), **HOW)
    with pytest.raises(ConfigError, match="was recorded with another"):
        recorded(question, media, tmp_path / "run", options=HOW["options"].with_(**options))


def test_a_rewrite_keeps_the_old_run_until_the_new_one_has_ended(endpoint, server, tmp_path):
    how = {"out": tmp_path / "run", "record_mode": "rewrite"}
    recorded("?", pool=pool_at(server.url), **how)
    replies = iter([delegate("look"), Raw(401, {}), complete("43")])
    other = endpoint(lambda r: next(replies) if is_main(r) else finish("seen"))
    with pytest.raises(EndpointError):
        recorded("?", pool=pool_at(other.url), **how)
    assert recorded("?", out=tmp_path / "run").answer == "42"
    again = recorded("?", pool=pool_at(other.url), **how)  # pays only for what is missing
    assert (again.answer, again.run, len(other.requests)) == ("43", str(tmp_path / "run"), 4)
    assert list(tmp_path.iterdir()) == [tmp_path / "run"]


def test_the_fixture_fails_where_a_test_asks_another_question(server, pytester, monkeypatch):
    monkeypatch.setenv("OPENAI_BASE_URL", server.url)
    pytester.makeconftest("pytest_plugins = ['orchestra.runtime.pytest_plugin']")
    source = "def test_it(recorded): assert recorded('{}', out='run').answer == '42'"
    assert pytester.runpytest("--record-mode", "all").ret == pytest.ExitCode.USAGE_ERROR
    with pytest.raises(ConfigError, match="'all'"):  # as pytest-recording allows it
        recorded("?", out="run", record_mode="all")
    for question, mode, passed in (("a?", "none", 0), ("a?", "once", 1), ("b?", "once", 0)):
        pytester.makepyfile(source.format(question))
        # in this process, pytest would forget the modules that a run imports, some of them halfway
        outcome = pytester.runpytest_subprocess("--record-mode", mode)
        outcome.assert_outcomes(passed=passed, failed=1 - passed)


def test_the_fixture_works_next_to_pytest_recording(pytester):
    option = "def pytest_addoption(parser): parser.addoption('--record-mode')"
    pytester.makepyfile(pytest_recording=option)
    plugins = "-p", "orchestra.runtime.pytest_plugin", "-p", "pytest_recording"
    assert pytester.runpytest_subprocess(*plugins, "--version").ret == 0


def test_runs_are_listed_with_question_answer_and_the_date_of_their_newest_call(tmp_path):
    shutil.copytree(ROOT / "fixtures" / "runs" / "equinox", tmp_path / "old")
    os.utime(tmp_path / "old/run.json", (99999, 99999))
    (tmp_path / "notes").mkdir()
    (row,) = json.loads(called("--runs", tmp_path, "--json").stdout)
    assert [row] == json.loads(called("--runs", tmp_path / "old", "--json").stdout)  # a run itself
    assert row["date"].startswith("2026") and row["answer"] == "2023-09-23 05:49:00+00:00"
    assert (row["run"], row["question"][:12]) == ("old", "The recordin")
