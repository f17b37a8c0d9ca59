"""What a practitioner meets of train_da_grpo.py: its size, its logs, its models and its samples."""

import math
import subprocess
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from unittest import mock

import pytest
import requests

import train_da_grpo
from orchestra.kernel.tape import rows_of
from orchestra.training.policy import Policy
from orchestra.training.rewards import Completion, Scorer
from orchestra.training.rollouts import Group, LocalRollouts
from tests.conftest import ROOT, ConfigError
from tests.training.conftest import short_examples
from tests.training.runs import CPU, QUIET, flags, load_file, metrics, refused, run, torch

pytestmark = QUIET
SMALL = ("--lora-rank", "4")
EVALUATED = ("--reward", "variety", "--rollouts", "local", "--eval-data")


# ---- one file ------------------------------------------------------------------------------------


def test_importing_the_script_loads_few_modules_and_none_that_it_can_do_without():
    code = "import sys, train_da_grpo; print(*sys.modules)"
    command = [sys.executable, "-W", "ignore", "-c", code]
    loaded = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    tops = ("orchestra", "orchestra_min", "train_da_grpo")
    ours = {name for name in loaded.split() if name.partition(".")[0] in tops}
    assert "orchestra.training.policy" in ours and len(ours) <= 15
    parts = ("examples", "judge", "rewards", "run", "sft", "vllm_rollouts", "world")
    assert not ours & {f"orchestra.training.{part}" for part in parts}


def test_the_script_is_read_in_the_order_of_a_step():
    text = (ROOT / "train_da_grpo.py").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 430
    marks = ("sync: the next", "self.sample(batch", "# Eq. 29", "def improve", "def optimizer_step")
    equations = ("def group_advantages", "# Eq. 30: (P, G)\n", "def da_grpo_loss", "# Eq. 31: rho")
    places = [text.index(mark) for mark in (*marks, *equations)]
    assert places == sorted(places)


# ---- what is logged ------------------------------------------------------------------------------


def test_completions_are_kept_with_their_rewards(tiny, tmp_path):
    more = ("--steps", "3", "--eval-data", tiny[1])
    assert run(*flags(tiny, tmp_path, "grpo", *SMALL, *more)) == 0
    rows = list(rows_of(tmp_path / "completions.jsonl"))
    trained = [row for row in rows if not row["held_out"]]
    assert [row["step"] for row in trained] == [1] * 8 + [2] * 8 + [
        3
    ] * 8  # 2 states, 4 completions each
    held_out = [row["step"] for row in rows if row["held_out"]]
    assert held_out == [0] * 8 + [2] * 8 + [3] * 8  # --save-every 2, and 8 examples
    first = trained[:8]
    measured = metrics(tmp_path)[1]
    assert sum(row["reward"] for row in first) / 8 == pytest.approx(measured["reward"])
    for group in (first[:4], first[4:]):
        assert len({row["example"] for row in group}) == 1
        assert sum(row["advantage"] for row in group) == pytest.approx(0, abs=1e-3)
    assert all(
        isinstance(row["text"], str) and row["parts"].keys() == {"variety", "cut"} for row in rows
    )


def test_imitation_is_evaluated_before_its_first_step_too(tiny, tmp_path):
    more = ("--steps", "1", *EVALUATED, tiny[1])
    assert run(*flags(tiny, tmp_path, "sft", *SMALL, *more)) == 0
    before, after = metrics(tmp_path)
    assert before["step"] == 0 and "loss" not in before and "loss" in after
    assert {"eval/reward", "eval/length"} <= before.keys() & after.keys()
    rows = list(rows_of(tmp_path / "completions.jsonl"))
    assert [row["held_out"] for row in rows] == [True] * 16


def test_the_adapter_of_each_checkpoint_is_kept(tiny, tmp_path):
    more = ("--steps", "4", "--save-every", "2")
    assert run(*flags(tiny, tmp_path, "sft", *SMALL, *more)) == 0
    assert {folder.name for folder in tmp_path.glob("adapter-*")} == {"adapter-2", "adapter-4"}
    last = load_file(tmp_path / "adapter/adapter_model.safetensors")
    for step in (2, 4):
        weights = load_file(tmp_path / f"adapter-{step}/adapter_model.safetensors")
        assert all(torch.equal(weights[name], last[name]) for name in last) is (step == 4)


@pytest.mark.parametrize("name", ["trackio", "wandb"])
def test_the_metrics_go_to_a_tracker_through_its_library(tiny, tmp_path, monkeypatch, name):
    library = ModuleType(name)
    library.__spec__ = ModuleSpec(name, None)
    library.init, library.log, library.finish = mock.Mock(), mock.Mock(), mock.Mock()
    monkeypatch.setitem(sys.modules, name, library)
    monkeypatch.setattr("atexit.register", lambda function: function())
    more = ("--steps", "2", "--log", name)
    assert run(*flags(tiny, tmp_path / "out", "sft", *SMALL, *more)) == 0
    given = library.init.call_args.kwargs
    assert given["name"] == "out" and given["config"]["stage"] == "sft"
    logged = [(call.kwargs["step"], call.args[0]["loss"]) for call in library.log.call_args_list]
    assert logged == [(row["step"], row["loss"]) for row in metrics(tmp_path / "out")]
    library.finish.assert_called_once_with()


def test_a_tracker_that_is_not_installed_is_one_line(tiny, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    line = refused(capsys, *flags(tiny, tmp_path / "out", "sft", *SMALL, "--log", "wandb"))
    assert "--log wandb: cannot be used" in line


def test_a_setting_of_a_reward_without_a_value_is_one_line(tiny, tmp_path, capsys):
    line = refused(capsys, *flags(tiny, tmp_path / "out", "grpo", "--reward-setting", "cache"))
    assert line == "train_da_grpo.py: --reward-setting: 'cache' is not NAME=VALUE"


@pytest.mark.parametrize("model", ["./nowhere", "/no/where", "~/nowhere", "a/b/c"])
def test_a_model_that_is_no_folder_is_one_line(model, tiny, tmp_path, capsys):
    line = refused(capsys, *flags((model, tiny[1]), tmp_path / "out", "sft"))
    assert line.endswith("is not a folder with config.json")


# ---- sampling, reward and micro-batches ----------------------------------------------------------


@pytest.fixture(scope="module")
def policy(tiny):
    return Policy(tiny[0], CPU, "float64", 4)


def test_prompts_of_one_token_are_sampled_like_others(policy):
    prompts = [[7], [9]]
    likeliest = LocalRollouts(policy, 2).sample(prompts, [0, 0], 1, 0.0)
    for prompt, group in zip(prompts, likeliest, strict=True):
        logits = policy.model(input_ids=torch.tensor([prompt])).logits[0, -1]
        assert group.ids[0][0] == logits.argmax()
    drawn = LocalRollouts(policy, 2).sample(prompts, [1, 2], 3, 1.0)
    assert [len(group.ids) for group in drawn] == [3, 3]
    logprobs = policy.logprobs([7], drawn[0].ids, 1.0).logprobs
    assert logprobs.isfinite().all() and (logprobs <= 0).all()


def test_the_completions_of_a_prompt_depend_on_its_seed_and_not_on_other_prompts(policy):
    rollouts = LocalRollouts(policy, 4)
    together = rollouts.sample([[5, 6, 7], [8]], [1, 2], 3, 1.0)
    (alone,) = rollouts.sample([[8]], [2], 3, 1.0)
    assert together[1].ids == alone.ids
    twice = rollouts.sample([[8], [8]], [2, 3], 3, 1.0)
    assert twice[0].ids == alone.ids != twice[1].ids


TWO = [SimpleNamespace(id="x"), SimpleNamespace(id="y")]


def test_an_endpoint_that_fails_in_a_reward_of_the_users_is_not_taken_for_a_file():
    failed = mock.Mock(spec=["score"], score=mock.Mock(side_effect=requests.ConnectionError("x")))
    with pytest.raises(ConfigError, match="--reward mine: example x: ConnectionError: x") as raised:
        Scorer("mine", failed).score(TWO[0], [Completion("a")])
    assert isinstance(raised.value.__cause__, requests.ConnectionError)


def test_an_example_that_the_judge_cannot_score_is_not_sent_to_the_judge():
    fails = mock.Mock(spec=["score"], score=mock.Mock(side_effect=KeyError("state")))
    with pytest.raises(ConfigError, match="--reward judge cannot score it"):
        Scorer("judge", fails).check(short_examples(1))


@pytest.mark.parametrize("reward", [0.1, 1000.1, 1e6 + 0.1])
def test_equal_rewards_teach_nothing_however_large_they_are(reward):
    """In float32 the mean of seven equal numbers is another number."""
    completions = [Group([7], [[8]] * 7, [[]] * 7, ["a"] * 7, [False] * 7)]
    same = mock.Mock(spec=["score"], score=lambda example, texts: [reward] * len(texts))
    scored = Scorer("mine", same)(TWO[:1], completions)
    advantages, informative = train_da_grpo.group_advantages(scored.rewards)
    assert not informative.any() and not advantages.any()


@pytest.mark.parametrize(("more", "sizes"), [((), {4}), (("--micro-batch", "3"), {3, 1})])
def test_a_whole_group_is_one_micro_batch_unless_the_flag_says_less(tiny, tmp_path, more, sizes):
    of_policy = Policy.logprobs
    seen = set()

    def logprobs(self, prompt, completions, temperature):
        seen.add(len(completions))
        return of_policy(self, prompt, completions, temperature)

    with mock.patch.object(Policy, "logprobs", logprobs):
        assert run(*flags(tiny, tmp_path, "grpo", *SMALL, "--steps", "1", *more)) == 0
    assert seen == sizes
    assert math.isfinite(metrics(tmp_path)[0]["loss"])
