"""Run folders and sweeps from someone else: nothing outside of them is written, nothing hangs, one line."""

import json
import os
import shutil

import pytest

from fixtures import results
from orchestra.command.programs import run_program
from orchestra.evaluation import command as evaluate
from orchestra.evaluation.intervals import mcnemar
from orchestra.evaluation.questions import load
from orchestra.report import command as report
from tests import mutated_folders
from tests.conftest import ROOT
from tests.program import called, line_of
from tests.sweeps import recorded

SWEEP = recorded("react")
FIRST = min(SWEEP.glob("runs/*"))  # of the recorded runs; its question has media
RUN = ROOT / "fixtures" / "runs" / "equinox"


@pytest.fixture(autouse=True)
def leaves_no_large_file(tmp_path):
    """Later tests search all files for a key."""
    yield
    shutil.rmtree(tmp_path)


@pytest.fixture
def sweep(tmp_path):
    """A sweep of one run."""
    lines = (SWEEP / "rows.jsonl").read_text().splitlines()
    row = next(line for line in lines if json.loads(line)["run"] == FIRST.name)
    folder = tmp_path / "results" / "react"
    shutil.copytree(FIRST, folder / "runs" / FIRST.name)
    shutil.copy(SWEEP / "sweep.json", folder)
    (folder / "rows.jsonl").write_text(row + "\n")
    shutil.copytree(SWEEP / "scores", folder / "scores")
    return folder


def code_of_replay(sweep):
    """The exit code of `make results` for a sweep."""
    asked = {q.id: q for q in load(results.MINIGAIA / "questions.json")}
    return run_program("results", lambda: results.replayed(sweep, asked) and None)


@pytest.fixture
def mine(tmp_path):
    """A file of the user's."""
    (tmp_path / "mine").write_text("mine")
    yield tmp_path / "mine"
    assert (tmp_path / "mine").read_text() == "mine"


@pytest.mark.parametrize("seed", range(60))
def test_a_mutated_folder_ends_in_one_line_or_works(seed, tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    for number, outcome in enumerate(mutated_folders.outcomes(tmp_path, f"test/{seed}")):
        assert not outcome.problem(), (number, outcome)


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_results_write_to_no_file_that_a_medium_links_to(link, sweep, mine, capsys):
    run = sweep / "runs" / FIRST.name
    medium = run / "media" / json.loads((run / "run.json").read_text())["media"][0]["name"]
    medium.parent.mkdir(exist_ok=True)
    medium.unlink(missing_ok=True)
    link(mine, medium)
    code = code_of_replay(sweep)
    assert code == (2 if link is os.symlink else 0), capsys.readouterr().err


@pytest.mark.parametrize(
    "name", ["../..", "..", ".", "/etc", f"{FIRST.name}/../{FIRST.name}", "", f"{FIRST.name}\0"]
)
def test_results_read_no_run_outside_of_the_sweep(name, sweep, capsys):
    rows = sweep / "rows.jsonl"
    rows.write_text(json.dumps({**json.loads(rows.read_text()), "run": name}) + "\n")
    assert code_of_replay(sweep) == 2
    assert not (sweep.parent / "media").exists() and not (sweep / "media").exists()
    for program, *argv in ((evaluate, "report", sweep), (report, sweep)):
        assert program.main([str(word) for word in argv]) in (0, 2)
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(
    "kind", [os.mkfifo, os.mkdir, lambda p: p.symlink_to("/dev/zero"), lambda p: p.symlink_to(p)]
)
@pytest.mark.parametrize("name", ["rows.jsonl", "sweep.json"])
def test_a_report_of_a_sweep_with_something_else_than_a_file_is_one_line(kind, name, sweep, capsys):
    (sweep / name).unlink()
    kind(sweep / name)
    assert evaluate.main(["report", str(sweep)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("began_s", [-1.0, -1e300, 1e300, float("nan"), float("inf"), "1", None])
def test_runs_with_calls_at_impossible_times_are_listed(began_s, tmp_path):
    shutil.copytree(RUN, tmp_path / "run")
    tape = tmp_path / "run" / "tape.jsonl"
    rows = [json.loads(line) for line in tape.read_text().splitlines()]
    rows[0]["timing"]["began_s"] = began_s
    tape.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (row,) = json.loads(called("runs", tmp_path, "--json").stdout)
    assert row["state"] in ("answered", "damaged") and row.get("date", "2026") >= "2026"


@pytest.mark.parametrize("text", ['{"call": [[', '{"v": "\U0001f600'])
def test_a_tape_of_very_many_values_takes_little_memory(text, tmp_path):
    """20 MB of `[],` would take 500 MB."""
    folder = tmp_path / "run"
    shutil.copytree(RUN, folder)
    (folder / "tape.jsonl").write_text(text + "[]," * 7_000_000)
    for argv in (["--replay", folder], ["report", folder], ["runs", tmp_path]):
        outcome = mutated_folders.run(argv, tmp_path)
        assert not outcome.problem() and outcome.mib < 400, outcome


def test_half_a_surrogate_pair_on_a_tape_is_replaced(tmp_path):
    shutil.copytree(RUN, tmp_path / "run")
    tape = tmp_path / "run" / "tape.jsonl"
    tape.write_text(tape.read_text().replace('"finish_reason"', '"\\ud800": 0, "finish_reason"'))
    done = called("replay", tmp_path / "run", "--quiet")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_run_in_a_linked_folder_is_not_listed(tmp_path):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "linked").symlink_to(RUN)
    assert json.loads(called("runs", tmp_path / "runs", "--json").stdout) == []
    assert report.main([str(tmp_path / "runs")]) == 2


def test_a_sweep_with_a_linked_run_is_not_continued(sweep, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    (tmp_path / "elsewhere").mkdir()
    (sweep / "runs" / "02").symlink_to(tmp_path / "elsewhere")
    argv = [
        "run",
        "--data",
        results.MINIGAIA / "questions.json",
        "--out",
        sweep,
        "--method",
        "react",
        "--model",
        "m",
        "--limit",
        2,
    ]
    assert evaluate.main([str(word) for word in argv]) == 2
    assert "is a link" in capsys.readouterr().err and not list((tmp_path / "elsewhere").iterdir())


def test_a_run_of_more_media_than_fit_is_refused_before_they_are_read(tmp_path):
    shutil.copytree(RUN, tmp_path / "run")
    os.truncate(tmp_path / "run" / "media" / "clock.png", 1 << 40)
    assert "is larger than" in line_of(called("--quiet", "--replay", tmp_path / "run"))


def test_many_different_answers_are_compared_in_little_time():
    assert mcnemar(20_000, 20_000) == 1.0 and mcnemar(0, 20_000) < 1e-300
