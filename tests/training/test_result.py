"""training/result.py: the four arms, on a model so small that they take seconds."""

from __future__ import annotations

import json
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed: requirements-train.txt")
pytest.importorskip("peft", reason="peft is not installed: requirements-train.txt")

from tests.conftest import ROOT  # noqa: E402
from training import minigaia, report, result, tiny  # noqa: E402
from training.examples import Example, write  # noqa: E402


def row(arm: str, seed: int, value: float) -> dict[str, str | float]:
    return {"arm": arm, "seed": seed, **dict.fromkeys(report.COLUMNS, value)}


def test_the_table_has_the_mean_and_spread_of_each_arm() -> None:
    rows = [row("untrained", 0, 0.0), *(row("SFT", s, v) for s, v in enumerate((0.1, 0.2, 0.3)))]
    rows += [row(arm, s, 0.5) for arm in report.REWARD for s in range(2)]
    rows += [row(arm, 0, 0.4) for arm in report.CONSTANT]
    head, _, *lines = report.table(rows).splitlines()
    assert head.split(" | ")[1:] == [*list(report.COLUMNS.values())[:-1], "invalid |"]
    assert [line.split(" | ")[0][2:] for line in lines] == list(report.ARMS)
    assert [line.split(" | ")[1] for line in lines] == [
        *["40.0"] * len(report.CONSTANT),
        "0.0",
        "20.0 ± 10.0",
        *["50.0 ± 0.0"] * 2,
    ]


def test_a_decision_that_was_cut_is_measured_as_one() -> None:
    (state,) = islice(minigaia.examples("held_out", 0, "brief"), 1)
    half = json.dumps(state.reference)[:-1]
    invalid = [result.figures([state], [half], cut)["invalid"] for cut in ((), [True])]
    assert invalid == [0, 1]


# ---- intervals -----------------------------------------------------------------------------------


def states(*tasks: str) -> list[Example]:
    """One state for each "template task"."""
    split = [task.split() for task in tasks]
    return [Example(f"{task}-r{n}", (), {}, {"template": t}) for n, (t, task) in enumerate(split)]


def test_an_interval_draws_tasks_within_their_templates() -> None:
    """Each template is of equals, so nothing can change; across them, the mean would."""
    apart = states("a 1", "a 2", "b 3", "b 4")
    assert report.interval([[0, 0, 1, 1]], apart) == (0.5, 0.5)
    assert report.interval([[0, 0, 1, 1]], states("a 1", "a 2", "a 3", "a 4")) == (0, 1)


def test_an_interval_draws_all_states_of_a_task_together() -> None:
    assert report.interval([[0, 1, 0, 1]], states("a 1", "a 1", "a 2", "a 2")) == (0.5, 0.5)


def test_an_interval_draws_the_seeds_too() -> None:
    """Two of two seeds: 0, a half or 1, by 1/4, 1/2 and 1/4."""
    assert report.interval([[0, 0], [1, 1]], states("a 1", "b 2")) == (0, 1)
    assert report.interval([[1, 1], [1, 1]], states("a 1", "b 2")) == (1, 1)


def test_the_differences_are_those_of_the_states_seed_by_seed() -> None:
    each: dict[str, list[list[float]]] = {arm: [[0.0, 0.0]] for arm in report.CONSTANT}
    each |= {"untrained": [[0.25, 0.25]], "SFT": [[0.5, 0.5], [0.25, 0.25]]}
    each |= {"vanilla GRPO": [[1.0, 1.0], [0.0, 0.0]], "DA-GRPO": [[0.5, 0.5], [0.5, 0.5]]}
    rows = [{"arm": a, "seed": s, "each": e} for a, of in each.items() for s, e in enumerate(of)]
    caption, _, _, _, *lines = report.differences(rows, states("a 1", "b 2")).splitlines()
    assert "over 2 tasks of 2 templates and the 2 seeds. It says nothing of other" in caption
    assert lines[len(report.CONSTANT) :] == [
        "| untrained | +25.0, +25.0 | +25.0 | +25.0 to +25.0 |",
        "| SFT | +0.0, +25.0 | +12.5 | +0.0 to +25.0 |",
        "| vanilla GRPO | -50.0, +50.0 | +0.0 | -50.0 to +50.0 |",
    ]


# ---- the runs ------------------------------------------------------------------------------------


def test_the_published_constant_policies_are_what_the_code_gives() -> None:
    states = list(islice(minigaia.examples("held_out", 0, "brief"), 96))
    text = (ROOT / "fixtures/results/minigaia/results.jsonl").read_text()
    published = {row["arm"]: row for row in map(json.loads, text.splitlines())}
    for found in result.constants(states):
        of_arm = published[str(found["arm"])]
        assert found.pop("each") == pytest.approx(of_arm.pop("each"))
        assert found == pytest.approx(of_arm)


def test_the_four_arms_are_trained_measured_and_published(tmp_path: Path) -> None:
    tiny.make_model(tiny.examples(4), tmp_path / "model")
    names = {"--model": "model", "--work": "work", "--out": "out"}
    paths = [part for flag, name in names.items() for part in (flag, str(tmp_path / name))]
    few = ["--seeds", "1", "--sft-steps", "1", "--grpo-steps", "1", "--held-out", "2"]
    assert result.main([*paths, *few]) == 0
    out = tmp_path / "out"
    rows = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
    assert [r["arm"] for r in rows] == list(report.ARMS)
    assert all(0 <= r[column] <= 1 for r in rows for column in report.COLUMNS)
    assert {p.name for p in out.glob("*-0.jsonl")} == {
        f"{n}-0.jsonl" for n in ("sft", "outcome", "rubric")
    }
    assert (out / "rubric-0" / "adapter_model.safetensors").exists()
    config = json.loads((out / "rubric-0" / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == "sft-0"
    assert len((tmp_path / "work/measured.jsonl").read_text().splitlines()) == 4
    other = [*paths, *few[:-4], "--grpo-steps", "2", "--held-out", "2"]
    assert result.main(other) == 2  # the runs in --work are of other flags


def asked(folder: Path, **more: Any) -> Any:
    return SimpleNamespace(
        work=folder, model=folder, seeds=3, workers=1, sft_steps=1, grpo_steps=1, **more
    )


@pytest.mark.parametrize("by", ["a run", "Ctrl-C"])
def test_what_has_not_begun_does_not_begin_after_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    begun: list[str] = []

    def train(a: Any, stage: str, model: Path, name: str, flags: str) -> Path:
        begun.append(name)
        time.sleep(0.2)
        if by == "a run":
            raise subprocess.CalledProcessError(4, name)
        return model

    def stopped(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(result, "train", train)
    if by == "Ctrl-C":
        monkeypatch.setattr(result, "wait", stopped)
    with pytest.raises(KeyboardInterrupt if by == "Ctrl-C" else subprocess.CalledProcessError):
        result.models(asked(tmp_path))
    assert 1 <= len(begun) <= 3  # of nine


def test_what_was_measured_is_not_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[str] = []

    def measure(model: Path, examples: Any, threads: int) -> report.Figures:
        measured.append(model.name)
        return {"reward": 0.5, "each": [0.5]}

    def rows(n: int) -> list[report.Figures]:
        states = list(islice(minigaia.examples("held_out", 0, "brief"), n))
        return list(result.measured(asked(tmp_path), made, states))

    monkeypatch.setattr(result, "measure", measure)
    monkeypatch.setattr(result, "ProcessPoolExecutor", lambda n, mp_context: ThreadPoolExecutor(n))
    made = {(arm, 0): tmp_path / arm for arm in ("SFT", "DA-GRPO")}
    for folder in made.values():
        folder.mkdir()
        (folder / "model.safetensors").write_text(folder.name)
    first = rows(2)
    assert rows(2) == first and len(measured) == 2
    (made["SFT", 0] / "model.safetensors").write_text("other weights")
    assert rows(2) == first and measured[2:] == ["SFT"]
    assert rows(1) == first and len(measured) == 5


# ---- what a user does wrong ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--seeds", "0"], "--seeds 0: give 1 or more"), (["--workers", "-1"], "--workers -1"),
        (["--sft-steps", "0"], "--sft-steps 0"), (["--held-out", "0"], "--held-out 0"),
        (["--held-out", "3"], "has only 2"), (["--held-out", "x"], "--held-out"),
        (["--work", "FILE/x"], "can not be written"), (["--out", "FILE/x"], "can not be written"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line(tmp_path: Path, capsys: Any, more: list[str], said: str) -> None:
    write(tmp_path / "work/data/held_out.jsonl", tiny.examples(2))
    (tmp_path / "file").write_text("")
    paths = ["--model", "m", "--work", str(tmp_path / "work"), "--out", str(tmp_path / "out")]
    try:
        code = result.main([*paths, *(m.replace("FILE", str(tmp_path / "file")) for m in more)])
    except SystemExit as stopped:
        code = int(str(stopped.code))
    line = capsys.readouterr().err.strip()
    assert code == 2 and said in line and "\n" not in line


def test_data_of_another_schema_is_one_line(tmp_path: Path, capsys: Any) -> None:
    data = tmp_path / "work/data/held_out.jsonl"
    write(data, tiny.examples(2))
    data.write_text(data.read_text().replace('"schema": 1', '"schema": 0'))
    paths = ["--model", "m", "--work", str(tmp_path / "work"), "--out", str(tmp_path / "out")]
    assert result.main(paths) == 2
    assert "has the schema 0" in capsys.readouterr().err.strip()


def test_data_that_can_not_be_made_ends_it_with_that_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(minigaia, "main", lambda arguments: 3)
    paths = ["--model", "m", "--work", str(tmp_path / "work"), "--out", str(tmp_path / "out")]
    assert result.main(paths) == 3
