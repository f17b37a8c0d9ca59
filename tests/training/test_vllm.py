"""A real vLLM server drives two GRPO steps of a real model: `make test-vllm`, training/README.md.

Runs only where VLLM_PYTHON (the Python that has vLLM) and TRAIN_MODEL (a Hugging Face folder) are set.
"""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import requests

torch = pytest.importorskip("torch", reason="torch is not installed: requirements-train.txt")
pytest.importorskip("peft", reason="peft is not installed: requirements-train.txt")
if not {"VLLM_PYTHON", "TRAIN_MODEL"} <= set(os.environ):
    pytest.skip("VLLM_PYTHON and TRAIN_MODEL are not set: make test-vllm", allow_module_level=True)

import train_da_grpo  # noqa: E402
from training import minigaia, options, vllm_rollouts  # noqa: E402
from training.examples import write  # noqa: E402
from training.metrics import read as read_metrics  # noqa: E402
from training.policy import Policy  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")
SERVER = {
    "VLLM_TARGET_DEVICE": "cpu",
    "VLLM_CPU_KVCACHE_SPACE": "2",
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True",
    "VLLM_SERVER_DEV_MODE": "1",
    "HF_HUB_OFFLINE": "1",
}
FLAGS = "--max-model-len 1024 --dtype float32 --enforce-eager --enable-lora --max-lora-rank 16 --max-loras 1"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Examples, and a model that imitates them a little: untrained, all its decisions are as bad."""
    home = tmp_path_factory.mktemp("vllm")
    examples = minigaia.examples("train", 0, "brief")
    write(home / "train.jsonl", [next(examples) for _ in range(64)])
    sft = "--steps 16 --batch 4 --micro-batch 4 --lora-rank 8 --lr 1e-3 --max-tokens 160"
    assert run(home, "sft", os.environ["TRAIN_MODEL"], "sft", sft) == 0
    return home


def run(home: Path, stage: str, model: str | Path, out: str, more: str) -> int:
    paths = ["--model", str(model), "--data", str(home / "train.jsonl"), "--out", str(home / out)]
    return train_da_grpo.main(options.parse(["--stage", stage, *paths, *more.split()]))


@pytest.fixture(scope="module")
def server(home: Path) -> Iterator[str]:
    """The URL of a vLLM server with the model of `home`."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    command = [
        os.environ["VLLM_PYTHON"],
        "-m",
        "vllm.entrypoints.openai.api_server",
        *FLAGS.split(),
    ]
    command += ["--model", str(home / "sft/model"), "--host", "127.0.0.1", "--port", str(port)]
    with (home / "vllm.log").open("w") as log:
        process = subprocess.Popen(command, env={**os.environ, **SERVER}, stdout=log, stderr=log)
    url = f"http://127.0.0.1:{port}"
    try:
        wait_for(url, process, home / "vllm.log")
        yield url
    finally:
        process.terminate()
        process.wait(timeout=60)


def wait_for(url: str, process: subprocess.Popen[bytes], log: Path, timeout_s: float = 240) -> None:
    until = time.monotonic() + timeout_s
    while time.monotonic() < until and process.poll() is None:
        try:
            requests.get(f"{url}/health", timeout=5).raise_for_status()
            return
        except requests.RequestException:
            time.sleep(2)
    raise AssertionError(f"vLLM did not start: {log.read_text()[-2000:]}")


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, list[float]]]:
    """After each update, the name under which the server samples, and what it thinks of one text."""
    found: list[tuple[str, list[float]]] = []
    update = vllm_rollouts.VllmRollouts.update

    def watched(self: Any, version: int) -> None:
        update(self, version)
        body = {
            "model": self.model,
            "prompt": '{"action": "delegate_task"',
            "max_tokens": 1,
            "echo": True,
            "logprobs": 0,
        }
        reply = self.server.post("/v1/completions", **body).json()["choices"][0]
        found.append((self.model, reply["logprobs"]["token_logprobs"][1:-1]))

    monkeypatch.setattr(vllm_rollouts.VllmRollouts, "update", watched)
    return found


def test_two_steps_bring_two_new_adapters_to_the_server(
    home: Path, server: str, seen: list[Any]
) -> None:
    grpo = f"--steps 2 --batch 3 --group 6 --lora-rank 8 --lr 1e-3 --warmup 0 --max-tokens 160 --rollouts vllm --vllm-url {server}"
    assert run(home, "grpo", home / "sft/model", "grpo", grpo) == 0
    rows = read_metrics(home / "grpo/metrics.jsonl")
    assert [row["version"] for row in rows] == [1, 2]
    assert [int(name.rpartition("-v")[2]) for name, _ in seen] == [0, 1, 2]
    assert all(row["grad_norm"] > 0 and row["zero_variance"] < 1 for row in rows)
    assert all(0 < row["mismatch"] < 0.1 for row in rows)  # the same weights, other numerics
    for (_, before), (_, after) in pairwise(seen):
        assert max(abs(a - b) for a, b in zip(before, after, strict=True)) > 1e-3
    left = requests.get(f"{server}/v1/models", timeout=30).json()["data"]
    assert len(left) == 1 and not (home / "grpo/weights").exists()
    print(rows, seen)


def test_a_finished_completion_has_its_end_token_and_its_probability(
    home: Path, server: str
) -> None:
    policy = Policy(home / "sft/model", 0, "bfloat16", torch.device("cpu"), False)
    rollouts = vllm_rollouts.VllmRollouts(vllm_rollouts.Server(server), policy, home / "w", 160)
    prompt = policy.encode([{"role": "user", "content": "Say hello."}])
    (group,) = rollouts.sample([prompt], [1], 8, 0.7)
    assert [len(ids) for ids in group.ids] == [len(logps) for logps in group.logps]
    assert any(ids[-1] in policy.eos for ids in group.ids)
    assert rollouts.sample([prompt], [1], 8, 0.7)[0].ids == group.ids


def test_full_weights_reach_the_server_too(home: Path, server: str) -> None:
    policy = Policy(home / "sft/model", 0, "bfloat16", torch.device("cpu"), False)
    rollouts = vllm_rollouts.VllmRollouts(vllm_rollouts.Server(server), policy, home / "w", 24)
    prompt = policy.encode([{"role": "user", "content": "Say hello."}])
    before = rollouts.sample([prompt], [1], 1, 0.0)[0]
    with torch.no_grad():
        policy.model.lm_head.weight[before.ids[0][0]] *= -1  # what it said first, it says no more
    rollouts.update(1)
    after = rollouts.sample([prompt], [1], 1, 0.0)[0]
    assert after.ids[0][0] != before.ids[0][0]
