"""evaluation/inspect_tasks.py with the real library: the same answers and scores as `evaluate run`."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

pytest.importorskip("inspect_ai", reason="needs pip install -e '.[inspect]'")

from inspect_ai.log import list_eval_logs, read_eval_log

from tests.conftest import ROOT
from tests.program import replay
from tests.scripted import Endpoint, Raw
from tests.sweeps import data_file, number_asked

TASK = ROOT / "orchestra/evaluation/inspect_tasks.py"


def evaluated(folder, url, epochs=1):
    """The process of an evaluation by Inspect."""
    words = [sys.executable, "-m", "inspect_ai", "eval-set", f"{TASK}@questions", "--model", "none"]
    words += ["--log-dir", folder / "logs", "--display", "none", "-T", f"data={folder}/data.json"]
    words += ["-T", f"out={folder}/out", "-T", "flags=--method react --model m"]
    words += ["-T", f"epochs={epochs}"]
    env = {**os.environ, "OPENAI_BASE_URL": url}
    return subprocess.Popen(list(map(str, words)), env=env, cwd=folder, start_new_session=True)


def log_in(folder):
    (file,) = [
        f for f in list_eval_logs(str(folder / "logs")) if read_eval_log(f).status == "success"
    ]
    return read_eval_log(file)


def test_fifty_questions_are_killed_and_go_on_and_each_run_replays(tmp_path):
    data_file(tmp_path, 50)
    server = Endpoint(number_asked, delay_s=0.1)
    process = evaluated(tmp_path, server.url)
    while len(server.requests) < 12:
        assert process.poll() is None
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    before = len(server.requests)
    assert evaluated(tmp_path, server.url).wait(120) == 0
    assert 50 <= len(server.requests) <= before + 50 - 1  # what was in flight is asked again
    log = log_in(tmp_path)
    scores = {score.name: score.metrics["accuracy"].value for score in log.results.scores}
    assert scores == {name: pytest.approx(34 / 50) for name in ("exact", "gaia", "match")}
    sample = next(s for s in log.samples if s.id == "7")
    assert sample.output.completion == "7" and sample.metadata["status"] == "done"
    assert replay(tmp_path / "out/runs" / sample.metadata["run"]).answer == "7"


def test_repeats_are_epochs_with_pass_at_k(tmp_path):
    data_file(tmp_path, 3)
    server = Endpoint(number_asked)
    assert evaluated(tmp_path, server.url, epochs=2).wait(120) == 0
    log = log_in(tmp_path)
    found = {(s.name, s.reducer): s.metrics["accuracy"].value for s in log.results.scores}
    assert found["match", "mean"] == found["match", "pass_at_2"] == pytest.approx(2 / 3)
    assert {f.name for f in (tmp_path / "out/runs").iterdir()} == {
        "1",
        "1@2",
        "2",
        "2@2",
        "3",
        "3@2",
    }


def test_a_question_that_fails_is_a_sample_with_the_reason(tmp_path):
    asked = ["What is number 1?", "What is it?"]
    rows = [{"question": question, "answer": "1"} for question in asked]
    (tmp_path / "data.json").write_text(json.dumps(rows))
    bad = Raw(400, {})
    server = Endpoint(lambda request: number_asked(request) if "number 1" in str(request) else bad)
    evaluated(tmp_path, server.url).wait(120)
    logs = [read_eval_log(f) for f in list_eval_logs(str(tmp_path / "logs"))]
    failed = [s for s in logs[-1].samples if s.error]
    assert [s.id for s in failed] == ["2"] and "400" in failed[0].error.message
