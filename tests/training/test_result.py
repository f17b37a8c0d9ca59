"""training/result.py: the four arms, on a model so small that they take seconds."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed: requirements-train.txt")
pytest.importorskip("peft", reason="peft is not installed: requirements-train.txt")

from tests.conftest import ROOT  # noqa: E402
from training import minigaia, result, tiny  # noqa: E402


def row(arm: str, seed: int, value: float) -> dict[str, str | float]:
    return {"arm": arm, "seed": seed, **dict.fromkeys(result.COLUMNS, value)}


def test_the_table_has_the_mean_and_spread_of_each_arm() -> None:
    rows = [row("untrained", 0, 0.0), *(row("SFT", s, v) for s, v in enumerate((0.1, 0.2, 0.3)))]
    rows += [row(arm, s, 0.5) for arm in result.REWARD for s in range(2)]
    rows += [row(arm, 0, 0.4) for arm in result.CONSTANT]
    head, _, *lines = result.table(rows).splitlines()
    assert head.split(" | ")[1:] == [*list(result.COLUMNS.values())[:-1], "invalid |"]
    assert [line.split(" | ")[0][2:] for line in lines] == list(result.ARMS)
    assert [line.split(" | ")[1] for line in lines] == [
        *["40.0"] * 2,
        "0.0",
        "20.0 ± 10.0",
        *["50.0 ± 0.0"] * 2,
    ]


def test_the_published_constant_policies_are_what_the_code_gives() -> None:
    states = list(islice(minigaia.examples("held_out", 0, "brief"), 64))
    text = (ROOT / "fixtures/results/minigaia/results.jsonl").read_text()
    published = {row["arm"]: row for row in map(json.loads, text.splitlines())}
    for found in result.constants(states):
        assert found == pytest.approx(published[str(found["arm"])])


def test_the_four_arms_are_trained_measured_and_published(tmp_path: Path) -> None:
    tiny.make_model(tiny.examples(4), tmp_path / "model")
    names = {"--model": "model", "--work": "work", "--out": "out"}
    paths = [part for flag, name in names.items() for part in (flag, str(tmp_path / name))]
    few = ["--seeds", "1", "--sft-steps", "1", "--grpo-steps", "1", "--held-out", "2"]
    assert result.main([*paths, *few]) == 0
    out = tmp_path / "out"
    rows = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
    assert [r["arm"] for r in rows] == list(result.ARMS)
    assert all(0 <= r[column] <= 1 for r in rows for column in result.COLUMNS)
    assert {p.name for p in out.glob("*-0.jsonl")} == {
        f"{n}-0.jsonl" for n in ("sft", "outcome", "rubric")
    }
    assert (out / "rubric-0" / "adapter_model.safetensors").exists()
    config = json.loads((out / "rubric-0" / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == "sft-0"
    other = [*paths, *few[:-4], "--grpo-steps", "2", "--held-out", "2"]
    assert result.main(other) == 2  # the runs in --work are of other flags
