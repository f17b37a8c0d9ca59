"""A pytest fixture `recorded`: a run that is recorded once and replayed from then on.

    def test_the_capital(recorded):
        assert recorded("What is the capital of France?", out="runs/capital").answer == "Paris"

`out` is relative to the folder of the test file. `pytest --record-mode none` never records (CI),
`once` (the default) records a missing run, `changed` makes again, of a run that no longer replays,
only the calls that differ, and fails if its answer changed, and `rewrite` records all anew.
With `decisions=True`, a changed decision fails, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    if find_spec("pytest_recording"):  # it has the same option
        return
    # recorded.MODES, without the time of its import
    modes = ("none", "once", "changed", "rewrite")
    help = "of the fixture `recorded` (once)"
    parser.addoption("--record-mode", choices=modes, help=help)


@pytest.fixture
def recorded(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """`recorded` with the --record-mode of this test session. A mistake of the user, and a run that
    differs from its recording, fail the test in at most three lines.
    """
    from orchestra.kernel.tape import TapeMiss
    from orchestra.kernel.vocabulary import ConfigError
    from orchestra.variation.recorded import Changed, in_three_lines, recorded

    mode = request.config.getoption("--record-mode") or "once"

    def of_this_test(
        question: str, media: Sequence[Any] = (), out: Path | str = "", **how: Any
    ) -> Any:
        how = {"record_mode": str(mode), **how}
        try:
            return recorded(question, media, request.path.parent / out, **how)
        except (ConfigError, TapeMiss, Changed) as error:
            problem = in_three_lines(error)
        pytest.fail(problem, pytrace=False)

    return of_this_test
