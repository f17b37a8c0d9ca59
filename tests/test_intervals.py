"""Intervals and tests of figures, against independent computations."""

import itertools
import random
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestra.evaluation.figures import figures, pass_at_k
from orchestra.evaluation.intervals import (
    bootstrap,
    holm,
    mcnemar,
    of_accuracy,
    of_difference,
    pass_at,
    sign_flip,
    wilson,
)


@given(st.integers(1, 7), st.data())
def test_pass_at_k_is_the_share_of_draws_with_a_right_answer(n, data):
    right = data.draw(st.integers(0, n))
    k = data.draw(st.integers(1, n))
    answers = [True] * right + [False] * (n - right)
    draws = list(itertools.combinations(answers, k))
    assert pass_at(k, n, right) == pytest.approx(sum(map(any, draws)) / len(draws))


@given(st.lists(st.integers(-3, 3), max_size=9))
def test_the_sign_flip_test_is_the_share_of_all_sign_choices(differences):
    sizes = [abs(d) for d in differences if d]
    sums = [
        abs(sum(s * size for s, size in zip(signs, sizes, strict=True)))
        for signs in itertools.product((-1, 1), repeat=len(sizes))
    ]
    expected = sum(s >= abs(sum(differences)) for s in sums) / len(sums)
    assert sign_flip(differences) == pytest.approx(expected)


def test_the_sign_flip_test_without_repeats_is_mcnemars():
    assert sign_flip([1] * 9 + [-1] + [0] * 20) == mcnemar(9, 1)
    assert sign_flip([2] * 9 + [-2]) == mcnemar(9, 1)


def test_a_sign_flip_test_of_very_many_questions_takes_no_time():
    exact = sign_flip([3, 1, -1, 2] * 400)
    assert sign_flip([3, 1, -1, 2] * 10_000) < exact < 1e-9


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_rejects_what_the_step_down_procedure_rejects(ps):
    level = 0.05
    rejected = set()
    for rank, i in enumerate(sorted(range(len(ps)), key=lambda i: ps[i])):
        if (len(ps) - rank) * ps[i] > level:
            break
        rejected.add(i)
    assert {i for i, p in enumerate(holm(ps)) if p <= level} == rejected


def test_a_bootstrap_interval_covers_the_mean_about_95_times_in_100():
    chance = random.Random(1)
    covered = 0
    for _ in range(200):
        low, high = bootstrap([chance.gauss(0, 1) for _ in range(40)])
        covered += low <= 0 <= high
    assert 180 <= covered <= 198


def test_a_bootstrap_interval_is_the_same_each_time_and_that_of_a_median_holds_the_median():
    values = [random.Random(2).expovariate(1) for _ in range(50)]
    assert bootstrap(values) == bootstrap(values)
    low, high = bootstrap(values, np.median)
    assert low <= statistics.median(values) <= high


def test_repeats_of_a_question_do_not_make_an_interval_narrower():
    """Ten answers each to ten questions, all alike, say no more than one answer each."""
    rows = [
        {"id": str(q), "repeat": n, "status": "failed", "match": q < 5}
        for q in range(10)
        for n in range(1, 11)
    ]
    low, high = figures(rows, "match", "match")["interval"]
    assert high - low > 0.5
    naive_low, naive_high = wilson(50, 100)
    assert naive_high - naive_low < 0.2


def test_an_interval_without_spread_is_not_a_point():
    assert of_accuracy([0.0] * 14, repeats=3) == wilson(0, 14)
    low, high = of_difference([1.0] * 14, [1.0] * 14)
    assert low < -0.1 and high > 0.1


def test_pass_at_k_of_a_method_is_the_mean_of_its_questions():
    rows = [
        {"id": name, "repeat": n, "status": "done", "match": right}
        for name, outcomes in {"a": (1, 0), "b": (0, 0)}.items()
        for n, right in enumerate(outcomes, 1)
    ]
    assert pass_at_k(rows, "match") == {"1": 0.25, "2": 0.5}
    assert pass_at_k(rows[::2], "match") == {}
