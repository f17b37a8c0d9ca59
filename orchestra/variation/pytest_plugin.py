"""A pytest fixture `recorded`: a run that is recorded once and replayed from then on.

    def test_the_capital(recorded):
        assert recorded("What is the capital of France?", out="runs/capital").answer == "Paris"

`out` is relative to the folder of the test file. `pytest --record-mode none` never records (CI),
`once` (the default) records a missing run, `changed` makes again, of a run that no longer replays,
only the calls that differ, and fails if its answer changed, and `rewrite` records all anew.
With `decisions=True`, a changed decision fails, too.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from inspect import signature
from pathlib import Path
from typing import Any

import pytest

from orchestra.variation import MODES


def pytest_addoption(
    parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager
) -> None:
    """For a conftest.py that names this plugin: it comes after the plugins that are installed."""
    pluginmanager.register(NextToRecording(parser))
    files = [getattr(plugin, "__file__", "") for plugin in pluginmanager.get_plugins()]
    if any(file and file.endswith("conftest.py") for file in files):
        _add_option(parser)


class NextToRecording:
    """Adds our modes to the --record-mode of pytest-recording, which refuses all but its own."""

    def __init__(self, parser: pytest.Parser) -> None:
        self.parser = parser

    def pytest_plugin_registered(self, plugin_name: str) -> None:
        if plugin_name == "recording":
            for option in self.parser.getgroup("recording").options:
                if "--record-mode" in option.names():
                    choices = option.attrs()["choices"]
                    option.attrs()["choices"] = tuple(dict.fromkeys([*choices, *MODES]))


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests(
    parser: pytest.Parser,
) -> Generator[None, object, object]:
    """Once all plugins have added their options."""
    loaded = yield
    _add_option(parser)
    return loaded


def _add_option(parser: pytest.Parser) -> None:
    """--record-mode, unless another plugin has it, such as pytest-recording."""
    _, unknown = parser.parse_known_and_unknown_args(["--record-mode=none"])
    if unknown:
        help = "of the fixture `recorded` (once)"
        parser.addoption("--record-mode", choices=MODES, help=help)


@pytest.fixture
def recorded(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """`recorded` with the --record-mode of this test session. A mistake of the user, and a run that
    differs from its recording, fail the test in at most three lines.
    """
    from orchestra.kernel.tape import TapeMiss
    from orchestra.kernel.vocabulary import ConfigError
    from orchestra.variation.recorded import Changed, in_three_lines, recorded

    mode = request.config.getoption("--record-mode")
    if mode not in MODES:  # one of another plugin's
        mode = "once"

    def given(*args: Any, **named: Any) -> dict[str, Any]:
        """The arguments of a call, with the folder of the test file before `out`."""
        try:
            bound = signature(recorded).bind(*args, **named).arguments
        except TypeError as error:
            raise ConfigError(f"recorded: {error}") from None
        out = bound.get("out")
        if isinstance(out, str | Path) and out != "":
            bound["out"] = request.path.parent / out
        return {"record_mode": str(mode), **bound.pop("how", {}), **bound}

    def of_this_test(*args: Any, **named: Any) -> Any:
        try:
            return recorded(**given(*args, **named))
        except (ConfigError, TapeMiss, Changed) as error:
            problem = in_three_lines(error)
        pytest.fail(problem, pytrace=False)

    return of_this_test
