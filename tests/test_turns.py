"""orchestra/turns.py: the interpreter's turns while runs go on, and as they were after them."""

from __future__ import annotations

import sys

import pytest

from orchestra.turns import TURN_S, long_turns


def test_turns_are_long_until_the_last_run_has_ended() -> None:
    before = sys.getswitchinterval()
    first, second = long_turns(), long_turns()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert sys.getswitchinterval() == pytest.approx(TURN_S)
    second.__exit__(None, None, None)
    assert sys.getswitchinterval() == pytest.approx(before)


def test_longer_turns_of_the_host_program_stay() -> None:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1.0)
    try:
        with long_turns():
            assert sys.getswitchinterval() == pytest.approx(1.0)
    finally:
        sys.setswitchinterval(before)
