"""Games of a strong main agent with the default method: what the released system does, ours does."""

import pytest

from orchestra.kernel.folder import read_events
from tests.program import CLOCK
from tests.scripted import act, complete, delegate, finish, is_main, last_text

SEARCH = "GoogleSearchAction"


def task(instruction, **fields):
    return {"task_instruction": instruction, "context": "", "model": "auto", "tools": [], **fields}


@pytest.fixture
def play(run):
    """`play(*decisions, work=...)`: the decisions in order, and what each sub-task replies. Returns
    the outcome, and the events of its sub-tasks' results by round.
    """

    def play(*decisions, work=lambda text: finish("seen"), **how):
        left = iter(decisions)
        respond = lambda r: next(left) if is_main(r) else work(last_text(r))  # noqa: E731
        outcome = run(respond=respond, **how)
        rounds = {}
        for event in read_events(run.folder):
            if event["event"] == "result":
                rounds.setdefault(event["at"][0], []).append(event)
        return outcome, rounds

    play.mains = lambda: run.mains
    return play


def test_twelve_sub_tasks_of_one_delegation_all_run_in_its_round(play):
    outcome, rounds = play(delegate(*(task(f"look at {n}") for n in range(12))), complete("42"))
    assert (outcome.answer, outcome.rounds) == ("42", 2)
    assert len(rounds[1]) == 12 and len(rounds) == 1


@pytest.mark.parametrize("media", [(), (CLOCK,)])
def test_an_answer_at_once_is_taken(media, play):
    outcome, rounds = play(complete("Prague"), media=media)
    assert (outcome.answer, outcome.state, outcome.calls, rounds) == ("Prague", "answered", 1, {})


def test_a_right_answer_without_the_assigned_tool_is_done(play):
    given = delegate(task("What is 6 * 7?", tools=[SEARCH]))
    outcome, rounds = play(given, complete("42"), work=lambda text: finish("42"))
    (z,) = rounds[1]
    assert (z["status"], z["answer"], z["error"], outcome.answer) == ("done", "42", "", "42")


def test_ten_rounds_with_long_reports_reach_the_last_decision_whole(play):
    report = "It rained in the town of Aurora on day {}. " * 20
    decisions = [delegate(task(f"day {n}")) for n in range(9)]
    work = lambda text: finish(report.format(*["seven"] * 20), summary="The rain was heavy. " * 30)  # noqa: E731
    outcome, rounds = play(*decisions, complete("42"), work=work)
    assert (outcome.answer, outcome.rounds, len(rounds)) == ("42", 10, 9)
    last = play.mains()[-1]
    assert all(f"day {n}" in last for n in range(9)) and last.count("The rain was heavy.") == 9 * 30


def test_a_failed_sub_task_can_be_given_again_with_another_instruction(play):
    work = lambda text: finish("found") if "new way" in text else finish("", "blocked", "no way")  # noqa: E731
    outcome, rounds = play(
        delegate(task("old way")), delegate(task("new way")), complete("7"), work=work
    )
    assert [rounds[n][0]["status"] for n in (1, 2)] == ["blocked", "done"]
    assert outcome.answer == "7" and "no way" in play.mains()[1]


def test_a_partial_result_may_be_enough(play):
    outcome, _ = play(
        delegate("look"), complete("half"), work=lambda text: finish("half", "partial")
    )
    assert (outcome.answer, outcome.state, outcome.failed_subtasks) == ("half", "answered", 0)


def test_dependent_work_comes_in_the_next_round_and_reads_what_was_found(play):
    read = []

    def work(text):
        read.append(text)
        return finish("Prague" if "city" in text else "Czech")

    outcome, _ = play(
        delegate("Which city?"), delegate(task("Which country?")), complete("Czech"), work=work
    )
    assert outcome.answer == "Czech" and "Prague" in read[-1]


def test_the_model_that_is_named_does_the_task(play, run):
    named = delegate(task("a", model="small"), task("b", model="large"))
    play(named, complete("1"), names=("small", "large"))
    assert sorted(m for r, m in zip(run.requests, run.models, strict=True) if not is_main(r)) == [
        "large",
        "small",
    ]


def test_the_same_delegation_again_runs_again(play):
    outcome, rounds = play(delegate("look"), delegate("look"), complete("42"))
    assert (len(rounds), outcome.answer) == (2, "42")


def test_many_steps_of_one_kind_are_allowed(play):
    steps = iter([act(SEARCH, query=f"q{n}") for n in range(9)] + [finish("found")])
    outcome, rounds = play(
        delegate(task("search", tools=[SEARCH])), complete("x"), work=lambda t: next(steps)
    )
    assert (outcome.answer, rounds[1][0]["status"], rounds[1][0]["steps"]) == ("x", "done", 10)


@pytest.mark.parametrize(("answer", "taken"), [
    ("two\nlines", "two\nlines"), (42, "42"), (1.5, "1.5"), (["a", "b"], '["a", "b"]'),
])  # fmt: skip
def test_an_answer_of_any_kind_is_taken_as_it_stands(answer, taken, play):
    assert play(complete(answer))[0].answer == taken


def test_after_ten_delegations_there_is_one_more_chance_and_it_is_a_fallback(play):
    outcome, rounds = play(*[delegate(f"look {n}") for n in range(10)], complete("42"))
    assert (outcome.answer, outcome.state, len(rounds)) == ("42", "fallback", 10)
