"""train_da_grpo.py on a model so small that a step takes a tenth of a second."""

import json
import math
import os
import re
import shutil
import signal
import sys
from types import SimpleNamespace
from unittest import mock

import pytest

import train_da_grpo
from orchestra.kernel.vocabulary import ConfigError
from orchestra.training import run as checkpoints
from orchestra.training.examples import write
from orchestra.training.policy import Policy, can_pack, end_tokens
from orchestra.training.rewards import Scored, Scores
from orchestra.training.rollouts import LocalRollouts, group_of
from tests.scripted import free_port
from tests.training.conftest import make_model, short_examples
from tests.training.runs import (
    CPU,
    QUIET,
    SHIPPED,
    VARIETY,
    be_rank,
    ended,
    flags,
    load_file,
    metrics,
    options,
    refused,
    run,
    started,
    torch,
)

pytestmark = QUIET
PROMPT, COMPLETIONS = [7, 8, 9], [[11, 12], [13, 14, 15], [16]]
MORE = ("--steps", "3", "--lora-rank", "4", "--save-every", "1")


# ---- what comes out ------------------------------------------------------------------------------


def test_sft_lowers_the_loss_and_grpo_goes_on_from_its_adapter(tiny, tmp_path):
    more = ["--steps", "6", "--lora-rank", "4"]
    assert run(*flags(tiny, tmp_path / "sft", "sft", *more)) == 0
    rows = metrics(tmp_path / "sft")
    assert rows[-1]["loss"] < rows[0]["loss"] and [row["step"] for row in rows] == [*range(1, 7)]
    adapter = tmp_path / "sft/adapter"
    assert run(*flags(tiny, tmp_path / "grpo", "grpo", "--steps", "1", "--adapter", adapter)) == 0
    (row,) = metrics(tmp_path / "grpo")
    assert row["kl"] == 0  # pi_ref is the policy as this run began, and not the base
    assert not (tmp_path / "grpo/model").exists()
    folders = adapter, tmp_path / "grpo/adapter"
    before, after = (load_file(f / "adapter_model.safetensors") for f in folders)
    assert before.keys() == after.keys()
    assert any(not torch.equal(before[k], after[k]) for k in before)


def test_a_grpo_run_writes_its_metrics(tiny, tmp_path):
    more = "--steps 2 --iterations 2 --checkpointing --eval-data"
    assert run(*flags(tiny, tmp_path, "grpo", *more.split(), tiny[1])) == 0
    before, first, second = metrics(tmp_path)
    wanted = "reward reward/variety valid clipped entropy zero_variance dropped length"
    assert set(wanted.split()) <= set(first)
    assert before["step"] == 0 and {"eval/reward", "eval/cut"} <= set(before)
    assert "eval/reward" in second and "eval/reward" not in first
    assert first["cut"] == first["reward/cut"] > 0  # what the reward was given
    assert second["kl"] > 0 and first["mismatch"] == 0 and first["grad_norm"] > 0


def test_groups_of_equals_are_counted_and_move_nothing(tiny, tmp_path):
    assert run(*flags(tiny, tmp_path, "grpo", "--steps", "1", "--min-std", "9", "--full")) == 0
    (row,) = metrics(tmp_path)
    assert (row["zero_variance"], row["loss"], row["grad_norm"]) == (1, 0, 0)
    before, after = (load_file(f / "model.safetensors") for f in (tiny[0], tmp_path / "model"))
    assert all(torch.equal(after[name], before[name]) for name in before)


@pytest.mark.parametrize(("how", "advantage"), [("dr_grpo", 0.2), ("dapo", 2**-0.5)])
def test_dr_grpo_is_not_divided_by_the_deviation(tiny, policy, how, advantage):
    def score(examples, groups):
        rewards = torch.tensor([[0.2, 0.6]])
        return Scored(examples, [[Scores(0.2, {}, True), Scores(0.6, {}, True)]], rewards)

    given = f"--stage grpo --model {tiny[0]} --data {tiny[1]} --out x --rollouts local --group 2"
    o = options.parse([*given.split(), "--aggregation", how, "--beta", "0"])
    trainer = train_da_grpo.Trainer(o, policy, LocalRollouts(policy, 2), score, 1)
    trainer.grpo_step(0, short_examples(1))
    assert trainer.completions[1]["advantage"] == pytest.approx(advantage, rel=1e-3)


# ---- the policy ----------------------------------------------------------------------------------


@pytest.fixture
def policy(tiny):
    return Policy(tiny[0], CPU, "float64", 4)


def test_a_packed_group_has_the_scores_and_the_gradient_of_its_sequences(policy, monkeypatch):
    monkeypatch.setattr("orchestra.training.logprobs.PART", 2)  # tokens at a time
    scored, alone = policy.logprobs(PROMPT, COMPLETIONS, 0.8), 0.0
    for n, ids in enumerate(COMPLETIONS):
        logits = policy.model(input_ids=torch.tensor([PROMPT + ids])).logits[0, 2:-1]
        logprobs = torch.distributions.Categorical(logits=logits / 0.8).log_prob(torch.tensor(ids))
        torch.testing.assert_close(scored.logprobs[n, : len(ids)], logprobs)
        alone += logprobs.sum()
    assert scored.mask.sum(1).tolist() == [2, 3, 1]
    gradients = (
        torch.autograd.grad(x, policy.parameters()) for x in (scored.logprobs.sum(), alone)
    )
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize(("changed", "packs"), [
    ({}, True), ({"sliding_window": 16}, False), ({"sliding_window": 16, "use_sliding_window": False}, True),
    ({"layer_types": ["full_attention", "linear_attention"]}, False), ({"_attn_implementation": "eager"}, False),
])  # fmt: skip
def test_a_model_with_its_own_idea_of_attention_is_not_packed(changed, packs):
    assert can_pack(SimpleNamespace(**{"_attn_implementation": "sdpa", **changed})) is packs


def test_an_end_token_in_a_reference_is_text(policy):
    target = policy.target(SimpleNamespace(reference={"answer": "a<|im_end|>b"}))
    assert target.count(policy.eos[0]) == 1 and "a<|im_end|>b" in policy.decode(target)


@pytest.mark.parametrize("rank", [0, 4])
def test_the_reference_is_the_policy_as_it_was(tiny, rank):
    policy = Policy(tiny[0], CPU, "float64", rank)
    expected = policy.logprobs(PROMPT, COMPLETIONS, 1.0).logprobs.detach()
    reference = [weight.clone() for weight in policy.weights()]
    with torch.no_grad():
        [p.add_(0.1) for p in policy.parameters()]
    moved = policy.logprobs(PROMPT, COMPLETIONS, 1.0).logprobs
    kept = policy.logprobs_under(reference, PROMPT, COMPLETIONS, 1.0)
    torch.testing.assert_close(kept, expected)
    torch.testing.assert_close(policy.logprobs(PROMPT, COMPLETIONS, 1.0).logprobs, moved)
    assert (moved - expected).abs().max() > 1e-3


def test_local_rollouts_draw_what_the_policy_finds_likely(tiny, tmp_path):
    """Whatever the model folder says of sampling, and beside prompts of other lengths."""
    model = shutil.copytree(tiny[0], tmp_path / "model")
    odd = {"do_sample": True, "top_k": 2, "top_p": 0.1, "temperature": 9.0, "min_p": 0.9}
    odd |= {"repetition_penalty": 5.0, "min_new_tokens": 3, "eos_token_id": [0, 3]}
    (model / "generation_config.json").write_text(json.dumps(odd))
    policy, prompts = Policy(model, CPU, "float32", 4), [[5, 6], PROMPT, [*PROMPT, 7, 8]]
    rollouts = LocalRollouts(policy, 2, at_once=3000)
    groups, again = (rollouts.sample(prompts, [1, 2, 3], 2000, 0.8) for _ in "ab")
    assert [g.ids for g in groups] == [g.ids for g in again]
    for prompt, group in zip(prompts, groups, strict=True):
        first = [[n] for n in range(policy.model.config.vocab_size)]
        likely = policy.logprobs(prompt, first, 0.8).logprobs[:, 0].exp()
        drawn = torch.bincount(torch.tensor([ids[0] for ids in group.ids]), minlength=len(first))
        torch.testing.assert_close(drawn / 2000, likely, atol=0.02, rtol=0)
        assert any(len(ids) == 1 for ids in group.ids)  # an end token was drawn
        for ids, cut in zip(group.ids, group.cut, strict=True):
            assert cut == (ids[-1] not in policy.eos) and (len(ids) == 2 or not cut)
        assert rollouts.sample([prompt], [1], 1, 0.0)[0].ids[0][0] == likely.argmax()


# ---- other processes -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def done(tiny, tmp_path_factory):
    """A run that has ended."""
    out = tmp_path_factory.mktemp("ended") / "out"
    assert run(*flags(tiny, out, "grpo", *MORE)) == 0
    return out


def killed(*arguments):
    """Killed in the middle of the second checkpoint."""
    save, last = torch.save, iter([False, True])

    def half(state, file):
        save(state, file)
        if next(last):
            os.kill(os.getpid(), signal.SIGKILL)

    torch.save = half
    run(*arguments)


def test_a_killed_run_goes_on_bit_for_bit(tiny, done, tmp_path):
    """Also if its model has moved."""
    out, moved = tmp_path / "out", shutil.copytree(tiny[0], tmp_path / "moved")
    assert ended(started(killed, *flags(tiny, out, "grpo", *MORE))) == -signal.SIGKILL
    assert len(metrics(out)) == 2
    assert run(*flags((moved, tiny[1]), out, "grpo", *MORE), "--resume") == 0
    assert metrics(out) == metrics(done)
    a, b = (load_file(out / "adapter/adapter_model.safetensors") for out in (done, out))
    assert all(torch.equal(a[name], b[name]) for name in a)


class Drawn:
    """Rollouts that any number of processes can draw: the completion is a function of the seed."""

    update = close = mock.Mock()

    def sample(self, prompts, seeds, n, temperature):
        policy = SimpleNamespace(eos=(1,), decode=lambda ids: "etaoin"[: ids[0] % 7])
        ids = [[[5 + (s + k) % 40, 6 + k] for k in range(n)] for s in seeds]
        return [group_of(policy, p, i, [[-6.0, -6.0]] * n) for p, i in zip(prompts, ids)]  # noqa: B905


def trained_with(*arguments):
    served = mock.patch.object(checkpoints, "served", lambda url: None)
    with served, mock.patch.object(checkpoints, "make_rollouts", lambda *_: Drawn()):
        return run(*arguments)


def one_of_two(rank, port, *arguments):
    be_rank(rank, port)
    save = checkpoints.save
    checkpoints.save = lambda *given: given[-1] == 1 and save(*given)  # not the last one
    sys.exit(trained_with(*arguments))


@pytest.mark.parametrize("kind", [("grpo", "--full"), ("sft", "--lora-rank=4")])
def test_two_ranks_come_to_what_one_comes_to(tiny, tmp_path, kind):
    """And one goes on from the checkpoint of two."""
    more = [
        "--steps=2",
        "--save-every=1",
        "--micro-batch=3",
        "--dtype=float64",
        "--rollouts=vllm",
    ]
    one, two = (flags(tiny, tmp_path / name, *kind, *more) for name in "12")
    port = free_port()
    processes = [started(one_of_two, rank, port, *two) for rank in (0, 1)]
    assert list(map(ended, processes)) == [0, 0] and trained_with(*one) == 0
    a, b = metrics(tmp_path / "1"), metrics(tmp_path / "2")
    assert a[-1]["grad_norm"] > 0 and b == [pytest.approx(row, abs=1e-5) for row in a]
    assert trained_with(*two, "--resume") == 0
    assert metrics(tmp_path / "2") == [b[0], pytest.approx(a[1], abs=1e-5)]


# ---- what a user does wrong: one line each, before anything is trained or lost -------------------


@pytest.mark.parametrize("wrong", [
    "--temperature 0", "--temperature nan", "--steps 0", "--group 1", "--lr -1", "--importance-cap 0", "--clip-high inf",
    "--warmup 1.5", "--seed -1", "--lora-rank 0", "--model nowhere", "--reward best", "--epochs x",
    "--rollouts vllm --vllm-url http://127.0.0.1:9", "--reward judge", "--resume",
    "--full --adapter nowhere", "--data nowhere", "--min-std 0",
])  # fmt: skip
def test_a_flag_that_makes_no_run_is_one_line(tiny, tmp_path, capsys, wrong):
    line = refused(capsys, *flags(tiny, tmp_path / "out", "grpo", *wrong.split()))
    the_value = re.search("=|nowhere|vllm", wrong)  # else the flag
    named = wrong.split("=")[0].split()[-1 if the_value else 0]
    assert named in line and not (tmp_path / "out").exists()


@pytest.mark.parametrize(("fields", "reason"), [
    ({"meta": {"state": None}}, "is not one of MiniGAIA"), ({"meta": {"world": None}}, "is not one of MiniGAIA"),
    ({"schema": 99}, "schema"),
])  # fmt: skip
def test_an_example_that_could_not_be_used_is_named(tiny, tmp_path, capsys, fields, reason):
    row = json.loads(tiny[1].read_text().splitlines()[1])
    row |= {k: {**row[k], **v} if isinstance(v, dict) else v for k, v in fields.items()}
    (tmp_path / "data.jsonl").write_text(json.dumps(row))
    given = tiny[0], tmp_path / "data.jsonl"
    arguments = flags(
        given, tmp_path / "out", "grpo", "--reward", "benchmarks.minigaia.reward:Exact"
    )
    assert reason in refused(capsys, *arguments) and not (tmp_path / "out").exists()


LONG = {"messages": [{"role": "user", "content": "word " * 5000}]}


@pytest.mark.parametrize(("stage", "fields", "more", "reason"), [
    ("sft", {"reference": {}}, "", "its reference is empty, and --stage sft imitates it"),
    ("sft", {"reference": {"a": "b " * 2000}}, "--max-tokens 512", "its reference has .* more than --max-tokens 512"),
    ("sft", {"reference": {"a": "b " * 5000}}, "--max-tokens 99999", "its prompt with a reply has .* context of 4096"),
    ("sft", LONG, "", "its prompt with a reply has .* more than the model's context of 4096"),
    ("grpo", LONG, "", "its prompt with a reply has .* more than the model's context of 4096"),
    ("grpo", {}, "--max-tokens 4096", "its prompt with a reply has .* more than the model's context of 4096"),
])  # fmt: skip
def test_an_example_that_does_not_fit_the_model_is_named_before_the_model_is_loaded(
    tiny, tmp_path, capsys, monkeypatch, stage, fields, more, reason
):
    monkeypatch.setattr(Policy, "__init__", mock.Mock(side_effect=AssertionError))
    first, second = tiny[1].read_text().splitlines()[:2]
    (tmp_path / "data.jsonl").write_text(f"{first}\n{json.dumps(json.loads(second) | fields)}")
    given = tiny[0], tmp_path / "data.jsonl"
    line = refused(capsys, *flags(given, tmp_path / "out", stage, *more.split()))
    at_fault = second if fields else first
    assert re.search(f"example {json.loads(at_fault)['id']}: {reason}", line)
    assert not (tmp_path / "out").exists()


def test_the_longest_prompt_and_completion_of_the_model_are_trained(tiny, tmp_path):
    """Its context of 4,096 tokens, to the last one; a held-out reference is not imitated."""
    policy, row = Policy(tiny[0], CPU), json.loads(tiny[1].read_text().splitlines()[0])
    most = 4096 - len(policy.encode(row["messages"]))
    (tmp_path / "held_out.jsonl").write_text(json.dumps(row | {"reference": {}}))
    held_out = (
        "--eval-data",
        tmp_path / "held_out.jsonl",
        "--reward",
        "variety",
        "--rollouts",
        "local",
    )
    more = ("--steps", "1", "--lora-rank", "4", "--full", *held_out)
    data = tmp_path / "train.jsonl"
    data.write_text(json.dumps(row))
    o = options.parse(
        flags((tiny[0], data), tmp_path / "out", "sft", *more, "--max-tokens", str(most))
    )
    with mock.patch.dict(SHIPPED, VARIETY):
        assert len(checkpoints.read(o)[0]) == 1
        with pytest.raises(ConfigError, match="context of 4096"):
            checkpoints.read(o.model_copy(update={"max_tokens": most + 1}))


@pytest.mark.parametrize(("fields", "context"), [
    ({}, 4096), ({"rope_parameters": {"factor": 4.0, "original_max_position_embeddings": 2048}}, 8192),
    ({"rope_parameters": {"rope_type": "default"}}, 4096), ({"max_position_embeddings": None}, math.inf),
])  # fmt: skip
def test_the_context_of_a_model_is_that_of_its_configuration(fields, context):
    config = SimpleNamespace(**{"max_position_embeddings": 4096, **fields})
    config.get_text_config = lambda: config
    assert checkpoints.context_of(config) == context


@pytest.mark.parametrize(("name", "text"), [
    ("model.safetensors", "version https://git-lfs"), ("tokenizer.json", "{"), ("config.json", '{"model_type": "no such"}'),
    ("chat_template.jinja", "{{ raise_exception('no system role') }}"),
])  # fmt: skip
def test_a_model_that_is_damaged_or_takes_no_prompt_is_one_line(tiny, tmp_path, capsys, name, text):
    (shutil.copytree(tiny[0], tmp_path / "model") / name).write_text(text)
    line = refused(capsys, *flags((tmp_path / "model", tiny[1]), tmp_path / "out", "grpo"))
    assert f"--model {tmp_path / 'model'}: cannot be used" in line


def test_a_model_without_an_end_token_is_one_line():
    tokenizer = SimpleNamespace(eos_token_id=None)
    named = SimpleNamespace(eos_token_id=None)
    model = SimpleNamespace(generation_config=named, name_or_path="base")
    with pytest.raises(ConfigError, match="--model base: it has no end token"):
        end_tokens(tokenizer, model)


def test_a_run_that_could_not_load_its_model_leaves_its_folder_free(tiny, tmp_path, capsys):
    broken = shutil.copytree(tiny[0], tmp_path / "model")
    (broken / "model.safetensors").write_text("version https://git-lfs")
    more = ("--lora-rank", "4", "--steps", "1")
    refused(capsys, *flags((broken, tiny[1]), tmp_path / "out", "sft", *more))
    assert run(*flags(tiny, tmp_path / "out", "sft", *more)) == 0


def test_a_learning_rate_that_is_far_too_high_is_one_line(tiny, tmp_path, capsys):
    more = ("--steps", "3", "--lora-rank", "4", "--lr", "1e30")
    assert run(*flags(tiny, tmp_path, "sft", *more)) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert "is not finite" in line and "--lr" in line


def test_a_disk_that_is_full_at_a_checkpoint_is_one_line(tiny, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(torch, "save", mock.Mock(side_effect=OSError(28, "No space left")))
    assert run(*flags(tiny, tmp_path, "grpo", *MORE)) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert "checkpoint.part" in line and "No space left" in line


def test_a_run_is_neither_overwritten_nor_resumed_as_another(tiny, done, capsys):
    arguments = flags(tiny, done, "grpo", *MORE)
    assert "add --resume" in refused(capsys, *arguments)
    assert "other values of seed" in refused(capsys, *arguments, "--resume", "--seed", "5")


# ---- the schedule --------------------------------------------------------------------------------


def test_a_default_follows_from_another_flag(tiny, tmp_path, policy):
    arguments = f"--stage sft --model {tiny[0]} --data {tiny[1]} --out {tmp_path}".split()
    assert options.parse(arguments).lr == 5e-5 and options.parse([*arguments, "--full"]).lr == 5e-6
    o = options.parse([*arguments, "--clip", "0.1"])
    assert train_da_grpo.Trainer(o, policy, None, None, 1).objective.clip_high == 0.1
    assert o.micro_batch is None  # a whole group


# ---- opt-in, `make train-tiny`: a tiny random model imitates the expert, then DA-GRPO raises its reward

BOTH = (
    "--full --max-tokens 96 --save-every 1000 --batch 4 --reward benchmarks.minigaia.reward:Exact"
)
SFT = "--steps 60 --lr 1e-2 --lr-floor 1"
GRPO = "--steps 80 --group 8 --micro-batch 32 --lr 2e-3 --beta 0.001 --clip-high 0.28"


@pytest.mark.skipif("TRAIN_TINY" not in os.environ, reason="make train-tiny")
def test_da_grpo_raises_the_reward_of_a_tiny_model(tmp_path):
    data = short_examples(4)
    write(tmp_path / "train.jsonl", data)
    make_model(data, tmp_path / "model", words=512, width=64)
    start = tmp_path / "model"
    for stage, more in (("sft", SFT), ("grpo", GRPO)):
        given = start, tmp_path / "train.jsonl"
        assert run(*flags(given, tmp_path / stage, stage, *f"{more} {BOTH}".split())) == 0
        start = tmp_path / stage / "model"
    rewards = [row["reward"] for row in metrics(tmp_path / "grpo")]
    assert sum(rewards[-5:]) / 5 > sum(rewards[:5]) / 5 + 0.1
