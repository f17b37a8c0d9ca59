"""evaluate.py --executor: a question is answered once, also where a worker of the cluster dies."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from unittest import mock

import pytest

from evaluation import questions
from evaluation.questions import load
from tests.conftest import ROOT, Options, pool_at
from tests.program import CLOCK, replay
from tests.scripted import Endpoint
from tests.test_evaluate import OFFICIAL, data_file, number_asked, sweep, words


def test_dask_answers_every_question_once_though_a_worker_is_killed(tmp_path):
    distributed = pytest.importorskip("distributed", reason="pip install distributed")
    data_file(tmp_path, 16)
    pids: list[int] = []

    def respond(request):
        if len(server.requests) > 5 and pids:
            os.kill(pids.pop(), signal.SIGKILL)
        return number_asked(request)

    how = {"n_workers": 2, "threads_per_worker": 2, "host": "127.0.0.1", "dashboard_address": None}
    with closing(Endpoint(respond, delay_s=0.3)) as server:
        where = {"OPENAI_BASE_URL": server.url, "PYTHONPATH": str(ROOT)}
        with mock.patch.dict(os.environ, where), distributed.LocalCluster(**how) as cluster:
            pids += [worker.pid for worker in cluster.workers.values()][:1]
            address = cluster.scheduler_address.replace("tcp:", "dask:")
            more = ("--executor", address, "--workers", 4)
            code, rows, lines = sweep(tmp_path, server.url, *more)
    assert (code, len(rows), len(lines), pids) == (0, 16, 16, [])
    assert 16 <= len(server.requests) <= 20


def ray_workers(head):
    """The processes of a cluster that answer questions, by Ray's name for them."""
    import psutil

    for process in psutil.Process(head.pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if process.cmdline()[:1] == ["ray::answered"]:
                yield process


@contextlib.contextmanager
def ray_head(port, log, environment):
    """A Ray cluster of this machine alone."""
    how = "--head --block --include-dashboard=false --disable-usage-stats --port 0 --num-cpus 4"
    how += f" --ray-client-server-port {port} --temp-dir {log.parent}"
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", *how.split()]
    with log.open("w") as file:
        head = subprocess.Popen(command, stdout=file, stderr=file, env=environment)
    try:
        while "Ray runtime started" not in log.read_text():
            assert head.poll() is None, log.read_text()
            time.sleep(0.1)
        yield head
    finally:
        head.terminate()
        head.wait()


def test_ray_answers_every_question_once_though_a_worker_is_killed(tmp_path):
    pytest.importorskip("ray", reason="pip install 'ray[client]'")
    data_file(tmp_path, 16)

    def respond(request):
        if len(server.requests) > 5 and server.requests[5] is request:
            next(ray_workers(head)).kill()
        return number_asked(request)

    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = free.getsockname()[1]
    loopback = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_AUTH_MODE": "disabled"}
    with closing(Endpoint(respond, delay_s=0.3)) as server, tempfile.TemporaryDirectory() as short:
        where = {**os.environ, **loopback, "OPENAI_BASE_URL": server.url, "PYTHONPATH": str(ROOT)}
        with ray_head(port, Path(short, "log"), where) as head:
            more = words(tmp_path, "--workers", 4, "--executor", f"ray://127.0.0.1:{port}")
            command = [sys.executable, str(ROOT / "evaluate.py"), *more]
            done = subprocess.run(command, env=where, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    rows = (tmp_path / "out/rows.jsonl").read_text().splitlines()
    assert [json.loads(row)["status"] for row in rows] == ["done"] * 16
    assert 17 <= len(server.requests) <= 20  # those of the killed worker again


def test_a_worker_that_shares_no_disk_sends_the_run_folder_back(tmp_path, endpoint):
    plan = questions.Plan(tmp_path, pool_at(endpoint(number_asked).url), Options(method="react"))
    (tmp_path / "data.json").write_text(json.dumps([{**OFFICIAL, "media": [CLOCK.name]}]))
    (q,) = load(tmp_path / "data.json", CLOCK.parent)
    row = questions.answered(q, plan, files=questions.files_of(q, plan))
    assert row["exact"] and not (tmp_path / "runs").exists()
    questions.write(row["files"], tmp_path)
    assert replay(tmp_path / "runs/7").answer == "7"
