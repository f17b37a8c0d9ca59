"""y_t from any reply: the forms of shared/wire-formats.md, section 1, and each mistake by name."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestra.vocabulary import Complete, Delegate, Evidence, Media, ModelMistake, State, Task
from orchestrators.orchestra_o1 import MAX_SUBTASKS, decision_schema, parse_decision
from tests.scripted import complete, delegate

STATE = State(
    task=Task("What time is it?"),
    context="",
    history=(),
    backends=("small", "large"),
    tools=("ImageAnalysisAction", "ExecuteCodeAction"),
    round=1,
    rounds=10,
)
CLOCK = Media("image", "clock.png", Path("/n"), "")
LOOK = {"task_instruction": "Look at clock.png"}


def evidence(id: str, status: str = "done") -> Evidence:
    return Evidence(1, id, "i", "small", (), status, "a", "s")


def parsed(reply: str, state: State = STATE) -> Complete | Delegate:
    return parse_decision(reply, state)


def one(**fields):
    """The one sub-task of a delegation whose task has these fields too."""
    (u,) = parsed(delegate({**LOOK, **fields})).subtasks
    return u


def mistake(reply: str, state: State = STATE, cut: bool = False) -> str:
    with pytest.raises(ModelMistake) as caught:
        parse_decision(reply, state, cut)
    return str(caught.value)


# ---- the plain format ----------------------------------------------------------------------------


def test_a_delegation_in_the_papers_format_is_read_whole():
    task = {**LOOK, "context": "Prague", "model": "large", "tools": ["ImageAnalysisAction"]}
    decision = parsed(delegate(task, LOOK))
    u = decision.subtasks[0]
    assert (u.instruction, u.context, u.backend, u.tools) == (
        "Look at clock.png", "Prague", "large", ("ImageAnalysisAction",),
    )  # fmt: skip
    assert (len(decision.subtasks), decision.reasoning) == (2, "r")


def test_a_completion_in_the_papers_format_is_read_whole():
    assert parsed(complete("7:49")) == Complete("7:49", "r")


def test_our_optional_keys_are_read():
    needs = {"needs": ["a"], "modalities": ["image"], "requirements": {"img": 1, "code": 0.5}}
    decision = parsed(delegate({**LOOK, "id": "a"}, {**LOOK, "id": "b", "priority": 2.5, **needs}))
    u = decision.subtasks[1]
    assert (u.id, u.needs, u.modalities, u.priority) == ("b", ("a",), ("image",), 2.5)
    assert u.requirements == {"img": 1.0, "code": 0.5}


# ---- what else released models emit --------------------------------------------------------------

DECISION = Complete("7:49", "r")


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param(f"```json\n{complete('7:49')}\n```", id="fence"),
        pytest.param(f"The answer:\n{complete('7:49')}\nDone.", id="text around it"),
        pytest.param(f"<think>{{no}} {complete('no')}</think>{complete('7:49')}", id="thinking"),
        pytest.param(f"<think>So: {complete('7:49')}", id="thinking that never ends"),
        pytest.param('{"action": "complete", "reasoning": "r", "answer": "7:49"}', id="no params"),
        pytest.param(complete("7:49").replace("}}", "}, }"), id="trailing comma"),
        pytest.param(complete("7:49").replace('"', "'"), id="single quotes"),
        pytest.param(complete("7:49")[:-1], id="a brace short"),
        pytest.param(complete("  7:49\n"), id="space around the answer"),
        pytest.param(complete("7:49").replace("{", '{"mood": {}, ', 2), id="unknown extra keys"),
    ],
)
def test_a_completion_is_read_from(reply):
    assert parsed(reply) == DECISION


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (0, "0"),
        (0.0, "0.0"),
        (False, "False"),
        (True, "True"),
        (-1, "-1"),
        (1.5, "1.5"),
        ("0", "0"),
    ],
)
def test_an_answer_may_be_a_number_or_a_bool(answer, said):
    assert parsed(complete(answer)) == Complete(said, "r")


TASKS = {"tasks": [LOOK]}


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param({"action": "delegate_task", "params": LOOK}, id="flat in params"),
        pytest.param({"action": "delegate_task", **LOOK}, id="flat without params"),
        pytest.param({"action": "delegate_task", "params": None, **LOOK}, id="params null"),
        pytest.param({"action": "delegate_task", "params": {"tasks": LOOK}}, id="one object"),
        pytest.param({"action": "delegate_task", **TASKS}, id="tasks without params"),
        pytest.param({"action": "delegate", "params": TASKS}, id="delegate for delegate_task"),
        pytest.param({"action": "delegate_task", "params": {**LOOK, "tasks": None}}, id="null"),
        pytest.param({"action": "delegate_task", "params": TASKS, "x": 1}, id="extra key outside"),
        pytest.param(
            {"action": "delegate_task", "params": {"tasks": [{**LOOK, "colour": "red"}], "x": 1}},
            id="extra keys inside",
        ),
    ],
)
def test_a_delegation_is_read_from(reply):
    decision = parsed(json.dumps(reply))
    assert [u.instruction for u in decision.subtasks] == ["Look at clock.png"]


OPTIONAL = ["context", "model", "tools", "id", "needs", "modalities", "requirements", "priority"]


@pytest.mark.parametrize("key", OPTIONAL)
def test_null_for_an_optional_key_is_the_key_left_out(key):
    assert one(**{key: None}) == one()


def test_a_null_reasoning_is_none():
    assert parsed(complete("x").replace('"r"', "null")).reasoning == ""


@pytest.mark.parametrize("model", ["auto", "", None])
def test_a_model_that_is_not_named_is_left_to_eq_5(model):
    assert one(model=model).backend is None


@pytest.mark.parametrize("needs", ["", " ", None, [], [""], [None]])
def test_blank_needs_are_none(needs):
    assert one(needs=needs).needs == ()


def test_spaces_around_ids_and_needs_are_no_part_of_them():
    decision = parsed(delegate({**LOOK, "id": " a "}, {**LOOK, "id": " ", "needs": ["a "]}))
    assert [(u.id, u.needs) for u in decision.subtasks] == [("a", ()), ("t1", ("a",))]


def test_tools_that_are_left_out_are_left_to_eq_7():
    assert one().tools is None


def test_an_empty_list_of_tools_is_a_choice():
    assert one(tools=[]).tools == ()


def test_tools_may_be_one_text():
    assert one(tools="ExecuteCodeAction").tools == ("ExecuteCodeAction",)


def test_modalities_may_be_one_text():
    assert one(modalities="image").modalities == ("image",)


def test_ids_and_needs_may_be_numbers():
    decision = parsed(delegate({**LOOK, "id": 0}, {**LOOK, "id": 1, "needs": [0]}))
    assert [(u.id, u.needs) for u in decision.subtasks] == [("0", ()), ("1", ("0",))]


def test_needs_may_be_one_number():
    assert one(needs=3).needs == ("3",)


def test_a_context_that_is_a_number_is_a_text():
    assert one(context=7).context == "7"


@pytest.mark.parametrize("text", ["7\\ud83d", "7\\ud83d,"])
def test_half_a_character_reaches_no_answer(text):
    assert parsed(complete("X").replace("X", text)).answer.encode()


# ---- ids that the model did not give -------------------------------------------------------------


def ids(*tasks, state: State = STATE) -> list[str]:
    return [u.id for u in parsed(delegate(*tasks), state).subtasks]


def test_subtasks_without_an_id_are_numbered():
    assert ids(LOOK, LOOK, LOOK) == ["t1", "t2", "t3"]


def test_a_number_is_never_one_that_was_used():
    state = replace(STATE, history=(evidence("t1"), evidence("t3")), waiting={"t2": ()})
    assert ids(LOOK, LOOK, state=state) == ["t4", "t5"]


def test_a_number_is_never_one_that_a_later_task_of_the_decision_has():
    assert ids(LOOK, {**LOOK, "id": "t1"}, LOOK) == ["t2", "t1", "t3"]


def test_an_id_that_failed_can_be_named_again():
    state = replace(STATE, history=(evidence("t1", "failed"),))
    assert ids({**LOOK, "id": "t1"}, state=state) == ["t1"]


# ---- mistakes, each with its message -------------------------------------------------------------

MISTAKES = {
    "no JSON": ("It is 7:49.", "no JSON object with an \"action\".*began: 'It is 7:49.'"),
    "unknown action": (
        '{"action": "search"}',
        "action 'search' does not exist.*delegate_task, complete",
    ),
    "null action": ('{"action": null}', "The action None does not exist"),
    "listed action": ('{"action": ["complete"]}', "The action .* does not exist"),
    "null answer": (complete(None), '"answer" is empty'),
    "empty answer": (complete(""), '"answer" is empty'),
    "blank answer": (complete(" \n"), '"answer" is empty'),
    "empty list as answer": (complete([]), '"answer" is empty'),
    "empty object as answer": (complete({}), '"answer" is empty'),
    "no answer": ('{"action": "complete"}', '"answer" is empty'),
    "no tasks": (delegate(), 'no sub-task in "tasks"'),
    "no params": ('{"action": "delegate_task"}', 'no sub-task in "tasks"'),
    "a text for tasks": (
        '{"action": "delegate_task", "params": {"tasks": "look"}}',
        'no sub-task in "tasks"',
    ),
    "too many": (delegate(*[LOOK] * (MAX_SUBTASKS + 1)), "129 sub-tasks .* 128 are the most"),
    "no instruction": (
        delegate(LOOK, {"context": "x"}),
        r"tasks\.1\.task_instruction: Field required",
    ),
    "empty instruction": (
        delegate({"task_instruction": ""}),
        r"tasks\.0\.task_instruction: .*at least 1",
    ),
    "blank instruction": (
        delegate({"task_instruction": " \n"}),
        r"tasks\.0\.task_instruction: .*at least 1",
    ),
    "null instruction": (
        delegate({"task_instruction": None}),
        r"tasks\.0\.task_instruction: .*string",
    ),
    "a text for a task": (
        '{"action": "delegate_task", "params": {"tasks": ["look"]}}',
        r"tasks\.0: ",
    ),
    "null for a task": ('{"action": "delegate_task", "params": {"tasks": [null]}}', r"tasks\.0: "),
    "priority 0": (delegate({**LOOK, "priority": 0}), "priority: .*greater than 0"),
    "priority NaN": (delegate({**LOOK, "priority": float("nan")}), "priority: "),
    "priority 1e300": (delegate({**LOOK, "priority": 1e300}), "priority: .*less"),
    "priority high": (delegate({**LOOK, "priority": "high"}), "priority: .*number"),
    "requirement above 1": (
        delegate({**LOOK, "requirements": {"img": 2}}),
        r"requirements\.img: .*less",
    ),
    "requirement below 0": (
        delegate({**LOOK, "requirements": {"img": -1}}),
        r"requirements\.img: .*greater",
    ),
    "a text for requirements": (
        delegate({**LOOK, "requirements": "img"}),
        "requirements: .*dictionary",
    ),
    "an object for needs": (delegate({**LOOK, "needs": {"a": 1}}), "needs: "),
    "unknown model": (delegate({**LOOK, "model": "huge"}), "no model 'huge'.*small, large"),
    "unknown tool": (
        delegate({**LOOK, "tools": ["Magic"]}),
        "no tool 'Magic'.*ImageAnalysisAction",
    ),
}


@pytest.mark.parametrize(("reply", "words"), MISTAKES.values(), ids=MISTAKES)
def test_the_model_is_told_of(reply, words):
    with pytest.raises(ModelMistake, match=words):
        parse_decision(reply, STATE)


def test_a_decision_of_128_subtasks_is_taken():
    assert len(parsed(delegate(*[LOOK] * MAX_SUBTASKS)).subtasks) == MAX_SUBTASKS == 128


def test_a_reply_cut_off_at_its_limit_is_told_so():
    assert "cut off at its length limit" in mistake(complete("It is 7:49")[:-8], cut=True)


def test_no_more_than_five_wrong_fields_are_told():
    assert mistake(delegate(*[{"context": "x"}] * 50)).count("Field required") == 5


def test_a_long_unknown_action_is_not_told_back_whole():
    assert len(mistake(json.dumps({"action": "x" * 10_000}))) < 300


# ---- what the state allows -----------------------------------------------------------------------

WITH_MEDIA = replace(STATE, task=Task("What time is it?", (CLOCK,)))


@pytest.mark.parametrize("statuses", [(), ("failed",), ("failed", "blocked")])
def test_a_task_with_media_can_not_be_completed_without_any_evidence(statuses):
    state = replace(WITH_MEDIA, history=tuple(evidence("t", s) for s in statuses))
    assert "No file of this task has been analysed" in mistake(complete("7:49"), state)


@pytest.mark.parametrize("status", ["done", "partial"])
def test_a_task_with_media_is_completed_on_any_evidence(status):
    state = replace(WITH_MEDIA, history=(evidence("t1", "failed"), evidence("t2", status)))
    assert parsed(complete("7:49"), state) == DECISION


def test_a_task_without_media_is_completed_without_evidence():
    assert parsed(complete("7:49")) == DECISION


def test_an_empty_delegation_lets_the_waiting_go_on():
    assert parsed(delegate(), replace(STATE, waiting={"b": (), "c": ("b",)})).subtasks == ()


def test_an_empty_delegation_is_a_mistake_where_all_that_waits_is_held_back():
    assert "no sub-task" in mistake(delegate(), replace(STATE, waiting={"b": ("a",)}))


# ---- the schema that goes with it ----------------------------------------------------------------


def alternatives(**options) -> dict[str, dict]:
    schema = decision_schema(("small",), ("See",), **options)
    found = schema.get("anyOf", [schema])
    return {a["properties"]["action"]["const"]: a["properties"]["params"] for a in found}


def test_the_schema_offers_both_actions_but_the_last_chance_only_completion():
    assert list(alternatives()) == ["delegate_task", "complete"]
    assert list(alternatives(last_chance=True)) == ["complete"]


def test_the_schema_lets_models_be_named_that_are_there_or_auto():
    task = alternatives()["delegate_task"]["properties"]["tasks"]["items"]
    assert task["properties"]["model"]["enum"] == ["small", "auto"]
    assert task["properties"]["tools"]["items"]["enum"] == ["See"]


# ---- no text makes it raise anything else --------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)
KEYS = ["task_instruction", "tasks", "params", "action", "reasoning", "answer", *OPTIONAL]
OBJECTS = st.dictionaries(st.sampled_from(KEYS), JSON, max_size=6)
ACTIONS = st.sampled_from(["complete", "delegate_task", "delegate"]) | JSON
PARAMS = JSON | OBJECTS | st.builds(lambda tasks: {"tasks": tasks}, st.lists(OBJECTS, max_size=3))
DECISIONS = st.builds(
    lambda rest, action, params: {**rest, "action": action, "params": params},
    OBJECTS, ACTIONS, PARAMS,
)  # fmt: skip


def is_a_decision_or_a_mistake(reply: str) -> bool:
    started = time.thread_time()
    try:
        decision = parse_decision(reply, STATE)
    except ModelMistake as mistake:
        decision = mistake
    assert time.thread_time() - started < 2
    if isinstance(decision, Complete):
        return bool(decision.answer.strip())
    if isinstance(decision, Delegate):
        return all(u.id and u.instruction for u in decision.subtasks) and decision.subtasks != ()
    return 10 < len(str(decision)) < 3000


@settings(deadline=None, max_examples=200)
@given(DECISIONS.map(json.dumps))
def test_any_object_is_a_decision_or_a_mistake(reply):
    assert is_a_decision_or_a_mistake(reply)


@settings(deadline=None, max_examples=200)
@given(DECISIONS.map(json.dumps), st.data())
def test_any_damaged_object_is_a_decision_or_a_mistake(reply, data):
    a, b = sorted(data.draw(st.tuples(*[st.integers(0, len(reply))] * 2)))
    put = data.draw(st.sampled_from(["", '"', "{", "}", ",", "\\", "</think>", "```"]))
    assert is_a_decision_or_a_mistake(reply[:a] + put + reply[b:])


@settings(deadline=None)
@given(st.text(st.characters(), max_size=200))
def test_any_text_is_a_decision_or_a_mistake(reply):
    assert is_a_decision_or_a_mistake(reply)


@pytest.mark.parametrize("depth", [100, 470, 495, 900, 990, 5000])
@pytest.mark.parametrize("wanted", [
    '{"action": NEST}',
    '{"action": "complete", "params": {"answer": NEST}}',
    '{"action": "complete", "reasoning": NEST, "params": {"answer": 1}}',
    '{"action": "delegate_task", "params": {"tasks": NEST}}',
    '{"action": "delegate_task", "params": {"task_instruction": "x", "context": NEST}}',
    '{"action": "delegate_task", "params": {"task_instruction": "x", "id": NEST}}',
    '{"action": "delegate_task", "params": {"task_instruction": "x", "needs": NEST}}',
    '{"action": "delegate_task", "params": {"task_instruction": "x", "requirements": NEST}}',
])  # fmt: skip
def test_no_depth_breaks_a_field(wanted, depth):
    nest = '{"a":' * depth + "1" + "}" * depth
    try:
        decision = parsed(wanted.replace("NEST", nest))
    except ModelMistake as mistake:
        decision = mistake
    assert len(str(decision)) < 20_000


@pytest.mark.parametrize("digits", [400, 4300, 4301, 100_000])
def test_a_number_of_any_length_is_a_decision_or_a_mistake(digits):
    assert is_a_decision_or_a_mistake(complete("X").replace('"X"', "9" * digits))
