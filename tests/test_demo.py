"""The recorded case study replays, from the repository as it is."""

from __future__ import annotations

from orchestra_min import replay
from tests.conftest import ROOT


def test_the_demo_replays_to_the_recorded_answer():
    again = replay(ROOT / "fixtures" / "runs" / "equinox", parallel=3)
    assert "05:49" in again.answer
    assert (again.fallback, again.paid_usd) == (False, 0.0)
