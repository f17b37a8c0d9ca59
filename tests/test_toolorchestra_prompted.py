"""ToolOrchestra's prompted mode: numbered workers, called by JSON actions."""

import json
from types import SimpleNamespace

import pytest

from orchestra.kernel.vocabulary import Complete, ModelMistake, Reply
from orchestra.methods.toolorchestra_prompted import Prompted
from tests.conftest import Options, pool_at
from tests.program import Runs

STATE = SimpleNamespace(round=1, history=(), task=SimpleNamespace(media=()))


class PromptedRuns(Runs):
    def is_main(self, request):
        return request["messages"][0]["role"] == "system"


@pytest.fixture
def run(endpoint, tmp_path):
    return PromptedRuns(endpoint, tmp_path, Prompted)


def call(id, text="look it up"):
    return json.dumps({"action": "call_worker", "worker_id": id, "input": text})


def final(answer):
    return json.dumps({"action": "final_answer", "answer": answer})


def read(reply, last_chance=False):
    method = Prompted(pool_at("http://none", "one", "two"), {}, Options())
    return method.read(Reply(reply), STATE, last_chance)


def test_a_final_answer_that_is_a_number_has_its_spelling():
    assert read('{"action": "final_answer", "answer": 1.10}') == Complete("1.10")


@pytest.mark.parametrize("id, name", [(2, "two"), (1, "one"), ("2", "two")])
def test_a_worker_is_named_by_the_id_that_is_shown(id, name):
    (u,) = read(call(id)).subtasks
    assert (u.backend, u.instruction, u.agent) == (name, "look it up", "cot")


@pytest.mark.parametrize("id", [0, 3, True, None, 1.0, [1], "one"])
def test_a_place_in_the_list_or_a_bool_is_not_an_id(id):
    with pytest.raises(ModelMistake, match="unknown_worker"):
        read(call(id))


@pytest.mark.parametrize("reply, rule", [
    (call(1, " "), "empty_input"), (final(""), "empty_answer"), ('{"action": "stop"}', "bad_action"), ("42", "not_json"),
])  # fmt: skip
def test_an_action_that_cannot_be_carried_out_breaks_a_named_rule(reply, rule):
    with pytest.raises(ModelMistake, match=rule):
        read(reply)


def test_no_turns_left_means_an_answer_alone():
    with pytest.raises(ModelMistake, match="bad_action"):
        read(call(1), last_chance=True)
    assert read(final("42"), last_chance=True) == Complete("42")


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
