"""fixtures/text_lab.py: every stage of the recipe on JSON text, on a model so small that they take seconds."""

import json
from types import SimpleNamespace
from unittest import mock

import pytest

from fixtures import intervals, text_lab
from orchestra.training.examples import read
from orchestra.training.rewards import Completion, make
from tests.training.conftest import make_model
from tests.training.runs import QUIET, run, torch

pytestmark = QUIET


def in_this_process(command, check):
    """The command line of train_da_grpo.py, without the seconds of a new process."""
    assert command[1] == text_lab.TRAINER and command[1].is_file()
    return SimpleNamespace(returncode=run(*map(str, command[2:]), "--dtype", "float32"))


def test_the_demonstrator_is_imitated_as_json_and_exact_pays_for_it():
    found = list(text_lab.demonstrations(30))
    scores = [make("exact").score(e, [Completion(json.dumps(e.reference))])[0] for e in found]
    assert all(score.valid for score in scores)
    assert 0.3 < sum(score.total == 1 for score in scores) / len(scores) < 1  # it is imperfect
    assert found[0].messages[-1]["content"].startswith("Question: ")


def test_a_dry_run_goes_through_every_stage_and_a_stopped_one_continues(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(torch, "use_deterministic_algorithms", lambda on: None)
    monkeypatch.setattr(intervals, "RESAMPLED", 100)
    make_model(list(text_lab.demonstrations(4)), tmp_path / "model")
    out = tmp_path / "out"
    flags = [f"--model={tmp_path}/model", f"--out={out}", "--dry-run"]
    with mock.patch.object(text_lab.subprocess, "run", side_effect=KeyboardInterrupt):
        assert text_lab.main(flags) == 130
    with mock.patch.object(text_lab.subprocess, "run", side_effect=in_this_process) as trainer:
        assert text_lab.main(flags) == 0
        assert text_lab.main(flags) == 0
    assert trainer.call_count == 3  # the start, DA-GRPO and longer imitation, once each
    states = read(out / "states.jsonl")
    assert {e.meta["state"]["round"] for e in states} == set(range(1, 9))  # it decided nothing
    table = (out / "table.md").read_text().splitlines()
    titles = [*text_lab.FIXED.values(), *text_lab.ARMS.values()]
    assert [row.split(" | ")[0] for row in table[2:]] == [f"| {title}" for title in titles]
    assert table[2].startswith("| expert | 100.00 | 0.00 |")
    assert text_lab.main(flags[:2]) == 2
    assert "another model, seed or size" in capsys.readouterr().err


def test_a_training_that_fails_ends_it_with_its_exit_code(tmp_path):
    failed = SimpleNamespace(returncode=2)
    flags = ["--model=none", f"--out={tmp_path}/out", "--dry-run"]
    with (
        mock.patch.object(text_lab.subprocess, "run", return_value=failed),
        pytest.raises(SystemExit) as stopped,
    ):
        text_lab.main(flags)
    assert stopped.value.code == 2
