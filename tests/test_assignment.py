"""Assignments that can work: tools that open the files, refused actions."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from orchestra.kernel import vocabulary as v
from orchestra.methods import all_tools
from orchestra.methods.main_agent import offered as offered_in
from orchestra.methods.main_agent import read_decision
from orchestra.methods.orchestra_o1 import OrchestraO1, read_delegation
from orchestra.methods.small_models import SmallModels
from tests.conftest import EndpointError, Options, pool_at
from tests.program import CLOCK, SPEECH, replay, resume
from tests.scripted import complete, delegate, finish, is_main
from tests.test_equations import sure

MEDIA = (("image", "clock.png"), ("audio", "speech.wav"), ("video", "walk.mp4"))
FILES = tuple(v.Media(kind, name, Path("/none"), "") for kind, name in MEDIA)
PSI = {"See": "img", "Hear": "aud", "Watch": "vid", "Search": "web", "Code": "code", "mine": "txt"}
STATE = v.State(
    task=v.Task("When is it?", FILES), context="", history=(), backends=("small",), tools=tuple(PSI),
    round=1, rounds=10, capabilities={tool: frozenset({psi}) for tool, psi in PSI.items()},
)  # fmt: skip
SEEN = v.Evidence(1, "t1", "Read it", "small", ("See",), "done", "7:49", "s", media=("clock.png",))


def given(instruction: str, tools: object, **fields) -> str:
    return delegate({"task_instruction": instruction, "tools": tools, **fields})


def subtasks_of(reply: str, state: v.State) -> tuple[v.SubTask, ...]:
    return read_decision(read_delegation, v.Reply(reply), state, last_chance=False).subtasks


def outcome(reply: str, state: v.State = STATE) -> str:
    """The tools that each sub-task of a decision has, or the rule that it breaks."""
    try:
        (u,) = subtasks_of(reply, state)
    except v.ModelMistake as mistake:
        wrong = str(mistake.values.get("problems", ""))
        if " cannot open " in wrong:
            return "wrong tool"
        return "no tool" if wrong else mistake.rule
    return "chosen by Eq. 7" if u.tools is None else " ".join(u.tools)


# ---- a tool opens the file -----------------------------------------------------------------------


@pytest.mark.parametrize(("instruction", "tools", "read"), [
    ("Read clock.png", ["Hear"], "wrong tool"), ("Read clock.png", ["Watch", "Search"], "wrong tool"),
    ("Listen to speech.wav", ["See"], "wrong tool"), ("Watch walk.mp4", ["See"], "wrong tool"),
    ("Listen to speech.wav", ["Watch"], "wrong tool"), ("Read clock.png", [], "no tool"),
    ("Read clock.png", ["Search"], "no tool"), ("Read clock.png", ["Code"], "no tool"),
    ("Compare clock.png with speech.wav", ["See"], "no tool"),
    ("Compare clock.png with speech.wav", ["See", "Watch"], "wrong tool"),
])  # fmt: skip
def test_an_assignment_that_cannot_open_its_file_is_a_mistake(instruction, tools, read):
    assert outcome(given(instruction, tools)) == read


@pytest.mark.parametrize(("instruction", "tools", "read"), [
    ("Read clock.png", ["See"], "See"), ("Read clock.png", ["See", "Hear"], "See Hear"),
    ("Compare clock.png with speech.wav", ["See", "Hear"], "See Hear"), ("Read clock.png", None, "chosen by Eq. 7"),
    ("Listen to walk.mp4", ["Hear"], "Hear"), ("Read clock.png", ["mine"], "mine"), ("Read oclock.png", [], ""),
    ("Look at the picture", ["Hear"], "Hear"), ("How late is it?", ["Search"], "Search"),
])  # fmt: skip
def test_an_assignment_that_can_work_is_accepted(instruction, tools, read):
    assert outcome(given(instruction, tools)) == read


def test_a_file_that_was_opened_before_may_be_named_without_its_tool():
    seen = replace(STATE, history=(SEEN,))
    assert outcome(given("Convert the time in clock.png to UTC", ["Code"]), seen) == "Code"
    assert outcome(given("Convert the time in clock.png to UTC", ["Hear"]), seen) == "wrong tool"
    assert outcome(given("Convert the time in speech.wav to UTC", ["Code"]), seen) == "no tool"


def test_a_file_that_another_sub_task_opens_first_may_be_named_without_its_tool():
    convert = given("Convert the time in clock.png to UTC", ["Code"], needs=["look"])
    assert outcome(convert) == "Code"


def test_without_capabilities_in_the_state_nothing_is_checked():
    unknown = replace(STATE, capabilities={})
    assert outcome(given("Read clock.png", ["Hear"]), unknown) == "Hear"


def test_the_main_agent_is_told_in_the_same_round_which_tool_opens_the_file(run):
    wrong = given("Read the time in clock.png", ["ParseAudioAction"])
    none = given("Read the time in clock.png", ["GoogleSearchAction"])
    right = given("Read the time in clock.png", ["ImageAnalysisAction"])
    result = run(wrong, none, right, complete("42"), media=[CLOCK, SPEECH], work=finish("7:49"))
    assert (result.answer, result.rounds) == ("42", 2)
    assert "ParseAudioAction cannot open clock.png (image). Give" in run.mains[1]
    assert "names clock.png has no tool that opens it" in run.mains[2]
    assert all("the tool ImageAnalysisAction." in text for text in run.mains[1:3])


def test_all_assignments_that_cannot_work_are_told_at_once(run):
    rows = [json.loads(given(f"Read {name}", [tool]))["params"]["tasks"][0] for name, tool in (
        ("clock.png", "ParseAudioAction"), ("equinox.wav", "ImageAnalysisAction"), ("clock.png", "ParseAudioAction"),
    )]  # fmt: skip
    run(delegate(*rows), READ, complete("42"), media=[CLOCK, SPEECH], work=finish("7:49"))
    told = run.mains[1]
    assert told.count("ParseAudioAction cannot open clock.png") == 1
    assert "Give the sub-task that names equinox.wav the tool ParseAudioAction." in told


def test_aorchestra_tells_it_too(run):
    wrong = given("Read the time in clock.png", ["GoogleSearchAction"])
    right = given("Read the time in clock.png", ["ImageAnalysisAction"])
    run(wrong, right, complete("42"), media=[CLOCK], method="aorchestra", work=finish("7:49"))
    assert "names clock.png has no tool that opens it" in run.mains[1]


# ---- Eq. 7: a file that is named brings its tool -------------------------------------------------


@pytest.mark.parametrize("how", [
    {"instruction": "Read clock.png"}, {"instruction": "Read it", "context": "It is clock.png."},
    {"instruction": "Read it", "modalities": ["image"]},
])  # fmt: skip
@pytest.mark.parametrize("requirements", [{"txt": 0.3}, {"txt": 0.3, "img": 0}, {"web": 1}])
def test_a_file_brings_its_tool_also_with_stated_requirements(how, requirements, run):
    task = {"task_instruction": how["instruction"], **how, "requirements": requirements}
    run(delegate(task), complete("42"), media=[CLOCK], work=finish("7:49"))
    assert "ImageAnalysisAction(" in run.requests[1]["messages"][0]["content"]


def test_the_requirements_in_the_schema_have_the_web():
    agent = OrchestraO1(pool_at("http://none"), {}, Options())
    schema = agent.delegation_schema(STATE)
    task = schema["properties"]["tasks"]["items"]
    stated = task["properties"]["requirements"]["properties"]
    assert list(stated) == ["txt", "img", "aud", "vid", "code", "web"]


def test_a_tool_has_one_spelling():
    for name in ("see", "SeeAction", "google_search", " "):
        assert outcome(given("Find it", [name])) == "unknown_tool"
    assert outcome(given("Find it", ["Code", "Code"])) == "Code"


# ---- a refused action is not offered again -------------------------------------------------------


def offered(request: dict) -> list[str]:
    """The actions in the schema of a request."""
    schema = request["response_format"]["json_schema"]["schema"]
    alternatives = schema.get("anyOf", [schema])
    return [each["properties"]["action"]["const"] for each in alternatives]


def offers(run) -> list[str]:
    """What each decision of a run was offered: both actions, or the only one."""
    mains = [offered(request) for request in run.requests if is_main(request)]
    return ["both" if len(actions) == 2 else actions[0] for actions in mains]


READ = given("Read the time in clock.png", ["ImageAnalysisAction"])
AORCHESTRA = {"method": "aorchestra"}


@pytest.mark.parametrize("how", [{"prompts": "small"}, AORCHESTRA])
def test_a_refused_answer_leaves_only_the_delegation_in_that_round(how, run):
    result = run(complete("a guess"), READ, complete("42"), media=[CLOCK], work=finish("x"), **how)
    assert (result.answer, result.rounds) == ("42", 2)
    assert offers(run) == ["both", "delegate_task", "both"]


def test_an_answer_that_is_not_sure_enough_is_not_offered_again_in_that_round(run):
    unsure, more = sure(complete("41"), 0.4), sure(delegate("again"), 0.9)
    run(unsure, more, sure(complete("42"), 0.9), work=finish("x"), stop_threshold=0.5)
    assert offers(run)[:2] == ["both", "delegate_task"]


@pytest.mark.parametrize("how", [{}, AORCHESTRA])
def test_a_delegation_that_is_refused_may_be_corrected_once(how, run):
    wrong = given("Listen", ["Nothing"])
    run(READ, wrong, wrong, complete("42"), media=[CLOCK], work=finish("7:49"), **how)
    assert offers(run) == ["both", "both", "both", "complete"]


def test_another_mistake_in_the_same_action_may_be_corrected_too(run):
    first, second = given("Listen", ["Nothing"]), given("Listen", [], model="huge")
    run(READ, first, second, complete("42"), media=[CLOCK], work=finish("7:49"))
    assert offers(run) == ["both"] * 4


def test_a_graph_that_cannot_run_is_a_refused_delegation(run):
    cycle = given("Find it", [], id="a", needs=["a"])
    run(cycle, cycle, complete("42"))
    assert offers(run) == ["both", "both", "complete"]


def test_all_actions_are_offered_again_if_none_could_be_accepted(run):
    wrong = given("Read clock.png", [])
    how = {"media": [CLOCK], "work": finish("7:49")}
    run(wrong, wrong, READ, complete("42"), prompts="small", **how)
    assert offers(run) == ["both"] * 4  # an answer would be refused: nothing was opened
    run(wrong, wrong, complete("42"), out="full", **how)
    assert offers(run) == ["both", "both", "complete"]
    both = replace(STATE, history=(SEEN,), refused=("delegate", "complete"))
    assert len(offered_in(both, last_chance=False, may_complete=True)) == 2


def test_an_answer_before_anything_is_delegated_is_taken_as_in_the_paper(run):
    result = run(complete("42"), media=[CLOCK])
    assert (result.answer, result.fallback, result.calls) == ("42", False, 1)


def test_a_resumed_round_offers_what_the_round_offered(run):
    with pytest.raises(EndpointError):
        run(complete("a guess"), *[OSError()] * 9, media=[CLOCK], patience_s=0, prompts="small")
    before = run.requests[1]
    assert offered(before) == ["delegate_task"]
    turns = iter([READ, complete("42")])
    again = run.endpoint(lambda r: next(turns) if is_main(r) else finish("7:49"))
    resume(run.folder, pool=pool_at(again.url))
    assert again.requests[0] == before
    replay(run.folder)


# ---- what a small model may copy -----------------------------------------------------------------


def test_the_sub_tasks_that_a_small_model_may_copy_are_accepted():
    tools = all_tools()
    psi = {name: tool.capabilities for name, tool in tools.items()}
    files = (*FILES, v.Media("file", "data.csv", Path("/none"), ""))
    task = v.Task(STATE.task.question, files)
    state = replace(STATE, task=task, tools=tuple(tools), capabilities=psi)
    agent = SmallModels(pool_at("http://none"), tools, Options())
    text = agent.prompt(state, "", last_chance=False)[-1]["content"]
    rows = [json.loads(line) for line in text.splitlines() if line.startswith('{"task_')]
    subtasks = subtasks_of(delegate(*rows), state)
    right = ["ImageAnalysisAction", "ParseAudioAction", "VideoAnalysisAction", "ReadFileAction"]
    assert [u.tools for u in subtasks] == [(tool,) for tool in right]
    for u, m in zip(subtasks, files, strict=True):
        assert m.name in u.instruction and "Quote every name" in u.instruction
        assert state.task.question not in u.instruction
