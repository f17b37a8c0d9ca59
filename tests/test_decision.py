"""y_t from any reply: variants of the papers' format, and the rule that each mistake breaks."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestra.kernel import vocabulary as v
from orchestra.kernel.vocabulary import Complete, Delegate
from orchestra.methods.main_agent import read_decision
from orchestra.methods.orchestra_o1 import MAX_SUBTASKS, read_delegation
from tests.scripted import complete, delegate

TASK = v.Task("What time is it?", (v.Media("image", "clock.png", Path("/none"), ""),))
FAILED = v.Evidence(1, "t1", "i", "small", (), "failed", "", "s")
STATE = v.State(TASK, "", (FAILED,), ("small", "large"), ("See", "Run"), round=1, rounds=10)
READ = {"task_instruction": "Read clock.png"}


def decided(reply: str, state: v.State = STATE, last=False, may_complete=True) -> v.Decision:
    return read_decision(read_delegation, v.Reply(reply), state, last, may_complete)


def outcome(reply: str, *about, **how) -> v.Decision | str:
    """The decision, or the rule that the reply breaks."""
    try:
        return decided(reply, *about, **how)
    except v.ModelMistake as mistake:
        return mistake.rule


def delegated(*tasks: dict, state: v.State = STATE) -> tuple[v.SubTask, ...]:
    return decided(delegate(*tasks), state).subtasks


def test_a_delegation_in_the_papers_format_is_read_whole():
    task = {**READ, "context": "Prague", "model": "large", "tools": ["See"], "id": " a "}
    ours = {"needs": ["a"], "modalities": ["image"], "requirements": {"img": 1}, "priority": 2}
    a = v.SubTask("a", "Read clock.png", "Prague", "large", ("See",))
    b = v.SubTask("b", "Read clock.png", tools=(), needs=("a",), modalities=("image",))
    b = replace(b, requirements={"img": 1}, priority=2)
    reply = delegate(task, {**READ, "id": "b", "tools": [], **ours})
    assert outcome(reply) == Delegate((a, b), "r")


@pytest.mark.parametrize("reply", [
    complete("0"), complete(0), f"```json\n{complete('  0')}\n```", complete("<data 0123abcd> 0"),
    '{"action": "complete", "reasoning": "r", "answer": "0", "mood": {}}',
])  # fmt: skip
def test_a_completion_is_read_in_every_form(reply):
    assert outcome(reply) == Complete("0", "r")


@pytest.mark.parametrize("rest", [
    {"params": READ}, READ, {"params": None, **READ}, {"params": {**READ, "tasks": None}},
    {"tasks": [READ]}, {"params": {"tasks": READ}}, {"params": {"tasks": [{**READ, "x": 1}]}},
    {"action": "delegate", "params": {"tasks": [READ]}},
], ids=json.dumps)  # fmt: skip
def test_a_delegation_is_read_in_every_form(rest):
    (u,) = outcome(json.dumps({"action": "delegate_task", **rest})).subtasks
    assert u.instruction == "Read clock.png"


OPTIONAL = ["context", "model", "tools", "id", "needs", "modalities", "requirements", "priority"]
MEANT = {
    "model": [("auto", None), ("", None)], "tools": [([], ()), ("See", ("See",))],
    "needs": [(3, ("3",)), (["", None], ())], "id": [(0, "0")], "context": [(7, "7")],
}  # fmt: skip


@pytest.mark.parametrize("key", OPTIONAL)
def test_an_optional_field_is_read_as_it_is_meant(key):
    assert delegated({**READ, key: None}) == delegated(READ)
    for given_value, read in MEANT.get(key, ()):
        (u,) = delegated({**READ, key: given_value})
        assert getattr(u, "backend" if key == "model" else key) == read


@pytest.mark.parametrize("given_ids, ids", [("  ", "t3 t4 t5"), (" t3 ", "t4 t3 t5"), ("t1", "t1")])
def test_a_sub_task_without_an_id_gets_a_free_number(given_ids, ids):
    tasks = [{**READ, "id": id} for id in given_ids.split(" ")]
    subtasks = delegated(*tasks, state=replace(STATE, waiting={"t2": ()}))
    assert " ".join(u.id for u in subtasks) == ids


MISTAKES = {
    "It is 7:49.": "not_json",
    **{f'{{"action": {action}}}': "bad_action" for action in ('"search"', "null", '["complete"]')},
    **{complete(empty): "empty_answer" for empty in (None, "", " \n", [], {})},
    **{delegate({"task_instruction": empty}): "bad_fields" for empty in (None, "", " \n")},
    **{delegate({**READ, "priority": p}): "bad_fields" for p in (0, float("nan"), 1e300, "high")},
    **{delegate({**READ, "requirements": r}): "bad_fields" for r in ({"img": 2}, {"a": -1}, "img")},
    '{"action": "complete", "params": {"answer": "It was built in 18': "open",
    '{"action": "delegate_task"}': "no_subtasks",
    '{"action": "delegate_task", "params": {"tasks": "look"}}': "no_subtasks",
    delegate(*[READ] * (MAX_SUBTASKS + 1)): "too_many_subtasks",
    delegate({**READ, "model": "huge"}): "unknown_model",
    delegate({**READ, "tools": ["See", "Magic"]}): "unknown_tool",
}


@pytest.mark.parametrize(("reply", "rule"), MISTAKES.items(), ids=lambda text: text[:70])
def test_a_broken_rule_is_named(reply, rule):
    assert outcome(reply) == rule


@pytest.mark.parametrize(("reply", "changes", "read"), [  # an empty delegation continues only with what can run
    (complete("7:49"), {"history": ()}, Complete("7:49", "r")), (delegate(), {"waiting": {"b": ("a",)}}, "no_subtasks"),
    (delegate(), {"waiting": {"b": ()}}, Delegate((), "r")),
])  # fmt: skip
def test_a_decision_fits_the_state(reply, changes, read):
    assert outcome(reply, replace(STATE, **changes)) == read


def test_the_last_chance_takes_no_delegation():
    assert outcome(delegate(READ), last=True) == "bad_action"


def test_an_answer_without_evidence_is_refused_where_the_method_says_so():
    assert outcome(complete("7:49"), may_complete=False) == "no_evidence"
    assert outcome(complete("7:49"), last=True, may_complete=False) == Complete("7:49", "r")


TEXT = st.text(st.characters(), max_size=5)
PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | TEXT
JSON = PLAIN | st.lists(PLAIN, max_size=3) | st.dictionaries(st.text(max_size=3), PLAIN)
KEYS = st.sampled_from(["task_instruction", "tasks", "params", "reasoning", "answer", *OPTIONAL])
OBJECTS = st.dictionaries(KEYS, JSON, max_size=6)
PARAMS = JSON | OBJECTS | st.fixed_dictionaries({"tasks": st.lists(OBJECTS, max_size=3)})
ACTIONS = st.sampled_from(["complete", "delegate_task"])


def is_usable(y_t: v.Decision | str) -> bool:
    if isinstance(y_t, Delegate):
        return y_t.subtasks != () and all(u.id and u.instruction for u in y_t.subtasks)
    return bool(y_t.answer.strip()) if isinstance(y_t, Complete) else y_t in MISTAKES.values()


@given(OBJECTS, ACTIONS, PARAMS, st.integers(0, 99), st.sampled_from(["", '"', "{", "\\"]))
def test_any_object_whole_or_damaged_is_a_decision_or_a_mistake(rest, action, params, at, put):
    reply = json.dumps(rest | {"action": action, "params": params})
    assert is_usable(outcome(reply)) and is_usable(outcome(reply[:at] + put + reply[at + 2 :]))
