"""fixtures/experiment.py: the arms, on a model so small that they take seconds."""

import shutil
from unittest import mock

import pytest

import train_da_grpo
from fixtures import experiment, intervals
from tests.training.conftest import make_model, short_examples
from tests.training.runs import QUIET, torch

pytestmark = QUIET
TINY = "--batch 2 --lora-rank 4 --max-tokens 8 --lr 1e-3 --dtype float32 --no-checkpointing"
QUICK = {
    "MAX_TOKENS": 8, "EXAMPLES": 8, "SFT": f"{TINY} --stage sft",
    "GRPO": f"{TINY} --stage grpo --group 2 --rollouts local",
}  # fmt: skip


def test_the_arms_are_trained_and_compared_and_a_stopped_run_goes_on(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(torch, "use_deterministic_algorithms", lambda on: None)
    make_model(short_examples(4), tmp_path / "model")
    flags = f"--model={tmp_path}/model --out={tmp_path}/out --seeds=1 --tasks=2 --sft-steps=1"
    flags = [*flags.split(), "--grpo-steps=1"]
    monkeypatch.setattr(intervals, "RESAMPLED", 100)
    with mock.patch.multiple(experiment, **QUICK):
        with mock.patch.object(train_da_grpo, "main", side_effect=KeyboardInterrupt):
            assert experiment.main(flags) == 130
        with mock.patch.object(train_da_grpo, "main", side_effect=train_da_grpo.main) as trained:
            assert experiment.main(flags) == 0
            shutil.rmtree(tmp_path / "out/sft-0")
            assert experiment.main(flags) == 0
        assert trained.call_count == 4  # what is played is not trained again
        assert experiment.main([*flags, "--grpo-steps=2"]) == 2
    assert "another grpo_steps" in capsys.readouterr().err
    arms = [*experiment.FIXED, "SFT", "DA-GRPO", "GRPO, outcome", "SFT, longer", "untrained"]
    table = (tmp_path / "out/table.md").read_text()
    assert [row.split(" | ")[0] for row in table.splitlines()[2:]] == [f"| {a}" for a in arms]
    assert "| expert | 100.00 | 100.00 | 100.00 | 0.00 | 1.00 |" in table
    assert "-100.0 to -100.0" in table


@pytest.mark.parametrize(("gaps", "expected"), [
    ([[0, 0, 100, 100]], (0, 100)), ([[50, 50], [50, 50]], (50, 50)), ([[0, 0], [100, 100]], (0, 100)),  # seeds too
])  # fmt: skip
def test_an_interval_draws_tasks_and_seeds(gaps, expected):
    with mock.patch.object(intervals, "RESAMPLED", 1000):
        assert intervals.interval(gaps) == expected
