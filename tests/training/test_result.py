"""training/result.py: the four arms, on a model so small that they take seconds."""

import json
import subprocess
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from unittest import mock

import pytest

from tests.conftest import ROOT
from tests.training.runs import QUIET, run
from training import minigaia, report, result, tiny
from training.examples import Example, write

pytestmark = QUIET
STATES = list(islice(minigaia.examples("held_out", 0, "brief"), 96))
TINY = "--batch 2 --group 4 --lora-rank 4 --max-tokens 8 --lr 1e-3"


@pytest.fixture(autouse=True)
def in_this_process():
    """Every run with tiny settings, and no interval from 10,000 draws."""
    pool = {"ProcessPoolExecutor": lambda workers, mp_context: ThreadPoolExecutor(workers)}
    tiny = mock.patch.multiple(result, SFT=TINY, GRPO=TINY, MAX_TOKENS=8, **pool)
    with tiny, mock.patch.object(report, "RESAMPLED", 400):
        yield


# ---- the report ----------------------------------------------------------------------------------


def states(*tasks):
    """One state for each "template task"."""
    rows = enumerate(tasks)
    return [Example(f"{task}-r{n}", (), {}, {"template": task.split()[0]}) for n, task in rows]


@pytest.mark.parametrize(("values", "tasks", "interval"), [
    ([[0, 0, 1, 1]], ("a 1", "a 2", "b 3", "b 4"), (0.5, 0.5)),  # tasks within their templates
    ([[0, 0, 1, 1]], ("a 1", "a 2", "a 3", "a 4"), (0, 1)),
    ([[0, 1, 0, 1]], ("a 1", "a 1", "a 2", "a 2"), (0.5, 0.5)),  # all states of a task together
    ([[0, 0], [1, 1]], ("a 1", "b 2"), (0, 1)),  # the seeds too
])  # fmt: skip
def test_an_interval_draws_tasks_within_templates_and_seeds(values, tasks, interval):
    assert report.interval(values, states(*tasks)) == interval


@pytest.fixture
def rows():
    """Two seeds, and two states of two tasks."""
    each = {arm: [[0.0, 0.0]] for arm in report.ARMS} | {"SFT": [[0.5, 0.5], [0.25, 0.25]]}
    each |= {"vanilla GRPO": [[1.0, 1.0], [0.0, 0.0]], "DA-GRPO": [[0.5, 0.5], [0.5, 0.5]]}
    return [
        {"arm": arm, "seed": seed, "each": values, **dict.fromkeys(report.COLUMNS, values[0])}
        for arm, of_arm in each.items()
        for seed, values in enumerate(of_arm)
    ]


def test_the_differences_are_those_of_the_states_seed_by_seed(rows):
    assert "\n| SFT | 37.5 ± 17.7 |" in report.table(rows)
    caption, *_, sft, vanilla = report.differences(rows, states("a 1", "b 2")).splitlines()
    assert "over 2 tasks of 2 templates and the 2 seeds. It says nothing of other" in caption
    assert sft == "| SFT | +0.0, +25.0 | +12.5 | +0.0 to +25.0 |"
    assert vanilla == "| vanilla GRPO | -50.0, +50.0 | +0.0 | -50.0 to +50.0 |"


def test_the_published_constant_policies_are_what_the_code_gives():
    text = (ROOT / "fixtures/results/minigaia/results.jsonl").read_text()
    published = {row["arm"]: row for row in map(json.loads, text.splitlines())}
    for found in result.constants(STATES):
        each = published[found["arm"]].pop("each")
        assert found.pop("each") == pytest.approx(each)
        assert found == pytest.approx(published[found["arm"]])


# ---- the runs ------------------------------------------------------------------------------------


@pytest.fixture
def flags(tmp_path):
    """Of a result with two examples, whose runs begin."""
    for split in ("train", "held_out"):
        write(tmp_path / f"work/data/{split}.jsonl", tiny.examples(2))
    folders = [f"--{name}={tmp_path / name}" for name in ("model", "work", "out")]
    return [*folders, "--seeds=1", "--workers=1", "--sft-steps=1", "--grpo-steps=1", "--held-out=2"]


def test_the_four_arms_are_trained_measured_and_published(flags, tmp_path, monkeypatch):
    tiny.make_model(tiny.examples(2), tmp_path / "model", words=384, width=16)

    def ran(command, **_):
        if code := run(*map(str, command[2:])):
            raise subprocess.CalledProcessError(code, command)

    monkeypatch.setattr(subprocess, "run", ran)
    assert result.main(flags) == 0
    out = tmp_path / "out"
    rows = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
    assert [r["arm"] for r in rows] == list(report.ARMS)
    assert {p.name[:-8] for p in out.glob("*-0.jsonl")} == {"sft", "outcome", "rubric"}
    config = json.loads((out / "rubric-0/adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == "sft-0"
    assert result.main([*flags, "--grpo-steps=2"]) == 2  # the runs in --work are of other flags


# ---- what a user does wrong ----------------------------------------------------------------------


@pytest.mark.parametrize(("wrong", "reason"), [
    ("--seeds=0", "--seeds 0: give 1 or more"), ("--workers=-1", "--workers -1"), ("--sft-steps=0", "--sft-steps 0"),
    ("--held-out=3", "has only 2"), ("--work=FILE/x", "cannot be written"), ("--out=FILE/x", "cannot be written"),
])  # fmt: skip
def test_a_mistake_is_one_line(flags, tmp_path, capsys, wrong, reason):
    (tmp_path / "file").write_text("")
    assert result.main([*flags, wrong.replace("FILE", str(tmp_path / "file"))]) == 2
    line = capsys.readouterr().err.strip()
    assert reason in line and "\n" not in line
