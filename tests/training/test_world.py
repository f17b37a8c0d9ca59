"""MiniGAIA: what decisions find and are paid, that the tasks ask for all of it, and what is held out."""

import json
import math
import random
from functools import cache
from itertools import islice
from pathlib import Path

import pytest

from benchmarks.minigaia.examples import examples, expert, main
from benchmarks.minigaia.operations import HELD_OUT
from benchmarks.minigaia.reward import Exact
from benchmarks.minigaia.shapes import HELD_OUT_SHAPES, SEEN_SHAPES, trees
from benchmarks.minigaia.tasks import TOOL, Fact, MiniTask, compose
from benchmarks.minigaia.world import ROUNDS, World, finds, new_world
from orchestra.evaluation.scores import matches
from orchestra.kernel.vocabulary import Complete, Media, SubTask, Task
from orchestra.training.examples import Example, state_row
from orchestra.training.rewards import Completion, read_decision
from tests.scripted import complete, delegate

SEES, HEARS = "ImageAnalysisAction", "ParseAudioAction"
SEARCHES, RUNS = "GoogleSearchAction", "ExecuteCodeAction"
FACTS = (
    Fact("x", SEES, (), ("x.png",), "Find x in x.png.", "7", "7"),  # distracts
    Fact("a", SEES, (), ("a.png",), "Find a in a.png.", "40; the rake: 9", "40"),
    Fact("b", HEARS, (), ("b.wav",), "Find b in b.wav.", "Mira Osei", "Mira Osei"),
    Fact("c", SEARCHES, ("b",), ("Mira Osei",), "Search for Mira Osei.", "2", "2"),
    Fact("d", RUNS, ("a", "c"), ("40", "2"), "Compute the sum of 40 and 2.", "42", "42", "sum"),
)
FILES = ("image", "x.png"), ("image", "a.png"), ("audio", "b.wav")
MEDIA = tuple(Media(kind, name, Path(), "") for kind, name in FILES)
MINI = MiniTask(Task("How many apples?", MEDIA), FACTS, (), "seen")


def task(instruction, *tools, **more):
    return {"task_instruction": instruction, **({"tools": list(tools)} if tools else {}), **more}


def state(*found):
    """An example of the task of FACTS in which these facts were found."""
    world = World(MINI)
    for id in found:
        fact = next(f for f in FACTS if f.id == id)
        carry_out(world, task(fact.instruction, fact.tool, id=f"t{id}"))
    meta = {"state": state_row(world.state()), "world": world.row(), "answer": "42"}
    return Example(id="e", messages=[{"role": "user", "content": "?"}], reference={}, meta=meta)


def carry_out(world, *tasks):
    world.carry_out(read_decision(delegate(*tasks), world.state()).decision)


START, BOTH, LAST, END = state(), state("a", "b"), state("a", "b", "c"), state("a", "b", "c", "d")
SEE, HEAR, SUM = task("Read a.png", SEES), task("Hear b.wav", HEARS), task("Compute 40 + 2.", RUNS)


def paid(e, *decisions):
    texts = [d if isinstance(d, str) else json.dumps(d) for d in decisions]
    scores = Exact().score(e, [Completion(text) for text in texts])
    return [pytest.approx(s.total) for s in scores]


# ---- Eq. 29 --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "parts"), [
    ("", (0, 0)), ("I would look at a.png first.", (0, 0)), ('{"action": "complete", "answer": "42"}', (0, 1)),
    ('<think>{hm}</think>\n```json\n{"action": "complete", "params": {"answer": 42}}\n```', (1, 1)),
    ('Sure: {"action": "complete", "params": {"answer": "42"}}', (0, 1)), ('{"action": "dance", "params": {}}', (1, 0)),
    (delegate(task("x", "Fly")), (1, 0)), (delegate({**SEE, "needs": ["nobody"]}), (1, 0)),
    ("[" * 10_000, (0, 0)), ("\ud83d", (0, 0)), (complete(math.nan), (1, 1)), (complete({"tasks": []}), (1, 1)), (delegate(), (1, 0)), ("```json\n```", (0, 0)),
    (delegate({**SEE, "id": "x", "needs": ["y"]}, {**HEAR, "id": "y", "needs": ["x"]}), (1, 0)), (delegate(*[SEE] * 99), (1, 1)),
])  # fmt: skip
@pytest.mark.parametrize("e", [LAST, END])
def test_format_and_action_say_what_the_program_would_do(e, text, parts):
    """And no text makes a reward raise or leave its bounds."""
    (s,) = Exact().score(e, [Completion(text)])
    assert (s.parts["format"], s.parts["action"]) == parts and s.valid == bool(parts[1])
    assert 0 <= s.total <= 1


@pytest.mark.parametrize(("operation", "operands", "right", "wrong"), [
    ("sum", "34 56", "What is 34 + 56?|Sum 34 and 56|How much are 34 and 56 together?", "56 - 34|Add 34, 56 and 2|the product of 34 and 56"),
    ("difference", "34 56", "Subtract 34 from 56|How much larger is 56 than 34?|How far apart are 34 and 56?", "Which is larger, 34 or 56?"),
    ("product", "34 5", "Multiply 34 by 5|34 × 5|What is 34 x 5?", "34 % 5|34 + 5"),
    ("larger", "34 56", "max(34, 56)|Which is bigger, 34 or 56?", "the smaller of 34 and 56|34 + 56"),
    ("later", "09:30 34", "Add 34 minutes to 09:30|34 minutes past 09:30", "34 minutes before 09:30|09:30 - 34 minutes"),
    ("zone", "09:30 3", "Convert 09:30 (UTC+3) to UTC|Subtract 3 hours from 09:30", "Add 3 hours to 09:30"),
    ("day_after", "2001-02-03 34", "What date is 34 days after 2001-02-03?|2001-02-03 + 34 days", "34 days before 2001-02-03"),
    ("weekday", "2001-02-03", "On which day of the week was 2001-02-03?", "2001-02-03"),
    ("years", "1900 1950", "How many years are from 1900 to 1950?|1950 - 1900", "1900 + 1950"),
    ("minutes", "34", "How many minutes are in 34 hours?|34 * 60|34 hours as minutes", "34 * 6|Convert 34 minutes to hours|34 hours in seconds"),
    ("grams", "34", "Convert 34 kilograms to grams|34 kg in grams", "Convert 34 kilograms to pounds|Convert 34 grams to kilograms"),
    ("mean", "34 56", "the average of 34 and 56", "34 + 56"),
    ("remainder", "34 5", "34 modulo 5|34 % 5|the remainder when 34 is divided by 5", "34 / 5"),
    ("days_between", "2001-02-03 2002-03-04", "How many days are from 2001-02-03 to 2002-03-04?", "2001-02-03"),
])  # fmt: skip
def test_a_sub_task_finds_what_it_says_in_other_words(operation, operands, right, wrong):
    fact = Fact("f", RUNS, (), tuple(operands.split()), "", "", "", operation)
    for text in right.split("|"):
        assert finds(SubTask("t", text), [fact], ()) is fact, text
    for text in wrong.split("|"):
        assert finds(SubTask("t", text), [fact], ()) is None, text


def test_a_sub_task_finds_what_is_new_rather_than_what_is_known():
    assert (
        finds(SubTask("t", "a.png says 40, what does Mira Osei say?"), FACTS, ("a", "b")).id == "c"
    )


def test_a_sub_task_fails_where_one_that_it_needs_did_not_succeed():
    world = World(MINI, unlucky="b", trouble="blocked")
    carry_out(world, {**HEAR, "id": "h"}, task("Search for it", SEARCHES, needs=["h"]))
    assert [h.status for h in world.history] == ["blocked", "failed"] and not world.found


# ---- the tasks -----------------------------------------------------------------------------------


SPLITS = "train", "valid", "held_out"


@cache
def drawn(split):
    return list(islice(examples(split, 3), 220))


@pytest.mark.parametrize("split", SPLITS)
def test_every_decision_of_the_expert_is_paid_in_full(split):
    for e in drawn(split)[::5]:
        assert paid(e, e.reference) == [1.0], e.id


def asks_the_question(world):
    """The question and all that was found, to one sub-agent with every tool."""
    found = " ".join(evidence.answer for evidence in world.history)
    return json.loads(delegate({"task_instruction": world.mini.task.question, "context": found}))


def reads_each_file(world):
    """A sub-task for each file, its tool by the ending; then the answer of the newest report."""
    media = world.mini.task.media
    if world.round == 1 and media:
        return json.loads(delegate(*(task(file.name, TOOL[file.modality]) for file in media)))
    newest = world.history[-1].answer.split(";")[0] if world.history else ""
    return json.loads(complete(newest or "0"))


def is_solved(world, rule):
    """Play a task to its end by a rule, a function of the world to a decision."""
    while world.round <= ROUNDS:
        decision = read_decision(json.dumps(rule(world)), world.state()).decision
        if isinstance(decision, Complete):
            return matches(decision.answer, world.mini.answer, world.mini.task.question)
        world.carry_out(decision)
    return False


@pytest.mark.parametrize(("rule", "least", "most"), [
    (expert, 60, 60), (asks_the_question, 0, 3), (reads_each_file, 0, 3),
])  # fmt: skip
def test_the_expert_solves_every_task_and_a_fixed_rule_none(rule, least, most):
    worlds = [new_world(random.Random(f"result {n}"), "held_out", n) for n in range(60)]
    assert least <= sum(is_solved(world, rule) for world in worlds) <= most
    assert rule is not expert or not any(world.wasted for world in worlds)


def test_an_answer_cannot_be_guessed_from_the_kind_of_its_task():
    answers = [compose(random.Random(n), "train", n).answer for n in range(400)]
    assert max(map(answers.count, answers)) / len(answers) < 0.05


def test_no_split_has_a_name_or_a_prompt_of_another():
    for of in (lambda e: [e.messages[1]["content"]], lambda e: e.meta["entities"]):
        a, b, c = ({x for e in drawn(split) for x in of(e)} for split in SPLITS)
        assert not (a & b or a & c or b & c)


def operations(split):
    return {f["operation"] for e in drawn(split) for f in e.meta["world"]["facts"]}


def test_held_out_tasks_have_shapes_and_operations_that_training_does_not_have():
    new = {o.name for o in HELD_OUT}
    assert not new & (operations("train") | operations("valid"))
    assert new <= operations("held_out")
    assert not set(SEEN_SHAPES) & set(HELD_OUT_SHAPES)
    assert all(tree.labels() & new for row in trees(SEEN_SHAPES, True).values() for tree in row)


def test_the_same_seed_gives_the_same_bytes_and_another_other_ones(tmp_path):
    for name, seed in (("a", "5"), ("b", "5"), ("c", "6")):
        assert main(["--n", "60", "--seed", seed, "--out", str(tmp_path / name)]) == 0
    a, b, c = ((tmp_path / n / "held_out.jsonl").read_bytes() for n in "abc")
    assert a == b != c
