"""The recorded runs replay, from the repository as it is."""

import json
import tomllib
from importlib import import_module

import pytest

from orchestra_min import replay
from tests.conftest import ROOT

RECORDED = "2023-09-23 05:49:00+00:00"  # as README shows it
FIXTURES = ROOT / "fixtures"
RUNS = tomllib.loads((FIXTURES / "runs.toml").read_text())


@pytest.mark.parametrize("name", sorted({*RUNS, *(p.name for p in (FIXTURES / "runs").iterdir())}))
def test_a_recorded_run_replays_to_the_byte(name):
    """`replay` raises where any event differs from the record."""
    flags = RUNS[name]["flags"]
    own = {}
    if ":" in flags[1]:
        own["method"] = import_module(flags[1].partition(":")[0]).Trained
    again = replay(FIXTURES / "runs" / name, parallel=2, **own)
    assert again.calls > 0 and again.paid_usd == 0.0
    assert name != "equinox" or (again.answer, again.fallback) == (RECORDED, False)


def test_every_file_of_the_recorded_lecture_was_opened_before_its_answer():
    lines = (FIXTURES / "runs" / "lecture" / "trajectory.jsonl").read_text().splitlines()
    steps = [row for row in map(json.loads, lines) if row["event"] == "step"]
    worked = [row["action"] for row in steps if not row["failed"]]
    files = {"ImageAnalysisAction", "ParseAudioAction", "VideoAnalysisAction"}
    assert worked[-1] == "finish" and {"GoogleSearchAction", *files} <= {*worked}
