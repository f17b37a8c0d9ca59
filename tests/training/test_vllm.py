"""Rollouts of a server that looks like vLLM, and, opt-in, of a real one that drives two GRPO steps.

The real one: `make test-vllm`. It runs only where VLLM_PYTHON (the Python that has vLLM) and TRAIN_MODEL (a
Hugging Face folder) are set.
"""

import json
import os
import subprocess
import sys
from itertools import groupby, pairwise
from pathlib import Path

import pytest
import requests

from orchestra.training import vllm_rollouts
from orchestra.training.examples import write
from orchestra.training.policy import Policy
from orchestra.training.rollouts import LocalRollouts
from tests.scripted import Raw, free_port
from tests.training.conftest import short_examples
from tests.training.runs import (
    CPU,
    QUIET,
    be_rank,
    ended,
    flags,
    metrics,
    run,
    started,
    torch,
)

pytestmark = QUIET
CARD = {"id": "m", "owned_by": "vllm", "max_model_len": 4096}
HTML = Raw(200, "<html>")


def choice(index=0, ids=(5, 6), logps=(-1.0, -2.0)):
    return {"index": index, "token_ids": ids, "logprobs": {"token_logprobs": logps}}


@pytest.fixture(scope="module")
def policy(tiny):
    return Policy(tiny[0], CPU, "float32")


@pytest.fixture
def served(tiny, policy, tmp_path, endpoint):
    """The flags of a run on the tiny model, served; `odd` answers stand for it, by kind."""

    def respond(request, odd):
        if not request:
            return odd["state"]()
        if "lora_name" in request:
            return odd.get("load", {"ok": 1})
        given = [request["prompt"]], [request["seed"]], request["n"], request["temperature"]
        (group,) = LocalRollouts(policy, request["max_tokens"]).sample(*given)
        scored = policy.logprobs(group.prompt, group.ids, request["temperature"]).logprobs.tolist()
        logps = [row[: len(ids)] for row, ids in zip(scored, group.ids, strict=True)]
        choices = list(map(choice, range(len(logps)), group.ids, logps))
        return odd.get("completion", lambda choices: {"choices": choices})(choices)

    def start(models=None, **odd):
        server = endpoint(lambda request: respond(request, odd))
        server.models = {"data": [CARD]} if models is None else models
        start.server = server
        more = ["--steps", "1", "--rollouts", "vllm", "--vllm-url", server.url]
        return flags(tiny, tmp_path / "out", "grpo", *more)

    return start


def test_the_server_samples_for_a_run(served, tmp_path, capsys):
    assert run(*served()) == 0
    assert (tmp_path / "out/adapter/adapter_model.safetensors").exists()
    assert metrics(tmp_path / "out")[0]["mismatch"] < 1e-5
    assert capsys.readouterr().err.count("keeps its memory during training steps") == 1


def test_each_prompt_is_sampled_with_a_seed_of_its_own(served):
    assert run(*served()) == 0
    seeds = [r["seed"] for r in served.server.requests if "prompt" in r]
    assert len(seeds) == len(set(seeds)) == 2  # --batch


class Sleeper:
    """What a vLLM server answers that can sleep. A run that was killed left it asleep."""

    asleep = True
    enabled = True  # --enable-sleep-mode

    def get(self, path):
        known = {
            "/server_info?config_format=json": {"vllm_config": {"model_config": {"enable_sleep_mode": self.enabled}}},
            "/is_sleeping": {"is_sleeping": self.asleep},
        }  # fmt: skip
        return known.get(path, {"data": [CARD]})

    def change(self):
        self.asleep = not self.asleep
        return {"ok": 1}

    def complete(self, choices):
        assert not self.asleep
        return {"choices": choices}


def test_a_server_that_can_sleep_does_so_during_the_training_step(served, capsys):
    vllm = Sleeper()
    assert run(*served(vllm.get, state=vllm.change, completion=vllm.complete)) == 0
    load, unload = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
    first = ["/wake_up", load, "/v1/completions", "/sleep?level=1"]
    assert [path for path, _ in groupby(served.server.paths)] == [*first, "/wake_up", load, unload]
    assert "keeps its memory" not in capsys.readouterr().err


def test_a_server_that_was_left_paused_is_woken_up_once(served, capsys):
    """A run that was killed between /pause and /resume. A CPU server pauses, though it cannot sleep."""
    vllm = Sleeper()
    vllm.enabled = False
    assert run(*served(vllm.get, state=vllm.change, completion=vllm.complete)) == 0
    states = [path for path in served.server.paths if "sleep" in path or "wake" in path]
    assert states == ["/wake_up"]
    assert "keeps its memory" in capsys.readouterr().err


def other_weights(choices):
    logps = [[p - 4 for p in c["logprobs"]["token_logprobs"]] for c in choices]
    return {"choices": [choice(n, c["token_ids"], logps[n]) for n, c in enumerate(choices)]}


@pytest.mark.parametrize(("models", "reply", "code", "reason"), [
    ({"data": [{**CARD, "max_model_len": None}]}, {}, 2, "no vLLM server"), (HTML, {}, 2, "no vLLM server"),
    (None, {"completion": other_weights}, 4, "nats a token"), (None, {"completion": lambda choices: HTML}, 4, "no 4 completions"),
    (None, {"completion": lambda choices: {"choices": choices[1:]}}, 4, "no 4 completions"),
    (None, {"completion": lambda choices: {"choices": [choice(n, None) for n in range(4)]}}, 4, "no 4 completions"),
    (None, {"load": Raw(400, {"error": "no"})}, 4, "load_lora_adapter: 400"),
])  # fmt: skip
def test_a_server_that_is_odd_is_one_line(served, capsys, models, reply, code, reason):
    assert run(*served(models, **reply)) == code
    *notes, line = capsys.readouterr().err.splitlines()
    assert line.startswith("train_da_grpo.py: ") and reason in line
    assert all("keeps its memory" in note for note in notes)


# ---- a server and the weights that it is sent ----------------------------------------------------


def one_of_two(rank, port, *arguments):
    be_rank(rank, port)
    sys.exit(run(*arguments))


class Server:
    """What vLLM answers, `late` updates behind (or without any), and with noise in its log-probabilities."""

    def __init__(self, model, late, noise=0.0):
        self.versions = [Policy(model, CPU, "float32")]  # as it was started
        self.late, self.noise = late, noise
        self.generator = torch.Generator().manual_seed(0)

    def __call__(self, request):
        path = request.get("lora_path") or request.get("kwargs", {}).get("weights_path")
        if path:
            folder, adapter = (
                (self.base, Path(path)) if "lora_path" in request else (Path(path), None)
            )
            self.versions.append(Policy(folder, CPU, "float32", adapter=adapter))
        if "prompt" not in request:
            return {"ok": 1}
        return {"choices": self.complete(request)}

    def complete(self, request):
        policy = self.versions[
            0 if self.late is None else max(0, len(self.versions) - 1 - self.late)
        ]
        given = [request["prompt"]], [request["seed"]], request["n"], request["temperature"]
        (group,) = LocalRollouts(policy, request["max_tokens"]).sample(*given)
        exact = policy.logprobs(group.prompt, group.ids, request["temperature"]).logprobs.detach()
        noise = self.noise * torch.randn(exact.shape, generator=self.generator)
        rows = zip((exact + noise).tolist(), group.ids, strict=True)
        return [choice(n, ids, row[: len(ids)]) for n, (row, ids) in enumerate(rows)]


@pytest.fixture
def trained(tiny, tmp_path, endpoint):
    """The exit code of a run with such a server, and the steps that it took."""

    def start(*more, late=0, noise=0.0):
        respond = Server(tiny[0], late, noise)
        respond.base = tiny[0]
        server = endpoint(respond)
        server.models = {"data": [CARD]}
        where = ["--rollouts", "vllm", "--vllm-url", server.url, "--warmup", "0"]
        code = run(*flags(tiny, tmp_path / "out", "grpo", *where, *more))
        return code, len(metrics(tmp_path / "out"))

    return start


WAYS = pytest.mark.parametrize("way", [("--lora-rank", "4"), ("--full",)])


@WAYS
@pytest.mark.parametrize("late", [None, 1])
def test_a_server_that_does_not_apply_the_weights_is_found_within_three_steps(
    trained, capsys, way, late
):
    code, steps = trained("--steps", "6", *way, late=late)
    assert code == 4 and steps < 3
    line = capsys.readouterr().err.splitlines()[-1]
    assert (
        "did not apply the newest weights" in line and "nats a token" in line and "weights" in line
    )


@WAYS
@pytest.mark.parametrize("lr", ["1e-2", "3e-4", "1e-7"])
@pytest.mark.parametrize("noise", [0.0, 0.025])  # 0.02 nats on average
def test_a_server_that_applies_the_weights_is_not_stopped(trained, way, lr, noise):
    assert trained("--steps", "5", "--lr", lr, *way, noise=noise) == (0, 5)


def test_small_steps_add_up_until_a_server_is_found_that_applies_none(trained):
    code, steps = trained("--steps", "60", "--full", "--lr", "2e-3", late=None, noise=0.025)
    assert code == 4 and 3 < steps < 60


def test_a_server_that_does_not_apply_the_first_adapter_is_found_in_the_first_step(
    tiny, trained, tmp_path
):
    assert run(*flags(tiny, tmp_path / "sft", "sft", "--steps", "20", "--lora-rank", "4")) == 0
    assert trained("--steps", "2", "--adapter", str(tmp_path / "sft/adapter"), late=None) == (4, 0)


@WAYS
@pytest.mark.parametrize(("late", "code"), [(0, 0), (None, 4)])
def test_two_ranks_agree_whether_the_weights_were_applied(
    tiny, tmp_path, endpoint, way, late, code
):
    respond = Server(tiny[0], late)
    respond.base = tiny[0]
    server = endpoint(respond)
    server.models = {"data": [CARD]}
    more = ("--steps", "3", "--rollouts", "vllm", "--vllm-url", server.url, "--warmup", "0", *way)
    arguments = flags(tiny, tmp_path / "out", "grpo", *more)
    port = free_port()
    assert list(map(ended, [started(one_of_two, rank, port, *arguments) for rank in (0, 1)])) == [
        code,
        code,
    ]


# ---- a real server -------------------------------------------------------------------------------

SERVER = {
    "VLLM_TARGET_DEVICE": "cpu", "VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_SERVER_DEV_MODE": "1",
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True", "HF_HUB_OFFLINE": "1",
}  # fmt: skip
# Without chunked prefill: vLLM 0.32 on a CPU ends at a request with a seed whose prompt was split
FLAGS = "-m vllm.entrypoints.openai.api_server --host 127.0.0.1 --max-model-len 1024 --no-enable-chunked-prefill --dtype float32 --enforce-eager --enable-lora --max-lora-rank 16 --max-loras 1"
ECHO = {"prompt": "a b c d", "max_tokens": 1, "echo": True, "logprobs": 0}
LEARNING = "--batch 3 --lora-rank 8 --max-tokens 160"


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Examples, and a model that imitates them a little: untrained, all its decisions are as bad."""
    if not (os.environ.get("VLLM_PYTHON") and os.environ.get("TRAIN_MODEL")):
        pytest.skip("VLLM_PYTHON and TRAIN_MODEL are not set: make test-vllm")
    home = tmp_path_factory.mktemp("vllm")
    write(home / "train.jsonl", short_examples(64))
    given = os.environ["TRAIN_MODEL"], home / "train.jsonl"
    assert (
        run(*flags(given, home / "sft", "sft", *LEARNING.split(), "--lr", "1e-3", "--steps", "12"))
        == 0
    )
    return home


@pytest.fixture(scope="module")
def server(home):
    """The URL of a vLLM server with the model of `home`."""
    python, model, port = os.environ["VLLM_PYTHON"], os.environ["TRAIN_MODEL"], free_port()
    command = f"{python} {FLAGS} --model {model} --port {port}".split()
    process = subprocess.Popen(command, env={**os.environ, **SERVER})
    retries = requests.adapters.Retry(120, backoff_factor=2, backoff_max=2)
    try:
        session = requests.Session()
        session.mount("http://", requests.adapters.HTTPAdapter(max_retries=retries))
        session.get(f"http://127.0.0.1:{port}/health").raise_for_status()
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(timeout=60)


def test_two_steps_bring_two_new_adapters_to_the_server(home, server, monkeypatch):
    """After each update: the name under which the server samples, and what it thinks of one text."""
    seen, update = [], vllm_rollouts.VllmRollouts.update

    def watched(self, version):
        update(self, version)
        (reply,) = json.loads(self.post("/v1/completions", model=self.model, **ECHO))["choices"]
        seen.append((self.model, torch.tensor(reply["logprobs"]["token_logprobs"][1:-1])))

    monkeypatch.setattr(vllm_rollouts.VllmRollouts, "update", watched)
    more = f"{LEARNING} --lr 2e-4 --reward benchmarks.minigaia.reward:Exact --steps 2 --group 6 --warmup 0 --rollouts vllm --vllm-url {server}"
    given = os.environ["TRAIN_MODEL"], home / "train.jsonl"
    adapter = ["--adapter", home / "sft/adapter"]
    assert run(*flags(given, home / "grpo", "grpo", *more.split(), *adapter)) == 0
    for row in metrics(home / "grpo"):  # the same weights, other numerics
        assert row["grad_norm"] > 0 and row["zero_variance"] < 1 and 0 < row["mismatch"] < 0.1
    assert [int(name.rpartition("-v")[2]) for name, _ in seen] == [0, 1, 2]
    assert all((before - after).abs().max() > 1e-3 for (_, before), (_, after) in pairwise(seen))
    assert len(requests.get(f"{server}/v1/models").json()["data"]) == 1


def test_full_weights_reach_the_server(home, server):
    policy = Policy(Path(os.environ["TRAIN_MODEL"]), CPU, "bfloat16")
    rollouts = vllm_rollouts.VllmRollouts(server, policy, home / "w", 160)
    prompts = [policy.encode([{"role": "user", "content": "Say hello."}])]
    (first,) = rollouts.sample(prompts, [1], 1, 0.0)
    with torch.no_grad():
        policy.model.lm_head.weight[first.ids[0][0]] *= -1  # what it said first, it says no more
    rollouts.update(1)
    assert rollouts.sample(prompts, [1], 1, 0.0)[0].ids[0][0] != first.ids[0][0]


def test_a_real_server_that_sleeps_or_was_paused_is_woken_up(home, server):
    """On a CPU sleep frees nothing, but stops and resumes requests as on a GPU."""
    policy = Policy(Path(os.environ["TRAIN_MODEL"]), CPU, "bfloat16")
    requests.post(f"{server}/pause").raise_for_status()
    rollouts = vllm_rollouts.VllmRollouts(server, policy, home / "w2", 8)
    assert not rollouts._is_asleep() and not rollouts.can_sleep
    rollouts.can_sleep = True  # as after --enable-sleep-mode, which a CPU server refuses
    prompts = [policy.encode([{"role": "user", "content": "Say hello."}])]
    first, second = [rollouts.sample(prompts, [1], 1, 0.0)[0].ids for _ in range(2)]
    assert first == second and rollouts._is_asleep()
    rollouts.wake_up()
    assert not rollouts._is_asleep()
