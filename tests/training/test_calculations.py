"""What arithmetic in a text comes to."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from training.calculations import values


@pytest.mark.parametrize(
    ("text", "comes_to"),
    [
        ("Compute 16 * 7 + 388.", [500]), ("307cm - 294 cm", [13]), ("1,000 + 1", [1001]), ("1.5 × 2", [3]),
        ("(see 307 − 294)", [13]), ("(3 + 4) * 2, then 1 – 2", [14, -1]), ("7 times 16 plus 388", [500]),
        ("07:30 + 45 minutes", []), ("on 2024-05-03", []), ("clip_3.mp4 - 4", []), ("https://a.example/3-4", []),
        ("well-formed 35 152 +", []), ("5 / 0", []), ("9 ** 9", []), ("(" * 500 + "1 + 1" + ")" * 500, []),
    ],
)  # fmt: skip
def test_what_a_text_comes_to(text: str, comes_to: list[int]) -> None:
    assert values(text) == set(comes_to)


@given(st.text() | st.text("0123456789 +-*/().,:x"))
@settings(max_examples=300, deadline=None)
def test_no_text_makes_it_raise(text: str) -> None:
    values(text)
