"""evaluate.py --executor: a question is answered once, also where a worker of the cluster dies."""

import contextlib
import json
import os
import signal
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
from tests.scripted import Endpoint, free_port
from tests.sweeps import OFFICIAL, data_file, number_asked, words


@contextlib.contextmanager
def dask(where):
    """The address of a cluster of two workers, and what kills one of them."""
    distributed = pytest.importorskip("distributed", reason="pip install distributed")
    how = {"n_workers": 2, "threads_per_worker": 2, "host": "127.0.0.1", "dashboard_address": None}
    with mock.patch.dict(os.environ, where), distributed.LocalCluster(**how) as cluster:
        worker, *_ = cluster.workers.values()
        address = cluster.scheduler_address.replace("tcp:", "dask:")
        yield address, lambda: os.kill(worker.pid, signal.SIGKILL)


@contextlib.contextmanager
def ray(where):
    pytest.importorskip("ray", reason="pip install 'ray[client]'")
    import psutil

    loopback = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_AUTH_MODE": "disabled"}
    port = free_port()

    def kill_worker():
        """A process that answers a question, by Ray's name for it."""
        for process in psutil.Process(head.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if process.cmdline()[:1] == ["ray::answered"]:
                    process.kill()
                    break

    with (
        mock.patch.dict(os.environ, {**where, **loopback}),
        tempfile.TemporaryDirectory() as short,
        Path(short, "log").open("w") as log,
    ):
        how = "--head --block --include-dashboard=false --disable-usage-stats --port 0 --num-cpus 4"
        how += f" --ray-client-server-port {port} --temp-dir {short}"
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", *how.split()]
        head = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            while "Ray runtime started" not in Path(short, "log").read_text():
                assert head.poll() is None, Path(short, "log").read_text()
                time.sleep(0.1)
            yield f"ray://127.0.0.1:{port}", kill_worker
        finally:
            head.terminate()
            head.wait()


@pytest.mark.parametrize("cluster", [dask, ray])
def test_every_question_is_answered_once_though_a_worker_is_killed(cluster, tmp_path):
    data_file(tmp_path, 16)

    def respond(request):
        if len(server.requests) > 5 and server.requests[5] is request:
            kill_worker()
        return number_asked(request)

    with closing(Endpoint(respond, delay_s=0.3)) as server:
        where = {"OPENAI_BASE_URL": server.url, "PYTHONPATH": str(ROOT)}
        with cluster(where) as (address, kill_worker):
            flags = words(tmp_path, "--workers", 4, "--executor", address)
            command = [sys.executable, str(ROOT / "evaluate.py"), *flags]
            done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    rows = (tmp_path / "out/rows.jsonl").read_text().splitlines()
    assert [json.loads(row)["status"] for row in rows] == ["done"] * 16
    assert 16 <= len(server.requests) <= 20  # those of the killed worker again


def test_a_worker_that_shares_no_disk_sends_the_run_folder_back(tmp_path, endpoint):
    plan = questions.Plan(tmp_path, pool_at(endpoint(number_asked).url), Options(method="react"))
    (tmp_path / "data.json").write_text(json.dumps([{**OFFICIAL, "media": [CLOCK.name]}]))
    (q,) = load(tmp_path / "data.json", CLOCK.parent)
    row = questions.answered(q, plan, files=questions.files_of(q, plan))
    assert row["exact"] and not (tmp_path / "runs").exists()
    questions.write(row["files"], tmp_path)
    assert replay(tmp_path / "runs/7").answer == "7"
