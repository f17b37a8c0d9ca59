"""The reward of MiniGAIA: it pays nothing for what does not help."""

import pytest

from tests.scripted import complete, delegate
from tests.training.test_world import (
    BOTH,
    END,
    HEAR,
    HEARS,
    LAST,
    RUNS,
    SEARCHES,
    SEE,
    SEES,
    START,
    SUM,
    paid,
    task,
)  # fmt: skip

PHRASED = task("Compute the sum of 40 and 2.", RUNS)
NOTHING = 0.1  # of a decision that can be carried out and is of no use


@pytest.mark.parametrize(("e", "decision"), [
    (START, delegate(SEE, HEAR)), (BOTH, delegate(task("Search for Mira Osei.", SEARCHES))), (LAST, delegate(PHRASED)),
    (LAST, delegate(task("Again: compute the sum of 40 and 2.", RUNS))), (END, complete("42 apples")),
])  # fmt: skip
def test_the_reference_decision_is_paid_all(e, decision):
    assert paid(e, decision) == [1.0]


@pytest.mark.parametrize(("e", "decision"), [
    (START, delegate(task("Listen", HEARS))),  # the right tool, but nothing found
    (LAST, delegate(task("Compute 40 times what is not known.", RUNS))), (LAST, delegate(task("Add 2 to 40", RUNS))),
    (LAST, delegate(SEE)),  # found before
    (LAST, complete("42")),  # before it was found
    (LAST, complete("41")), (END, complete("41")),
    (END, delegate(PHRASED)), (END, delegate(task("Think"))),  # after it was found
    (START, delegate(task("Read x.png", SEES))),  # not needed
])  # fmt: skip
def test_what_does_not_help_is_paid_nothing(e, decision):
    assert paid(e, decision) == [NOTHING]


def test_an_operation_that_only_has_the_right_number_is_paid_nothing():
    """`product k k'` with an unknown k' passed for "taken as kilograms, in grams"."""
    from benchmarks.minigaia.tasks import Fact, MiniTask
    from benchmarks.minigaia.world import World
    from orchestra.kernel.vocabulary import Task
    from orchestra.training.examples import Example, state_row

    grams = Fact(
        "g",
        RUNS,
        (),
        ("143",),
        "Compute 143, taken as kilograms, in grams.",
        "143000",
        "143000",
        "grams",
    )
    world = World(MiniTask(Task("How heavy?", ()), (grams,), (), "seen"))
    meta = {"state": state_row(world.state()), "world": world.row(), "answer": "143000"}
    e = Example(id="e", messages=[{"role": "user", "content": "?"}], reference={}, meta=meta)
    hole = delegate(task("Compute 143 times what is not known.", RUNS))
    assert paid(e, hole) == [NOTHING]
    assert paid(e, delegate(task(grams.instruction, RUNS))) == [1.0]


@pytest.mark.parametrize(("decision", "share"), [
    (delegate(SEE), 1 / 2), (delegate(SEE, HEAR, HEAR), 2 / 3), (delegate(SEE, HEAR, task("Read x.png", SEES)), 2 / 3),
    (delegate(SEE, SEE), 1 / 4),
])  # fmt: skip
def test_a_delegation_is_paid_recall_times_precision(decision, share):
    assert paid(START, decision) == [0.1 + 0.9 * share]


def test_a_tool_too_many_costs_the_part_tool():
    both = delegate({**SEE, "tools": [SEES, HEARS]}, HEAR)
    assert paid(START, both) == [0.1 + 0.2 / 4 + 0.7]


def test_each_completion_of_a_group_gets_its_score():
    scores = paid(LAST, delegate(SUM), delegate(PHRASED), delegate(SUM), "no decision")
    assert scores == [NOTHING, 1.0, NOTHING, 0.0]
