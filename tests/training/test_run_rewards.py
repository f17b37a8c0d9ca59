"""The rewards of whole runs, against the formulas of the papers computed in another way."""

import json
import random
from collections import Counter

import pytest

from orchestra.evaluation.questions import Question
from orchestra.seams import Completion
from orchestra.training import run_rewards
from orchestra.training.run_rewards import (
    MasOrchestraReward,
    Rollout,
    ToolOrchestraReward,
    make,
    rollout,
)
from tests.conftest import ConfigError, Price
from tests.program import Runs
from tests.scripted import agent, thought

QUESTION = Question(question="What is it?", answer="42")
NAMES = ("enhance_reasoning", "answer", "search", "outcome", "cost", "latency")
CALL = '<tool_call>{{"name": "{}", "arguments": {{"model": "{}"}}}}</tool_call>'.format
REASON, ANSWER = CALL("enhance_reasoning", "reasoner-1"), CALL("answer", "answer-1")


def expected(group, p):
    """Eq. 1 and 2 of arXiv 2511.21689 column by column, without the code under test."""
    vectors = [
        [
            *(t.calls.get(n, 0) for n in NAMES[:3]),
            int(t.executed and t.answer == "42"),
            -t.cost_usd,
            -t.latency_s,
        ]
        for t in group
    ]
    columns = list(zip(*vectors, strict=True))
    found = []
    for row in vectors:
        total = 0.0
        for k, name in enumerate(NAMES):
            low, high = min(columns[k]), max(columns[k])
            if high > low:
                total += p.get(name, 0.0) * (row[k] - low) / (high - low)
        found.append(total if row[3] else 0.0)
    return found


def test_the_reward_of_toolorchestra_is_that_of_eq_2(monkeypatch):
    """On 1,000 random groups of eight rollouts."""
    chance = random.Random(39)
    for _ in range(1000):
        group = [
            Rollout(
                answer=chance.choice(["42", "42", "7", ""]), executed=chance.random() < 0.8, prefer={},
                calls=Counter({n: chance.randrange(4) for n in NAMES[:3]}),
                cost_usd=chance.choice([0.0, chance.random()]), latency_s=chance.random() * 100,
            )
            for _ in range(8)
        ]  # fmt: skip
        p = {name: round(chance.random(), 3) for name in chance.sample(NAMES, 3)}
        monkeypatch.setattr(run_rewards, "rollout", lambda path, g=group: g[int(path.name)])
        reward = ToolOrchestraReward(",".join(f"{k}={v}" for k, v in p.items()))
        scores = reward.score(QUESTION, [Completion(str(n)) for n in range(8)])
        assert [s.total for s in scores] == pytest.approx(expected(group, p))


def test_the_reward_of_a_recorded_group_prefers_the_cheap_right_run(endpoint, tmp_path):
    run = Runs(endpoint, tmp_path, "toolorchestra")
    how = {"price": Price(1, 1), "prefer": "outcome=1,cost=0.5"}
    run(ANSWER, work="Answer: 42", out="cheap", **how)
    run(REASON, ANSWER, work="Answer: 42", out="dear", **how)
    run(ANSWER, work="Answer: 7", out="wrong", **how)
    run("hm", "hm", work="Answer: 42", out="fallback", **how)
    folders = [tmp_path / name for name in ("cheap", "dear", "wrong", "fallback")]
    taus = [rollout(folder) for folder in folders]
    assert [dict(t.calls) for t in taus] == [
        {"answer": 1},
        {"enhance_reasoning": 1, "answer": 1},
        {"answer": 1},
        {},
    ]
    scores = make("toolorchestra").score(QUESTION, [Completion(str(f)) for f in folders])
    assert [s.total for s in scores] == pytest.approx(expected(taus, {"outcome": 1, "cost": 0.5}))
    assert scores[0].total > scores[1].total > scores[2].total == scores[3].total == 0
    assert [s.valid for s in scores] == [True, True, True, False]


def test_the_reward_of_mas_orchestra_weighs_format_and_answer(endpoint, tmp_path):
    run = Runs(endpoint, tmp_path, "mas-orchestra")
    run(thought(agent()), work="Answer: 42", out="right")
    run(thought(agent()), work="Answer: 7", out="wrong")
    run("hm", "hm", work="Answer: 42", out="fallback")
    runs = [Completion(str(tmp_path / name)) for name in ("right", "wrong", "fallback")]
    assert [s.total for s in MasOrchestraReward().score(QUESTION, runs)] == pytest.approx(
        [1.0, 0.1, 0.0]
    )
    paper = make("mas-orchestra", w_exec="0", w_ans="1")
    assert [s.total for s in paper.score(QUESTION, runs)] == [1.0, 0.0, 0.0]


def test_the_command_prints_a_row_for_each_run(endpoint, tmp_path, capsys, monkeypatch):
    Runs(endpoint, tmp_path, "mas-orchestra")(thought(agent()), work="Answer: 42")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "answers.json").write_text(
        json.dumps([{"question": "What is it?", "answer": "42"}])
    )
    flags = ["run", "--answers", "answers.json", "--reward"]
    assert run_rewards.main([*flags, "mas-orchestra"]) == 0
    assert capsys.readouterr().out.splitlines()[1].split() == ["run", "1", "1", "1"]
    assert run_rewards.main([*flags, "nobody"]) == 2
    assert "--reward nobody" in capsys.readouterr().err


def test_a_run_of_unknown_cost_cannot_be_scored(endpoint, tmp_path):
    Runs(endpoint, tmp_path, "toolorchestra")(ANSWER, price=None)
    with pytest.raises(ConfigError, match="its cost is unknown"):
        rollout(tmp_path / "run")
