"""orchestra/turns.py: the interpreter's turns while runs go on, and as they were after them."""

from __future__ import annotations

import sys

import pytest

from orchestra.turns import MANY, TURN_S, long_turns


def test_turns_are_long_until_the_last_run_has_ended() -> None:
    before = sys.getswitchinterval()
    first, second = long_turns(MANY), long_turns(MANY)
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
        with long_turns(MANY):
            assert sys.getswitchinterval() == pytest.approx(1.0)
    finally:
        sys.setswitchinterval(before)


def test_a_run_of_few_threads_leaves_them_as_they_are() -> None:
    before = sys.getswitchinterval()
    with long_turns(8):
        assert sys.getswitchinterval() == before
