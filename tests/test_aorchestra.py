"""AOrchestra end to end: one 4-tuple a turn, and its context ablation."""

import json

import pytest

from tests.conftest import needs_sandbox
from tests.program import CLOCK, runs
from tests.scripted import Raw, complete, delegate, finish


def tuple4(instruction, **fields):
    params = {"task_instruction": instruction, "context": "", "model": "auto", "tools": []}
    return json.dumps({"action": "delegate_task", "reasoning": "r", "params": params | fields})


FOUND = finish("found it")
run = runs("aorchestra")


@needs_sandbox
def test_the_model_and_tools_of_the_tuple_do_the_task(run):
    task = tuple4("a", model="large", tools=["ExecuteCodeAction"])
    run(task, complete("1"), work=FOUND, names=("small", "large"), steps=1)
    assert run.models == ["small", "large", "small"]
    system = run.requests[1]["messages"][0]["content"]
    assert "ExecuteCodeAction(" in system and "ImageAnalysisAction(" not in system


@pytest.mark.parametrize("context, shared, kept_back", [
    ("curated", "KNOWN", "found it"), ("none", "Nothing more", "KNOWN"), ("full", "found it", "KNOWN"),
])  # fmt: skip
def test_context_is_shared_as_the_option_says(context, shared, kept_back, run):
    decisions = delegate("first"), tuple4("second", context="KNOWN"), complete("42")
    result = run(*decisions, work=FOUND, context=context)
    assert (result.answer, result.fallback, result.rounds, result.calls) == ("42", False, 3, 5)
    assert "[Round 1] first" in run.mains[2] and "[Round 2] second" in run.mains[2]
    assert shared in run.prompts[1] and kept_back not in run.prompts[1]


@pytest.mark.parametrize("bad, told", [
    ("no json", "holds no JSON object"), (tuple4("a", model="gpt-9"), "no model 'gpt-9'"), (tuple4("a", tools=["Nothing"]), "no tool 'Nothing'"),
    (tuple4(""), "task_instruction"), (delegate("a", "b"), "2 tasks in one decision"), (complete(""), '"answer" is empty'),
])  # fmt: skip
def test_a_mistake_is_shown_to_the_main_agent(bad, told, run):
    result = run(bad, complete("42"))
    assert (result.answer, result.rounds) == ("42", 1) and told in run.mains[1]


def test_complete_is_refused_before_anything_is_delegated_on_a_task_with_files(run):
    fails = Raw(400, {"error": {"message": "broken"}})
    decisions = complete("guess"), tuple4("look"), complete("42")
    assert run(*decisions, work=fails, media=[CLOCK]).answer == "42"
    assert "Status: failed" in run.mains[2] and "broken" in run.mains[2]
