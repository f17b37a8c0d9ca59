"""ToolOrchestra's prompted mode: numbered workers, called by JSON actions."""

import json

import pytest

from orchestra.methods.toolorchestra_prompted import Worker, read_action
from orchestra.vocabulary import Complete, ModelMistake
from tests.program import Runs

METHOD = "orchestra.methods.toolorchestra_prompted:Prompted"
WORKERS = [Worker(n, f"w{n}", "d", "cot", f"b{n}") for n in (3, 1)]


@pytest.fixture
def run(endpoint, tmp_path):
    return Runs(endpoint, tmp_path, METHOD)


def call(id, text="look it up"):
    return json.dumps({"action": "call_worker", "worker_id": id, "input": text})


def final(answer):
    return json.dumps({"action": "final_answer", "answer": answer})


@pytest.mark.parametrize("id, name", [(3, "w3"), (1, "w1"), ("3", "w3")])
def test_a_worker_is_named_by_the_id_that_is_shown(id, name):
    action = read_action(call(id), WORKERS)
    assert (action.worker.name, action.input) == (name, "look it up")


@pytest.mark.parametrize("id", [0, 2, True, None, 1.0, [1], "one"])
def test_a_place_in_the_list_or_a_bool_is_not_an_id(id):
    with pytest.raises(ModelMistake, match="unknown_worker"):
        read_action(call(id), WORKERS)


@pytest.mark.parametrize("reply, rule", [
    (call(1, " "), "empty_input"), (final(""), "empty_answer"), ('{"action": "stop"}', "bad_action"), ("42", "not_json"),
])  # fmt: skip
def test_an_action_that_cannot_be_carried_out_breaks_a_named_rule(reply, rule):
    with pytest.raises(ModelMistake, match=rule):
        read_action(reply, WORKERS)


def test_no_turns_left_means_an_answer_alone():
    with pytest.raises(ModelMistake, match="bad_action"):
        read_action(call(1), WORKERS, last_chance=True)
    assert read_action(final("42"), WORKERS, last_chance=True) == Complete("42")


def test_the_results_of_workers_reach_the_next_turn(run):
    result = run(call(2, "what is x?"), final("42"), work="x is 6\nAnswer: 6", names=("one", "two"))
    assert (result.answer, result.fallback, run.models) == ("42", False, ["one", "two", "one"])
    assert "Worker 2 (two)" in run.requests[0]["messages"][0]["content"]
    assert "what is x?" in run.prompts[0] and "x is 6" in run.mains[1]


def test_after_six_turns_the_answer_is_forced(run):
    result = run(*[call(1)] * 6, final("42"))
    assert (result.answer, len(run.mains), len(run.prompts)) == ("42", 7, 6)


def test_the_second_unusable_reply_lets_worker_1_answer_with_what_was_found(run):
    work = lambda t: f"Answer: {'a clue' in t}" if "clue" in t else "a clue"  # noqa: E731
    result = run(call(2), "hm", "hm", work=work, names=("one", "two"))
    assert (result.answer, result.fallback, run.models[-1]) == ("True", True, "one")
