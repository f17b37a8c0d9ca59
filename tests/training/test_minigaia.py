"""MiniGAIA: the expert's decisions are right, short, the same every time, and really unseen."""

import json
import re
from functools import cache
from itertools import islice

import pytest

from orchestrators.orchestra_o1 import parse_decision
from training.examples import state_of
from training.minigaia import PART, examples, main
from training.rewards import make
from training.templates import TEMPLATES, TOOL


@cache
def drawn(split, style="brief"):
    return list(islice(examples(split, 3, style), 500))


def decisions(split, action):
    """(s_t, y*_t, the example) of a split where the expert does this."""
    chosen = [e for e in drawn(split) if e.reference["action"] == action]
    for e in chosen:
        state = state_of(e.meta["state"])
        yield state, parse_decision(json.dumps(e.reference), state), e


@pytest.mark.parametrize("style", ["brief", "full"])
@pytest.mark.parametrize("split", PART)
def test_every_reference_decision_is_exact_and_scores_one(split, style):
    rubric = make("rubric")
    for e in drawn(split, style)[:60]:
        (scores,) = rubric(e, [json.dumps(e.reference)])
        assert (scores.total, scores.exact, scores.valid) == (1.0, True, True), e.id


def test_the_first_decision_gives_every_file_its_own_sub_task_and_tool():
    for state, decision, _ in decisions("train", "delegate_task"):
        for m in state.task.media if state.round == 1 else ():
            asked = [u.tools for u in decision.subtasks if m.name in u.instruction]
            assert asked == [(TOOL[m.modality],)]


def test_the_expert_repeats_only_what_did_not_succeed():
    for state, decision, _ in decisions("held_out", "delegate_task"):
        done = {h.instruction for h in state.history if h.status == "done"}
        assert not done & {u.instruction for u in decision.subtasks}


def test_the_expert_completes_only_where_the_answer_is_there():
    for state, _, e in decisions("train", "complete"):
        answer = rf"(?<!\w){re.escape(e.meta['answer'])}(?!\w)"
        assert any(re.search(answer, h.answer) for h in state.history)


def test_all_levels_kinds_of_trouble_and_tools_are_in_it():
    rows = drawn("train")
    tried = {h["status"] for e in rows for h in e.meta["state"]["history"]}
    tasks = [t for e in rows for t in e.reference["params"].get("tasks", [])]
    assert {e.meta["level"] for e in rows} == {1, 2, 3}
    assert tried == {"done", "failed", "blocked", "partial"}
    assert {tool for t in tasks for tool in t["tools"]} == set(TOOL.values())


def test_no_split_shares_an_example_or_a_name_with_another():
    for of in (lambda e: [e.messages[1]["content"]], lambda e: e.meta["entities"]):
        a, b, c = ({x for e in drawn(split) for x in of(e)} for split in PART)
        assert not (a & b or a & c or b & c)


def test_held_out_has_templates_and_names_that_train_does_not_have():
    a, b, c = ({e.meta["template"] for e in drawn(split)} for split in PART)
    assert a == b and not a & c
    text = " ".join(m["content"] for e in drawn("train") for m in e.messages[1:]).lower()
    names = " ".join(name for e in drawn("held_out") for name in e.meta["entities"]).lower()
    assert not set(names.split()) & set(re.findall(r"\w+", text))


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda t: t.name)
def test_a_guess_before_the_evidence_is_there_does_not_pay(template):
    """The answers of other tasks of the same template, as a policy would learn them by heart."""
    split = "train" if template.seen else "held_out"
    rows = [e for e in drawn(split) if e.meta["template"] == template.name]
    answers = [{"action": "complete", "params": {"answer": e.meta["answer"]}} for e in rows[:12]]
    early = [e for e in rows[12:] if e.meta["kind"] == "read"][:4]
    paid = [s.total for e in early for s in make("outcome")(e, list(map(json.dumps, answers)))]
    assert paid and sum(paid) / len(paid) < 0.05


def test_the_same_seed_gives_the_same_bytes_and_another_other_ones(tmp_path):
    for name, seed in (("a", "5"), ("b", "5"), ("c", "6")):
        assert main(["--n", "60", "--seed", seed, "--out", str(tmp_path / name)]) == 0
    for split in PART:
        a, b, c = ((tmp_path / n / f"{split}.jsonl").read_bytes() for n in "abc")
        assert a == b != c


@pytest.mark.parametrize(("flag", "value"), [("--n", "5"), ("--out", "FILE/x")])
def test_the_command_says_in_one_line_what_is_wrong(tmp_path, capsys, flag, value):
    (tmp_path / "file").write_text("")
    more = [flag, value.replace("FILE", str(tmp_path / "file"))]
    assert main(["--n", "50", "--out", str(tmp_path), *more]) == 2
    assert re.fullmatch(rf"training\.minigaia: .*{flag}.*\n", capsys.readouterr().err)
