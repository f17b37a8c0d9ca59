from __future__ import annotations

from itertools import islice

import pytest

from training.examples import Example
from training.minigaia import examples


@pytest.fixture(scope="session")
def some() -> dict[str, Example]:
    """One MiniGAIA decision of each kind, by kind, with two sub-tasks in `read`."""
    found = {}
    for e in islice(examples("train", 0, "brief"), 400):
        tasks = e.reference["params"].get("tasks", [])
        if e.meta["kind"] != "read" or len(tasks) == 2:
            found.setdefault(e.meta["kind"], e)
    return found
