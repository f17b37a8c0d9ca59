"""train_da_grpo.py on the tiny model, in this process: what several tests need. Import it after
torch.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest
import torch

import train_da_grpo
from tests.conftest import ROOT
from tests.training.driver import MORE
from training import options
from training.metrics import read as read_metrics
from training.rewards import REWARDS

Tiny = tuple[Path, Path]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
COMMON = [
    "--batch",
    "2",
    "--group",
    "4",
    "--max-tokens",
    "8",
    "--dtype",
    "float32",
    "--lr",
    "1e-2",
    "--save-every",
    "2",
]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """As in the processes that the tests start: sums depend on the number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
    torch.use_deterministic_algorithms(False)


def flags(tiny: Tiny, out: Path, stage: str, *more: str) -> list[str]:
    model, data = tiny
    paths = ["--stage", stage, "--model", str(model), "--data", str(data), "--out", str(out)]
    reward = ["--reward", "variety"] if stage == "grpo" else []
    return [*paths, *reward, *COMMON, *more]


def parsed(*arguments: str) -> argparse.Namespace:
    with mock.patch.dict(REWARDS, MORE):
        return options.parse(arguments)


def run(*arguments: str) -> int:
    with mock.patch.dict(REWARDS, MORE):
        return train_da_grpo.main(options.parse(arguments))


def metrics(out: Path) -> list[dict[str, float]]:
    """Without the time that the steps took."""
    return [
        {k: v for k, v in row.items() if k != "seconds"}
        for row in read_metrics(out / "metrics.jsonl")
    ]


def refused(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 2) -> str:
    """The one line, whether it came with the flags or with the model."""
    try:
        assert run(*arguments) == code
    except SystemExit as stopped:
        assert stopped.code == code
    line = capsys.readouterr().err.strip()
    assert "\n" not in line and line.startswith("train_da_grpo.py: ")
    return line
