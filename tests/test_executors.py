"""evaluate.py --executor: a question is answered once, also if a worker of the cluster dies."""

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext
from dataclasses import replace
from types import SimpleNamespace
from unittest import mock

import pytest

from orchestra.evaluation import answering
from orchestra.evaluation.questions import load
from tests.conftest import ROOT, Options, pool_at
from tests.program import CLOCK, replay
from tests.scripted import Endpoint
from tests.sweeps import OFFICIAL, data_file, number_asked, sweep, words


def test_every_question_is_answered_once_though_a_worker_is_killed(tmp_path):
    distributed = pytest.importorskip("distributed", reason="pip install distributed")
    data_file(tmp_path, 16)

    def respond(request):
        if len(server.requests) > 5 and server.requests[5] is request:
            worker, *_ = cluster.workers.values()
            os.kill(worker.pid, signal.SIGKILL)
        return number_asked(request)

    how = {"n_workers": 2, "threads_per_worker": 2, "host": "127.0.0.1", "dashboard_address": None}
    with closing(Endpoint(respond, delay_s=0.3)) as server:
        where = {"OPENAI_BASE_URL": server.url, "PYTHONPATH": str(ROOT)}
        with mock.patch.dict(os.environ, where), distributed.LocalCluster(**how) as cluster:
            address = cluster.scheduler_address.replace("tcp:", "dask:")
            flags = words(tmp_path, "--workers", 4, "--executor", address)
            command = [sys.executable, str(ROOT / "orchestra_min.py"), "evaluate", *flags]
            done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    rows = map(json.loads, (tmp_path / "out/rows.jsonl").read_text().splitlines())
    assert [row["status"] for row in rows] == ["done"] * 16
    assert 16 <= len(server.requests) <= 20  # those of the killed worker again


def test_ray_answers_by_its_futures(tmp_path, endpoint, monkeypatch):
    """With a stand-in for Ray, which is not installed where tests run."""
    data_file(tmp_path, 4)
    with ThreadPoolExecutor(2) as threads:

        def remote(fn):
            started = lambda *a, **k: SimpleNamespace(future=lambda: threads.submit(fn, *a, **k))  # noqa: E731
            return SimpleNamespace(remote=started)

        ray = SimpleNamespace(init=nullcontext, remote=remote)
        monkeypatch.setitem(sys.modules, "ray", ray)
        server = endpoint(number_asked)
        code, rows = sweep(tmp_path, server.url, "--executor", "ray://127.0.0.1:1")
    assert (code, len(rows), len(server.requests)) == (0, 4, 4)  # 0: no question failed


def test_a_worker_that_shares_no_disk_sends_the_run_folder_back(tmp_path, endpoint):
    plan = answering.Plan(tmp_path, pool_at(endpoint(number_asked).url), Options(method="react"))
    (tmp_path / "data.json").write_text(json.dumps([{**OFFICIAL, "media": [CLOCK.name]}]))
    (q,) = load(tmp_path / "data.json", CLOCK.parent)
    row = answering.answer(q, plan, files=answering.files_of(q, plan))
    assert row["exact"] and not (tmp_path / "runs").exists()
    answering.write(row["files"], tmp_path)
    assert replay(tmp_path / "runs/7").answer == "7"


@pytest.fixture
def reusing(tmp_path, endpoint):
    """A question, and the plan of a sweep that reuses one in which it was answered; and the requests."""
    server = endpoint(number_asked)
    old = answering.Plan(tmp_path / "old", pool_at(server.url), Options(method="react"))
    data_file(tmp_path, 1)
    (q,) = load(tmp_path / "data.json")
    answering.answer(q, old)
    earlier = answering.Earlier("old", {q.key: tmp_path / "old" / "runs" / "1"})
    return q, replace(old, out=tmp_path / "new", reuse=earlier), server.requests


def test_a_worker_that_shares_no_disk_gets_the_run_that_is_reused(reusing):
    q, plan, requests = reusing
    row = answering.answer(q, plan, files=answering.files_of(q, plan))
    assert row["exact"] and row["reused_calls"] == len(requests) == 1


def test_what_links_of_a_reused_sweep_name_is_not_sent_to_a_worker(reusing, tmp_path):
    q, plan, _ = reusing
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "key").write_text("mine")
    work = tmp_path / "old/runs/1/work/r1-t1"
    work.mkdir(parents=True)
    (work / "file").symlink_to(secret / "key")
    (work / "folder").symlink_to(secret)
    (work / "plain").write_text("theirs")
    sent = answering.files_of(q, plan)
    assert sent["reuse/1/work/r1-t1/plain"] == b"theirs"
    assert not [name for name, data in sent.items() if b"mine" in data or "r1-t1/f" in name]
