"""orchestra/masbench.py: its problems, solved again from their text alone."""

import re
from random import Random

import pytest

from orchestra import masbench


@pytest.mark.parametrize("value", [2, 7, 12])
@pytest.mark.parametrize("axis", masbench.AXES)
def test_a_masbench_problem_has_its_axis_at_the_value(axis, value):
    text, answer = masbench.problem(axis, value, Random(value))
    formulas = re.findall(r"^The counter (\w+) is (.*)\.$", text, re.M)
    terms = {name: re.findall(r"(\d+) times the counter (\w+)", f) for name, f in formulas}
    asked = re.findall(r"\w+", re.findall(r"of the counters? (.*)\?", text)[-1])
    values = {name: int(f) for name, f in formulas if f.isdecimal()}

    def solved(name):  # by the text alone
        summed = sum(int(factor) * solved(need) for factor, need in terms.get(name, ()))
        return (values.get(name, 0) + summed) % masbench.MODULUS

    def depth(name):
        return 1 + max((depth(need) for _, need in terms.get(name, ())), default=0)

    measured = {
        "depth": max(map(depth, asked)), "horizon": len(asked), "breadth": len({n for _, n in terms[asked[-1]]}),
        "parallel": len(asked), "robustness": text.count("A visitor claims"),
    }  # fmt: skip
    assert measured[axis] == value and answer == [solved(name) for name in asked]
