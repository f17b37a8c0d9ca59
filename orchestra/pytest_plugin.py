"""A pytest fixture `recorded`: a run that is recorded once and replayed from then on.

    def test_the_capital(recorded):
        assert recorded("What is the capital of France?", out="runs/capital").answer == "Paris"

`pytest --record-mode none` never records (CI), `once` (the default) records a missing run,
`rewrite` records all anew.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    if find_spec("pytest_recording"):  # it has the same option
        return
    modes = (
        "none",
        "once",
        "rewrite",
    )  # recorded.MODES, without the time of its import
    help = "of the fixture `recorded` (once)"
    parser.addoption("--record-mode", choices=modes, help=help)


@pytest.fixture
def recorded(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """`recorded` with the --record-mode of this test session."""
    from orchestra.recorded import recorded

    mode = request.config.getoption("--record-mode") or "once"
    return partial(recorded, record_mode=str(mode))
