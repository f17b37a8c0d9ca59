"""A run folder begins in one step: a kill leaves it without a run.json, and the next run takes it over."""

import os
import shutil
import signal
import sys

import pytest

from orchestra import report
from orchestra.recorded import recorded
from orchestra.runtime import run_folder
from orchestra.runtime.command_line import EXIT_CODES
from orchestra.tools import media
from orchestra_min import orchestrate
from tests.conftest import ConfigError, Options, pool_at
from tests.program import CLOCK, SPEECH, any_method, called, line_of, replay, resume

STEPS = ("open", "os.rename", "os.mkdir", "shutil.copyfile")  # audit events


def killed_at(step, folder, begin):
    """Call `begin` in a process that is killed at this step in its run folder. Returns its files."""
    counted = []

    def kill(event, arguments):
        if event in STEPS and str(folder) in str(arguments):
            counted.append(event)
            if len(counted) == step:
                os.kill(os.getpid(), signal.SIGKILL)

    child = os.fork()
    if not child:
        sys.addaudithook(kill)
        begin()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    return sorted(p.name for p in folder.iterdir()) if folder.exists() else []


@pytest.fixture
def how(endpoint):
    pool = pool_at(endpoint(any_method).url)
    return {"media": [CLOCK, SPEECH], "pool": pool, "options": Options(method="react")}


@pytest.mark.parametrize("again", [orchestrate, recorded])
def test_a_new_run_takes_over_what_a_kill_left_of_a_beginning(again, how, tmp_path):
    folder = tmp_path / "run"
    left = [[]]
    while "run.json" not in left[-1]:
        left.append(killed_at(len(left), folder, lambda: orchestrate("?", out=folder, **how)))
        if "run.json" not in left[-1] and folder.exists():
            for flag in ("--replay", "--resume"):
                assert "use it as --out" in line_of(called(flag, folder))
            assert report.main([str(folder)]) == 2
            assert again("?", out=folder, **how).answer == "42"
            assert replay(folder).answer == "42"
            shutil.rmtree(folder)
    assert ["media", "run.json.part"] in left
    assert resume(folder).answer == "42"


def test_a_new_fork_takes_over_what_a_kill_left_of_one(how, tmp_path):
    source = tmp_path / "run"
    orchestrate("?", out=source, **how)
    folder = tmp_path / "fork"
    left = [[]]

    def fork():
        return resume(source, from_round=1, out=folder)

    while "run.json" not in left[-1]:
        left.append(killed_at(len(left), folder, fork))
        if "run.json" not in left[-1]:
            assert fork().answer == replay(folder).answer == "42"
            shutil.rmtree(folder)
    assert ["media", "run.json.part", "tape.jsonl"] in left


def test_what_an_earlier_version_left_of_a_beginning_is_taken_over(how, tmp_path):
    (tmp_path / "run" / "media").mkdir(parents=True)
    (tmp_path / "run" / "run.json").touch()
    assert recorded("?", out=tmp_path / "run", **how).answer == "42"


@pytest.mark.parametrize("name", ["mine.txt", "tape.jsonl", "run.json.part/x", ".git/config"])
def test_a_folder_with_anything_else_in_it_is_never_taken_over(name, how, tmp_path):
    file = tmp_path / "run" / name
    file.parent.mkdir(parents=True)
    file.write_text("mine")
    with pytest.raises(ConfigError, match=r"not an empty folder|where a file is needed"):
        orchestrate("?", out=tmp_path / "run", **how)
    assert file.read_text() == "mine"


def test_of_two_runs_that_begin_at_once_one_gets_the_folder(how, tmp_path, monkeypatch):
    def copy_into(folder, files):
        with pytest.raises(ConfigError, match="in use by another process"):
            orchestrate("?", out=folder, **how)
        monkeypatch.undo()
        return media.copy_into(folder, files)

    monkeypatch.setattr(media, "copy_into", copy_into)
    assert orchestrate("?", out=tmp_path / "run", **how).answer == "42"
    with pytest.raises(ConfigError, match="not an empty folder"):
        orchestrate("?", out=tmp_path / "run", **how)


def test_a_run_that_could_not_be_read_again_is_refused_before_it_begins(how, tmp_path, monkeypatch):
    monkeypatch.setattr(run_folder, "MAX_BYTES", 1 << 20)
    with pytest.raises(ConfigError, match="run.json would be larger than 1 MiB"):
        orchestrate("?" * (1 << 20), out=tmp_path / "run", **how)
    assert not (tmp_path / "run").exists()


def test_what_a_failed_beginning_left_is_removed_behind_a_link(how, tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "run").symlink_to("disk")
    own = {**how, "options": Options(method="react", tools=("missing.py:tool",))}
    with pytest.raises(ConfigError):
        orchestrate("?", out=tmp_path / "run", **own)
    assert list((tmp_path / "disk").iterdir()) == []


@pytest.mark.parametrize("flags", [("?", "--model", "m", "--out"), ("--resume",), ("--replay",)])
def test_a_folder_whose_name_is_too_long_is_one_line(flags):
    done = called(*flags, "x" * 300, at="http://127.0.0.1:9/v1")
    assert "File name too long" in line_of(done, code=EXIT_CODES[OSError])
