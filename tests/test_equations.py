"""Eq. 5, 7, 10 and 22 of Orchestra-o1 in whole runs, with a scripted endpoint."""

import json
import math
from dataclasses import replace

import pytest

from tests.conftest import Price, needs_sandbox
from tests.program import CLOCK
from tests.scripted import complete, completion, delegate, finish, is_main


def task(instruction: str, **fields) -> dict:
    return {"task_instruction": instruction, "context": "", "model": "auto", **fields}


@pytest.fixture
def play(run):
    """`play(*turns, dollars={"name": per million tokens}, ...)`: the result, and of each sub-task
    (model, the first word of its instruction, the tools it may use).
    """
    skills = {"main": 0.01, "weak": 0.5}

    def priced(backend, usd):
        able = dict.fromkeys(("txt", "img", "code"), skills.get(backend.name, 1.0))
        return replace(backend, price_usd_per_mtok=Price(usd, usd), skills=able)

    def play(*turns, dollars=None, **how):
        usd = {"main": 0.0, **(dollars or {"small": 0.0})}
        pool = lambda p: replace(p, backends=tuple(priced(b, usd[b.name]) for b in p.backends))  # noqa: E731
        result = run(*turns, work=finish("found", "partial"), names=usd, change=pool, **how)
        return result, [sub_task(r) for r in run.requests if not is_main(r)]

    return play


def sub_task(request):
    system, user = (m["content"] for m in request["messages"])
    tools = [name for name in ("Image", "Audio", "Code", "Search") if f"{name}A" in system]
    return request["model"], user.partition("# Your task\n")[2].split()[0], tools


def test_the_most_useful_sub_tasks_run_first_where_not_all_can_at_once(play):
    tasks = [task("minor"), task("major", priority=3), task("middling", priority=2)]
    _, seen = play(delegate(*tasks), delegate(), delegate(), complete("42"), k_max=1)
    assert [word for _, word, _ in seen] == ["major", "middling", "minor"]


@needs_sandbox
def test_the_budget_goes_to_the_most_useful_batch_and_not_to_the_cheapest(play):
    tools = ["GoogleSearchAction", "ExtractUrlContentAction", "ExecuteCodeAction"]
    cheap = task("cheap", model="low", tools=tools)
    useful = task("useful", model="high", tools=tools, priority=2)
    turns = delegate(cheap, useful), complete("42")
    dollars = {"low": 1.0, "high": 4.0}  # four steps of 1,750 tokens: 0.007 and 0.028
    _, seen = play(*turns, dollars=dollars, budget_usd=0.03)
    assert [word for _, word, _ in seen] == ["useful"]


@needs_sandbox
def test_requirements_choose_the_model_and_the_tools(play):
    easy = task("search", requirements={"txt": 0.2, "web": 1.0})
    hard = task("reason", requirements={"txt": 1.0, "code": 1.0, "web": 0.0})
    dollars = {"weak": 1.0, "strong": 5.0}
    _, seen = play(delegate(easy, hard), complete("42"), dollars=dollars)
    assert sorted(seen) == [("strong", "reason", ["Code"]), ("weak", "search", ["Search"])]


@needs_sandbox
def test_a_file_that_is_named_brings_its_tool_where_the_main_agent_gave_none(play):
    _, [(_, _, tools)] = play(delegate(task("read clock.png")), complete("42"), media=[CLOCK])
    assert tools == ["Image", "Code", "Search"]


def sure(reply: str, p: float) -> dict:
    """A decision with the probability of its action, Eq. 22."""
    action = {"token": json.loads(reply)["action"] + '"', "logprob": math.log(p)}
    said, before = completion(reply), {"token": '{"action": "', "logprob": 0}
    said["choices"][0]["logprobs"] = {"content": [before, {**action, "top_logprobs": [action]}]}
    return said


@pytest.mark.parametrize(("last", "answer"), [(sure(complete("42"), 0.9), "42"), ("?", "41")])
def test_an_answer_that_is_not_sure_enough_is_kept_while_the_run_goes_on(play, last, answer):
    more = sure(delegate("again"), 0.9)
    result, seen = play(sure(complete("41"), 0.4), more, *[last] * 3, stop_threshold=0.5)
    assert (result.answer, result.fallback) == (answer, answer == "41")
    assert [word for _, word, _ in seen] == ["again"]


@pytest.mark.parametrize(("turns", "answer"), [
    ([complete("a guess")] * 3, "a guess"), ([complete("a guess"), delegate("look"), *["?"] * 3], "found"),
])  # fmt: skip
def test_a_refused_guess_is_the_answer_if_nothing_was_found(play, turns, answer):
    result, _ = play(*turns, media=[CLOCK], prompts="small")
    assert (result.answer, result.fallback) == (answer, True)
