"""Rewards of decisions: right ones are worth most, and no trick is worth more than the work."""

import json
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestra.vocabulary import Evidence, Media, State, Task
from training.examples import Example, state_row
from training.minigaia import examples
from training.reading import same_answer
from training.rewards import REWARDS, WEIGHTS, make

OFFLINE = [name for name in REWARDS if name != "judge"]
SEES, HEARS, RUNS = TOOLS = ("ImageAnalysisAction", "ParseAudioAction", "ExecuteCodeAction")
MANY = list(islice(examples("train", 11, "brief"), 60))


def task(instruction, *tools, **more):
    return {"task_instruction": instruction, "tools": list(tools), **more}


def delegate(*tasks):
    return {"action": "delegate_task", "reasoning": "r", "params": {"tasks": list(tasks)}}


def complete(answer):
    return {"action": "complete", "reasoning": "r", "params": {"answer": answer}}


def example(reference, *history):
    media = (Media("image", "a.png", Path(), ""), Media("audio", "b.wav", Path(), ""))
    task = Task("How many apples?", media)
    state = State(task, "", history, ("small",), TOOLS, 1 + len(history), 5)
    return Example("e", (), reference, {"state": state_row(state), "answer": "42"})


FOUND = [
    Evidence(1, id, f"look at {file}", "small", (), "done", value, "", "", (file,))
    for id, file, value in (("t1", "a.png", "40"), ("t2", "b.wav", "2"))
]
SEE, HEAR = task("Read a.png", SEES), task("Hear b.wav", HEARS)
START, END = example(delegate(SEE, HEAR)), example(complete("42"), *FOUND)
SUM = example(delegate(task("Compute 40 + 2.", RUNS)), *FOUND)


def score(name, e, *decisions, **settings_):
    texts = [d if isinstance(d, str) else json.dumps(d) for d in decisions]
    return make(name, **settings_)(e, texts)


def totals(name, e, *decisions, **settings_):
    return [s.total for s in score(name, e, *decisions, **settings_)]


# ---- Eq. 29 --------------------------------------------------------------------------------------


@pytest.mark.parametrize("e", [START, END, SUM])
def test_the_reference_is_worth_one(e):
    (s,) = score("rubric", e, e.reference)
    assert (s.total, s.valid, s.exact) == (1.0, True, True)
    assert s.parts == dict.fromkeys(WEIGHTS, 1.0)


@pytest.mark.parametrize(("text", "parts"), [
    ("", (0, 0)), ("I would look at a.png first.", (0, 0)), ('{"action": "complete"}', (0, 0)),
    ('{"action": "complete", "params": {"answer": "42"}}', (1, 1)), ('{"action": "complete", "answer": "42"}', (0, 1)),
    ('<think>{hm}</think>\n```json\n{"action": "complete", "params": {"answer": 42}}\n```', (1, 1)),
    ('Sure: {"action": "complete", "params": {"answer": "42"}}', (0, 1)), ('{"action": "dance", "params": {}}', (1, 0)),
    ('{"action": "delegate_task", "params": {"tasks": []}}', (1, 0)),
    (json.dumps(delegate(task("x", "Fly"))), (1, 0)), (json.dumps(delegate(task("x", model="gpt-9"))), (1, 0)),
    (json.dumps(delegate({**SEE, "id": "a"}, {**HEAR, "id": "a"})), (1, 0)),
    (json.dumps(delegate({**SEE, "needs": ["nobody"]})), (1, 0)), (json.dumps(delegate({**SEE, "needs": ["t1"]})), (1, 1)),
    ("[" * 10_000, (0, 0)), ('{"action": ' * 5_000, (0, 0)), ("\ud83d", (0, 0)), ("\x00", (0, 0)),
])  # fmt: skip
def test_format_and_action_say_what_the_program_would_do(text, parts):
    (s,) = score("rubric", END, text)
    assert (s.parts["format"], s.parts["action"]) == parts and s.valid == bool(parts[1])


def test_what_the_program_would_refuse_now_is_not_valid():
    state = {**END.meta["state"], "round": 6}
    late = Example("e", (), END.reference, {**END.meta, "state": state})  # the last chance
    assert not score("rubric", late, delegate(SEE))[0].valid
    assert not score("rubric", START, complete("42"))[0].valid  # before anything was seen


@pytest.mark.parametrize("name", OFFLINE)
def test_half_a_decision_that_was_cut_is_no_decision(name):
    """Mended, `half` would be one; a whole one, cut behind its end, is read as the program does."""
    half, whole = '{"action": "complete", "params": {"answer": "42"', json.dumps(complete("42"))
    rows = make(name)(END, [half, half, whole], [False, True, True])
    assert [s.valid for s in rows] == [True, False, True] and rows[1].total == 0


# ---- the rule ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("e", "decisions"), [
    (END, [complete("42"), complete("41"), complete("41 or 42") | {"params": {}}]),
    (SUM, [complete("42.0"), complete("41")]),  # a right answer, sooner than the expert
    (START, [delegate(HEAR, SEE), delegate(SEE), ""]),
    (START, [delegate(SEE, HEAR), delegate({"task_instruction": "Read a.png"}, HEAR), delegate({**SEE, "tools": [HEARS]}, HEAR)]),
    (START, [delegate(SEE, HEAR), delegate({**SEE, "id": "s"}, {**HEAR, "needs": ["s"]})]),
    (START, [delegate(SEE, HEAR), delegate(task("Read it", SEES), HEAR), delegate(task("Read it", SEES))]),
    (SUM, [delegate(task("What is 2 + 40?", RUNS)), delegate(task("Compute 40 - 2", RUNS))]),
])  # fmt: skip
def test_a_better_decision_is_worth_more(e, decisions):
    found = totals("rubric", e, *decisions)
    assert found[0] == 1 and all(a > b for a, b in zip(found, found[1:], strict=False))


def tricks(tasks):
    """Decisions that do more than the reference, or say it more often."""
    words = " ".join(t["task_instruction"] for t in tasks)
    yield delegate(*tasks, *tasks)
    yield delegate(*tasks, task("Look for anything else", SEES))
    yield delegate(*tasks, *(task(f"Think about step {n}") for n in range(30)))
    yield delegate(*({**t, "tools": list(TOOLS)} for t in tasks))
    yield delegate(*({**t, "task_instruction": t["task_instruction"] + 30 * words} for t in tasks))
    yield delegate(*({**t, "task_instruction": words} for t in tasks))
    yield delegate(task(words, SEES, HEARS))
    yield delegate({**SEE, "task_instruction": "Read a.png 40 77 78"}, HEAR)
    yield json.dumps(delegate(*tasks)) * 2


@pytest.mark.parametrize("name", OFFLINE)
def test_tricks_do_not_pay(name):
    for trick in tricks([SEE, HEAR]):
        honest, hack = totals(name, START, START.reference, trick)
        assert hack < honest if name == "rubric" else hack <= honest


@given(st.data(), st.sampled_from([e for e in MANY if "tasks" in e.reference["params"]]))
@settings(max_examples=40, deadline=None)
def test_no_further_sub_task_ever_raises_the_rubric(data, e):
    """From any part of the work: what is added costs unless it is a missing part of it."""
    tasks = st.sampled_from(e.reference["params"]["tasks"])
    kept = data.draw(st.lists(tasks, min_size=1, unique_by=json.dumps))
    idle = [task("Think it over"), task("Look around", *e.meta["state"]["tools"])]
    extra = data.draw(st.sampled_from([*kept, *idle]))
    before, after = totals("rubric", e, delegate(*kept), delegate(*kept, extra))
    assert after <= before + 1e-9


# ---- answers -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("said", "right", "same"), [
    ("42", "42.0", 1), ("1,234", "1234", 1), ("The Tower.", "tower", 1), ("  MIRA  Kolven ", "Mira Kolven", 1),
    ("7:05", "07:05", 1), ("$5", "5", 1), ('"yes"', "Yes", 1), ("ＡＢ", "ab", 1), ("0.50", "0.5", 1),
    ("13 coins", "13", 1), ("13", "13 coins", 1), ("Coins: 13", "13", 0), ("13 cm", "13", 0), ("13 million", "13", 0),
    ("41 or 42", "42", 0), ("42, 43", "42", 0), ("it is 42", "42", 0), ("4 2", "42", 0), ("-42", "42", 0),
    ("", "", 0), ("x", "", 0), ("1.5", "15", 0), ("12:30", "1230", 0), ("1,2", "12", 0),
])  # fmt: skip
def test_answers_are_one_whatever_their_spelling_and_several_are_none(said, right, same):
    assert same_answer(said, right, "How many coins, 43 or a million?") == bool(same)


# ---- the other rewards ---------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "e", "decisions", "settings_", "expected"), [
    ("outcome", START, [START.reference, delegate(SEE), "", complete("42")], {}, [1, 0, 0, 0]),
    ("outcome", SUM, [complete("42"), complete("41")], {}, [1, 0]),
])  # fmt: skip
def test_the_other_rewards_are_those_of_their_papers(name, e, decisions, settings_, expected):
    assert totals(name, e, *decisions, **settings_) == pytest.approx(expected)


KEYS = ("action", "params", "tasks", "answer", "tools", "needs", "id", "task_instruction", "model")
JSON = st.recursive(
    st.none() | st.floats() | st.text(max_size=9) | st.sampled_from(["t1", "a.png", *TOOLS]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5),
)  # fmt: skip
ROWS = st.lists(st.fixed_dictionaries({}, optional=dict.fromkeys(KEYS[4:], JSON)), max_size=4)
DECISIONS = JSON | JSON.map(complete) | ROWS.map(lambda rows: delegate(*rows))
GROUPS = st.lists(st.text() | DECISIONS.map(json.dumps), max_size=4)


@pytest.mark.parametrize("name", OFFLINE)
@given(st.sampled_from([START, END, *MANY]), GROUPS)
@settings(max_examples=25, deadline=None)
def test_no_completion_makes_a_reward_raise_or_leave_its_bounds(name, e, group):
    rows = make(name)(e, group)
    assert len(rows) == len(group) and all(s.valid or not s.exact for s in rows)
    assert all(0 <= value <= 1 for s in rows for value in (s.total, *s.parts.values()))
