"""evaluate.py --executor: a question is answered once, also if a worker of the cluster dies."""

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext
from types import SimpleNamespace
from unittest import mock

import pytest

from tests.conftest import ROOT
from tests.scripted import Endpoint
from tests.sweeps import data_file, number_asked, sweep, words


def test_every_question_is_answered_once_though_a_worker_is_killed(tmp_path):
    distributed = pytest.importorskip("distributed", reason="pip install distributed")
    data_file(tmp_path, 16)

    def respond(request):
        if len(server.requests) > 5 and server.requests[5] is request:
            worker, *_ = cluster.workers.values()
            os.kill(worker.pid, signal.SIGKILL)
        return number_asked(request)

    how = {
        "n_workers": 2,
        "threads_per_worker": 2,
        "host": "127.0.0.1",
        "dashboard_address": "127.0.0.1:0",
    }
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


def test_workers_that_do_not_see_the_folder_are_refused_before_the_first_call(
    tmp_path, endpoint, monkeypatch, capsys
):
    data_file(tmp_path, 1)
    nowhere = SimpleNamespace(future=lambda: SimpleNamespace(result=lambda: False))
    ray = SimpleNamespace(
        init=nullcontext, remote=lambda fn: SimpleNamespace(remote=lambda *_, **__: nowhere)
    )
    monkeypatch.setitem(sys.modules, "ray", ray)
    server = endpoint(number_asked)
    assert sweep(tmp_path, server.url, "--executor", "ray://127.0.0.1:1")[0] == 2
    assert "shared disk" in capsys.readouterr().err and not server.requests
