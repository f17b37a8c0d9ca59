"""The ReAct sub-agent, step by step against a scripted model (Eq. 13-14)."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from orchestra.backends import Chat
from orchestra.lines import read
from orchestra.money import Purse
from orchestra.prompts import say
from orchestra.replay import Tape
from orchestra.run_folder import Options
from orchestra.vocabulary import Media, Price, Result, Step, SubTask, Task
from orchestra_min import orchestrate
from subagents import react
from subagents.executor import SEARCH, VISIT
from subagents.react_prompt import like_patterns
from tests.conftest import pool_at
from tests.scripted import (
    Raw,
    act,
    complete,
    completion,
    delegate,
    finish,
    is_main,
    last_text,
)
from tools import Environment, ImageFile, ToolError, tool

PICTURE = Media("image", "clock.png", Path("nowhere"), "0" * 64)


@tool("EchoAction", "txt")
def echo(env: Environment, text: str, times: int = 1) -> str:
    """Say it again.

    text: what to say
    times: how often
    """
    return text * times


@tool("BrokenAction", "txt")
def broken(env: Environment, text: str = "") -> str:
    """Never works."""
    raise ToolError(f"broken: {text}")


@tool("SeeAction", "img")
def see(env: Environment, picture: ImageFile) -> str:
    """Look at it."""
    return f"saw {picture}"


class SubAgent:
    """Runs `react.run` on scripted replies and keeps what the model was shown."""

    def __init__(self, endpoint: Callable[..., Any], folder: Path) -> None:
        self.endpoint, self.folder = endpoint, folder
        self.prompts: list[str] = []
        self.requests: list[dict[str, Any]] = []
        self.steps: list[tuple[int, Step]] = []

    def __call__(
        self, *replies: Any, tools: Any = (echo, broken), steps: int = 30, **fields: Any
    ) -> Result:
        queue = itertools.chain(replies, itertools.repeat(replies[-1]))
        server = self.endpoint(lambda request: next(queue))
        purse = Purse(fields.pop("limit_usd", None))
        names, agent = tuple(t.name for t in tools), fields.pop("agent", "")
        u = SubTask("t1", "Find it", "It is green", tools=names, agent=agent)
        with closing(Tape(self.folder / "tape.jsonl", "record")) as tape:
            pool = pool_at(server.url, **fields)
            env = Environment(
                task=Task("What is it?", (PICTURE,)),
                backend=pool["small"],
                pool=pool,
                chat=Chat(tape),
                tape=tape,
                purse=purse,
                folder=self.folder / "work",
            )
            known = {t.name: t for t in (echo, broken, see)}
            on_step = lambda n, step: self.steps.append((n, step))  # noqa: E731
            z = react.run(u, env, known, ("r1", "t1"), steps, on_step)
        self.requests = server.requests
        self.prompts = [last_text(r) for r in server.requests]
        return z

    def actions_offered(self) -> list[list[str]]:
        """The actions that the schema of each step allows."""
        schemas = [r["response_format"]["json_schema"]["schema"] for r in self.requests]
        return [[a["properties"]["action"]["const"] for a in s["anyOf"]] for s in schemas]


@pytest.fixture
def sub_agent(endpoint, tmp_path) -> SubAgent:
    return SubAgent(endpoint, tmp_path)


def said(text: str) -> str:
    return act("EchoAction", text=text)


def steps_of(*actions: str) -> list[Step]:
    return [Step(action, {}, "", "") for action in actions]


# ---- a step --------------------------------------------------------------------------------------


def test_the_model_is_shown_its_task_its_context_and_its_tools(sub_agent):
    sub_agent(said("a"), finish("x"))
    system = sub_agent.requests[0]["messages"][0]["content"]
    assert echo.manual in system and broken.manual in system
    assert "Find it" in sub_agent.prompts[0] and "It is green" in sub_agent.prompts[0]


@pytest.mark.parametrize("tools, shown", [((see,), True), ((echo, broken), False)])
def test_the_files_are_shown_to_who_has_a_tool_that_opens_one(tools, shown, sub_agent):
    sub_agent(finish("x", "blocked"), tools=tools)
    assert ("clock.png" in sub_agent.prompts[0]) is shown


def test_finish_reports_status_answer_summary_and_trace(sub_agent):
    z = sub_agent(said("hello"), finish("green", "partial", "I looked"))
    assert (z.status, z.answer, z.summary, z.error) == ("partial", "green", "I looked", "")
    assert [s.action for s in z.trace] == ["EchoAction", "finish"]
    assert z.trace[0].observation == "hello"


@pytest.mark.parametrize(
    "result, answer", [(0, "0"), (False, "false"), (1.5, "1.5"), (["a", 1], '["a", 1]'), (None, "")]
)
def test_a_result_of_any_type_is_an_answer(result, answer, sub_agent):
    assert sub_agent(said("a"), finish(result)).answer == answer


def test_a_report_without_parameters_is_the_memory(sub_agent):
    z = sub_agent(said("a"), json.dumps({"action": "finish", "memory": "it is green"}))
    assert (z.status, z.answer, z.summary) == ("done", "it is green", "it is green")


def test_what_it_costs_is_the_sum_of_its_calls(sub_agent):
    z = sub_agent(said("a"), said("b"), finish("x"), price=Price(10, 100, 10))
    assert z.cost_usd == pytest.approx(3 * (100 * 10 + 10 * 100) / 1e6)


def test_one_call_of_unknown_price_makes_the_cost_unknown(sub_agent):
    free = completion(said("a"))
    z = sub_agent(free, completion(finish("x"), usage=None), price=Price(10, 100, 10))
    assert z.cost_usd is None


def test_memory_stands_beside_the_observation_it_was_written_of(sub_agent):
    """A reply notes what the model saw last, then acts: the memory is of the step before."""
    first, second = {"text": "first sight"}, {"text": "second sight"}
    notes = "written before any sight", "written of the first sight"
    sub_agent(
        *(act("EchoAction", m, **p) for m, p in zip(notes, (first, second), strict=True)), "x"
    )
    blocks = [
        say("react/messages", "step", number=n, action="EchoAction", params=json.dumps(params),
            observation=params["text"], memory=memory)
        for n, params, memory in ((1, first, "written of the first sight"), (2, second, "-"))
    ]  # fmt: skip
    assert "\n\n".join(blocks) in sub_agent.prompts[2]


def test_every_step_is_told_as_it_happens(sub_agent):
    z = sub_agent(said("a"), said("b"), finish("x"))
    assert [number for number, _ in sub_agent.steps] == [1, 2, 3]
    assert tuple(step for _, step in sub_agent.steps) == z.trace


def test_every_call_carries_the_name_of_its_step(sub_agent, tmp_path):
    sub_agent(said("a"), finish("x"))
    calls = [row["call"] for row in read(tmp_path / "tape.jsonl")]
    assert calls == ["r1/t1/s1", "r1/t1/s2"]


def test_the_schema_offers_the_assigned_tools_and_finish(sub_agent):
    sub_agent(said("a"), finish("x"), tools=(echo,))
    assert sub_agent.actions_offered() == [["EchoAction"], ["EchoAction", "finish"]]


# ---- the end is enforced -------------------------------------------------------------------------


def test_the_step_counter_counts_and_warns_when_few_are_left(sub_agent):
    sub_agent(*[said("a"), act("BrokenAction")] * 3, finish("x"), steps=7)
    few = [say("react/messages", "few_steps_left", left=n) for n in (5, 4, 3, 2)]
    expected = ["", "", *few, say("react/messages", "last_step")]
    for number, (prompt, warning) in enumerate(zip(sub_agent.prompts, expected, strict=True), 1):
        assert f"Step {number} of 7. {warning.strip()}".strip() in prompt
        assert warning or "steps are left" not in prompt


def test_five_steps_of_one_kind_leave_only_finish(sub_agent):
    z = sub_agent(*[said("a")] * 5, finish("enough"))
    assert z.answer == "enough"
    assert sub_agent.actions_offered()[4:] == [["EchoAction", "BrokenAction", "finish"], ["finish"]]
    assert say("react/messages", "repeated", times=5) in sub_agent.prompts[5]


def test_a_model_that_will_not_finish_is_stopped(sub_agent):
    z = sub_agent(said("a"))
    assert len(sub_agent.requests) == 6
    assert z.status == "partial"
    assert z.error == say("react/messages", "would_not_finish")


ALONE = {"agent": "single", "tools": (echo, broken, see)}
LOOK = act("SeeAction", picture="clock.png")


def test_alone_a_tool_that_said_the_very_same_again_rests_until_there_is_news(sub_agent):
    sub_agent(said("a"), said("a"), said("b"), LOOK, said("b"), finish("x"), **ALONE)
    offered = ["EchoAction" in names for names in sub_agent.actions_offered()]
    assert offered == [True, True, False, False, True, True]  # LOOK was the news
    assert "EchoAction: called again in the very same way" in sub_agent.prompts[2]


def test_alone_a_tool_that_said_the_very_same_three_times_is_out(sub_agent):
    again = said("a"), said("a"), LOOK, said("a"), act("BrokenAction", text="1"), finish("x")
    sub_agent(*again, **ALONE)
    offered = ["EchoAction" in names for names in sub_agent.actions_offered()]
    assert offered == [True, True, False, True, False, False]


def test_alone_the_same_call_that_says_something_else_does_not_rest(sub_agent, monkeypatch):
    said_in_turn = iter(["busy", "here", "more"])
    monkeypatch.setattr(react, "capped", lambda text: next(said_in_turn))
    sub_agent(said("a"), said("a"), LOOK, finish("x"), **ALONE)
    assert all("EchoAction" in names for names in sub_agent.actions_offered())


def test_alone_it_opens_each_file_before_it_is_done(sub_agent):
    """Told in words too: an endpoint may take no schema."""
    z = sub_agent(said("a"), finish("from thin air"), LOOK, finish("seen"), **ALONE)
    assert ["finish" in names for names in sub_agent.actions_offered()] == [False] * 3 + [True]
    assert say("mistakes", "unread", files="clock.png") in sub_agent.prompts[2]
    assert z.answer == "seen"


def test_alone_a_file_that_no_tool_left_can_open_does_not_hold_it(sub_agent):
    z = sub_agent(said("a"), finish("x"), agent="single", tools=(echo, broken))
    assert (z.answer, len(sub_agent.requests)) == ("x", 2)


def test_the_last_step_leaves_only_finish(sub_agent):
    z = sub_agent(said("a"), said("b"), steps=2)
    assert sub_agent.actions_offered()[1] == ["finish"]
    assert [s.observation for s in z.trace if not s.failed] == ["a"]  # "b" was never run
    assert z.error == say("react/messages", "out_of_steps", steps=2)


def test_what_was_learnt_before_it_was_stopped_is_kept(sub_agent):
    z = sub_agent(act("EchoAction", "it is green", text="a"), said("b"), steps=2)
    assert z.summary == "it is green"


@pytest.mark.parametrize(
    "actions, alike",
    [
        ([], 0),
        (["a", "b"], 1),
        (["a", "b", "b", "b"], 3),
        ([SEARCH, VISIT] * 4, 4),
        ([SEARCH] * 2 + [VISIT], 2),
        ([SEARCH, VISIT, VISIT, VISIT], 2),
        ([VISIT] * 5, 5),
        (["a", VISIT, SEARCH], 1),
    ],
)
def test_a_visit_right_after_a_search_counts_with_it(actions, alike):
    assert like_patterns(steps_of(*actions)) == alike


# ---- mistakes are told and counted ---------------------------------------------------------------


def test_a_tool_that_was_not_assigned_is_refused_and_not_run(sub_agent):
    z = sub_agent(act("BrokenAction", text="ran"), finish("x", "blocked"), tools=(echo,))
    fit = {"action": "BrokenAction", "tool": "BrokenAction", "known": "EchoAction, finish"}
    assert z.trace[0].observation == say("mistakes", "unassigned_tool", **fit)
    assert z.trace[0].failed


def test_an_action_that_does_not_exist_is_told_with_those_that_do(sub_agent):
    z = sub_agent(act("SingAction"), finish("x", "blocked"))
    fit = {"action": "SingAction", "known": "EchoAction, BrokenAction, finish"}
    assert z.trace[0].observation == say("mistakes", "bad_action", **fit)


@pytest.mark.parametrize(
    "params, problem",
    [
        ({}, "text: Field required"),
        ({"text": "a", "times": "many"}, "times: Input should be a valid integer"),
        ({"text": ["a"]}, "text: Input should be a valid string"),
        ({"text": None}, "text: Field required"),
        ("text", "text: Field required"),
    ],
)
def test_parameters_that_do_not_fit_are_told_with_those_that_do(params, problem, sub_agent):
    wrong = json.dumps({"action": "EchoAction", "params": params, "memory": ""})
    sub_agent(wrong, finish("x", "blocked"))
    assert problem in sub_agent.prompts[1]
    assert "text: string, times: integer = 1" in sub_agent.prompts[1]


def test_numbers_for_texts_nulls_for_defaults_and_extra_keys_are_taken(sub_agent):
    z = sub_agent(act("EchoAction", text=7, times=None, mood="good"), finish("x"))
    assert z.trace[0].observation == "7"


@pytest.mark.parametrize("reply", ["I think it is green.", "", '{"tool": "EchoAction"}', "[]"])
def test_a_reply_that_is_no_action_is_told_and_counts_as_a_step(reply, sub_agent):
    z = sub_agent(reply, said("a"), finish("x"))
    assert [s.action for s in z.trace] == ["invalid", "EchoAction", "finish"]
    assert say("mistakes", "not_json", start=repr(reply)) in sub_agent.prompts[1]


def test_a_reply_that_was_cut_off_is_told_so(sub_agent):
    cut = completion('{"action": "EchoAction", "para')
    cut["choices"][0]["finish_reason"] = "length"
    cut["choices"][0]["message"]["content"] = "I am thinking and thinking"
    z = sub_agent(cut, finish("x", "blocked"))
    assert z.trace[0].observation == say("mistakes", "cut")


def test_a_tool_error_is_an_observation(sub_agent):
    z = sub_agent(act("BrokenAction", text="wheel"), finish("x", "blocked"))
    assert (z.trace[0].observation, z.trace[0].failed) == ("broken: wheel", True)
    assert "broken: wheel" in sub_agent.prompts[1]


def test_a_long_observation_is_cut_with_a_visible_note(sub_agent):
    z = sub_agent(said("x" * 10_000), finish("x"))
    shown = {"text": "x" * 8000, "shown": 8000, "total": 10_000}
    assert z.trace[0].observation == say("notes", "capped", **shown)


def test_an_observation_of_the_very_limit_is_whole(sub_agent):
    assert sub_agent(said("x" * 8000), finish("x")).trace[0].observation == "x" * 8000


def test_done_is_refused_while_every_step_has_failed(sub_agent):
    z = sub_agent(act("BrokenAction"), finish("invented"), finish("none", "blocked"))
    assert [s.failed for s in z.trace] == [True, True, False]
    assert say("mistakes", "nothing_worked") in sub_agent.prompts[2]
    assert (z.status, z.answer) == ("blocked", "none")


def test_done_is_refused_before_any_tool_has_shown_anything(sub_agent):
    z = sub_agent(finish("from thin air"), said("a"), finish("green"))
    assert z.trace[0].observation == say("mistakes", "nothing_worked")
    assert z.answer == "green"


@pytest.mark.parametrize(
    "word, status",
    [
        (None, "done"),
        ("DONE", "done"),
        ("Blocked", "blocked"),
        ("failed", "partial"),
        (1, "partial"),
    ],
)
def test_a_status_of_the_models_own_making_is_no_done(word, status, sub_agent):
    assert sub_agent(said("a"), finish("x", word)).status == status


@pytest.mark.parametrize("word", [None, "DONE"])
def test_no_spelling_of_done_gets_around_the_refusal(word, sub_agent):
    z = sub_agent(act("BrokenAction"), finish("invented", word), finish("none", "blocked"))
    assert (z.status, z.answer) == ("blocked", "none")


def test_done_at_the_last_step_without_anything_seen_is_partial(sub_agent):
    assert sub_agent(act("BrokenAction"), finish("invented"), steps=2).status == "partial"


def test_who_has_no_tools_may_answer_at_once(sub_agent):
    z = sub_agent(finish("green"), tools=())
    assert (z.status, z.answer, len(z.trace)) == ("done", "green", 1)


def test_done_is_taken_once_a_step_has_worked(sub_agent):
    assert sub_agent(act("BrokenAction"), said("a"), finish("x")).status == "done"


# ---- failures end one sub-task -------------------------------------------------------------------


def test_an_endpoint_that_fails_is_a_failed_result_with_the_reason(sub_agent):
    z = sub_agent(said("a"), Raw(401, {"error": {"message": "no"}}))
    assert z.status == "failed"
    assert "small at http://" in z.error and "refused with status 401" in z.error
    assert [s.action for s in z.trace] == ["EchoAction"]


def test_a_purse_that_is_empty_ends_it_with_the_reason(sub_agent):
    prices = {"price": Price(0, 1000, 0), "limit_usd": 0.02}  # each call says 10 tokens, USD 0.01
    z = sub_agent(act("EchoAction", "it is green", text="a"), **prices, max_output_tokens=20)
    assert (z.status, z.summary) == ("partial", "it is green")
    assert "is too little for a call to small" in z.error
    assert z.cost_usd is not None and z.cost_usd <= 0.02


def test_a_failing_endpoint_of_one_sub_task_leaves_the_others_alone(endpoint, tmp_path):
    decisions = iter([delegate("good one", "bad one"), complete("42")])

    def respond(request: dict[str, Any]) -> Any:
        if is_main(request):
            return next(decisions)
        return Raw(403, {}) if "bad one" in last_text(request) else finish("found it")

    server = endpoint(respond)
    result = orchestrate("?", (), pool_at(server.url), Options(), tmp_path / "run")
    ends = [(e["status"], e["answer"]) for e in result.events if e["event"] == "result"]
    assert sorted(ends) == [("done", "found it"), ("failed", "")]
    assert result.answer == "42"
