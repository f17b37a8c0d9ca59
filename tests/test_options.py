"""Options: one definition for the library, the command line and run.json."""

from __future__ import annotations

import re

import pytest

from runtime.command_line import parse
from tests.conftest import ConfigError, Options

BAD = ["rounds=0", "steps=x", "parallel=-1", "budget=nan", "timeout=0", "patience=-1",
       "stop-threshold=1.5", "context=all", "sub-agent=x", "mode=x", "dom=mid"]  # fmt: skip


@pytest.mark.parametrize("flag", BAD)
def test_a_bad_value_is_one_line_that_names_its_flag(flag):
    with pytest.raises(ConfigError) as error:
        parse(["?", f"--{flag}"])
    assert re.fullmatch(rf"--{flag.partition('=')[0]}: .*", str(error.value))


def test_a_command_line_without_flags_has_the_defaults_of_the_library():
    a = parse(["?"])
    assert a.options == Options() and a.given == {}


def test_options_read_back_from_run_json_are_the_same():
    options = parse(["?", "--budget=.5", "--tools=mine.py:f", "--mcp=serve"]).options
    assert Options(**options.model_dump(mode="json")) == options
