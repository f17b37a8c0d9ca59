"""What a user, a disk or a crash does wrong: one line each, before anything is trained or lost."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: requirements-train.txt")
pytest.importorskip("peft", reason="peft is not installed: requirements-train.txt")

import train_da_grpo  # noqa: E402
from orchestra.vocabulary import ConfigError  # noqa: E402
from tests.training.runs import (  # noqa: E402, F401
    Tiny,
    flags,
    metrics,
    one_thread,
    parsed,
    refused,
    run,
)
from training import options, ranks  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")

# ---- flags ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        "--temperature 0", "--temperature nan", "--steps 0", "--steps -3", "--epochs inf", "--epochs -4", "--group 1",
        "--lr nan", "--lr -1", "--importance-cap 0", "--clip -1", "--clip-high inf", "--eval-limit 0", "--max-grad-norm 0",
        "--min-std nan", "--beta -1", "--warmup 1.5", "--lr-floor -1", "--seed -1", "--lora-rank 0",
    ],
)  # fmt: skip
def test_a_number_that_makes_no_run_is_one_line(
    tiny: Tiny, tmp_path: Path, capsys: Any, wrong: str
) -> None:
    assert refused(capsys, *flags(tiny, tmp_path, "grpo", *wrong.split())).startswith(
        f"train_da_grpo.py: {wrong.split()[0]} "
    )


def test_sft_from_a_server_is_one_line(tiny: Tiny, tmp_path: Path, capsys: Any) -> None:
    line = refused(capsys, *flags(tiny, tmp_path, "sft", "--rollouts", "vllm"))
    assert "SFT samples nothing" in line


@pytest.mark.parametrize(
    ("reward", "setting"),
    [
        ("judge", ""), ("judge", "tries=0"), ("judge", "tries=x"), ("mas", "w_exec=abc"), ("mas", "w_exec=NaN"),
        ("mas", "parse=xml"), ("toolorchestra", "preference=[1]"), ("toolorchestra", 'cost_usd={"a": Infinity}'),
    ],
)  # fmt: skip
def test_a_reward_that_can_not_be_made_leaves_no_run(
    tiny: Tiny, tmp_path: Path, capsys: Any, reward: str, setting: str
) -> None:
    out, common = tmp_path / "out", ["--steps", "1", "--reward", reward]
    judge = [f"base_url=http://127.0.0.1:9/v1\ncache={tmp_path}/j"] if "tries" in setting else []
    settings = [s for s in "\n".join([*judge, setting]).split("\n") if s]
    more = [part for s in settings for part in ("--reward-setting", s)]
    assert setting.split("=")[0] in refused(capsys, *flags(tiny, out, "grpo", *common, *more))
    assert not out.exists()


def test_a_reward_that_scores_nothing_ends_the_run(tiny: Tiny, tmp_path: Path, capsys: Any) -> None:
    arguments = flags(tiny, tmp_path, "grpo", "--steps", "1", "--reward", "silence")
    assert "step 1: silence scored none" in refused(capsys, *arguments, code=4)


# ---- examples ------------------------------------------------------------------------------------


def changed(tiny: Tiny, folder: Path, text: str, **fields: Any) -> Path:
    """The examples, the second one with other fields."""
    first, second, *_ = tiny[1].read_text().splitlines()
    row = json.loads(second)
    for name, value in fields.items():
        row[name] = {**row[name], **value} if isinstance(value, dict) else value
    (folder / "data.jsonl").write_text(f"{first}\n{json.dumps(row) + text}\n", encoding="utf-8")
    return folder / "data.jsonl"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"meta": {"state": None}}, "no usable state"),
        ({"meta": {"evidence": 5}}, "no usable evidence"),
        ({"meta": {"evidence": [[], [], []]}}, "evidence for 3 sub-tasks"),
        ({"reference": {"action": "hello"}}, "its reference is no decision"),
        ({"reference": {"reasoning": "word " * 6000}}, "fit behind"),
        ({"messages": [{"role": "user", "content": "a\ud800b"}]}, "half a character"),
        ({"schema": True}, "the schema True"),
    ],
)  # fmt: skip
def test_an_example_that_could_not_be_used_is_named_before_training(
    tiny: Tiny, tmp_path: Path, capsys: Any, fields: Any, said: str
) -> None:
    data = changed(tiny, tmp_path, "", **fields)
    line = refused(capsys, *flags((tiny[0], data), tmp_path / "out", "sft"))
    assert said in line and str(data) in line and not (tmp_path / "out").exists()


def test_a_state_of_odd_types_is_named(tiny: Tiny, tmp_path: Path, capsys: Any) -> None:
    state = json.loads(tiny[1].read_text().splitlines()[1])["meta"]["state"]
    data = changed(tiny, tmp_path, "", meta={"state": {**state, "round": "x"}})
    line = refused(capsys, *flags((tiny[0], data), tmp_path / "out", "grpo"))
    assert "round: Input should be a valid integer" in line


def test_a_held_out_prompt_that_is_too_long_is_named_by_its_file(
    tiny: Tiny, tmp_path: Path, capsys: Any
) -> None:
    long = changed(tiny, tmp_path, "", messages=[{"role": "user", "content": "word " * 9000}])
    line = refused(capsys, *flags(tiny, tmp_path / "out", "grpo", "--eval-data", str(long)))
    assert line.startswith(f"train_da_grpo.py: {long}: the prompt of ")


def test_a_byte_order_mark_is_no_mistake(tiny: Tiny, tmp_path: Path) -> None:
    data = tmp_path / "data.jsonl"
    data.write_bytes(b"\xef\xbb\xbf" + tiny[1].read_bytes())
    assert run(*flags((tiny[0], data), tmp_path / "out", "sft", "--steps", "1")) == 0


# ---- what is on the disk -------------------------------------------------------------------------

MORE = ("--steps", "2", "--lora-rank", "4", "--save-every", "1")


@pytest.fixture(scope="module")
def ended(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with checkpoints at steps 1 and 2."""
    out = tmp_path_factory.mktemp("ended") / "out"
    assert run(*flags(tiny, out, "grpo", *MORE)) == 0
    return out


@pytest.mark.parametrize("damage", ["half", "gone", "a bit"])
def test_a_damaged_checkpoint_is_passed_over(
    tiny: Tiny, ended: Path, tmp_path: Path, capsys: Any, damage: str
) -> None:
    out = shutil.copytree(ended, tmp_path / "out")
    state = out / "checkpoints/step-000002/state.pt"
    whole = state.read_bytes()
    flipped = whole[:5000] + bytes([whole[5000] ^ 1]) + whole[5001:]
    state.write_bytes(flipped if damage == "a bit" else whole[: len(whole) // 2])
    if damage == "gone":
        state.unlink()
    assert run(*flags(tiny, out, "grpo", *MORE), "--resume") == 0
    assert "step-000002: is damaged; going on from step-000001" in capsys.readouterr().err
    assert metrics(out) == metrics(ended)


def test_damage_that_can_not_be_passed_over_is_one_line(
    tiny: Tiny, ended: Path, tmp_path: Path, capsys: Any
) -> None:
    def line(name: str, text: str | None) -> str:
        out = shutil.copytree(ended, tmp_path / "out", dirs_exist_ok=True)
        (out / name).unlink() if text is None else (out / name).write_text(text)
        return refused(capsys, *flags(tiny, out, "grpo", *MORE), "--resume")

    options_ = json.loads((ended / "options.json").read_text())
    assert "metrics.jsonl, line 1: is damaged" in line("metrics.jsonl", "garbage\n")
    assert "metrics.jsonl, line 1: is damaged" in line("metrics.jsonl", "[1]\n")
    assert "lacks some of the 2 steps" in line("metrics.jsonl", None)
    assert "options.json: is damaged" in line("options.json", "")
    assert "options.json: is damaged" in line("options.json", "[]")
    assert "other values of old;" in line("options.json", json.dumps({**options_, "old": 1}))


def test_a_disk_that_is_full_at_a_checkpoint_is_one_line(
    tiny: Tiny, tmp_path: Path, capsys: Any, monkeypatch: Any
) -> None:
    def full(state: Any, file: Any) -> None:
        raise OSError(28, "No space left on device")

    arguments = flags(tiny, tmp_path, "grpo", "--steps", "2")
    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", full)
        assert run(*arguments) == 2
    line = capsys.readouterr().err.strip().splitlines()[-1]
    assert "step-000002" in line and "No space left" in line and "--resume" in line
    assert not list((tmp_path / "checkpoints").iterdir())
    assert run(*arguments, "--resume") == 0


def test_the_options_of_a_run_are_written_once(tiny: Tiny, ended: Path) -> None:
    before = (ended / "options.json").stat()
    assert run(*flags(tiny, ended, "grpo", *MORE), "--resume") == 0
    after = (ended / "options.json").stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_a_resume_on_other_weights_or_held_out_examples_is_refused(
    tiny: Tiny, tmp_path: Path
) -> None:
    model, data = shutil.copytree(tiny[0], tmp_path / "model"), tmp_path / "data.jsonl"
    held_out = shutil.copy(tiny[1], data)
    arguments = flags((model, tiny[1]), tmp_path / "out", "grpo", "--eval-data", str(held_out))

    def said(*more: str) -> str:
        try:
            with options.settled(parsed(*arguments, *more)):
                return ""
        except ConfigError as error:
            return str(error)

    assert said() == said("--resume") == ""
    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"!")
    assert "other values of model_sha256;" in said("--resume")
    data.write_text(data.read_text() + "\n")
    assert "other values of eval_data_sha256, model_sha256;" in said("--resume")


def test_two_runs_never_write_to_one_folder(tiny: Tiny, tmp_path: Path, capsys: Any) -> None:
    arguments = flags(tiny, tmp_path, "grpo", *MORE)
    with options.settled(parsed(*arguments)):
        assert "another run is at work" in refused(capsys, *arguments, "--resume")
    assert run(*arguments, "--resume") == 0


# ---- several processes ---------------------------------------------------------------------------


def test_what_one_of_several_processes_met_is_said(monkeypatch: Any, capsys: Any) -> None:
    def meets(o: Any) -> None:
        raise ConfigError("the disk of this one is gone")

    monkeypatch.setattr(ranks, "rank", lambda: 1)
    monkeypatch.setattr(train_da_grpo, "train", meets)
    assert train_da_grpo.main(None) == 2  # type: ignore[arg-type]
    assert capsys.readouterr().err == "train_da_grpo.py: the disk of this one is gone\n"
