"""What one process does: an arm with a seed, then the table and the curves of what is complete."""

from __future__ import annotations

from pathlib import Path

import torch

from orchestra.kernel.folder import write_whole
from orchestra.training.lab.curves import svg
from orchestra.training.lab.plan import Plan
from orchestra.training.lab.results import Lab
from orchestra.training.lab.table import table


def train(out: Path, plan: Plan, name: str, seed: int) -> None:
    """One arm of one seed, on one core."""
    torch.set_num_threads(1)
    lab = Lab(out, plan)
    lab.of_seed(name, seed)
    report(lab)


def report(lab: Lab) -> str:
    """Write OUT/table.md and OUT/curves.svg. Returns the table."""
    results = lab.results()
    text = table(results)
    write_whole(lab.out / "table.md", text)
    write_whole(lab.out / "curves.svg", svg(results))
    return text
