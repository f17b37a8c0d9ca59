"""train_da_grpo.py on a model so small that a step takes a tenth of a second."""

import json
import multiprocessing
import os
import shutil
import signal
import socket
import sys
from types import SimpleNamespace

import pytest

import training
from tests.training.runs import CPU, QUIET, flags, load_file, metrics, refused, run, torch
from training import schedule
from training.policy import Policy, can_pack
from training.rollouts import LocalRollouts

pytestmark = QUIET
PROMPT, COMPLETIONS = [7, 8, 9], [[11, 12], [13, 14, 15], [16]]


# ---- what comes out ------------------------------------------------------------------------------


def test_sft_lowers_the_loss(tiny, tmp_path):
    assert run(*flags(tiny, tmp_path, "sft", "--steps", "6", "--lora-rank", "4")) == 0
    assert metrics(tmp_path)[-1]["loss"] < metrics(tmp_path)[0]["loss"]


def test_the_model_that_is_left_is_the_policy_that_was_trained(tiny, tmp_path):
    base, out, name = tmp_path / "base", tmp_path / "out", "model.layers.1.mlp.up_proj"
    Policy(tiny[0], 0, "bfloat16", CPU, False).save(base)
    more = ["--steps", "2", "--lora-rank", "4", "--dtype", "auto", "--lr", "1e-4"]
    assert run(*flags((base, tiny[1]), out, "sft", *more)) == 0
    old, new = (load_file(f / "model.safetensors")[f"{name}.weight"] for f in (base, out / "model"))
    adapter = load_file(out / "adapter/adapter_model.safetensors")
    a, b = (adapter[f"base_model.model.{name}.lora_{x}.weight"] for x in "AB")
    assert old.dtype == torch.bfloat16 and b.abs().max() > 0
    torch.testing.assert_close(new - old.float(), 2 * b @ a, atol=1e-8, rtol=0.01)
    next_stage = Policy(out / "model", 4, "auto", CPU).model.get_base_model()
    assert torch.equal(next_stage.get_parameter(f"{name}.base_layer.weight"), new)


def test_a_grpo_run_tells_all_that_the_picture_shows(tiny, tmp_path):
    more = "--steps 2 --iterations 2 --checkpointing --eval-every 2 --eval-limit 2 --eval-data"
    assert run(*flags(tiny, tmp_path, "grpo", *more.split(), tiny[1])) == 0
    rows = metrics(tmp_path)
    wanted = {"reward", "reward/variety", "kl", "clipped", "entropy", "mismatch", "zero_variance"}
    assert wanted <= set(rows[0]) and "eval/reward" in rows[1] and "eval/reward" not in rows[0]
    assert [row["version"] for row in rows] == [1, 2]
    assert rows[0]["cut"] == rows[0]["reward/cut"] > 0  # what the reward was told
    assert rows[1]["kl"] > 0 and rows[0]["mismatch"] < 1e-5 and rows[0]["grad_norm"] > 0
    assert training.metrics.draw(tmp_path).read_bytes()[:4] == b"\x89PNG"


def test_groups_of_equals_are_counted_and_move_nothing(tiny, tmp_path):
    assert run(*flags(tiny, tmp_path, "grpo", "--steps", "1", "--min-std", "9", "--full")) == 0
    (row,) = metrics(tmp_path)
    assert (row["zero_variance"], row["loss"], row["grad_norm"]) == (1, 0, 0)
    before, after = (load_file(f / "model.safetensors") for f in (tiny[0], tmp_path / "model"))
    assert all(torch.equal(after[name], before[name]) for name in before)


def test_a_model_that_does_not_pack_is_imitated_one_by_one(tiny, tmp_path, monkeypatch):
    (tmp_path / "one.jsonl").write_text(tiny[1].read_text().splitlines()[0] + "\n")
    losses, sizes, score = [], [], Policy.score
    spy = lambda self, prompt, c, t: sizes.append(len(c)) or score(self, prompt, c, t)  # noqa: E731
    monkeypatch.setattr(Policy, "score", spy)
    for packs in (True, False):
        monkeypatch.setattr(training.policy, "can_pack", lambda config, packs=packs: packs)
        out = tmp_path / str(packs)
        assert run(*flags((tiny[0], tmp_path / "one.jsonl"), out, "sft", "--steps", "1")) == 0
        losses.append(metrics(out)[0]["loss"])
    assert sizes == [2, 1, 1] and losses[0] == pytest.approx(losses[1], abs=1e-5)


# ---- the policy ----------------------------------------------------------------------------------


@pytest.fixture
def policy(tiny):
    return Policy(tiny[0], 4, "float64", CPU)


def test_a_packed_group_has_the_scores_and_the_gradient_of_its_sequences(policy, monkeypatch):
    monkeypatch.setattr("da_grpo.PART", 2)  # tokens at a time
    scored, alone = policy.score(PROMPT, COMPLETIONS, 0.8), 0.0
    for n, ids in enumerate(COMPLETIONS):
        logits = policy.model(input_ids=torch.tensor([PROMPT + ids])).logits[0, 2:-1]
        plain, cool = (torch.distributions.Categorical(logits=x) for x in (logits, logits / 0.8))
        logps = cool.log_prob(torch.tensor(ids))
        torch.testing.assert_close(scored.logps[n, : len(ids)], logps)
        torch.testing.assert_close(scored.entropy[n, : len(ids)], plain.entropy())
        assert scored.mask[n].sum() == len(ids)
        alone += logps.sum()
    gradients = (torch.autograd.grad(x, policy.parameters()) for x in (scored.logps.sum(), alone))
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize(("changed", "packs"), [
    ({}, True), ({"sliding_window": 16}, False), ({"sliding_window": 16, "use_sliding_window": False}, True),
    ({"layer_types": ["full_attention", "linear_attention"]}, False), ({"_attn_implementation": "eager"}, False),
])  # fmt: skip
def test_a_model_with_its_own_idea_of_attention_is_not_packed(changed, packs):
    assert can_pack(SimpleNamespace(**{"_attn_implementation": "sdpa", **changed})) is packs


def test_no_dice_are_thrown_over_a_probability(tiny, tmp_path):
    config = shutil.copytree(tiny[0], tmp_path / "model") / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "attention_dropout": 0.5}))
    policy = Policy(tmp_path / "model", 4, "float32", CPU)
    a, b = (policy.score(PROMPT, COMPLETIONS, 1.0).logps for _ in range(2))
    assert policy.model.training and torch.equal(a, b)


def test_a_special_token_in_a_text_closes_nothing(policy):
    end, text = policy.eos[0], "a<|im_end|>b"
    target = policy.target(text)
    assert target.count(end) == 1 and policy.decode(target) == text
    plain, odd = (policy.encode([{"role": "user", "content": c}]) for c in ("ab", text))
    assert odd.count(end) == plain.count(end) and text in policy.decode(odd)


def test_the_reference_is_the_model_with_its_adapter_off(policy, tiny):
    expected = Policy(tiny[0], 0, "float64", CPU, False).score(PROMPT, COMPLETIONS, 1.0).logps
    with torch.no_grad():
        [p.add_(0.1) for p in policy.parameters()]
    torch.testing.assert_close(policy.reference(PROMPT, COMPLETIONS, 1.0), expected.detach())
    assert (policy.score(PROMPT, COMPLETIONS, 1.0).logps - expected).abs().max() > 1e-3


def test_local_rollouts_know_the_probability_of_what_they_drew(policy):
    (group,) = LocalRollouts(policy, 12).sample([PROMPT], [3], 5, 0.8)
    scored = policy.score(PROMPT, group.ids, 0.8)
    for row, logps in zip(scored.logps.tolist(), group.logps, strict=True):
        assert row[: len(logps)] == pytest.approx(logps, abs=1e-5)
    assert len({tuple(ids) for ids in group.ids}) > 1


@pytest.mark.parametrize("at_once", [1, 10, 64])
def test_what_is_drawn_does_not_depend_on_the_rest_of_the_batch(policy, at_once):
    (alone,) = LocalRollouts(policy, 12).sample([PROMPT], [3], 5, 0.8)
    prompts = [[5], PROMPT, [6, 7, 8, 9, 10, 11, 12]]
    group = LocalRollouts(policy, 12, at_once).sample(prompts, [1, 3, 4], 5, 0.8)[1]
    assert group.ids == alone.ids and group.prompt == PROMPT
    assert sum(group.logps, []) == pytest.approx(sum(alone.logps, []), abs=1e-6)


def test_a_row_ends_with_its_end_token_and_never_goes_on(policy):
    policy.eos = tuple(range(0, policy.model.config.vocab_size, 3))  # a third of its tokens
    (group,) = LocalRollouts(policy, 12).sample([PROMPT], [3], 8, 1.0)
    assert sum(ids[-1] in policy.eos for ids in group.ids) > 2
    assert not any(id in policy.eos for ids in group.ids for id in ids[:-1])
    assert {len(ids) for ids in group.ids} != {12}


# ---- other processes -----------------------------------------------------------------------------


def started(target, *arguments):
    context = multiprocessing.get_context("fork")
    process = context.Process(target=target, args=arguments, daemon=True)
    process.start()
    return process


def ended(process):
    process.join(120)
    return process.exitcode


def killed(*arguments):
    """Killed in the middle of the second checkpoint."""
    save, last = torch.save, iter([False, True])

    def half(state, file):
        save(state, file)
        if next(last):
            os.kill(os.getpid(), signal.SIGKILL)

    torch.save = half
    run(*arguments)


def test_a_killed_run_goes_on_bit_for_bit(tiny, tmp_path):
    whole, again = (flags(tiny, tmp_path / n, "grpo", "--steps", "5") for n in ("whole", "again"))
    assert run(*whole) == 0
    assert ended(started(killed, *again)) == -signal.SIGKILL
    assert len(metrics(tmp_path / "again")) == 4
    assert run(*again, "--resume") == 0
    assert metrics(tmp_path / "again") == metrics(tmp_path / "whole")
    last = "checkpoints/step-000005/state.pt"
    a, b = (torch.load(tmp_path / name / last)["weights"] for name in ("whole", "again"))
    assert all(torch.equal(a[name], b[name]) for name in a)


def one_of_two(rank, port, runs):
    """What torchrun sets."""
    here = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    os.environ |= {**here, "RANK": str(rank), "LOCAL_RANK": str(rank)}
    sys.exit(max(run(*arguments) for arguments in runs))


KINDS = {"adapter": ["grpo", "--lora-rank", "4"], "full": ["grpo", "--full"], "sft": ["sft"]}


@pytest.fixture(scope="module")
def two_ranks(tiny, tmp_path_factory):
    """The folder of what two processes trained, and the flags, by kind."""
    home = tmp_path_factory.mktemp("ranks")
    more = "--steps=2 --micro-batch=3 --max-tokens=4 --dtype=float64"
    runs = {kind: flags(tiny, home / kind, *of, *more.split()) for kind, of in KINDS.items()}
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    processes = [started(one_of_two, rank, port, runs.values()) for rank in (0, 1)]
    assert list(map(ended, processes)) == [0, 0]
    return home, runs


@pytest.mark.parametrize("kind", KINDS)
def test_two_ranks_come_to_what_one_comes_to(two_ranks, tmp_path, kind):
    home, runs = two_ranks
    assert run(*runs[kind], "--out", str(tmp_path)) == 0
    one, two = metrics(tmp_path), metrics(home / kind)
    assert one[-1]["grad_norm"] > 0 and two == [pytest.approx(row, abs=1e-5) for row in one]


def test_a_checkpoint_of_more_processes_is_refused(two_ranks, capsys):
    line = refused(capsys, *two_ranks[1]["sft"], "--resume")
    assert "was made by 2 processes, and here are 1" in line


# ---- the schedule --------------------------------------------------------------------------------


def test_an_epoch_shows_each_example_once_and_the_next_in_another_order():
    shown = [i for step in range(10) for i in schedule.batch_of(range(20), 4, step, seed=1)]
    assert sorted(shown[:20]) == sorted(shown[20:]) == list(range(20))
    assert shown[:20] != shown[20:]


def test_the_learning_rate_rises_then_falls_to_its_floor():
    rates = [schedule.learning_rate(s, 100, 5e-6, 0.05, 0.1) for s in range(101)]
    assert rates[0] == pytest.approx(1e-6) and max(rates) == rates[5] == 5e-6
    assert rates[100] == pytest.approx(5e-7) and rates[5:] == sorted(rates[5:], reverse=True)
