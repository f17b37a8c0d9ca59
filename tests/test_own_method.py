"""--method FILE.py:CLASS: an orchestrator of one's own."""

import pytest

from orchestra_min import orchestrate, replay
from tests.conftest import ConfigError, Options, pool_at
from tests.scripted import finish

MAJORITY = """
from collections import Counter
from orchestra.vocabulary import Complete, Delegate, SubTask
class Half:
    rounds = 2
    def __init__(self, pool, tools, options): pass
    def decide(self, state, ask, mistake="", last_chance=False): pass
class Once(Half):
    rounds, shares_context = 1, False
    def decide(self, state, ask, mistake="", last_chance=False):
        if last_chance:
            return Complete("the last chance")
        return Delegate((SubTask("a", state.task.question, tools=()),))
class Majority(Half):
    shares_context = False
    def decide(self, state, ask, mistake="", last_chance=False):
        if state.history:
            return Complete(Counter(h.answer for h in state.history).most_common(1)[0][0])
        return Delegate(tuple(SubTask(n, state.task.question, tools=()) for n in "abc"))
"""


@pytest.fixture
def run(endpoint, tmp_path):
    (tmp_path / "own.py").write_text(MAJORITY)
    answers, out = iter(["4", "5", "5"]), tmp_path / "run"
    pool = pool_at(endpoint(lambda request: finish(next(answers))).url)
    return lambda name: orchestrate("?", (), pool, Options(method=f"{tmp_path}/own.py:{name}"), out)


@pytest.mark.parametrize("name", ["Minority", "Half"])
def test_what_is_no_orchestrator_is_refused_in_one_line(name, run):
    with pytest.raises(ConfigError, match=f"own.py:{name}: is not a class with rounds"):
        run(name)


def test_an_orchestrator_of_ones_own_decides_and_is_named_again_for_a_replay(run, tmp_path):
    assert run("Majority").answer == "5"
    with pytest.raises(ConfigError, match="add --method own.py:Majority$"):
        replay(tmp_path / "run")
    assert replay(tmp_path / "run", method=f"{tmp_path}/own.py:Majority").answer == "5"


def test_an_orchestrator_of_one_round_has_its_last_chance(run):
    assert run("Once").answer == "the last chance"
