"""The laboratory's training: its step against PyTorch's own loss, and small arms from end to end."""

import json
import math
from dataclasses import replace

import pytest
import torch

from benchmarks.lab import arms
from benchmarks.lab.arms import (
    ARMS,
    COMPARED,
    Learner,
    Sample,
    Training,
    decision_ids,
    encode,
)
from benchmarks.lab.language import HELD_OUT, SETTINGS, Setting, Tasks

SMALL = Setting(rounds=2)


@pytest.fixture
def learner(tmp_path):
    arms.make_model(tmp_path / "random", seed=0)
    return Learner(tmp_path / "random", lr=1e-3, steps=4)


@pytest.fixture
def few(monkeypatch):
    """Few games, and few steps."""
    monkeypatch.setattr(arms, "STATES", 4)
    monkeypatch.setattr(arms, "SAMPLES", 24)
    monkeypatch.setattr(arms, "POINTS", 2)
    for name in ("CHECK", "VALIDATION", "HELD_OUT"):
        monkeypatch.setattr(
            arms, name, Tasks(name.lower().replace("_", " "), 5, name == "HELD_OUT")
        )
    return {name: replace(arm, steps=2) for name, arm in ARMS.items()}


def gradients(learner):
    return [p.grad.clone() for p in learner.policy.parameters()]


def test_imitation_is_the_cross_entropy_of_the_decision(learner, monkeypatch):
    lessons = [("asks memo all k1 map 2 found", "k1 see"), ("asks map found map", "done map")]
    samples = [Sample(encode(p), decision_ids(d), 1.0) for p, d in lessons]
    monkeypatch.setattr(learner.optimizer, "step", lambda: None)
    monkeypatch.setattr(learner.optimizer, "zero_grad", lambda: None)
    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", lambda *_: None)
    learner.learn(samples)
    found = gradients(learner)
    learner.policy.model.zero_grad()
    total = sum(len(s.ids) for s in samples)
    for s in samples:  # one at a time, without padding
        ids = torch.tensor([*s.prompt, *s.ids])
        logits = learner.policy.model(input_ids=ids[None]).logits[0, len(s.prompt) - 1 : -1]
        (
            torch.nn.functional.cross_entropy(logits, torch.tensor(s.ids), reduction="sum") / total
        ).backward()
    for mine, theirs in zip(found, gradients(learner), strict=True):
        assert torch.allclose(mine, theirs, atol=1e-6)


def test_equal_samples_count_as_often_as_they_are(learner, monkeypatch):
    one = Sample(encode("asks map found map"), decision_ids("done map"), 0.5)
    other = replace(one, ids=decision_ids("done memo"), advantage=-1.0)
    monkeypatch.setattr(learner.optimizer, "step", lambda: None)
    monkeypatch.setattr(learner.optimizer, "zero_grad", lambda: None)
    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", lambda *_: None)
    learner.learn([one, one, other])
    merged = gradients(learner)
    learner.policy.model.zero_grad()
    monkeypatch.setattr(arms, "_merged", lambda samples: samples)
    learner.learn([one, one, other])
    for mine, theirs in zip(merged, gradients(learner), strict=True):
        assert torch.allclose(mine, theirs, atol=1e-6)


def test_groups_of_equal_rewards_teach_nothing():
    first, second = arms.advantages_of([[1.0, 0.1, 0.1, 0.1], [0.1, 0.1, 0.1, 0.1]])
    # mean 0.325, deviation 0.45
    assert first == pytest.approx([1.5, -0.5, -0.5, -0.5], abs=1e-3)
    assert second == []


def test_all_decisions_of_a_game_share_its_advantage(learner, few):
    training = Training(SMALL, learner, 8, "x")
    won = []
    carry_out = training.execute

    def execute(game, decision):
        carry_out(game, decision)
        if not won:  # the first game ends well after one decision
            game.solved = True
            won.append(game)

    training.execute = execute
    samples = arms.reward_answers(training)
    assert training.used["sampled"] == training.used["executed"] > len(samples)  # of two tasks
    assert training.used["references"] == 0
    # one 1 among eight: mean 1 / 8, deviation the root of 1 / 8
    assert samples[0].advantage == pytest.approx(7 / 8 / math.sqrt(1 / 8), abs=1e-3)
    lost = {round(s.advantage, 3) for s in samples[1:]}
    assert lost == {round(-1 / 8 / (math.sqrt(1 / 8) + 1e-4), 3)}


@pytest.mark.parametrize(
    ("name", "references", "sampled", "executed"),
    [("sft", 8, 0, 0), ("dagger", 8, 8, 8), ("da", 8, 64, 0), ("da_own", 8, 64, 8)],
)
def test_what_two_steps_of_an_arm_use(learner, few, name, references, sampled, executed):
    training = Training(SMALL, learner, COMPARED[name].group, "x")
    for _ in range(2):
        learner.learn(COMPARED[name].learn(training))
    used = training.used
    assert (used["references"], used["sampled"], used["executed"]) == (
        references,
        sampled,
        executed,
    )


def test_a_wrong_reference_is_drawn_in_its_share_of_the_states(learner):
    training = Training(replace(SETTINGS[0], wrong=0.2), learner, 1, "x")
    wrong = 0
    for _ in range(20):
        for game in training.games:
            wrong += training.reference(game) != game.best()
        training.demonstrate()
    assert 0.13 < wrong / 1280 < 0.2  # a random decision is sometimes right


def test_the_same_seed_makes_the_same_row_and_a_row_is_not_made_twice(tmp_path, few, capsys):
    rows = []
    for out in (tmp_path / "a", tmp_path / "b"):
        for name in ("start", "da_own"):
            arms.train(out, SMALL, name, few[name], 7, arms.HELD_OUT)
        (file,) = (out / "rows").glob("*da_own*")
        row = json.loads(file.read_text())
        for point in row["curve"]:
            del point["cpu_s"]
        rows.append(row)
    assert rows[0] == rows[1]
    assert len(rows[0]["greedy"]) == 5
    file.write_text("kept")
    arms.train(tmp_path / "b", SMALL, "da_own", few["da_own"], 7, arms.HELD_OUT)
    assert file.read_text() == "kept"


def test_quick_is_the_first_setting_and_any_seed_can_be_chosen():
    flags = arms.parser().parse_args(["--quick", "--seed", "41", "--seed", "7"])
    assert arms.jobs(flags) == [
        (SETTINGS[0], tuple(ARMS), 41, HELD_OUT),
        (SETTINGS[0], tuple(ARMS), 7, HELD_OUT),
    ]
    whole = arms.jobs(arms.parser().parse_args([]))
    assert len(whole) == 3 * (len(SETTINGS) + 1)
