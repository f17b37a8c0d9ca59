"""A reward of one's own: chosen like the shipped ones, checked, and part of what a run is."""

import json
import re
import threading
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest

from orchestra.training.rewards import Scorer, Scores, checked_scores, make
from orchestra.training.rollouts import Group
from tests.conftest import ROOT, ConfigError
from tests.training.runs import QUIET, flags, metrics, refused, run

pytestmark = QUIET
MINE = """
from orchestra.training.rewards import Scores

def length(example, completions):
    return [len(c.text) / 100 for c in completions]

def mixed(example, completions):  # a sample is dropped, and the others have other parts
    some = [None, 0.5, Scores(0.2, {"a": 1.0}, False), Scores(1, {"b": 0}, True)]
    return [some[k % 4] for k, _ in enumerate(completions, 1)]

def one(example, completions):
    return [0.5]

def number(example, completions):
    return 0.5

def text(example, completions):
    return ["good"] * len(completions)

def fields(example, completions):
    return [Scores("good", {}, True)] * len(completions)

def none(example, completions):
    return [None] * len(completions)

def nan(example, completions):
    return [float("nan") for c in completions]

class Length:
    def __init__(self, per):
        self.per = float(per)

    def score(self, example, completions):
        return [len(c.text) / self.per for c in completions]

class Silent: pass

def breaks(example, completions):  # at the second state
    if example.id != FIRST:
        return shares(completions)
    return [0.0] * len(completions)

def shares(completions):
    return [1 / (len(c.text) - len(c.text)) for c in completions]

def fails(example, completions):
    return [1 / 0]

def priced(example, completions, per="1"):
    return [len(c.text) / float(per) for c in completions]

class Picky:
    def __init__(self, per="x"):
        self.per = float(per)
    score = None
"""


@pytest.fixture(autouse=True)
def mine(tmp_path, monkeypatch):
    """The folder that training runs in has mine.py."""
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)


def trained(tiny, name, *more):
    """The metrics of one step with this reward."""
    arguments = flags(tiny, "out", "grpo", "--steps", "1", "--lora-rank", "4")
    assert run(*arguments, "--reward", name, *more) == 0
    (row,) = metrics(Path("out"))
    return row


@pytest.mark.parametrize("name", ["mine.py:length", "mine:length"])
def test_a_reward_can_be_a_function_in_a_file_that_returns_numbers(tiny, name):
    row = trained(tiny, name)
    assert row["reward"] > 0 and row["valid"] == 1 and row["zero_variance"] < 1


def test_a_class_gets_its_settings(tiny):
    row = trained(tiny, "mine.py:Length", "--reward-setting", "per=0.001")
    assert row["reward"] > 100


def test_parts_and_dropped_samples_are_counted_where_they_are(tiny):
    row = trained(tiny, "mine.py:mixed")
    assert row["dropped"] == 0.25 and row["reward/a"] == 1 and row["reward/b"] == 0
    assert row["reward"] == pytest.approx((0.5 + 0.2 + 1) / 3)
    assert row["valid"] == pytest.approx(2 / 3)


@pytest.mark.parametrize(("name", "why"), [
    ("mine.py:number", "returned 0.5; it must be a list"), ("mine.py:text", "returned good; it must be a list"),
    ("mine.py:fields", "returned good; it must be a list"), ("mine.py:nan", "returned nan; it must be a list"),
    ("mine.py:Length", "cannot be made: TypeError: .*'per'"), ("mine.py:Silent", "is not a function or a class with score"),
    ("judge", "needs --reward-setting base_url=URL --reward-setting cache=FILE --reward-setting model=NAME"),
    ("mine.py:nobody", "has no 'nobody'"), ("nowhere.py:x", "cannot be loaded"),
    ("mine.py:length --reward-setting per=2", "TypeError: .*'per'"), ("mine.py:Length --reward-setting salt=2", "cannot be made: TypeError: .*'salt'"),
])  # fmt: skip
def test_what_is_no_reward_is_one_line_before_the_model_is_loaded(
    tiny, tmp_path, capsys, name, why
):
    line = refused(capsys, *flags(tiny, "out", "grpo", "--reward", *name.split()))
    assert re.search(f"--reward {name.split()[0]}: .*{why}", line)
    assert not (tmp_path / "out").exists()


def test_a_reward_that_raises_is_one_line_with_the_example_and_the_line_of_its_code(tiny, capsys):
    ids = [json.loads(line)["id"] for line in tiny[1].read_text().splitlines()]
    Path("mine.py").write_text(f"{MINE}\nFIRST = {ids[0]!r}\n")
    more = ("--reward", "mine.py:breaks", "--batch", "8")  # all of them, in one step
    found = refused(capsys, *flags(tiny, "out", "grpo", "--lora-rank", "4", *more))
    line = 1 + MINE.splitlines().index(
        "    return [1 / (len(c.text) - len(c.text)) for c in completions]"
    )
    example, place = re.search(
        r"--reward mine.py:breaks: example (\S+): ZeroDivisionError: .* \((.*)\)$", found
    ).groups()
    assert example in ids[1:] and place == f"{Path('mine.py').resolve()}:{line}"


@pytest.mark.parametrize(("name", "why"), [
    ("mine.py:fails", "example train-.*: ZeroDivisionError: division by zero .*mine.py:"),
    ("mine.py:Picky", "cannot be made: ValueError: could not convert string to float: 'x' .*mine.py:"),
])  # fmt: skip
def test_a_reward_that_always_raises_is_one_line_before_the_model_is_loaded(
    tiny, tmp_path, capsys, name, why
):
    line = refused(capsys, *flags(tiny, "out", "grpo", "--reward", name))
    assert re.search(f"--reward {name}: {why}", line) and not (tmp_path / "out").exists()


def test_the_error_of_a_reward_is_kept(tiny):
    from orchestra.training.examples import read

    scorer = Scorer("mine.py:fails", make("mine.py:fails"))
    with pytest.raises(ConfigError) as raised:
        scorer.score(read(tiny[1])[0], [])
    assert isinstance(raised.value.__cause__, ZeroDivisionError)


def test_an_error_in_a_shipped_reward_is_a_bug_and_raises(tiny):
    from orchestra.training.examples import read

    broken = mock.Mock(spec=["score"], score=mock.Mock(side_effect=ZeroDivisionError))
    with pytest.raises(ZeroDivisionError):
        Scorer("judge", broken).score(read(tiny[1])[0], [])


def test_a_wrong_number_of_scores_ends_the_run_in_one_line(tiny, capsys):
    line = refused(capsys, *flags(tiny, "out", "grpo", "--reward", "mine.py:one"))
    assert re.search("--reward mine.py:one: example train-.*: returned 1 scores for 4; ", line)


def test_a_reward_that_drops_all_samples_of_a_step_is_named(tiny, capsys):
    line = refused(capsys, *flags(tiny, "out", "grpo", "--reward", "mine.py:none"))
    assert "--reward mine.py:none: every completion of a step was dropped" in line
    assert "judge" not in line


def test_another_reward_file_is_another_run(tiny, tmp_path, capsys):
    trained(tiny, "mine.py:length")
    capsys.readouterr()
    (tmp_path / "mine.py").write_text(MINE.replace("100", "200"))
    arguments = flags(tiny, "out", "grpo", "--steps", "1", "--lora-rank", "4", "--resume")
    line = refused(capsys, *arguments, "--reward", "mine.py:length")
    assert "other values of rule_sha256" in line


def test_the_reward_of_contributing_trains(tiny, tmp_path):
    section = (ROOT / "docs/contributing.md").read_text().partition("## Write a reward")[2]
    file, code = re.search(r"```python\n# (\S+)\n(.*?)```", section, re.DOTALL).groups()
    assert len(code.splitlines()) <= 25
    (tmp_path / file).write_text(code)
    (command,) = re.findall(r"\$ python train_da_grpo.py (.*?)\n```", section, re.DOTALL)
    reward = command[command.index("--reward") :].split()
    assert reward[:2] == ["--reward", "frugal.py:Frugal"]
    row = trained(tiny, reward[1], *reward[2:])
    assert row["reward/cost"] > 0
    of_rule = 0.05 * row["reward/format"] + 0.05 * row["reward/action"] + 0.2 * row["reward/tool"]
    total = of_rule + 0.7 * row["reward/decision"] - row["reward/cost"]
    assert row["reward"] == pytest.approx(total)


def test_settings_are_arguments_of_a_function_too(tiny):
    row = trained(tiny, "mine.py:priced", "--reward-setting", "per=0.001")
    assert row["reward"] > 100


def test_settings_may_have_any_name():
    """Also those of the parameters of the functions that make the reward."""
    with pytest.raises(ConfigError, match="--reward mine.py:Length: cannot be made: TypeError"):
        make("mine.py:Length", name=0, value=1, flag=2)


def test_as_many_groups_are_scored_in_parallel_as_a_reward_allows():
    in_flight = threading.Barrier(3)  # broken, and the test fails, unless three calls meet

    class Three:
        parallel = 3

        def score(self, example, completions):
            in_flight.wait(60)
            return [0.5]

    group = Group([7], [[8]], [[]], ["a"], [False])
    scored = Scorer("mine", Three())([SimpleNamespace(id=name) for name in "xyz"], [group] * 3)
    assert scored.rewards.tolist() == [[0.5]] * 3


def test_a_number_becomes_scores():
    scores = checked_scores([1, None, Scores(True, {"a": 0}, 1)], "--reward x", 3)
    assert scores == [Scores(1.0, {}, True), None, Scores(1.0, {"a": 0.0}, True)]
