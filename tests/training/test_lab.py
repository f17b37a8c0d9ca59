"""The laboratory: its language, players, arms, table and curves, on so few steps that they take seconds."""

import json
import random
import re
from itertools import islice
from unittest import mock
from xml.etree import ElementTree

import numpy as np
import pytest

from orchestra.training.exact import Exact
from orchestra.training.lab import __main__ as lab
from orchestra.training.lab import (
    arms,
    curves,
    demonstrators,
    grpo,
    imitation,
    order,
    table,
    tasks,
)
from orchestra.training.lab.budget import Budget, Meter
from orchestra.training.lab.language import MAX_TOKENS, Game
from orchestra.training.lab.plan import Plan
from orchestra.training.lab.play import Expanded, carry_out, example_of, held_out, planned, play
from orchestra.training.lab.results import Lab
from orchestra.training.rewards import Completion
from orchestra.training.world import expert
from tests.conftest import ROOT
from tests.training.runs import QUIET

pytestmark = QUIET
PAGE = ROOT / "docs/training.md"
SVG = "{http://www.w3.org/2000/svg}"


def solved(name, games=60):
    """The share of held-out games that a player solves."""
    return np.mean(
        [p.solved for p in play(held_out(games), planned(demonstrators.PLAYERS[name], name))]
    )


# ---- the language --------------------------------------------------------------------------------


def test_the_experts_decisions_are_the_same_in_both_languages():
    reward = Expanded(Exact())
    for n in range(40):
        game, end = Game(tasks.training_task(n)), None
        while end is None:
            text = demonstrators.perfect(game)
            assert game.compact(expert(game.world)) == text  # round trip
            assert game.compact(json.loads(game.expand(text))) == text
            assert reward.score(example_of(game), [Completion(text)])[0].total == 1.0
            end = carry_out(game, text)
        assert end


@pytest.mark.parametrize("text", [
    "", "k1:", "k99: img", "k1: img k2 k3", "done", "done k1 k2", "k1: sum k2", "k1: sum", "k1: what k2 k3", "img", ";",
    "; k1: img", "k1: img ;", "k1: img ; nothing", "k1: sum k2 ok", "k1 img", "k1: done", " ; ".join(["k1: img"] * 13),
])  # fmt: skip
def test_a_text_outside_the_language_stands_for_no_decision(text):
    game = Game(tasks.training_task(0))
    assert game.expand(text) == ""
    assert carry_out(game, text) is None and game.world.round == 2  # it costs a round


def test_what_is_not_known_yet_cannot_be_used():
    game = next(g for g in held_out(50) if len(g.world.mini.facts[-1].needs) == 2)
    last = game.subtask_for(game.world.mini.facts[-1])
    carry_out(game, last)
    assert [e.status for e in game.world.history] == ["failed"]
    assert carry_out(game, "done k1") is False


def test_every_state_and_decision_is_in_the_vocabulary():
    lessons = list(islice(imitation.babbled(0), 400))  # KeyError for a word that is not
    assert max(len(decision) for _, decision in lessons) <= MAX_TOKENS
    assert np.mean([len(state) for state, _ in lessons]) < 40


# ---- tasks and players ---------------------------------------------------------------------------


def test_held_out_compositions_are_as_large_and_never_trained_on():
    def trees(held_out):
        of_shape = [tasks.compositions(shape, held_out) for shape in tasks.SHAPES]
        return [tree for found in of_shape for of_label in found.values() for tree in of_label]

    held, trained = set(trees(True)), set(trees(False))
    assert held and not held & trained
    sizes = [{len(tree.labels()) for tree in found} for found in (held, trained)]
    assert sizes[0] <= sizes[1]
    assert {t.world.mini.task.question for t in held_out(50)}.isdisjoint(
        tasks.training_task(n).mini.task.question for n in range(200)
    )


def test_the_expert_solves_all_the_demonstrator_some_and_the_rules_nothing():
    assert solved("expert") == 1
    assert 0.6 < solved("demonstrator") < 0.95
    assert all(
        solved(name) <= 0.1 for name in demonstrators.PLAYERS if name.startswith(("rule", "random"))
    )


def test_the_habits_of_the_demonstrator_are_as_stated():
    for n in range(40):
        game, end, asked = Game(tasks.training_task(n)), None, []
        while end is None:
            text = demonstrators.imperfect(game)
            gave_up = text.startswith("done") and not game.world.answer_found()
            assert " ; " not in text  # one thing
            assert text not in asked or not game.world.found  # no retry
            asked.append(text)
            end = carry_out(game, text)
        assert end is (not gave_up)  # ends early


def test_imitation_of_the_successful_games_leaves_out_the_others():
    every, some = imitation.demonstrations(60), imitation.demonstrations(60, only_successful=True)
    assert 0 < len(some) < len(every) and all(lesson in every for lesson in some)


# ---- what the arms use ---------------------------------------------------------------------------


@pytest.fixture
def small():
    """Few groups a step, and a model of one narrow layer."""
    make = mock.patch("orchestra.training.lab.model.make.__defaults__", (16, 1))
    short = mock.patch("orchestra.training.lab.model.MAX_TOKENS", 3)
    with mock.patch.multiple(grpo, STATES=4, GROUP=2, GAMES=2), make, short:
        yield


def flags(out, *more):
    plan = [
        "--steps",
        "1",
        "--tasks",
        "8",
        "--held-out",
        "4",
        "--validation",
        "3",
        "--points",
        "1",
        "--seeds",
        "1",
        "--jobs",
        "1",
    ]
    return ["--out", str(out), *plan, *more]


def rows(out):
    """The results without the seconds, which differ from run to run."""
    found = {}
    for file in (out / "results").glob("*.json"):
        text = json.loads(
            file.read_text(), object_hook=lambda d: {k: v for k, v in d.items() if k != "cpu_s"}
        )
        found[file.stem] = text
    return found


def test_a_killed_laboratory_goes_on_and_gives_the_same_rows(tmp_path, small, capsys):
    names = ["--arms", "da,outcome_few,offline,longer"]
    assert lab.main(flags(tmp_path / "whole", *names)) == 0
    stopped, killed = tmp_path / "stopped", mock.Mock(side_effect=KeyboardInterrupt)
    with mock.patch.object(Lab, "_measured", killed):  # the first arm is trained, but not measured
        assert lab.main(flags(stopped, *names)) == 130
    with mock.patch.object(grpo, "by_outcome", killed), mock.patch.dict(arms.BY_NAME):
        few = arms.BY_NAME["outcome_few"]
        arms.BY_NAME["outcome_few"] = few.__class__(**{**few.__dict__, "learn": killed})
        assert lab.main(flags(stopped, *names)) == 130
    assert {"base-0", "start-0", "longer-0", "da-0"} < rows(stopped).keys()
    with mock.patch.object(imitation, "imitate", killed):  # what is complete is not made again
        assert lab.main(flags(stopped, *names)) == 0
    assert rows(stopped) == rows(tmp_path / "whole")
    used = {name: row["used"] for name, row in rows(stopped).items() if "used" in row}
    assert (used["da-0"]["decisions"], used["da-0"]["executed"]) == (8, 4)
    assert (used["offline-0"]["decisions"], used["offline-0"]["executed"]) == (8, 0)
    assert used["outcome_few-0"]["decisions"] == used["outcome_few-0"]["executed"] >= 4


def test_another_plan_or_an_unknown_arm_is_one_line(tmp_path, small, capsys):
    assert lab.main(flags(tmp_path, "--arms", "base")) == 0
    capsys.readouterr()
    assert lab.main([*flags(tmp_path, "--arms", "base"), "--start-s", "9"]) == 2
    assert "has results of another start_s; give another folder" in capsys.readouterr().err
    assert lab.main(flags(tmp_path, "--arms", "ppo")) == 2
    assert "ppo does not exist; choose of base, start, longer, da" in capsys.readouterr().err
    assert lab.main(["--out", str(tmp_path / "none"), "--table"]) == 2


def test_a_budget_ends_by_seconds_or_by_executed_decisions_and_pauses_are_free():
    meter = Meter(Budget(seconds=1e9, executed=6))
    for _ in meter.places():
        meter.executed += 4
        meter.paused(lambda: sum(range(10**6)))
    assert meter.step == 2 and meter.seconds() < 0.01
    meter = Meter(Budget(seconds=0.05))
    places = list(meter.places())
    assert places[0] < places[-1] < 10**6 and 0.05 <= meter.seconds() < 1


def test_an_arm_comes_after_those_that_it_needs():
    assert order.with_needs(["outcome_few"]) == ["base", "start", "da", "outcome_few"]
    done = []
    order.run_all(order.EVERY, 2, 1, lambda name, seed: done.append((name, seed)))
    for name, seed in done:
        assert all(done.index((n, seed)) < done.index((name, seed)) for n in order.needs(name))


# ---- the table and the curves --------------------------------------------------------------------


def result(arm, seed, marks, **used):
    """A result with these tasks solved."""
    share = marks.count("1") / len(marks)
    kind = {"solved": share, "rounds": 4.0, "subtasks": 5.0, "wasted": 1.0, "tasks": marks}
    spent = {"cpu_s": 300.0, "decisions": 0, "executed": 0, "calls": 0, "steps": 9, **used}
    points = [
        {
            **spent,
            "cpu_s": s * spent["cpu_s"],
            "solved": s * share,
        }
        for s in (0.0, 1.0)
    ]
    return {
        "arm": arm,
        "seed": seed,
        "used": spent,
        "curve": points,
        "greedy": kind,
        "sampled": kind,
    }


RESULTS = [
    *(result("start", seed, "0011", cpu_s=400.0) for seed in (0, 1)),
    result("da", 0, "1111", decisions=80, executed=10), result("da", 1, "1110", decisions=80, executed=10),
    result("longer", 0, "0011"), result("longer", 1, "1010"),
    result("outcome_few", 0, "1011", decisions=10, executed=10),
    {k: v for k, v in result("demonstrator", 0, "1100").items() if k not in ("used", "sampled")},
]  # fmt: skip


def test_the_table_has_means_totals_and_comparisons():
    text = table.table(RESULTS)
    assert (
        "| DA-GRPO | 87.5 |" in text and "| 80 | 10 | 0 | 700 |" in text
    )  # the start's seconds too
    assert "| **primary:** DA-GRPO minus longer imitation | 2 | +37.5 |" in text
    assert "equally many executed decisions | 1 | +25.0 |" in text  # the seed that both have
    assert "| DA-GRPO minus its demonstrator | 2 | +37.5 |" in text  # its games stand for all seeds


@pytest.mark.parametrize(("values", "expected"), [
    ([[0, 0, 100, 100]], (0, 100)), ([[50, 50], [50, 50]], (50, 50)), ([[0, 0], [100, 100]], (0, 100)),
    (np.tile([0, 100], (5, 500)), (46.9, 53.1)),  # tasks are drawn once for all seeds
])  # fmt: skip
def test_an_interval_draws_seeds_and_tasks_together(values, expected):
    assert table.interval(np.array(values, float)) == pytest.approx(expected, abs=0.5)


def test_the_curves_are_svg_and_continue_where_the_start_ended():
    picture = ElementTree.fromstring(curves.svg(RESULTS))
    names = [text.text for text in picture.iter(f"{SVG}text")]
    assert {
        "DA-GRPO",
        "imitation, longer",
        "CPU seconds",
        "executed decisions",
        "demonstrator (imperfect)",
    } < set(names)
    points = curves.curve(table.by_arm(RESULTS), "da", "cpu_s")
    assert points == [(400.0, 0.0), (700.0, 87.5)]
    assert ElementTree.fromstring(curves.svg([])).tag == f"{SVG}svg"


# ---- the page ------------------------------------------------------------------------------------


def test_the_group_in_the_page_has_the_rewards_and_advantages_of_the_program():
    """docs/training.md: the sum of a file that is seen and one that is heard."""
    import torch

    from orchestra.training.lab.tasks import new_task
    from train_da_grpo import group_advantages

    shown = re.findall(r"\| (\d\.\d\d) \| ([+-]\d\.\d\d) \|", PAGE.read_text(encoding="utf-8"))
    games = (Game(new_task(random.Random(n), held_out=False)) for n in range(10**4))
    game = next(g for g in games if g.prompt() == "Q k1: sum k2 k3 k2: img k3: wav F r 1")
    texts = ["k2: img ; k3: wav", "k2: img", "k2: img ; k3: img", "k1: sum k2 k3"]
    scores = Expanded(Exact()).score(example_of(game), [Completion(text) for text in texts])
    advantages, _ = group_advantages(torch.tensor([[s.total for s in scores]]))
    found = [
        (f"{s.total + 1e-9:.2f}", f"{a:+.2f}")
        for s, a in zip(scores, advantages[0].tolist(), strict=True)
    ]
    assert found == shown


def test_the_page_shows_the_recorded_results():
    """python -m orchestra.training.lab --out fixtures/lab --table, between two marks; and its curves."""
    results = Lab(ROOT / "fixtures/lab", Plan()).results()
    shown = PAGE.read_text(encoding="utf-8").split("<!-- lab -->\n")[1]
    assert shown.startswith(f"\n{table.table(results)}\n![")
    assert curves.svg(results) == PAGE.with_name("lab.svg").read_text(encoding="utf-8")
