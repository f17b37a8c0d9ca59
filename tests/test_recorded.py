"""`recorded` and its pytest fixture: record once, replay from then on, refuse what differs."""

import json
import os
import re
import shutil
from dataclasses import replace

import pytest

from orchestra.variation.recorded import MODES, Changed, recorded
from tests.conftest import (
    ROOT,
    ConfigError,
    EndpointError,
    Options,
    TapeMiss,
    pool_at,
)
from tests.program import CLOCK, any_method, called, replay
from tests.scripted import Raw, complete, delegate, finish, is_main, last_text

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
    with pytest.raises(TapeMiss, match="a resume makes"):
        recorded("?", record_mode="none", **how)
    assert recorded("?", **how).answer == "42" and len(server.requests) == 2


@pytest.mark.parametrize("question, media, options", [
    ("??", (), {}), ("?", [CLOCK], {}), ("?", (), {"steps": 3}), ("?", (), {"method": "aorchestra"}),
])  # fmt: skip
def test_another_run_than_the_recorded_one_is_refused(question, media, options, server, tmp_path):
    recorded("?", out=tmp_path / "run", pool=pool_at(server.url), **HOW)
    with pytest.raises(ConfigError, match="was recorded with another"):
        recorded(question, media, tmp_path / "run", options=replace(HOW["options"], **options))


def test_a_rewrite_keeps_the_old_run_until_the_new_one_has_ended(endpoint, server, tmp_path):
    how = {"out": tmp_path / "run", "record_mode": "rewrite"}
    recorded("?", pool=pool_at(server.url), **how)
    replies = iter([delegate("look"), Raw(401, {}), complete("43")])
    other = endpoint(lambda r: next(replies) if is_main(r) else finish("seen"))
    with pytest.raises(EndpointError):
        recorded("?", pool=pool_at(other.url), **how)
    assert recorded("?", out=tmp_path / "run").answer == "42"
    again = recorded("?", pool=pool_at(other.url), **how)  # pays only for what is missing
    assert (again.answer, again.run, len(other.requests)) == ("43", tmp_path / "run", 4)
    assert list(tmp_path.iterdir()) == [tmp_path / "run"]


def test_the_fixture_fails_where_a_test_asks_another_question(server, pytester, monkeypatch):
    monkeypatch.setenv("OPENAI_BASE_URL", server.url)
    pytester.makeconftest("pytest_plugins = ['orchestra.variation.pytest_plugin']")
    source = "def test_it(recorded): assert recorded('{}', out='run').answer == '42'"
    assert pytester.runpytest_inprocess("--record-mode", "all").ret == pytest.ExitCode.USAGE_ERROR
    with pytest.raises(ConfigError, match="'all'"):  # as pytest-recording allows it
        recorded("?", out="run", record_mode="all")
    for question, mode, passed in (("a?", "none", 0), ("a?", "once", 1), ("b?", "once", 0)):
        pytester.makepyfile(source.format(question))
        outcome = pytester.runpytest_inprocess("--record-mode", mode)
        outcome.assert_outcomes(passed=passed, failed=1 - passed)


def test_a_recording_belongs_to_the_folder_of_the_test_file(server, pytester, monkeypatch):
    monkeypatch.setenv("OPENAI_BASE_URL", server.url)
    pytester.makeconftest("pytest_plugins = ['orchestra.variation.pytest_plugin']")
    source = "def test_it(recorded): assert recorded('a?', out='run').answer == '42'"
    tests = pytester.mkdir("tests")
    (tests / "test_it.py").write_text(source)
    pytester.runpytest_inprocess("tests/test_it.py").assert_outcomes(passed=1)
    assert (tests / "run" / "tape.jsonl").exists() and not (pytester.path / "run").exists()
    monkeypatch.chdir(tests)
    pytester.runpytest_inprocess("--record-mode", "none", tests).assert_outcomes(passed=1)


def test_a_mistake_of_the_user_and_a_miss_fail_a_test_without_a_traceback(
    server, pytester, monkeypatch
):
    monkeypatch.setenv("OPENAI_BASE_URL", server.url)
    pytester.makeconftest("pytest_plugins = ['orchestra.variation.pytest_plugin']")
    pytester.makepyfile("def test_it(recorded): recorded('a?', out='run')")

    def failed():
        lines = pytester.runpytest_inprocess("--record-mode", "none").outlines
        begin = next(n for n, line in enumerate(lines) if "test_it" in line)
        end = next(n for n, line in enumerate(lines) if "short test summary" in line)
        return lines[begin + 1 : end]

    (line,) = failed()
    assert line.endswith("run: nothing is recorded; --record-mode once records it")
    pytester.runpytest_inprocess("--record-mode", "once").assert_outcomes(passed=1)
    tape = pytester.path / "run" / "tape.jsonl"
    row = json.loads(tape.read_text())
    older = json.dumps({**row, "key": "0" * 64}).replace("You are the main", "You were a main")
    tape.write_text(f"{older}\n")
    first, *difference = failed()
    assert "differs from its recording; --record-mode changed makes only" in first
    assert ["You were a main" in difference[0], "You are the main" in difference[1]] == [True] * 2
    assert len(difference) == 2


# ---- changed -------------------------------------------------------------------------------------


@pytest.fixture
def varied(endpoint, tmp_path, edited):
    """A recording of two rounds, and `varied(edit, answer)`: the test again, after an edit of a
    prompt. The model then gives this answer. `varied.asked`: its requests.
    """

    def varied(edit=(), answer="9", mode="changed", task="look", **how):
        def respond(request):
            varied.asked.append(request)
            if not is_main(request):
                return finish("seen")
            return complete(answer) if "seen" in last_text(request) else delegate(task)

        if edit:
            edited(*edit)
        varied.asked = []
        pool = pool_at(endpoint(respond).url)
        return recorded("?", out=tmp_path / "run", pool=pool, record_mode=mode, **how)

    varied(mode="once")
    return varied


OF_A_SUB_AGENT = ("react/system.md", "one action a step", "an action each step")
OF_THE_MAIN_AGENT = ("orchestra_o1/system.md", "You are the main agent.", "You are the main agent!")


def test_a_recording_that_still_fits_is_replayed_whole(varied, tmp_path, no_network):
    before = (tmp_path / "run" / "tape.jsonl").read_bytes()
    assert recorded("?", out=tmp_path / "run", record_mode="changed").answer == "9"
    assert (tmp_path / "run" / "tape.jsonl").read_bytes() == before


def test_an_edited_prompt_pays_only_for_the_calls_that_see_it(varied, tmp_path):
    again = varied(OF_A_SUB_AGENT)
    assert (again.answer, again.run) == ("9", tmp_path / "run")
    assert len(varied.asked) == 1 and not is_main(varied.asked[0])  # of three calls
    assert [p.name for p in tmp_path.iterdir()] == ["run"]
    assert replay(tmp_path / "run").answer == "9"
    assert varied(mode="none").answer == "9" and not varied.asked


def test_a_changed_answer_is_refused_in_three_lines_and_the_recording_stays(varied, tmp_path):
    before = (tmp_path / "run" / "tape.jsonl").read_bytes()
    with pytest.raises(Changed) as error:
        varied(OF_THE_MAIN_AGENT, answer="8")
    changed, part, see = str(error.value).splitlines()
    assert changed.endswith("run: the answer changed: '9' -> '8'")
    assert part == "first difference: r1/main/a1 (chat): its request differs"
    assert "--record-mode rewrite accepts the new run" in see
    assert (tmp_path / "run" / "tape.jsonl").read_bytes() == before
    paid = len(varied.asked)
    with pytest.raises(Changed):
        varied(answer="8")  # again: nothing is paid twice
    assert paid == 2 and not varied.asked
    assert varied(mode="rewrite").answer == "8" and not varied.asked
    assert [p.name for p in tmp_path.iterdir()] == ["run"] and varied().answer == "8"


def test_a_changed_decision_is_refused_where_the_test_says_so(varied, tmp_path):
    edit = ("delegation.md", "Round", "ROUND")  # the main agent now has more to say
    with pytest.raises(Changed, match="the decision of round 1 changed: delegates t1: look ->"):
        varied(edit, decisions=True, task="look twice")
    assert varied(decisions=False).answer == "9"


def test_a_page_explains_each_record_mode():
    page = (ROOT / "docs/runs.md").read_text()
    assert all(re.search(rf"^- `{mode}`\W", page, re.M) for mode in MODES)


def test_runs_of_a_folder_of_sweeps_are_listed_and_an_empty_folder_says_so(tmp_path):
    shutil.copytree(ROOT / "fixtures/runs/equinox", tmp_path / "sweeps/react/runs/1")
    (tmp_path / "sweeps/react/runs/1/workdir").mkdir()
    (tmp_path / "sweeps/react/runs/1/workdir/run.json").touch()  # of the user
    _, *listed = called("runs", tmp_path / "sweeps").stdout.splitlines()
    assert [line.split()[0] for line in listed if line[0] != " "] == ["react/runs/1"]
    (tmp_path / "none").mkdir()
    empty = called("runs", tmp_path / "none")
    assert (empty.returncode, empty.stdout) == (0, "")
    assert (
        empty.stderr == f"{tmp_path}/none has no runs in it, nor in folders up to 3 levels down\n"
    )


def test_runs_are_listed_with_question_answer_and_the_date_of_their_newest_call(tmp_path):
    shutil.copytree(ROOT / "fixtures" / "runs" / "equinox", tmp_path / "old")
    os.utime(tmp_path / "old/run.json", (99999, 99999))
    (tmp_path / "notes").mkdir()
    (row,) = json.loads(called("runs", tmp_path, "--json").stdout)
    assert [row] == json.loads(called("runs", tmp_path / "old", "--json").stdout)  # a run itself
    assert row["date"].startswith("2026") and row["answer"] == "2023-09-23 05:49:00+00:00"
    assert (row["run"], row["question"][:12]) == ("old", "The recordin")


# ---- a kill, and what a rewrite finds --------------------------------------------------------------


def test_a_kill_between_two_renames_keeps_the_recording(varied, tmp_path):
    shutil.copytree(tmp_path / "run", tmp_path / "run.new")
    (tmp_path / "run").rename(tmp_path / ".run.old")
    assert varied(OF_A_SUB_AGENT).answer == "9" and len(varied.asked) == 1  # of three calls
    assert [p.name for p in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize("left", ["media", "run.json.part"])
def test_a_kill_while_a_new_folder_was_made_is_no_problem(left, varied, tmp_path):
    (tmp_path / "run.new" / left).mkdir(parents=True)
    assert varied(OF_A_SUB_AGENT).answer == "9" and len(varied.asked) == 1
    assert [p.name for p in tmp_path.iterdir()] == ["run"]


def damaged(folder):
    (folder / "run.json").write_text("{")


def of_another_question(folder):
    row = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**row, "question": "Which?"}))


def no_run(folder):
    (folder / "run.json").unlink()


def a_file(folder):
    shutil.rmtree(folder)
    folder.write_text("")


@pytest.mark.parametrize("change", [damaged, of_another_question, no_run, a_file, shutil.rmtree])
@pytest.mark.parametrize("name", ["run", "run.new"])
def test_a_rewrite_records_again_whatever_is_there(name, change, varied, tmp_path):
    if name == "run.new":
        shutil.copytree(tmp_path / "run", tmp_path / name)
    change(tmp_path / name)
    assert varied(mode="rewrite", answer="8").answer == "8"
    assert len(varied.asked) == 3 and [p.name for p in tmp_path.iterdir()] == ["run"]
    assert varied(mode="none").answer == "8"


@pytest.mark.parametrize("call, problem", [
    ("'a?', uot='run'", "no argument 'uot'; it takes question, media, out, decisions, pool"),
    ("'a?'", "out: a path is needed, as in 'runs/capital'"), ("out='run'", "missing a required argument: 'question'"),
    ("7, out='run'", "question: Input should be a valid string, not 7"), ("'a?', out=7", "out"), ("'a?', out='a\\0b'", "out"),
    ("'a?', out='run', options={'rounds': 3}", "options: Input should be an instance of Options"),
    ("'a?', out='run', options=__import__('orchestra_min').Options(parallel=0)", "parallel: Input should be greater than or equal to 1, not 0"),
    ("'a?', out='run', options=__import__('orchestra_min').Options(budget_usd='x')", "budget_usd"),
    ("'a?', out='run', pool=7", "pool"), ("'a?', ['gone.png'], out='run'", "gone.png: cannot be read"),
    ("'a?', 5, out='run'", "media"), ("'a?', [None], out='run'", "media"), ("'a?', [('image',)], out='run'", "media"),
    ("'a?', out='run', tools=[len]", "tools: Input should be a valid dictionary"), ("'a?', out='run', tools={'a': len}", "tools.a: Input should be an instance of Tool"),
    ("'a?', out='run', method='react'", "method: Input should be callable"), ("'a?', out='run', listeners=5", "listeners"),
    ("'a?', out='run', sources=['x']", "sources.0: Input should be callable"), ("'a?', out='run', more=5", "more"), ("'a?', out='run', cancelled=True", "cancelled"),
])  # fmt: skip
def test_a_wrong_argument_of_the_fixture_is_one_line(call, problem, server, pytester, monkeypatch):
    monkeypatch.setenv("OPENAI_BASE_URL", server.url)
    pytester.makeconftest("pytest_plugins = ['orchestra.variation.pytest_plugin']")
    pytester.makepyfile(f"def test_it(recorded): recorded({call})")
    lines = pytester.runpytest_inprocess().outlines
    begin = next(n for n, line in enumerate(lines) if "test_it" in line)
    end = next(n for n, line in enumerate(lines) if "short test summary" in line)
    assert end == begin + 2 and problem in lines[begin + 1]


@pytest.mark.parametrize("order", [1, -1])
def test_the_fixture_works_next_to_any_plugin_with_a_record_mode(order, pytester):
    option = "def pytest_addoption(parser): parser.addoption('--record-mode')"
    pytester.makepyfile(theirs=option)
    plugins = [("-p", "orchestra.variation.pytest_plugin"), ("-p", "theirs")][::order]
    flags = [word for plugin in plugins for word in plugin]
    assert pytester.runpytest_subprocess(*flags, "--version").ret == 0


def test_its_modes_are_accepted_where_pytest_recording_has_the_option(pytester):
    pytester.makepyfile(
        recording="""
        def pytest_addoption(parser):
            group = parser.getgroup("recording")
            group.addoption("--record-mode", choices=("once", "all"))
        """,
        test_it="""
        def test_it(recorded, request):
            assert request.config.getoption("--record-mode") == "changed"
        """,
    )
    plugins = "-p", "orchestra.variation.pytest_plugin", "-p", "recording"
    for flags in (plugins, plugins[2:] + plugins[:2]):
        assert pytester.runpytest_subprocess(*flags, "--record-mode", "changed").ret == 0
