"""What a user, a disk or a crash does wrong: one line each, before anything is trained or lost."""

import json
import shutil

import pytest

from tests.training.runs import QUIET, flags, metrics, options, refused, run, torch

pytestmark = QUIET
MORE = ("--steps", "2", "--lora-rank", "4", "--save-every", "1")

# ---- flags ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [
    "--temperature 0", "--temperature nan", "--steps 0", "--epochs inf", "--group 1", "--lr nan", "--lr -1",
    "--importance-cap 0", "--clip -1", "--clip-high inf", "--eval-limit 0", "--max-grad-norm 0", "--min-std nan",
    "--beta -1", "--warmup 1.5", "--seed -1", "--lora-rank 0", "--model nowhere", "--rollouts vllm", "--reward best",
    "--resume", "--epochs x", "--max-prompt 10", "--rollouts vllm --stage sft", "--rollouts vllm --vllm-url http://127.0.0.1:9",
    "--reward-setting salt=1", "--reward judge", "--reward mas",
])  # fmt: skip
def test_a_flag_that_makes_no_run_is_one_line(tiny, tmp_path, capsys, wrong):
    named = wrong.split("=")[0].split()[-1 if "=" in wrong else 0]
    line = refused(capsys, *flags(tiny, tmp_path / "out", "grpo", *wrong.split()))
    assert named in line and not (tmp_path / "out").exists()


def test_a_reward_that_scores_nothing_ends_the_run(tiny, tmp_path, capsys):
    arguments = flags(tiny, tmp_path, "grpo", "--steps", "1", "--reward", "silence")
    assert "step 1: silence scored none" in refused(capsys, *arguments, code=4)


# ---- examples ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("fields", "reason"), [
    ({"meta": {"state": None}}, "no usable state"), ({"reference": {"action": "hello"}}, "its reference is no decision"),
    ({"reference": {"reasoning": "word " * 6000}}, "fit behind"),
    ({"messages": [{"role": "user", "content": "word " * 9000}]}, "the prompt of"), ({"schema": 99}, "99"),
    ({"meta": {"evidence": [[], []]}}, "evidence for 2"), ({"meta": {"evidence": [["c.png"]]}}, "is not exact"),
])  # fmt: skip
@pytest.mark.parametrize("flag", ["--data", "--eval-data"])
def test_an_example_that_could_not_be_used_is_named(tiny, tmp_path, capsys, fields, reason, flag):
    data = tmp_path / "data.jsonl"
    row = json.loads(tiny[1].read_text().splitlines()[1])
    row |= {k: {**row[k], **v} if isinstance(v, dict) else v for k, v in fields.items()}
    data.write_text(json.dumps(row))
    line = refused(capsys, *flags(tiny, tmp_path / "out", "sft", flag, data))
    assert reason in line and str(data) in line and not (tmp_path / "out").exists()


# ---- what is on the disk -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ended(tiny, tmp_path_factory):
    """A run with checkpoints at steps 1 and 2."""
    out = tmp_path_factory.mktemp("ended") / "out"
    assert run(*flags(tiny, out, "grpo", *MORE)) == 0
    return out


@pytest.mark.parametrize("kept", [5000, None])
def test_a_damaged_checkpoint_is_passed_over(tiny, ended, tmp_path, capsys, kept):
    out = shutil.copytree(ended, tmp_path / "out")
    state = out / "checkpoints/step-000002/state.pt"
    whole = state.read_bytes()
    state.write_bytes(whole[:-1] + b"!" if kept is None else whole[:kept])
    assert run(*flags(tiny, out, "grpo", *MORE), "--resume") == 0
    assert "step-000002: is damaged; going on from step-000001" in capsys.readouterr().err
    assert metrics(out) == metrics(ended)


@pytest.mark.parametrize(("name", "text", "reason"), [
    ("metrics.jsonl", "garbage\n", "line 1: is damaged"), ("metrics.jsonl", "[1]\n", "line 1: is damaged"),
    ("metrics.jsonl", "", "lacks some of the 2 steps"), ("options.json", "", "options.json: is damaged"),
    ("options.json", "[]", "options.json: is damaged"), ("options.json", '{"old": 1}', "other values of"),
])  # fmt: skip
def test_other_damage_is_one_line(tiny, ended, tmp_path, capsys, name, text, reason):
    out = shutil.copytree(ended, tmp_path / "out")
    (out / name).write_text(text)
    assert reason in refused(capsys, *flags(tiny, out, "grpo", *MORE), "--resume")


def test_a_disk_that_is_full_at_a_checkpoint_is_one_line(tiny, tmp_path, capsys, monkeypatch):
    def full(state, file):
        raise OSError(28, "No space left on device")

    arguments = flags(tiny, tmp_path, "grpo", *MORE)
    monkeypatch.setattr(torch, "save", full)
    assert run(*arguments) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert "step-000001" in line and "No space left" in line and "--resume" in line
    assert not list((tmp_path / "checkpoints").iterdir())


def test_a_run_is_neither_overwritten_nor_resumed_as_another(tiny, ended, capsys):
    arguments = flags(tiny, ended, "grpo", *MORE)
    assert "add --resume" in refused(capsys, *arguments)
    assert "other values of seed;" in refused(capsys, *arguments, "--resume", "--seed", "5")


@pytest.mark.parametrize("changed", ["model", "eval_data"])
def test_a_resume_on_other_weights_or_held_out_examples_is_refused(tiny, tmp_path, capsys, changed):
    model = shutil.copytree(tiny[0], tmp_path / "model")
    data = shutil.copy(tiny[1], tmp_path / "data.jsonl")
    arguments = flags((model, tiny[1]), tmp_path / "out", "sft", "--eval-data", data)
    with options.settled(options.parse(arguments)):
        pass
    file = model / "model.safetensors" if changed == "model" else data
    file.write_bytes(file.read_bytes()[:-1] + b" ")
    assert f"values of {changed}_sha256;" in refused(capsys, *arguments, "--resume")


def test_two_runs_never_write_to_one_folder(tiny, tmp_path, capsys):
    arguments = flags(tiny, tmp_path, "sft")
    with options.settled(options.parse(arguments)):
        assert "another run is at work" in refused(capsys, *arguments, "--resume")
