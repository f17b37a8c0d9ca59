"""--method FILE.py:CLASS: an orchestrator of one's own."""

import pytest

from orchestra_min import replay
from tests.conftest import ConfigError
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
def own(run, tmp_path):
    (tmp_path / "own.py").write_text(MAJORITY)
    answers = iter(["4", "5", "5"])
    work = lambda text: finish(next(answers))  # noqa: E731
    return lambda name: run(work=work, method=f"{tmp_path}/own.py:{name}").answer


@pytest.mark.parametrize("name", ["Minority", "Half"])
def test_what_is_no_orchestrator_is_refused_in_one_line(name, own):
    with pytest.raises(ConfigError, match=f"own.py:{name}: is not a class with rounds"):
        own(name)


def test_an_orchestrator_of_ones_own_decides_and_is_named_again_for_a_replay(own, tmp_path):
    assert own("Majority") == "5"  # its replay names it
    with pytest.raises(ConfigError, match="add --method own.py:Majority$"):
        replay(tmp_path / "run")


def test_an_orchestrator_of_one_round_has_its_last_chance(own):
    assert own("Once") == "the last chance"
