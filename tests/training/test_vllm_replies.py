"""A server that looks like vLLM: what it may say and what it may not. The real one: test_vllm.py."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: requirements-train.txt")
pytest.importorskip("peft", reason="peft is not installed: requirements-train.txt")

from tests.scripted import Raw  # noqa: E402
from tests.training.runs import Tiny, flags, metrics, one_thread, refused, run  # noqa: E402, F401
from training.policy import Policy  # noqa: E402
from training.rollouts import LocalRollouts  # noqa: E402
from training.vllm_rollouts import read_choices  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
CARD = {"id": "m", "owned_by": "vllm", "max_model_len": 4096}


def choice(index: int = 0, ids: Any = (5, 6), logps: Any = (-1.0, -2.0)) -> dict[str, Any]:
    return {"index": index, "token_ids": ids, "logprobs": {"token_logprobs": logps}}


@pytest.fixture(scope="module")
def policy(tiny: Tiny) -> Policy:
    return Policy(tiny[0], 0, "float32", torch.device("cpu"), False)


def answers(policy: Policy, **odd: Any) -> Callable[[dict[str, Any]], Any]:
    """The policy, served; `odd` answers stand for it by kind: tokens, load, unload, completion."""

    def respond(request: dict[str, Any]) -> Any:
        if "lora_name" in request:
            return odd.get("load" if "lora_path" in request else "unload", {"ok": 1})
        if "max_tokens" not in request:
            ids = policy.tokenizer(request["prompt"], add_special_tokens=False)["input_ids"]
            return odd.get("tokens", {"tokens": ids})
        asked = [request["prompt"]], [request["seed"]], request["n"], request["temperature"]
        (group,) = LocalRollouts(policy, request["max_tokens"]).sample(*asked)
        pairs = zip(group.ids, group.logps, strict=True)
        said = [choice(n, ids, logps) for n, (ids, logps) in enumerate(pairs)]
        return odd["completion"](said) if "completion" in odd else {"choices": said}

    return respond


def arguments(tiny: Tiny, tmp_path: Path, endpoint: Any, models: Any, respond: Any) -> list[str]:
    server = endpoint(respond)
    server.models = models
    more = ["--steps", "1", "--rollouts", "vllm", "--vllm-url", server.url]
    return flags(tiny, tmp_path / "out", "grpo", *more)


def test_a_run_outlives_a_server_that_does_not_forget(
    tiny: Tiny, tmp_path: Path, endpoint: Any, policy: Policy, capsys: Any
) -> None:
    respond = answers(policy, unload=Raw(404, {"error": "no"}))
    assert run(*arguments(tiny, tmp_path, endpoint, {"data": [CARD]}, respond)) == 0
    assert (tmp_path / "out/model/model.safetensors").exists()
    assert metrics(tmp_path / "out")[0]["mismatch"] < 1e-5
    assert "the server keeps out-" in capsys.readouterr().err


def test_a_server_with_other_weights_is_refused(
    tiny: Tiny, tmp_path: Path, endpoint: Any, policy: Policy, capsys: Any
) -> None:
    def less(said: list[dict[str, Any]]) -> Any:
        for c in said:
            c["logprobs"]["token_logprobs"] = [p - 4 for p in c["logprobs"]["token_logprobs"]]
        return {"choices": said}

    respond = answers(policy, completion=less)
    line = refused(capsys, *arguments(tiny, tmp_path, endpoint, {"data": [CARD]}, respond))
    assert "4.00 nats a token" in line and "other weights" in line


@pytest.mark.parametrize(
    ("models", "odd", "code", "said"),
    [
        ({"data": [{**CARD, "max_model_len": None}]}, {}, 2, "max_model_len"),
        ({"data": [{"id": "m", "owned_by": "vllm"}]}, {}, 2, "max_model_len"),
        ([1], {}, 2, "no vLLM server"),
        ({"data": [CARD]}, {"tokens": {"count": 3}}, 4, "gives no tokens"),
        ({"data": [CARD]}, {"tokens": Raw(200, "<html>")}, 4, "gives no tokens"),
        ({"data": [CARD]}, {"completion": lambda said: Raw(200, "<html>")}, 4, "no token ids"),
        ({"data": [CARD]}, {"completion": lambda said: {"choices": said[1:]}}, 4, "3 completions of 4"),
        ({"data": [CARD]}, {"load": Raw(400, {"error": "no"})}, 4, "load_lora_adapter: 400"),
    ],
)  # fmt: skip
def test_a_server_that_is_odd_is_one_line(
    tiny: Tiny, tmp_path: Path, endpoint: Any, policy: Policy, capsys: Any, models: Any, odd: Any, code: int, said: str
) -> None:  # fmt: skip
    line = arguments(tiny, tmp_path, endpoint, models, answers(policy, **odd))
    assert said in refused(capsys, *line, code=code)


@pytest.mark.parametrize(
    "odd",
    [
        {"ids": None}, {"logps": None}, {"logps": [None, None]}, {"logps": [-1.0]}, {"logps": [-1.0] * 3},
        {"logps": [-1.0, -math.inf]}, {"logps": [-1.0, math.nan]}, {"ids": [], "logps": []}, {"ids": [5, 99]},
        {"ids": [5, -1]}, {"ids": ["5", 6]}, {"ids": [5] * 9, "logps": [-1.0] * 9}, {"index": "x"},
    ],
)  # fmt: skip
def test_a_completion_that_can_not_be_learned_from_is_told(odd: Any) -> None:
    good = json.dumps({"choices": [choice(1), choice(0, [7], [-0.5])]})
    assert read_choices(good, 2, 8, 99) == ([[7], [5, 6]], [[-0.5], [-1.0, -2.0]])
    with pytest.raises(ValueError, match="gives"):
        read_choices(json.dumps({"choices": [choice(1), choice(**odd)]}), 2, 8, 99)
