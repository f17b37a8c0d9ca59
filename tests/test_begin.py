"""A run folder begins in one step: a kill leaves it without a run.json, and nothing of it is used."""

import os
import shutil
import signal
import sys

import pytest

from orchestra.report.command import main as report
from orchestra.variation.fork import run_fork
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


def test_a_kill_leaves_a_whole_run_or_none(how, tmp_path):
    folder = tmp_path / "run"
    left = [[]]
    while "run.json" not in left[-1]:
        left.append(killed_at(len(left), folder, lambda: orchestrate("?", out=folder, **how)))
        if "run.json" not in left[-1] and folder.exists():
            for verb in ("replay", "resume"):
                assert "is not a run folder" in line_of(called(verb, folder))
            assert report([str(folder)]) == 2
            if left[-1]:
                with pytest.raises(ConfigError, match="not an empty folder"):
                    orchestrate("?", out=folder, **how)
            shutil.rmtree(folder)
    assert ["media", "run.json.part"] in left
    assert resume(folder).answer == "42"


def test_a_kill_leaves_a_whole_fork_or_none(how, tmp_path):
    source = tmp_path / "run"
    orchestrate("?", out=source, **how)
    folder = tmp_path / "fork"
    left = [[]]
    while "run.json" not in left[-1]:
        left.append(killed_at(len(left), folder, lambda: run_fork(source, folder, 1)))
        if "run.json" not in left[-1] and folder.exists():
            assert "is not a run folder" in line_of(called("replay", folder))
            shutil.rmtree(folder)
    assert ["media", "run.json.part", "tape.jsonl"] in left
    assert resume(folder).answer == replay(folder).answer == "42"


@pytest.mark.parametrize("name", ["mine.txt", "tape.jsonl", "run.json.part/x", ".git/config"])
def test_a_folder_with_anything_in_it_is_never_used(name, how, tmp_path):
    file = tmp_path / "run" / name
    file.parent.mkdir(parents=True)
    file.write_text("mine")
    with pytest.raises(ConfigError, match=r"not an empty folder"):
        orchestrate("?", out=tmp_path / "run", **how)
    assert file.read_text() == "mine"


def test_a_mistake_in_a_command_leaves_no_folder(endpoint, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    server = endpoint(any_method)
    for flags in (
        "--tools missing.py:tool",
        "--method missing.py:M",
        "--option dom=low",
        "--budget 1",
    ):
        line_of(called("?", "--model", "m", "--out", "run", *flags.split(), at=server.url))
    assert list(tmp_path.iterdir()) == [] and server.requests == []


@pytest.mark.parametrize(("words", "told"), [
    (("?", "--model", "m", "--out"), "File name too long"), (("resume",), "not a run folder"), (("replay",), "not a run folder"),
])  # fmt: skip
def test_a_folder_whose_name_is_too_long_is_one_line(words, told):
    assert told in line_of(called(*words, "x" * 300, at="http://127.0.0.1:9/v1"))
