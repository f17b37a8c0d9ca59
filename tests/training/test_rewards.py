"""Rewards of decisions: right ones are worth most, and no trick is worth more than the work."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestra.vocabulary import ConfigError, Evidence, Media, State, Task
from orchestrators import mas_orchestra
from orchestrators.orchestra_o1 import parse_decision
from training.alignment import EXACTLY, check
from training.examples import Example, state_row
from training.minigaia import examples
from training.reading import same_answer, state_at
from training.rewards import REWARDS, WEIGHTS, make

OFFLINE = [name for name in REWARDS if name != "judge"]
TOOLS = ("ImageAnalysisAction", "ParseAudioAction", "GoogleSearchAction", "ExecuteCodeAction")
MANY = list(islice(examples("train", 11, "brief"), 120))


def task(instruction, *tools, **more):
    return {"task_instruction": instruction, "tools": list(tools), **more}


def delegate(*tasks):
    return {"action": "delegate_task", "reasoning": "r", "params": {"tasks": list(tasks)}}


def complete(answer):
    return {"action": "complete", "reasoning": "r", "params": {"answer": answer}}


SEE, HEAR = task("Read a.png", TOOLS[0]), task("Hear b.wav", TOOLS[1])
PLAN = [
    task("Find the year of Bach", TOOLS[2], id="y"),
    task("Add 1 to the year", TOOLS[3], id="z", needs=["y"]),
]


def example(reference, history=(), answer="42", **more):
    media = (Media("image", "a.png", Path(), ""), Media("audio", "b.wav", Path(), ""))
    state = State(
        Task("How many apples?", media), "", history, ("small",), TOOLS, 1 + len(history), 5, **more
    )
    return Example(
        "e",
        ({"role": "user", "content": "q"},),
        reference,
        {"state": state_row(state), "answer": answer},
    )


FOUND = tuple(
    Evidence(1, f"t{n}", f"look at {f}", "small", (), "done", v, "", "", (f,))
    for n, (f, v) in enumerate([("a.png", "40"), ("b.wav", "2")], 1)
)
START, END = example(delegate(SEE, HEAR)), example(complete("42"), FOUND)


def score(name, e, *decisions, **settings_):
    texts = [d if isinstance(d, str) else json.dumps(d) for d in decisions]
    return make(name, **settings_)(e, texts)


def total(e, decision, name="rubric"):
    return score(name, e, decision)[0].total


# ---- Eq. 29 --------------------------------------------------------------------------------------


def test_the_weights_are_the_papers_and_make_one():
    assert WEIGHTS == {"format": 0.1, "action": 0.1, "tool": 0.2, "decision": 0.6}
    assert sum(WEIGHTS.values()) == pytest.approx(1)


@pytest.mark.parametrize("e", [START, END, example(delegate(*PLAN), FOUND)])
def test_the_reference_is_worth_one(e):
    (s,) = score("rubric", e, e.reference)
    assert (s.total, s.valid, s.exact) == (1.0, True, True)
    assert s.parts == dict.fromkeys(WEIGHTS, 1.0)


def test_the_order_of_the_sub_tasks_and_their_ids_do_not_matter():
    other = [{**PLAN[1], "id": "b", "needs": ["a"]}, {**PLAN[0], "id": "a"}]
    assert score("rubric", example(delegate(*PLAN), FOUND), delegate(*other))[0].exact
    assert score("rubric", START, delegate(HEAR, SEE))[0].exact


def test_other_words_for_the_same_work_are_worth_as_much():
    other = delegate(
        task("What can be seen in a.png?", TOOLS[0]), task("Write down what b.wav says", TOOLS[1])
    )
    assert total(START, other) == 1.0


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", (0, 0)),
        ("I would look at a.png first.", (0, 0)),
        ('{"action": "complete"}', (0, 0)),
        ('{"action": "complete", "params": {"answer": "42"}}', (1, 1)),
        ('{"action": "complete", "answer": "42"}', (0, 1)),
        (
            '<think>{hm}</think>\n```json\n{"action": "complete", "params": {"answer": 42}}\n```',
            (1, 1),
        ),
        ('Sure: {"action": "complete", "params": {"answer": "42"}}', (0, 1)),
        ('{"action": "complete", "params": {"answer": "42"}', (0, 1)),
        ('{"action": "dance", "params": {}}', (1, 0)),
        ('{"action": "delegate_task", "params": {"tasks": []}}', (1, 0)),
        (
            '{"action": "delegate_task", "params": {"tasks": [{"task_instruction": "x", "tools": ["Fly"]}]}}',
            (1, 0),
        ),
        (
            '{"action": "delegate_task", "params": {"tasks": [{"task_instruction": "x", "model": "gpt-9"}]}}',
            (1, 0),
        ),
    ],
)
def test_format_and_action_are_computed(text, parts):
    (s,) = score("rubric", END, text)
    assert (s.parts["format"], s.parts["action"]) == parts
    assert s.valid == bool(parts[1])


@pytest.mark.parametrize(
    "tasks",
    [
        [{**SEE, "id": "a"}, {**HEAR, "id": "a"}],
        [{**SEE, "needs": ["nobody"]}],
        [{**SEE, "id": "a", "needs": ["b"]}, {**HEAR, "id": "b", "needs": ["a"]}],
    ],
)
def test_a_graph_that_can_not_be_made_is_no_valid_action(tasks):
    (s,) = score("rubric", START, delegate(*tasks))
    assert (s.valid, s.total) == (False, 0.1)


def test_needs_may_name_what_was_done_before():
    assert score("rubric", END, delegate({**SEE, "needs": ["t1"]}))[0].valid


def test_delegating_in_the_last_chance_is_not_valid():
    e = example(complete("42"), FOUND)
    e.meta["state"]["round"] = 6
    assert not score("rubric", e, delegate(SEE))[0].valid


def test_completing_before_anything_was_seen_is_not_valid():
    assert total(START, complete("42")) == 0.1


def test_right_answers_are_worth_most_wrong_ones_little_and_going_on_between():
    """App. B.4: a right answer 3 of 3, whatever the expert did; going on where all is known 1."""
    early = example(delegate(task("Add 40 and 2", TOOLS[3])), FOUND)
    assert total(END, complete("42")) == total(early, complete("42.0")) == 1.0
    assert total(early, complete("41")) == 0.2
    assert total(END, complete("41")) == pytest.approx(0.4)
    assert total(END, delegate(task("Count the apples again", TOOLS[0]))) == pytest.approx(
        0.2 + 0.8 / 3
    )


@pytest.mark.parametrize(
    ("instruction", "worth"),
    [
        ("Count the apples", 1), ("Look at clip_3.mp4", 1), ("Ask Bo", 1), ("Was it in 1700?", 1),
        ("How many does it say?", 0), ("Which of the mp4?", 0), ("Go to the top", 0), ("What?", 0),
    ],
)  # fmt: skip
def test_going_on_is_about_what_the_question_is_about_and_not_its_grammar(instruction, worth):
    e = copy.deepcopy(END)
    e.meta["state"]["task"] = {
        "question": "How many apples does Bo show there in clip_3.mp4 of 1700?",
        "media": [{"modality": "video", "name": "clip_3.mp4"}],
    }
    (s,) = score("rubric", e, delegate(task(instruction, TOOLS[0])))
    assert s.parts["decision"] == pytest.approx(worth / 3)


def test_going_on_without_a_tool_is_worth_nothing_for_its_tools():
    said = {"no": task("Count the apples"), "auto": {"task_instruction": "Count the apples"}}
    (no,), (auto,) = (score("rubric", END, delegate(said[k])) for k in ("no", "auto"))
    assert (no.parts["tool"], auto.parts["tool"]) == (0, pytest.approx(1 / 3))
    assert no.parts["decision"] == auto.parts["decision"] == pytest.approx(1 / 3)


def test_needs_that_are_missing_or_too_many_cost():
    e = example(delegate(*PLAN), FOUND)
    alone = [PLAN[0], {**PLAN[1], "needs": []}]
    chained = [{**SEE, "id": "s"}, {**HEAR, "needs": ["s"]}]
    no_need_and_half_of_what_runs_now = 0.4 + 0.6 * (0.6 + 0.2 * 0 + 0.2 / 2)
    assert total(e, delegate(*alone)) == pytest.approx(no_need_and_half_of_what_runs_now)
    assert total(START, delegate(*chained)) == pytest.approx(no_need_and_half_of_what_runs_now)


def test_a_need_of_the_wrong_sub_task_costs_though_as_much_runs_now():
    first, last = (
        [{**SEE, "id": "s"}, {**HEAR, "id": "h"}],
        task("Add 40 and 2", TOOLS[3], needs=["s"]),
    )
    e = example(delegate(*first, last))
    assert total(e, delegate(*first, {**last, "needs": ["h"]})) == pytest.approx(0.4 + 0.6 * 0.8)


def test_a_file_is_named_in_the_instruction_and_a_number_may_stand_in_the_context():
    hidden = {**SEE, "task_instruction": "Read it", "context": "a.png"}
    assert total(START, delegate(hidden, HEAR)) < 0.75
    e = example(delegate(task("Add 40 and 2", TOOLS[3])), FOUND)
    assert total(e, delegate(task("Add the two", TOOLS[3], context="40 and 2"))) == 1.0


def test_a_wrong_tool_costs_more_than_its_own_part():
    wrong = delegate({**SEE, "tools": [TOOLS[1]]}, HEAR)
    unsaid = delegate({"task_instruction": "Read a.png"}, HEAR)
    assert total(START, wrong) < total(START, unsaid) < 1
    assert total(START, wrong) < 1 - 0.1


def test_going_on_with_what_waits_is_an_empty_list():
    e = example(delegate(), FOUND, waiting={"t9": ()})
    assert score("rubric", e, delegate())[0].exact
    assert total(e, delegate(SEE)) < 0.7


TEXT = st.text(min_size=1, max_size=40).filter(str.strip) | st.text(
    "ab 12.:,-|+/x", min_size=1, max_size=40
).filter(str.strip)


@given(st.lists(TEXT, min_size=1, max_size=3))
@settings(max_examples=200, deadline=None)
def test_any_reference_is_worth_one_by_its_own_words(instructions):
    """Without evidence given: as of recorded runs."""
    e = example(delegate(*(task(i, TOOLS[0]) for i in instructions)))
    assert score("rubric", e, e.reference)[0].exact


@pytest.mark.parametrize("name", OFFLINE)
def test_half_a_decision_that_was_cut_is_no_decision(name):
    """Mended, `half` would be one; a whole one, cut behind its end, is read as the program does."""
    half, whole = '{"action": "complete", "params": {"answer": "42"', json.dumps(complete("42"))
    rows = make(name)(END, [half, half, whole], [False, True, True])
    assert [s.valid for s in rows] == [True, False, True]
    assert rows[1].total == 0


def test_mas_reads_a_cut_reply_as_one():
    told = []

    def parse(reply, state, cut=False):
        told.append(cut)
        return parse_decision(reply, state, cut=cut)

    make("mas", parse=parse)(END, ["x", "y"], [True, False])
    assert told == [True, False]


# ---- what must not pay ---------------------------------------------------------------------------


def tricks(reference):
    """Decisions that do more than the reference, or say it more often."""
    tasks = reference["params"]["tasks"]
    every = [{**t, "tools": list(TOOLS)} for t in tasks]
    words = " ".join(t["task_instruction"] for t in tasks)
    yield "twice", delegate(*tasks, *copy.deepcopy(tasks))
    yield "one twice", delegate(*tasks, tasks[0])
    yield "padded", delegate(*tasks, task("Search for anything else", TOOLS[2]))
    yield "many", delegate(*tasks, *(task(f"Think about step {n}") for n in range(30)))
    yield "all tools", delegate(*every)
    yield (
        "repeated",
        delegate(
            *(
                {
                    **t,
                    "task_instruction": t["task_instruction"]
                    + " and then"
                    + " "
                    + (words + " ") * 30,
                }
                for t in tasks
            )
        ),
    )
    yield "all words in each", delegate(*({**t, "task_instruction": words} for t in tasks))
    yield (
        "all in one",
        delegate(
            {
                **tasks[0],
                "task_instruction": words,
                "tools": sorted({x for t in tasks for x in t["tools"]}),
            }
        ),
    )
    yield "only words", words
    yield "two decisions", json.dumps(reference) + json.dumps(reference)


@pytest.mark.parametrize("name", OFFLINE)
@pytest.mark.parametrize("trick", [t for t, _ in tricks(START.reference)])
def test_tricks_do_not_pay(name, trick):
    """Beside the reference, in one group: toolorchestra compares within it."""
    decision = dict(tricks(START.reference))[trick]
    honest, hack = score(name, START, START.reference, decision)
    assert hack.total <= honest.total
    if name == "rubric":
        assert hack.total < honest.total


def test_the_pairs_are_those_that_get_most_done():
    """The best pair alone, the first of both, would leave the second without one."""
    e = example(delegate(task("red round", TOOLS[0]), task("blue round", TOOLS[0])))
    said = delegate(task("red round blue", TOOLS[0]), task("red", TOOLS[0]))
    assert score("rubric", e, said)[0].parts["decision"] > 0.5


@pytest.mark.parametrize("n", [EXACTLY, EXACTLY + 1])
def test_many_sub_tasks_are_paired_whatever_their_order(n):
    tasks = [
        task(f"Look for {word}", TOOLS[2])
        for word in ("ash", "beech", "cedar", "elm", "fir", "oak", "pine")
    ]
    e = example(delegate(*tasks[:n]))
    assert score("rubric", e, delegate(*reversed(tasks[:n])))[0].exact


def test_what_only_distracts_may_be_asked_what_the_others_are():
    asks = "Find who owns the blanket in {}"
    e = example(
        delegate(
            task("Find what is told in b.wav", TOOLS[1]),
            task("Find the owner of the blanket in a.png", TOOLS[0]),
        )
    )
    e.meta["evidence"] = [["b.wav"], ["a.png", "blanket", "owner|owns"]]
    both = delegate(task(asks.format("a.png"), TOOLS[0]), task(asks.format("b.wav"), TOOLS[1]))
    assert score("rubric", e, both)[0].exact
    of_both = delegate(
        task(asks.format("a.png"), TOOLS[0]), task(asks.format("b.wav a.png"), TOOLS[1])
    )
    assert not score("rubric", e, of_both)[0].exact


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_no_further_sub_task_ever_raises_the_rubric(data):
    """From any part of the work: what is added costs unless it is a missing part of it."""
    e = data.draw(st.sampled_from([x for x in MANY if "tasks" in x.reference["params"]]))
    tasks = e.reference["params"]["tasks"]
    kept = data.draw(
        st.lists(st.sampled_from(tasks), min_size=1, max_size=len(tasks), unique_by=json.dumps)
    )
    known = tuple(e.meta["state"]["tools"])
    extra = data.draw(st.sampled_from([*kept, task("Think it over"), task("Look around", *known)]))
    before, after = (total(e, delegate(*rows)) for rows in (kept, [*kept, extra]))
    assert after <= before + 1e-9


@given(st.sampled_from([x for x in MANY if "tasks" in x.reference["params"]]), st.integers(2, 40))
@settings(max_examples=60, deadline=None)
def test_no_repetition_of_the_reference_raises_the_rubric(e, times):
    tasks = [
        {**t, "task_instruction": (t["task_instruction"] + " ") * times}
        for t in e.reference["params"]["tasks"]
    ]
    assert total(e, delegate(*tasks)) <= total(e, e.reference)


LAZY = {
    "the question with every tool": lambda s: [task(s.task.question, *s.tools)],
    "every file in one": lambda s: [task(" ".join(m.name for m in s.task.media), *s.tools)],
    "all that is known for each file": lambda s: [task(f"{s.task.question} {s.context} {m.name}", *s.tools) for m in s.task.media],
    "each file, whatever was found": lambda s: [task(f"Read {m.name}", "ImageAnalysisAction") for m in s.task.media if "ImageAnalysisAction" in s.tools],
}  # fmt: skip


@pytest.mark.parametrize("policy", LAZY.values(), ids=list(LAZY))
def test_a_policy_that_does_not_look_where_the_task_stands_earns_little(policy):
    totals = [total(e, delegate(*policy(state_at(e)))) for e in MANY]
    assert sum(totals) / len(totals) < 0.5


def test_naming_every_file_in_every_sub_task_is_worth_less_than_naming_its_own():
    both = delegate(
        {**SEE, "task_instruction": "Read a.png and b.wav"},
        {**HEAR, "task_instruction": "Hear a.png and b.wav"},
    )
    assert total(START, both) < 0.75


def test_an_instruction_that_rambles_is_worth_less():
    rambling = {**SEE, "task_instruction": "Read a.png" + " and be very careful" * 60}
    assert total(START, delegate(rambling, HEAR)) < 0.85


def test_listing_every_number_is_worth_less_than_the_right_ones():
    history = (replace(FOUND[0], answer="40 red, 7 green, 9 blue"), FOUND[1])
    e = example(delegate(task("Add 40 and 2", TOOLS[3])), history)
    e.meta["evidence"] = [["40", "2", "add|sum|+"]]
    assert total(e, delegate(task("Compute 40+2", TOOLS[3]))) == 1.0
    assert total(e, delegate(task("Add 40 7 9 2", TOOLS[3]))) < 0.8
    assert total(e, delegate(task("Add 7 and 9", TOOLS[3]))) < 0.6


def calculation(reference, **evidence):
    """A state in which only this is to be done."""
    history = (
        replace(FOUND[0], answer="307, 35, 16, 388"),
        replace(FOUND[1], answer="294, 152, 7"),
    )
    e = example(delegate(task(reference, TOOLS[3])), history)
    e.meta.update(evidence)
    return e


SUM, LESS = ("+|plus|add|sum",), ("-|minus|subtract|between",)
PRODUCT_SUM = ("*|times|multiply", "+|plus|add")


@pytest.mark.parametrize(
    ("reference", "evidence", "said", "exact"),
    [
        ("307 - 294", ("307", "294", *LESS), "Compute 294 - 307.", False),
        ("35 + 152", ("35", "152", *SUM), "Compute 35 + 152 + 1000", False),
        ("16 * 7 + 388", ("16", "7", "388", *PRODUCT_SUM), "Compute 7 + 16 * 388", False),
        ("307 - 294", ("307", "294", *LESS), "Write 307 and 294 as well-formed words", False),
        ("307 - 294", ("307", "294", *LESS), "Compute 307cm - 294cm", True),
        ("307 - 294", ("307", "294", *LESS), "307 − 294", True),
        ("307 - 294", ("307", "294", *LESS), "307 cm - 294 cm", True),
        ("307 - 294", ("307", "294", *LESS), "Subtract 294 from 307", True),
        ("16 * 7 + 388", ("16", "7", "388", *PRODUCT_SUM), "What is 16 * 7 + 388?", True),
        ("16 * 7 + 388", ("16", "7", "388", *PRODUCT_SUM), "Compute 388 + (7 × 16)", True),
        ("07:30 + 35 minutes", ("07:30", "35", *SUM), "Compute 07:30 + 35 min", True),
        ("07:30 + 35 minutes", ("07:30", "35", *SUM), "What is 35 minutes plus 07:30?", True),
    ],
)  # fmt: skip
def test_a_calculation_is_the_same_where_it_comes_to_the_same(reference, evidence, said, exact):
    e = calculation(f"Compute {reference}.", evidence=[evidence])
    e.meta["state"]["history"][0]["summary"] = "leaves at 07:30"
    assert score("rubric", e, delegate(task(said, TOOLS[3])))[0].exact == exact


def test_a_calculation_that_comes_to_something_else_tells_nothing():
    e = calculation("Compute 307 - 294.", evidence=[("307", "294", *LESS)])
    assert total(e, delegate(task("Compute 294 - 307.", TOOLS[3]))) == pytest.approx(0.2)


def test_a_sign_alone_is_no_calculation():
    e = calculation("Compute 35 + 152.", evidence=[("35", "152", *SUM)])
    assert not score("rubric", e, delegate(task("go", TOOLS[3], context="35 152 +")))[0].exact
    assert score("rubric", e, delegate(task("go", TOOLS[3], context="35 + 152")))[0].exact


def test_a_number_that_nobody_knows_is_beside_the_point():
    asked = [total(START, delegate({**SEE, "task_instruction": f"Read a.png{more}"}, HEAR))
             for more in ("", " 40", " 40 77 78")]  # fmt: skip
    assert 1 == asked[0] > asked[1] > asked[2]


@pytest.mark.parametrize(
    "answer", ["41 or 42", "42 41", "42, 43", "it is 42", "4 2", "-42", "", "None"]
)
def test_several_answers_in_one_are_none(answer):
    assert total(END, complete(answer)) <= 0.4


# ---- answers -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "right"),
    [
        ("42", "42.0"), ("1,234", "1234"), ("The Tower.", "tower"), ("  MIRA  Kolven ", "Mira Kolven"),
        ("7:05", "07:05"), ("$5", "5"), ('"yes"', "Yes"), ("0", "0"), ("ＡＢ", "ab"), ("007", "7"), ("0.50", "0.5"),
    ],
)  # fmt: skip
def test_spellings_of_one_answer(said, right):
    assert same_answer(said, right) and same_answer(right, said)


@pytest.mark.parametrize("said", ["13 coins", "13coins.", "13", "13.0 coins", "Coins: 13"])
def test_a_unit_of_the_question_behind_a_number_is_no_part_of_it(said):
    same = same_answer(said, "13", "How many coins does it cost?")
    assert same == (not said.startswith("Coins"))
    assert same_answer("13", "13 coins", "How many coins does it cost?")


@pytest.mark.parametrize(
    "said", ["13 cm", "13 million", "13 14", "x13 coins", "12 coins", "13 or coins"]
)
def test_any_other_word_behind_a_number_is_another_answer(said):
    assert not same_answer(said, "13", "How many coins, 14 or a million?")


def test_the_question_of_a_state_has_the_unit():
    assert total(END, complete("42 apples")) == 1.0
    assert total(END, complete("42 pears")) == pytest.approx(0.4)
    ran = make("mas", execute=lambda e, decision: "42 apples")
    assert ran(END, [json.dumps(complete("1"))])[0].total == 1.0


@pytest.mark.parametrize(
    ("said", "right"),
    [
        ("42", "24"),
        ("", ""),
        ("x", ""),
        ("1.5", "15"),
        ("12:30", "1230"),
        ("1,2", "12"),
        ("10", "1"),
    ],
)
def test_different_answers(said, right):
    assert not same_answer(said, right)


# ---- the other rewards ---------------------------------------------------------------------------


def test_outcome_sees_only_whether_the_decision_is_right():
    half = delegate(SEE)
    assert [
        s.total for s in score("outcome", START, START.reference, half, "", complete("42"))
    ] == [1, 0, 0, 0]
    early = example(delegate(task("Add 40 and 2", TOOLS[3])), FOUND)
    assert [s.total for s in score("outcome", early, complete("42"), complete("41"))] == [1, 0]


def test_mas_is_a_weighted_sum_of_executed_and_correct():
    rows = score("mas", END, complete("42"), complete("41"), "nothing")
    assert [s.total for s in rows] == [1.0, 0.1, 0.0]
    assert score("mas", END, complete("41"), w_exec=0, w_ans=1)[0].total == 0
    with pytest.raises(ConfigError, match="w_exec"):
        make("mas", w_exec=0.5, w_ans=0.9)


def test_mas_reads_the_xml_of_its_paper_and_runs_the_graph_it_is_given():
    agent = "<agent><agent_id>A</agent_id><agent_name>CoTAgent</agent_name><required_arguments><agent_input></agent_input></required_arguments></agent>"
    xml = partial(mas_orchestra.parse_decision, dom="high")
    ran = lambda e, decision: "42" if len(decision.subtasks) == 3 else "0"  # noqa: E731 - two looks and A
    rows = score("mas", START, agent, "<agent>", parse=xml, execute=ran)
    assert [s.total for s in rows] == [1.0, 0.0]


def test_toolorchestra_prefers_the_cheaper_and_quicker_of_the_right_ones():
    """Both are right; the one without sub-tasks costs nothing and takes no time."""
    e = example(delegate(task("Add 40 and 2", TOOLS[3])), FOUND)
    slow, quick, wrong = score("toolorchestra", e, e.reference, complete("42"), complete("41"))
    assert quick.total == pytest.approx(1.0) and wrong.total == 0
    assert slow.total == pytest.approx(1 / 1.4)


def test_the_preference_vector_may_want_a_tool():
    e = example(delegate(task("Add 40 and 2", TOOLS[3])), FOUND)
    rows = score(
        "toolorchestra", e, e.reference, complete("42"), preference={TOOLS[3]: 1.0, "outcome": 0.0}
    )
    assert [s.total for s in rows] == [1.0, 0.0]


def test_equal_decisions_of_a_group_measure_the_same():
    rows = score("toolorchestra", END, complete("42"), complete("42"))
    assert [s.total for s in rows] == [0.0, 0.0]  # 0 where max = min: no advantage to anyone


def test_a_dearer_backend_costs_more():
    e = example(delegate(SEE, HEAR))
    dear = delegate({**SEE, "model": "small"}, HEAR)
    rows = score("toolorchestra", e, e.reference, dear, cost_usd={"small": 5.0})
    assert rows[0].total > rows[1].total


@pytest.mark.parametrize("preference", [{}, {"outcome": -1}, {"outcome": 2}, {"outcome": 0}])
def test_a_preference_out_of_bounds_is_refused(preference):
    with pytest.raises(ConfigError, match="preference"):
        make("toolorchestra", preference=preference)


def test_an_unknown_reward_names_the_known_ones():
    with pytest.raises(ConfigError, match="--reward best: is none of rubric, judge, outcome"):
        make("best")


def test_an_example_without_a_state_is_named():
    with pytest.raises(ConfigError, match="example e: "):
        make("rubric")(replace(START, meta={}), ["x"])
    with pytest.raises(ConfigError, match="reference is no decision"):
        make("rubric")(replace(END, reference={"action": "sing"}), [json.dumps(complete("42"))])
    with pytest.raises(ConfigError, match="evidence for 1"):
        make("rubric")(
            replace(START, meta={**START.meta, "evidence": [["a"]]}), [json.dumps(START.reference)]
        )


@pytest.mark.parametrize("evidence", [[[], ["b.wav"]], [["c.png"], ["b.wav"]]])
def test_an_example_whose_own_reference_is_not_exact_is_refused(evidence):
    check(START)
    with pytest.raises(ConfigError, match="example e: its reference is not exact.*again"):
        check(replace(START, meta={**START.meta, "evidence": evidence}))
    with pytest.raises(ConfigError, match="not exact"):
        check(replace(END, meta={**END.meta, "answer": "43"}))


# ---- nothing raises ------------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12) | st.sampled_from(["t1", "a.png", *TOOLS]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["action", "params", "tasks", "answer", "tools", "needs", "id", "task_instruction"]) | st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip
ROW = st.fixed_dictionaries({}, optional=dict.fromkeys(("task_instruction", "context", "model", "tools", "id", "needs", "requirements", "priority"), JSON))  # fmt: skip
DECISION = st.fixed_dictionaries(
    {"action": st.sampled_from(["delegate_task", "complete", "x"]) | JSON},
    optional={"params": JSON | st.fixed_dictionaries({"tasks": st.lists(ROW, max_size=4)}) | st.fixed_dictionaries({"answer": JSON})},
)  # fmt: skip
NEAR = st.builds(
    lambda text, at, put: text[:at] + put + text[at + len(put) :],
    st.sampled_from([json.dumps(e.reference) for e in MANY]), st.integers(0, 300), st.text(max_size=6),
)  # fmt: skip
COMPLETION = st.text(max_size=60) | JSON.map(json.dumps) | DECISION.map(json.dumps) | NEAR


@pytest.mark.parametrize("name", OFFLINE)
@given(e=st.sampled_from([START, END, *MANY]), group=st.lists(COMPLETION, max_size=5))
@settings(max_examples=150, deadline=None)
def test_no_completion_makes_a_reward_raise_or_leave_its_bounds(name, e, group):
    rows = make(name)(e, group)
    assert len(rows) == len(group)
    for s in rows:
        assert 0 <= s.total <= 1 and all(0 <= p <= 1 for p in s.parts.values())
        assert s.valid or not s.exact


@pytest.mark.parametrize(
    "text",
    [
        "[" * 10_000,
        '{"action": ' * 5_000,
        "9" * 6_000,
        '{"action": "complete", "params": {"answer": ' + "9" * 5_000 + "}}",
        "\ud83d",
        "\x00",
    ],
)
def test_odd_texts_are_only_bad_decisions(text):
    assert total(START, text) <= 0.1
