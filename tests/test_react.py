"""The ReAct loop (Eq. 13-14), below a main agent and alone as --method react."""

import itertools
import json
from types import SimpleNamespace

import pytest

from orchestra.kernel.prompts import say, without_marks
from orchestra.kernel.tool import SEARCH, VISIT, Environment, ImageFile, tool
from orchestra.kernel.vocabulary import Step, ToolError
from orchestra.methods.react import like_patterns
from tests.conftest import needs_sandbox
from tests.program import CLOCK, Runs, runs
from tests.scripted import act, complete, cut_off, delegate, finish


@tool("EchoAction", "txt")
def echo(env: Environment, text: str, times: int = 1) -> str:
    """Say it again.

    text: what to say
    """
    return text * times


@tool("BrokenAction", "txt")
def broken(env: Environment, text: str = "") -> str:
    """Never works."""
    raise ToolError(f"broken: {text}")


LOOKS = itertools.count(1)


@tool("SeeAction", "img")
def see(env: Environment, picture: ImageFile) -> str:
    """Look at it."""
    return str(env.local("look", {}, lambda: f"saw {picture} in look {next(LOOKS)}"))


TOOLS = {t.name: t for t in (echo, broken, see)}
BOTH = ("EchoAction", "BrokenAction")
A, B, BROKEN = act("EchoAction", text="a"), act("EchoAction", text="b"), act("BrokenAction")


@pytest.fixture
def sub_agent(endpoint, tmp_path, monkeypatch):
    """Runs one sub-task on scripted replies. Returns its Result, its steps and its prompts."""
    monkeypatch.setattr("orchestra.methods.tools_for", lambda task, code=True: TOOLS)
    run = Runs(endpoint, tmp_path, "orchestra-o1")

    def start(*replies, tools=BOTH, **options):
        queue = itertools.chain(replies, itertools.repeat(replies[-1]))
        task = {"task_instruction": "Find it", "context": "It is green", "tools": tools}
        events = run(delegate(task), complete("x"), work=lambda _: next(queue), **options).events
        (result,) = (e for e in events if e["event"] == "result")
        steps = [SimpleNamespace(**e) for e in events if e["event"] == "step"]
        asked = [r["response_format"]["json_schema"] for r in run.requests[1:-1]]
        actions = [s["schema"]["anyOf"] for s in asked if s["name"] == "action"]
        offered = [[a["properties"]["action"]["const"] for a in each] for each in actions]
        result["steps_taken"] = result.pop("steps")
        seen = {"steps": steps, "prompts": run.prompts, "mains": run.mains, "offered": offered}
        return SimpleNamespace(**result, **seen)

    return start


# ---- a step --------------------------------------------------------------------------------------


def test_a_repeated_call_on_a_file_gets_the_observation_of_the_first(sub_agent):
    look = act("SeeAction", picture="clock.png")
    z = sub_agent(look, A, look, finish("x"), tools=["SeeAction", "EchoAction"], media=[CLOCK])
    assert z.steps[0].observation == z.steps[2].observation != z.steps[1].observation
    told = "was the same as that of step 1"
    assert told in z.prompts[3] and told not in z.prompts[2]


def test_finish_reports_status_answer_and_summary(sub_agent):
    z = sub_agent(act("EchoAction", text="hello"), finish("green", "partial", "I looked"))
    assert (z.status, z.answer, z.summary, z.error) == ("partial", "green", "I looked", "")
    assert [(s.action, s.observation) for s in z.steps] == [("EchoAction", "hello"), ("finish", "")]


@pytest.mark.parametrize("reply, status, answer", [
    ('{"action": "finish", "result": "42", "status": "partial", "memory": "I looked"}', "partial", "42"),
    (json.dumps({"action": "finish", "params": json.dumps({"result": "42", "status": "partial"})}), "partial", "42"),
    ('{"action": "finish", "action_input": {"result": "42", "status": "partial"}}', "partial", "42"), ('{"action": "finish", "arguments": "{\\"result\\": \\"42\\"}"}', "done", "42"),
    ('{"action": "finish", "action_input": "1.10"}', "done", "1.10"), (finish("", "done", "it is 42"), "done", ""),
    (finish(0), "done", "0"), (finish(False), "done", "false"), (finish(["a"]), "done", '["a"]'),
    (finish("x", "Blocked"), "blocked", "x"), (finish("x", "failed"), "partial", "x"),
])  # fmt: skip
def test_finish_is_read_in_every_form(reply, status, answer, sub_agent):
    z = sub_agent(A, reply)
    assert (z.status, z.answer) == (status, answer)


# ---- the end: asked for, and with the rules for small models enforced ----------------------------

SMALL = {"prompts": "small"}


def test_after_five_steps_of_one_kind_the_prompt_asks_to_finish(sub_agent):
    z = sub_agent(*[A] * 9, finish("x"))
    assert z.offered == [[*BOTH, "finish"]] * 10 and z.status == "done"
    told = [say("react/messages", "enough", times=n) in z.prompts[n] for n in range(1, 9)]
    assert told == [False] * 4 + [True] * 4


def test_a_report_is_taken_as_it_is(sub_agent):
    z = sub_agent(finish("known", "done"))
    assert (z.status, z.answer, z.error) == ("done", "known", "")


def test_small_models_are_offered_finish_alone_after_five_of_one_kind(sub_agent):
    """Another step of that kind ends the task."""
    z = sub_agent(A, **SMALL)
    assert z.offered == [*[[*BOTH, "finish"]] * 5, ["finish"]]
    assert say("react/messages", "repeated", times=5) in z.prompts[5]
    told = '6 times and did not finish: EchoAction with {"text": "a"} showed a'
    assert z.status == "partial" and without_marks(z.error).endswith(told)


@pytest.mark.parametrize("options, count", [({}, 10), (SMALL, 6), ({"steps": 5}, 5)])
def test_replies_without_an_action_end_the_sub_task_and_its_error_says_so(
    options, count, sub_agent
):
    z = sub_agent("It is green.", **options)
    told = f"None of the last {count} replies of the agent was usable. The last one began: 'It is green.'. It was told: Your"
    assert z.error.startswith(told) and z.error.endswith("began: 'It is green.'")
    assert (z.status, z.answer, len(z.steps)) == ("failed", "", count)


def test_the_last_step_leaves_only_finish(sub_agent):
    z = sub_agent(A, B, steps=2)
    assert z.offered[1] == ["finish"] and [s.failed for s in z.steps] == [False, True]
    assert (z.status, z.error) == ("partial", say("react/messages", "out_of_steps", steps=2))


@pytest.mark.parametrize(
    "steps, warned", [(1, []), (6, []), (10, [9]), (20, [17, 18, 19]), (30, range(25, 30))]
)
def test_the_warning_is_for_the_last_fifth_of_the_steps(steps, warned, sub_agent):
    """The last step has a sentence of its own."""
    calls = (act("EchoAction" if n % 2 else "BrokenAction", text=f"{n}") for n in range(1, 31))
    prompts = sub_agent(*calls, steps=steps).prompts[:steps]
    told = [n for n, prompt in enumerate(prompts, 1) if "finish now" in prompt.lower()]
    last = say("react/messages", "last_step")
    assert told == [*warned] and [last in prompt for prompt in prompts] == [False] * (steps - 1) + [
        True
    ]


def test_a_sub_agent_whose_tool_answers_at_once_costs_two_calls_and_is_done(sub_agent):
    z = sub_agent(act("EchoAction", text="green"), finish("green"), steps=6)
    assert (z.status, z.answer, len(z.prompts)) == ("done", "green", 2)
    assert not any(text in prompt for text in ("inish now", "left") for prompt in z.prompts)


@pytest.mark.parametrize("actions, alike", [
    ([], 0), (["a", "b", "b"], 2), ([SEARCH, VISIT] * 4, 4), ([SEARCH, VISIT, VISIT], 1), ([VISIT] * 5, 5),
])  # fmt: skip
def test_a_visit_right_after_a_search_counts_with_it(actions, alike):
    assert like_patterns([Step(action, {}, "", "") for action in actions]) == alike


# ---- mistakes are observations -------------------------------------------------------------------


def echo_with(params):
    return json.dumps({"action": "EchoAction", "params": params, "memory": ""})


@pytest.mark.parametrize("bad, told", [
    (act("SeeAction"), "SeeAction was not assigned to you. You have: EchoAction, BrokenAction, finish."),
    (act("SingAction"), "The action SingAction does not exist. Use one of: EchoAction, BrokenAction,"),
    (act("BrokenAction", text="wheel"), "broken: wheel"),
    (act("EchoAction", text="a", times="many"), "times: Input should be a valid integer"),
    (act("EchoAction", text=["a"]), "It takes: text: string, times: integer = 1"),
    (act("EchoAction", text=None), "text: Field required"),
    (echo_with("text"), "text: Field required"), (finish("", "done", ""), '"result" is empty'), ('{"action": "finish"}', '"result" is empty'),
    (cut_off("I am thinking and thinking"), "cut off at its length limit"),
    *((text, "holds no JSON object") for text in ("It is green.", "", '{"tool": "EchoAction"}')),
])  # fmt: skip
def test_a_mistake_is_shown_and_counts_as_a_failed_step(bad, told, sub_agent):
    z = sub_agent(bad, finish("x", "blocked"))
    assert told in z.steps[0].observation and told in z.prompts[1] and z.steps[0].failed


def test_a_long_observation_is_cut_with_a_visible_note(sub_agent):
    seen = sub_agent(echo_with({"text": "x" * 8001}), finish("x")).steps[0].observation
    assert seen.startswith("x" * 8000 + "\n[cut: the first 8000 of 8001")


@pytest.mark.parametrize("steps", [2, 30])
@pytest.mark.parametrize("word", ["done", "DONE", None])
@pytest.mark.parametrize("before", [[], [BROKEN]])
def test_done_without_a_tool_that_worked_is_partial_and_the_main_agent_is_told(
    before, word, steps, sub_agent
):
    z = sub_agent(*before, finish("invented", word), steps=steps, **SMALL)
    told = say("react/messages", "nothing_worked")
    assert (z.status, z.answer, z.error, z.steps_taken) == (
        "partial",
        "invented",
        told,
        len(before) + 1,
    )
    assert told in z.mains[1] and f"partial, steps: {len(before) + 1}]" in z.mains[1]


@pytest.mark.parametrize("how", [SMALL, {}])
def test_no_prompt_tells_a_sub_agent_to_finish_and_that_it_must_not(how, sub_agent):
    """Nor to use a tool in a step that has none."""
    replies = [finish("x", "never")] * 2, [BROKEN] * 30, [A, BROKEN] * 15, [A] * 9, ["?"] * 30
    for number, each in enumerate(replies):
        z = sub_agent(*each, steps=12, out=f"run{number}", **how)
        for prompt, offered in zip(z.prompts, z.offered, strict=False):
            _, now = prompt.split("# Now\n")
            must = "inish now" in now or "only action left is finish" in now
            assert must is not ("se a tool" in now or "Use one" in now)
            assert ("only action left" in now) is (offered == ["finish"])
            assert "finish" in offered and "nothing to report" not in prompt


# ---- alone: --method react -----------------------------------------------------------------------


CODE = act("ExecuteCodeAction", code="print(6 * 7)")
alone = runs("react")  # every call but those of the tools has a system prompt


@needs_sandbox
def test_one_agent_answers_with_all_tools(alone):
    result = alone(CODE, finish("42"), names=("small", "large"))
    assert (result.answer, result.fallback, result.rounds) == ("42", False, 1)
    assert alone.models == ["small", "small"] and "Observation: 42" in alone.mains[1]


@pytest.mark.parametrize("reply, state, answer", [
    ("<think>hm</think>The answer is 42.", "fallback", "The answer is 42."), ('{"tool": "x"}', "stopped", ""),
    (cut_off("The answer is 4"), "stopped", ""), ("<think>{a}</think>It is $\\boxed{5}$.", "fallback", "It is $\\boxed{5}$."),
])  # fmt: skip
def test_an_answer_in_words_alone_is_the_fallback(reply, state, answer, alone):
    result = alone(*[reply] * 9)
    assert (result.state, result.answer, result.ending.cause) == (state, answer, "replies")


@needs_sandbox
def test_an_answer_about_a_file_that_was_never_opened_is_a_fallback(alone):
    result = alone(CODE, *[finish("Rome")] * 9, media=[CLOCK])
    assert (result.state, result.answer) == ("fallback", "Rome")
    assert result.ending.why == "The agent never opened clock.png."


@needs_sandbox
def test_an_empty_answer_is_refused(alone):
    no_code, no_result = act("ExecuteCodeAction", code=" "), act("finish", answer="42")
    empty = act("finish", result="", summary="42")
    result = alone(no_code, CODE, no_result, empty, finish("42"))
    assert (result.answer, result.fallback, result.calls) == ("42", False, 5)
    assert '"code" is empty' in alone.mains[1] and '"result" is empty' in alone.mains[3]


def test_after_a_refused_report_the_schema_has_only_tools_and_a_partial_one_is_still_taken(alone):
    result = alone(finish("7:49"), finish("7:49", "partial"), media=[CLOCK], steps=10)
    offered = [
        {a["properties"]["action"]["const"] for a in r["response_format"]["json_schema"]["schema"]["anyOf"]}
        for r in alone.requests
    ]  # fmt: skip
    assert "finish" in offered[0] and offered[1] == offered[0] - {"finish"}
    assert "Open clock.png with a tool now." in alone.mains[1] and result.answer == "7:49"
    assert "7:49" not in alone.mains[1]  # small models copy what they see
