"""MiniGAIA: the expert's decisions are right, short, the same every time, and really unseen."""

from __future__ import annotations

import json
import re
from functools import cache
from itertools import islice

import pytest

from orchestra.memory import tokens
from orchestra.vocabulary import Complete, Delegate
from orchestrators.orchestra_o1 import parse_decision
from training.examples import read, state_of
from training.minigaia import PART, examples, main
from training.rewards import make
from training.templates import NAMES, SHARE, TEMPLATES

SPLITS = list(PART)


@cache
def stream(split, style, seed):
    return [], examples(split, seed, style)


def drawn(split, n=1000, style="brief", seed=3):
    """The first n of a split: made once."""
    made, more = stream(split, style, seed)
    made += islice(more, max(0, n - len(made)))
    return made[:n]


@pytest.mark.parametrize("style", ["brief", "full"])
@pytest.mark.parametrize("split", SPLITS)
def test_every_reference_decision_is_exact_and_scores_one(split, style):
    rubric = make("rubric")
    for e in drawn(split, style=style):
        (scores,) = rubric(e, [json.dumps(e.reference)])
        assert (scores.total, scores.exact, scores.valid) == (1.0, True, True), e.id


def test_the_short_prompts_and_decisions_are_short():
    """By the estimate of orchestra.memory, which errs high: 370 where SmolLM2 has 345."""
    for e in drawn("train"):
        assert tokens("".join(m["content"] for m in e.messages)) <= 370
        assert tokens(json.dumps(e.reference)) <= 140


def test_the_first_decision_gives_every_unseen_file_its_own_sub_task_and_tool():
    tool = {
        "image": "ImageAnalysisAction",
        "audio": "ParseAudioAction",
        "video": "VideoAnalysisAction",
    }
    for e in drawn("train"):
        state = state_of(e.meta["state"])
        if state.round == 1:
            subtasks = parse_decision(json.dumps(e.reference), state).subtasks
            looking = {
                m.name: [u.tools for u in subtasks if m.name in u.instruction]
                for m in state.task.media
            }
            assert looking == {m.name: [(tool[m.modality],)] for m in state.task.media}


def test_the_expert_repeats_only_what_did_not_succeed():
    for e in drawn("held_out"):
        state = state_of(e.meta["state"])
        done = {h.instruction for h in state.history if h.status == "done"}
        decision = parse_decision(json.dumps(e.reference), state)
        asked = (
            {u.instruction for u in decision.subtasks} if isinstance(decision, Delegate) else set()
        )
        assert not asked & done


def test_the_expert_completes_exactly_when_the_answer_is_there():
    for e in drawn("train"):
        state = state_of(e.meta["state"])
        told = [
            h.answer
            for h in state.history
            if re.search(rf"(?<!\w){re.escape(e.meta['answer'])}(?!\w)", h.answer)
        ]
        if isinstance(parse_decision(json.dumps(e.reference), state), Complete):
            assert told


def test_all_levels_kinds_of_trouble_and_tools_are_in_it():
    rows = drawn("train")
    assert {e.meta["level"] for e in rows} == {1, 2, 3}
    assert {h["status"] for e in rows for h in e.meta["state"]["history"]} == {
        "done",
        "failed",
        "blocked",
        "partial",
    }
    used = {
        tool for e in rows for t in e.reference["params"].get("tasks", []) for tool in t["tools"]
    }
    assert len(used) == 6


def test_no_split_shares_an_example_with_another():
    train, valid, held_out = ({e.messages[1]["content"] for e in drawn(s)} for s in SPLITS)
    assert not (train & valid or train & held_out or valid & held_out)


def test_held_out_has_other_templates_and_names_than_train():
    train, held_out = drawn("train", 2000), drawn("held_out", 2000)
    assert not {e.meta["template"] for e in train} & {e.meta["template"] for e in held_out}
    said = " ".join(m["content"] for e in train for m in e.messages[1:])
    words = set(re.findall(r"\w+", said.lower()))
    for entity in {part for e in held_out for name in e.meta["entities"] for part in name.split()}:
        assert entity.lower() not in words, entity


def test_valid_has_the_templates_of_train_with_other_names():
    train, valid = drawn("train", 2000), drawn("valid", 2000)
    names = [{n for e in rows for n in e.meta["entities"]} for rows in (train, valid)]
    assert {e.meta["template"] for e in train} == {e.meta["template"] for e in valid}
    assert not names[0] & names[1]


def test_the_shares_of_the_names_do_not_overlap_and_names_are_given_once():
    cuts = sorted(SHARE.values())
    assert all(a[1] == b[0] for a, b in zip(cuts, cuts[1:], strict=False))
    every = [name for names in NAMES.values() for name in names]
    assert len(every) == len(set(every))


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda t: t.name)
def test_a_guess_before_the_evidence_is_there_does_not_pay(template):
    """The answers of other tasks of the same template, as a policy would learn them by heart."""
    split = "train" if template.seen else "held_out"
    rows = [e for e in drawn(split) if e.meta["template"] == template.name]
    guesses = [
        json.dumps({"action": "complete", "params": {"answer": e.meta["answer"]}})
        for e in rows[:20]
    ]
    early = [e for e in rows[20:] if e.meta["kind"] == "read"][:8]
    paid = [s.total for e in early for s in make("outcome")(e, guesses)]
    assert paid and sum(paid) / len(paid) < 0.05


def test_the_same_seed_gives_the_same_bytes_and_another_other_ones(tmp_path, capsys):
    for name, seed in (("a", 5), ("b", 5), ("c", 6)):
        assert main(["--n", "60", "--seed", str(seed), "--out", str(tmp_path / name)]) == 0
    for split in SPLITS:
        a, b, c = ((tmp_path / n / f"{split}.jsonl").read_bytes() for n in "abc")
        assert a == b != c
        assert read(tmp_path / "a" / f"{split}.jsonl")


def test_more_examples_begin_with_the_same_ones():
    assert list(islice(examples("train", 3, "brief"), 50)) == drawn("train")[:50]


def test_the_command_says_in_one_line_what_is_wrong(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["--n", "5", "--out", str(tmp_path)]) == 2
    assert main(["--n", "50", "--out", str(tmp_path / "file" / "x")]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2 and "--n 5" in lines[0] and "--out" in lines[1]
