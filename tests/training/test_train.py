"""train_da_grpo.py on a model so small that a step takes a tenth of a second."""

from __future__ import annotations

import hashlib
import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: requirements-train.txt")
pytest.importorskip("peft", reason="peft is not installed: requirements-train.txt")

from safetensors.torch import load_file  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402

import train_da_grpo  # noqa: E402
import training.policy  # noqa: E402
from tests.conftest import ROOT  # noqa: E402
from tests.training.runs import (  # noqa: E402, F401
    ENVIRONMENT,
    Tiny,
    flags,
    metrics,
    one_thread,
    refused,
    run,
)
from training import checkpoint, options, schedule  # noqa: E402
from training.examples import Example  # noqa: E402
from training.policy import Policy, can_pack  # noqa: E402
from training.rollouts import Group, LocalRollouts  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
# ---- what comes out ------------------------------------------------------------------------------


def test_sft_lowers_the_loss_and_leaves_a_model_to_go_on_from(tiny: Tiny, tmp_path: Path) -> None:
    assert run(*flags(tiny, tmp_path / "sft", "sft", "--steps", "6", "--lora-rank", "4")) == 0
    rows = metrics(tmp_path / "sft")
    assert rows[-1]["loss"] < rows[0]["loss"]
    whole, adapted = (
        Policy(tmp_path / "sft/model", 0, "float32", torch.device("cpu"), False),
        tiny[0],
    )
    base = Policy(adapted, 0, "float32", torch.device("cpu"), False)
    ids = whole.encode([{"role": "user", "content": "Question"}])
    with torch.no_grad():
        moved = (
            (whole.score(ids, [[5, 6]], 1.0).logps - base.score(ids, [[5, 6]], 1.0).logps)
            .abs()
            .max()
        )
    assert moved > 1e-4
    assert (tmp_path / "sft/adapter/adapter_model.safetensors").exists()


def test_the_reward_is_told_which_completions_were_cut() -> None:
    told: list[Any] = []
    fake: Any = SimpleNamespace(
        policy=SimpleNamespace(eos=[2]), reward=lambda e, texts, cut: told.append((texts, cut))
    )
    group = Group([1], [[5, 2], [5, 5]], [[0.0, 0.0]] * 2, ["whole", "half"])
    train_da_grpo.Trainer.scores(fake, [Example("e", (), {}, {})], [group])
    assert told == [(["whole", "half"], [False, True])]


def test_the_model_that_is_left_is_the_policy_that_was_trained(tiny: Tiny, tmp_path: Path) -> None:
    base, out = tmp_path / "base", tmp_path / "out"
    shutil.copytree(tiny[0], base)
    AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16).save_pretrained(base)
    more = ["--steps", "2", "--lora-rank", "4", "--dtype", "auto", "--lr", "1e-4"]
    assert run(*flags((base, tiny[1]), out, "sft", *more)) == 0
    old, new = (load_file(f / "model.safetensors") for f in (base, out / "model"))
    adapter = load_file(out / "adapter/adapter_model.safetensors")
    name = "model.layers.1.mlp.up_proj"
    a, b = (adapter[f"base_model.model.{name}.lora_{x}.weight"] for x in "AB")
    update = new[f"{name}.weight"] - old[f"{name}.weight"].float()
    assert old[f"{name}.weight"].dtype == torch.bfloat16 and b.abs().max() > 0
    torch.testing.assert_close(update, 2 * b @ a, atol=1e-8, rtol=0.01)
    next_stage = Policy(out / "model", 4, "auto", torch.device("cpu"))
    held = next_stage.model.get_base_model().get_parameter(f"{name}.base_layer.weight")
    assert torch.equal(held, new[f"{name}.weight"]) and next_stage.dtype == torch.float32


def test_a_model_that_does_not_pack_is_imitated_one_by_one(
    tiny: Tiny, tmp_path: Path, monkeypatch: Any
) -> None:
    one = tmp_path / "one.jsonl"
    one.write_text(tiny[1].read_text().splitlines()[0] + "\n")
    losses, sizes = [], []
    score = Policy.score
    monkeypatch.setattr(
        Policy, "score", lambda self, p, c, t: sizes.append(len(c)) or score(self, p, c, t)
    )
    for packs in (True, False):
        monkeypatch.setattr(training.policy, "can_pack", lambda config, packs=packs: packs)
        assert run(*flags((tiny[0], one), tmp_path / str(packs), "sft", "--steps", "1")) == 0
        losses.append(metrics(tmp_path / str(packs))[0]["loss"])
    assert sizes == [2, 1, 1] and losses[0] == pytest.approx(losses[1], abs=1e-5)


def test_a_grpo_run_tells_all_that_the_picture_shows(tiny: Tiny, tmp_path: Path) -> None:
    held_out = ["--eval-data", str(tiny[1]), "--eval-every", "2", "--eval-limit", "2"]
    assert (
        run(
            *flags(
                tiny,
                tmp_path,
                "grpo",
                "--steps",
                "2",
                "--iterations",
                "2",
                "--checkpointing",
                *held_out,
            )
        )
        == 0
    )
    rows = metrics(tmp_path)
    wanted = {
        "reward",
        "reward/variety",
        "kl",
        "clipped",
        "entropy",
        "mismatch",
        "zero_variance",
        "dropped",
    }
    assert wanted <= set(rows[0]) and "eval/reward" in rows[1] and "eval/reward" not in rows[0]
    assert [row["version"] for row in rows] == [1, 2]
    assert rows[1]["kl"] > 0 and rows[0]["mismatch"] < 1e-5 and rows[0]["grad_norm"] > 0
    assert (tmp_path / "metrics.png").read_bytes()[:4] == b"\x89PNG"


def test_groups_of_equals_are_counted_and_move_nothing(tiny: Tiny, tmp_path: Path) -> None:
    arguments = flags(tiny, tmp_path, "grpo", "--steps", "1", "--min-std", "9", "--full")
    assert run(*arguments) == 0
    (row,) = metrics(tmp_path)
    assert (row["zero_variance"], row["loss"], row["grad_norm"]) == (1, 0, 0)
    assert not {"kl", "entropy", "mismatch"} & row.keys()  # there was nothing to measure
    device = torch.device("cpu")
    before, after = (
        Policy(f, 0, "float32", device, False).parameters() for f in (tiny[0], tmp_path / "model")
    )
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


# ---- the policy ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def policy(tiny: Tiny) -> Policy:
    return Policy(tiny[0], 4, "float64", torch.device("cpu"))


PROMPT, COMPLETIONS = [7, 8, 9], [[11, 12], [13, 14, 15], [16]]


def test_scores_of_a_packed_group_are_those_of_each_sequence_alone(policy: Policy) -> None:
    scored = policy.score(PROMPT, COMPLETIONS, 0.8)
    for n, completion in enumerate(COMPLETIONS):
        logits = policy.model(input_ids=torch.tensor([PROMPT + completion])).logits[0]
        whole = (logits / 0.8).log_softmax(-1)
        alone = [whole[len(PROMPT) - 1 + k, id] for k, id in enumerate(completion)]
        torch.testing.assert_close(scored.logps[n, : len(completion)], torch.stack(alone))
        (one,) = policy.score(PROMPT, [completion], 0.8).logps
        torch.testing.assert_close(scored.logps[n, : len(completion)], one)
        entropy = -(logits.softmax(-1) * logits.log_softmax(-1)).sum(-1)[len(PROMPT) - 1 : -1]
        torch.testing.assert_close(scored.entropy[n, : len(completion)], entropy)
        assert scored.mask[n].sum() == len(completion)


def test_the_gradient_of_a_packed_group_is_the_sum_of_those_of_its_sequences(
    policy: Policy,
) -> None:
    def gradient(*groups: list[list[int]]) -> list[Any]:
        policy.model.zero_grad()
        for group in groups:
            scored = policy.score(PROMPT, group, 1.0)
            torch.autograd.backward((scored.logps * scored.mask).sum())
        return [p.grad.clone() for p in policy.parameters() if p.grad is not None]

    packed = gradient(COMPLETIONS)
    assert len(packed) == len(policy.parameters()) and any(g.abs().max() > 0 for g in packed)
    torch.testing.assert_close(packed, gradient(*([c] for c in COMPLETIONS)))
    policy.model.zero_grad()


@pytest.mark.parametrize(
    ("changed", "packs"),
    [
        ({}, True),
        ({"sliding_window": 16}, False),
        ({"sliding_window": 16, "use_sliding_window": False}, True),
        ({"layer_types": ["full_attention", "linear_attention"]}, False),
        ({"_attn_implementation": "eager"}, False),
    ],
)
def test_a_model_with_its_own_idea_of_attention_is_not_packed(
    changed: dict[str, Any], packs: bool
) -> None:
    assert can_pack(SimpleNamespace(**{"_attn_implementation": "sdpa", **changed})) is packs


def test_no_dice_are_thrown_over_a_probability(tiny: Tiny, tmp_path: Path) -> None:
    shutil.copytree(tiny[0], tmp_path / "model")
    config = tmp_path / "model/config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "attention_dropout": 0.5}))
    policy = Policy(tmp_path / "model", 4, "float32", torch.device("cpu"))
    a, b = (policy.score(PROMPT, COMPLETIONS, 1.0).logps for _ in range(2))
    assert policy.model.training and torch.equal(a, b)


def test_a_special_token_in_a_text_closes_nothing(policy: Policy) -> None:
    end, said = policy.eos[0], "a<|im_end|>b"
    target = policy.target(said)
    assert target.count(end) == 1 and policy.decode(target) == said
    plain, odd = (policy.encode([{"role": "user", "content": c}]) for c in ("ab", said))
    assert odd.count(end) == plain.count(end) and said in policy.decode(odd)


def test_the_reference_is_the_model_with_its_adapter_off(policy: Policy, tiny: Tiny) -> None:
    base = Policy(tiny[0], 0, "float64", torch.device("cpu"), False)
    expected = base.score(PROMPT, COMPLETIONS, 1.0).logps.detach()
    with torch.no_grad():
        for p in policy.parameters():
            p.add_(0.1)
    torch.testing.assert_close(policy.reference(PROMPT, COMPLETIONS, 1.0), expected)
    assert (policy.score(PROMPT, COMPLETIONS, 1.0).logps - expected).abs().max() > 1e-3


def test_local_rollouts_know_the_probability_of_what_they_drew(policy: Policy) -> None:
    (group,) = LocalRollouts(policy, 12).sample([[7, 8, 9]], [3], 5, 0.8)
    scored = policy.score(group.prompt, group.ids, 0.8)
    for row, logps in zip(scored.logps, group.logps, strict=True):
        torch.testing.assert_close(
            row[: len(logps)], torch.tensor(logps).to(row), atol=1e-5, rtol=0
        )
    assert len({tuple(ids) for ids in group.ids}) > 1
    for at_once in (1, 10, 64):  # whatever else is in the batch
        beside = [[5], [7, 8, 9], [6, 7, 8, 9, 10, 11, 12]]
        again = LocalRollouts(policy, 12, at_once).sample(beside, [1, 3, 4], 5, 0.8)
        assert again[1].ids == group.ids and again[1].prompt == group.prompt
        torch.testing.assert_close(again[1].logps, group.logps, atol=1e-6, rtol=0)


def test_a_row_ends_with_its_end_token_and_never_goes_on(policy: Policy) -> None:
    width = policy.model.config.vocab_size
    policy.eos = tuple(range(0, width, 3))  # a third of what it says ends it
    (group,) = LocalRollouts(policy, 12).sample([[7, 8, 9]], [3], 8, 1.0)
    policy.eos = (policy.tokenizer.eos_token_id,)
    ended = [ids for ids in group.ids if ids[-1] % 3 == 0]
    assert len(ended) > 2 and all(id % 3 for ids in group.ids for id in ids[:-1])
    assert {len(ids) for ids in group.ids} != {12}


# ---- a run that is killed ------------------------------------------------------------------------


def test_a_killed_run_goes_on_bit_for_bit(tiny: Tiny, tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    more = ["--steps", "7", "--lora-rank", "4"]
    command = [sys.executable, "-m", "tests.training.driver", *flags(tiny, killed, "grpo", *more)]
    process = subprocess.Popen(command, cwd=ROOT, env=ENVIRONMENT, stderr=subprocess.DEVNULL)
    assert run(*flags(tiny, whole, "grpo", *more)) == 0
    wait_for(lambda: len(metrics(killed)) >= 3, process)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert len(metrics(killed)) < 7 and list((killed / "checkpoints").glob("step-*"))
    (killed / "checkpoints/.step-000009.part").mkdir(exist_ok=True)  # as if killed while it wrote
    assert run(*flags(tiny, killed, "grpo", *more), "--resume") == 0
    assert metrics(killed) == metrics(whole)
    final = [torch.load(f / "checkpoints/step-000007/state.pt")["weights"] for f in (whole, killed)]
    assert all(torch.equal(final[0][name], final[1][name]) for name in final[0])


def wait_for(
    done: Callable[[], bool], process: subprocess.Popen[bytes], timeout_s: float = 60
) -> None:
    until = time.monotonic() + timeout_s
    while not done():
        assert process.poll() is None and time.monotonic() < until
        time.sleep(0.01)


def test_a_checkpoint_of_more_processes_is_refused(tiny: Tiny, tmp_path: Path) -> None:
    policy = Policy(tiny[0], 4, "float32", torch.device("cpu"))
    optimizer = torch.optim.AdamW(policy.parameters())
    checkpoint.save(tmp_path, policy.model, optimizer, 3, 3)
    path = tmp_path / "checkpoints/step-000003/state.pt"
    state = torch.load(path)
    torch.save({**state, "randoms": state["randoms"] * 2}, path)
    path.with_name("sha256").write_text(hashlib.sha256(path.read_bytes()).hexdigest())
    with pytest.raises(options.ConfigError, match="2 processes, and here are 1"):
        checkpoint.load(tmp_path, policy.model, optimizer)


# ---- several processes ---------------------------------------------------------------------------


def test_two_ranks_come_to_what_one_comes_to(tiny: Tiny, tmp_path: Path) -> None:
    kinds = {
        "adapter": ["--lora-rank", "4"],
        "full": ["--full", "--aggregation", "grpo"],
        "sft": [],
    }
    sharded: list[str] = []
    for kind, more in kinds.items():
        stage = "sft" if kind == "sft" else "grpo"
        more = [*more, "--steps", "3", "--micro-batch", "3", "--dtype", "float64"]
        assert run(*flags(tiny, tmp_path / f"{kind}-1", stage, *more)) == 0
        sharded += [*flags(tiny, tmp_path / f"{kind}-2", stage, *more), "--"]
    torchrun = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
    ]
    command = [*torchrun, "-m", "tests.training.driver", *sharded]
    ended = subprocess.run(
        command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=120
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    for kind in kinds:
        one, two = metrics(tmp_path / f"{kind}-1"), metrics(tmp_path / f"{kind}-2")
        assert one[-1]["grad_norm"] > 0
        for a, b in zip(one, two, strict=True):
            assert b == pytest.approx(a, abs=1e-5)


# ---- mistakes of the user ------------------------------------------------------------------------


def test_a_wrong_model_path_is_one_line(tiny: Tiny, tmp_path: Path, capsys: Any) -> None:
    line = refused(capsys, *flags((tmp_path / "nowhere", tiny[1]), tmp_path / "out", "sft"))
    assert "nowhere" in line and "config.json" in line and not (tmp_path / "out").exists()


def test_data_of_another_schema_is_one_line(tiny: Tiny, tmp_path: Path, capsys: Any) -> None:
    other = tmp_path / "other.jsonl"
    first = json.loads(tiny[1].read_text().splitlines()[0])
    other.write_text(json.dumps({**first, "schema": 99}) + "\n")
    line = refused(capsys, *flags((tiny[0], other), tmp_path / "out", "sft"))
    assert "other.jsonl, line 1" in line and "99" in line


def test_a_prompt_that_is_too_long_is_one_line(tiny: Tiny, tmp_path: Path, capsys: Any) -> None:
    line = refused(capsys, *flags(tiny, tmp_path / "out", "sft", "--max-prompt", "10"))
    assert "--max-prompt 10" in line and "train-0" in line and not (tmp_path / "out").exists()


def test_an_endpoint_that_is_not_vllm_is_one_line(
    tiny: Tiny, tmp_path: Path, capsys: Any, endpoint: Any
) -> None:
    url = endpoint(lambda request: "hello").url
    line = refused(
        capsys, *flags(tiny, tmp_path / "out", "grpo", "--rollouts", "vllm", "--vllm-url", url)
    )
    assert "is no vLLM server" in line
    line = refused(
        capsys,
        *flags(
            tiny, tmp_path / "out", "grpo", "--rollouts", "vllm", "--vllm-url", "http://127.0.0.1:9"
        ),
    )
    assert "can not be reached" in line


def test_a_run_is_neither_overwritten_nor_resumed_as_another(
    tiny: Tiny, tmp_path: Path, capsys: Any
) -> None:
    assert run(*flags(tiny, tmp_path, "sft", "--steps", "1")) == 0
    capsys.readouterr()
    assert "add --resume" in refused(capsys, *flags(tiny, tmp_path, "sft", "--steps", "1"))
    other = flags(tiny, tmp_path, "sft", "--steps", "1", "--seed", "5", "--resume")
    assert "other values of seed" in refused(capsys, *other)


def test_a_setting_that_the_reward_does_not_have_is_one_line(
    tiny: Tiny, tmp_path: Path, capsys: Any
) -> None:
    line = refused(
        capsys, *flags(tiny, tmp_path, "grpo", "--steps", "1", "--reward-setting", "salt=1")
    )
    assert "salt" in line


def test_help_answers_before_torch_is_loaded() -> None:
    code = "import sys; sys.argv = ['x', '--help']\ntry: import training.options as o; o.parse()\nexcept SystemExit: pass\nassert 'torch' not in sys.modules"
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 0 and "--vllm-url" in ended.stdout


# ---- the schedule --------------------------------------------------------------------------------


def test_an_epoch_shows_each_example_once_and_the_next_in_another_order() -> None:
    shown = [i for step in range(10) for i in schedule.batch_of(range(20), 4, step, seed=1)]
    assert sorted(shown[:20]) == sorted(shown[20:]) == list(range(20))
    assert shown[:20] != shown[20:]


def test_the_learning_rate_rises_then_falls_to_its_floor() -> None:
    rates = [schedule.learning_rate(s, 100, 5e-6, 0.05, 0.1) for s in range(101)]
    assert rates[0] == pytest.approx(1e-6) and max(rates) == rates[5] == 5e-6
    assert rates[100] == pytest.approx(5e-7) and rates[5:] == sorted(rates[5:], reverse=True)
