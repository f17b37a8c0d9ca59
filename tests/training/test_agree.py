"""200 decisions that were read: the rules agree with the reader, and a judge can score the same ones."""

import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from orchestra.minigaia.operations import ANY_ORDER, OPERATIONS, computed
from orchestra.seams import Completion
from orchestra.training.judge import LINES
from orchestra.training.lab import agree, judged
from orchestra.training.lab.correlation import kappa, points, spearman
from orchestra.training.lab.play import Expanded, carry_out, example_of
from orchestra.training.rewards import make
from tests.conftest import ROOT, ConfigError

FILE = ROOT / "fixtures/lab/judged.jsonl"
PAGE = ROOT / "docs/training.md"
ROWS = judged.read(FILE)


def test_the_rules_agree_with_the_reader_as_the_page_says(capsys):
    assert agree.main([str(FILE)]) == 0
    printed = capsys.readouterr().out.splitlines()
    shown = [line for line in PAGE.read_text("utf-8").splitlines() if line.startswith("| rule `")]
    assert len(shown) >= 9 and set(shown) <= set(printed)
    exact = next(
        line for line in printed if line.startswith("| rule `exact`") and "decision" in line
    )
    assert exact.split("|")[6].strip() == "1.000"  # kappa


def test_the_decisions_are_good_middling_and_bad_and_tell_nobody_who_decided():
    found = agree.of_reward(ROWS, make("exact"))
    levels = Counter(points([parts["decision"] for parts in found], most=3).tolist())
    assert len(ROWS) == 200 and len({row.task for row in ROWS}) == 200
    assert min(levels[level] for level in (0.0, 1.0, 2.0, 3.0)) >= 10
    for name in (*judged.DRAWN, "reward", "0.7"):
        assert not any(name in row.text for row in ROWS)


def test_the_file_is_what_the_command_draws_and_only_the_scores_were_added(tmp_path, capsys):
    new = tmp_path / "new/judged.jsonl"
    assert agree.main([str(new)]) == 0
    assert judged.read(new) == [replace(row, scores={}) for row in ROWS]
    assert agree.main([str(new)]) == 2
    assert "no row has scores" in capsys.readouterr().err


def test_what_was_read_of_another_world_is_refused(tmp_path):
    judged.write(tmp_path / "rows.jsonl", [ROWS[0], replace(ROWS[1], text=ROWS[2].text)])
    with pytest.raises(ConfigError, match="line 2: the world has changed"):
        judged.read(tmp_path / "rows.jsonl")
    (tmp_path / "rows.jsonl").write_text('{"number": 1}\n')
    with pytest.raises(ConfigError, match="line 1: is not a decision"):
        judged.read(tmp_path / "rows.jsonl")


# ---- a judge at an endpoint ----------------------------------------------------------------------


def test_a_judge_scores_the_same_decisions_once_by_the_words_of_each_rule(
    endpoint, tmp_path, capsys
):
    """The scripted judge repeats what the reader gave; it finds the decision by its reply."""
    rows = [ROWS[n] for n in (0, 1, 3, 4, 5)]  # 4: not a decision

    def respond(request):
        prompt = request["messages"][0]["content"]
        words = "exact" if "as DECISION_QUALITY" in prompt else "rubric"
        (row,) = [row for row in rows if row.game().world.mini.task.question in prompt]
        assert row.completion().text in prompt
        return "\n".join(f"{n}: {s}" for n, s in zip(LINES, row.scores[words], strict=True))

    server = endpoint(respond)
    file, pool = tmp_path / "rows.jsonl", tmp_path / "pool.toml"
    judged.write(file, rows)
    pool.write_text(f'[[backend]]\nname = "judge"\nmodel = "m"\nbase_url = "{server.url}"\n')
    for _ in range(2):  # the second time from the tapes
        assert agree.main([str(file), "--judge", str(pool)]) == 0
        printed = capsys.readouterr().out
        assert len(server.requests) == 2 * len(rows)
    for words in agree.WORDS:
        line = f"| judge, reader, both with the words of `{words}` | decision | 5 | 100.0 | 100.0 | 1.000 |"
        assert line in printed
    assert "| rule `exact`, judge with the words of `exact` | decision | 5 | 100.0 |" in printed
    assert agree.main([str(file), "--judge", str(tmp_path / "none.toml")]) == 2


# ---- measures ------------------------------------------------------------------------------------


def test_kappa_is_the_sum_over_the_table_of_pairs():
    rng = np.random.default_rng(0)
    for _ in range(100):
        a, b = rng.integers(0, 4, (2, 30)).astype(float)
        weights = np.subtract.outer(np.arange(4), np.arange(4)) ** 2
        seen, _, _ = np.histogram2d(a, b, bins=np.arange(5) - 0.5)
        by_chance = np.outer(seen.sum(1), seen.sum(0)) / len(a)
        assert kappa(a, b) == pytest.approx(
            1 - (weights * seen).sum() / (weights * by_chance).sum()
        )
    same = np.ones(3)
    assert np.isnan(kappa(same, same)) and np.isnan(spearman(same, np.arange(3.0)))


# ---- what the reading found ----------------------------------------------------------------------


@pytest.mark.parametrize("name", [o.name for o in OPERATIONS.values() if len(o.takes) == 2])
def test_the_order_of_operands_matters_where_it_changes_the_value(name):
    operation = OPERATIONS[name]
    if len(set(operation.kinds)) == 2:
        assert name not in ANY_ORDER
        return
    example = ["2001-02-03", "2005-06-07"] if "date" in operation.takes else ["17", "5"]
    swapped = computed(operation, example[::-1])
    assert (computed(operation, example) == swapped) == (name in ANY_ORDER)


def test_a_sum_in_the_other_order_is_the_same_computation():
    """Decision 35: the rule paid nothing for the mean of 1024 and 8 where 8 and 1024 were needed."""
    row = next(row for row in ROWS if row.number == 35)
    game = row.game()
    (score,) = Expanded(make("exact")).score(example_of(game), [Completion(row.decision)])
    assert score.total == 1.0
    carry_out(game, row.decision)
    assert game.seen[-2:] == ["k1", "ok"]  # and the policy is shown that it was found


def test_each_row_is_one_line_of_json():
    lines = FILE.read_text("utf-8").splitlines()
    assert [json.loads(line)["number"] for line in lines] == list(range(1, 201))
