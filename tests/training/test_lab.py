"""The laboratory without torch: its world by hand, its players, and its report."""

import json
import random
import shutil

import pytest

from benchmarks.lab import players, report
from benchmarks.lab.language import (
    HELD_OUT,
    SETTINGS,
    VALIDATION,
    Game,
    Lead,
    Setting,
    Stage,
    Task,
    is_held_out,
    new_task,
    reward,
)
from orchestra.kernel.vocabulary import ConfigError
from tests.conftest import ROOT

MEMO = Task(
    asked="memo",
    stages=(
        Stage(True, (Lead("map", 2, False), Lead("rumour", 1, False), Lead("song", 3, True))),
        Stage(False, (Lead("film", 4, False), Lead("memo", 1, False))),
    ),
)

# ---- the world -----------------------------------------------------------------------------------


def test_the_best_play_opens_what_is_needed_and_tries_again_what_was_in_trouble():
    game = Game(MEMO)
    seen = []
    while game.solved is None:
        seen.append((game.prompt(), game.best(), game.left))
        game.carry_out(game.best())
    assert seen == [
        ("asks memo all k1 map 2 k2 rumour 1 k3 song 3 found", "k1 see k3 hear", 17),
        ("asks memo all k2 rumour 1 k3 song 3 failed k3 hear found map", "k3 hear", 11),
        ("asks memo any k1 film 4 k2 memo 1 found map song", "k2 read", 7),
        ("asks memo found map song memo", "done memo", 5),
    ]  # 17: the costs 6, 4, 2 and 1, a fifth of them, and 2
    assert (game.solved, game.left, game.calls) == (True, 4, 4)


@pytest.mark.parametrize(
    ("decision", "left"),
    [
        ("k1 hear", 14),  # the wrong tool: the round and the price of the map
        ("k2 see", 15),  # a rumour has nothing to say
        ("k4 see", 16),  # no such lead
        ("k1 see k1 hear", 16),  # cannot be carried out: the round alone
        ("", 16),
    ],
)
def test_a_useless_decision_costs_and_finds_nothing(decision, left):
    game = Game(MEMO)
    game.carry_out(decision)
    assert (game.left, game.found, game.stage, game.solved) == (left, [], 0, None)


def test_an_early_answer_a_wrong_one_and_too_much_spent_lose():
    early = Game(MEMO)
    early.carry_out("done memo")
    assert early.solved is False
    wrong = Game(MEMO)
    for decision in ("k1 see k3 hear", "k3 hear", "k2 read", "done song"):
        wrong.carry_out(decision)
    assert wrong.solved is False
    poor = Game(MEMO, left=5)
    poor.carry_out("k1 see k3 hear")
    assert (poor.solved, poor.left) == (False, -1)


@pytest.mark.parametrize(
    ("mine", "reference", "value"),
    [
        ("k3 read k1 see", "k1 see k3 read", 1.0),
        ("k1 see", "k1 see k3 read", 0.1 + 0.9 * 0.5),  # half of what is needed
        ("k1 see k2 see k3 read", "k1 see k3 read", 0.1 + 0.9 * 2 / 3),  # one for nothing
        ("k1 hear k3 read", "k1 see k3 read", 0.1 + 0.2 + 0.7 / 4),  # a wrong tool
        ("k2 see", "k1 see", 0.1),
        ("done memo", "done memo", 1.0),
        ("done memo", "done map", 0.1),
        ("done memo", "k1 see", 0.1),
        ("k1 see", "done memo", 0.1),
        ("k1", "k1 see", 0.0),
        ("done", "done memo", 0.0),
    ],
)
def test_the_reward_of_a_decision(mine, reference, value):
    assert reward(mine, reference) == pytest.approx(value)


def test_the_expert_solves_all_and_no_other_player_half_of_the_first_setting():
    solved = {p.__name__: report.played(p, SETTINGS[0]) for p in players.PLAYERS}
    assert solved["expert"] == 100
    assert solved["flawed"] < 60
    assert solved["rule"] < 5  # and 18 of a hundred of two rounds
    assert solved["babble"] < 5


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda s: s.name)
def test_no_stage_of_a_held_out_task_is_one_of_training(setting):
    rng = random.Random(0)
    trained = [new_task(rng, setting.rounds, setting.trouble, held_out=False) for _ in range(300)]
    tried = [game.task for game in HELD_OUT.games(setting)]
    checked = [game.task for game in VALIDATION.games(setting)]

    def stages(tasks):
        return {frozenset(x.kind for x in stage.leads) for t in tasks for stage in t.stages}

    assert not stages(tried) & stages(trained)
    assert not any(is_held_out(sorted(kinds)) for kinds in stages([*trained, *checked]))
    assert all(len(t.stages) == setting.rounds - 1 for t in tried)


def test_what_is_asked_is_in_the_last_stage_alone_and_not_always_the_newest():
    newest = []
    for n in range(200):
        game = Game(new_task(random.Random(n), 4, 0.3, held_out=False))
        task = game.task
        assert all(x.kind != task.asked for stage in task.stages[:-1] for x in stage.leads)
        while game.leads:
            game.carry_out(game.best())
        newest.append(game.found[-1] == task.asked)
    assert 0.3 < sum(newest) / len(newest) < 0.9


# ---- the report ----------------------------------------------------------------------------------


def row(arm, seed, marks, setting=SETTINGS[0], executed=7):
    used = {"references": 1, "sampled": 2, "executed": executed, "calls": 4, "cpu_s": 5.0}
    curve = [{"step": 0, **used, "solved": 0.0}, {"step": 9, **used, "solved": 0.5}]
    return {
        **{
            "arm": arm,
            "seed": seed,
            "setting": vars(setting),
            "steps": 9,
            "curve": curve,
            "tasks": "held out",
        },
        report.GREEDY: marks,
        report.SAMPLED: "0000",
    }


def test_the_tables_say_means_and_intervals_over_seeds_and_tasks(tmp_path):
    rows = [
        row("da", 0, "1111"),
        row("da", 1, "1110"),
        row("sft", 0, "1100"),
        row("sft", 1, "0110"),
    ]
    (tmp_path / "results.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    text = report.report(tmp_path)
    # da: 100 and 75; sft: 50 and 50. t of one degree of freedom is 12.71
    assert "| da | 87.5 (-71.4 to 246.4) | 0.0 (0.0 to 0.0) | 9 | 1 | 2 | 7 | 4 | 5 |" in text
    # gaps by seed 50 and 25; by task (1 + 0) / 2, 1 - 1 = 0, ...: 50, 0, 50, 50
    assert "| da - sft | 2 | 37.5 (-121.4 to 196.4) | 13.0 to 62.0 |" in text
    assert (tmp_path / "tables.md").read_text() == text
    assert (tmp_path / "curves.svg").read_text().count("<path") == 6 + 2 * 5


def test_the_published_tables_follow_from_the_rows_and_the_page_has_them(tmp_path):
    published = ROOT / "fixtures/lab"
    shutil.copy(published / "results.jsonl", tmp_path)
    text = report.report(tmp_path)
    assert text == (published / "tables.md").read_text()
    page = (ROOT / "docs/training.md").read_text()
    shown = page.split("<!-- lab -->")[1].split("<!-- end of lab -->")[0].strip()
    assert len(shown.splitlines()) > 12
    assert set(shown.splitlines()) <= {*text.splitlines(), ""}


def test_a_folder_without_results_is_one_line(tmp_path):
    with pytest.raises(ConfigError, match="has no results of a laboratory"):
        report.report(tmp_path)


def test_the_names_of_settings_differ():
    assert len({setting.name for setting in SETTINGS}) == len(SETTINGS)
    assert SETTINGS[0] == Setting()
