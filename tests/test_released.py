"""The methods of released models, with clones that have the released structure and our sentences
(tests/released). RELEASED_CLONES names a folder with the real ones: Orchestra-o1, AOrchestra,
ToolOrchestra, MAS-Orchestra.
"""

import json
import os
import re
from pathlib import Path

import pytest

import orchestra_min
from orchestra.kernel.prompts import explained, quoted, say
from orchestra.kernel.vocabulary import (
    Complete,
    Evidence,
    ModelMistake,
    Reply,
    Result,
    State,
    Step,
    SubTask,
)
from orchestra.methods import all_tools
from orchestra.methods.released import aorchestra, mas, o1, orchestrator
from tests.conftest import ROOT, ConfigError, Media, Options, TapeMiss, Task, needs_sandbox, pool_at
from tests.scripted import finish, last_text

REAL = os.environ.get("RELEASED_CLONES", "")
REPOSITORIES = {
    o1: "Orchestra-o1",
    aorchestra: "AOrchestra",
    orchestrator: "ToolOrchestra",
    mas: "MAS-Orchestra",
}
NAMES = {
    o1: {
        "PACKAGE": "orchestra_o1",
        "PROMPT": "OmniGAIAMainAgentPrompt",
        "ENVIRONMENT": "omnigaia/orchestra_o1_bench_omnigaia",
        "BENCHMARK": "omnigaia",
    },
    aorchestra: {
        "PACKAGE": "aorchestra",
        "PROMPT": "GAIAMainAgentPrompt",
        "ENVIRONMENT": "aorchestra_bench_gaia",
        "BENCHMARK": "gaia",
    },
}
SIX = "GoogleSearchAction ExecuteCodeAction ExtractUrlContentAction ImageAnalysisAction ParseAudioAction VideoAnalysisAction"
pytestmark = needs_sandbox


@pytest.fixture
def clone(tmp_path):
    def clone(module):
        name = "main_agent" if module in NAMES else module.__name__.rpartition(".")[2]
        text = (ROOT / f"tests/released/{name}.txt").read_text()
        for word, meant in NAMES.get(module, {}).items():
            text = text.replace(word, meant)
        for part in re.split(r"^=== ", text, flags=re.M)[1:]:
            path, _, body = part.partition("\n")
            (tmp_path / "clone" / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "clone" / path).write_text(body)
        return tmp_path / "clone"

    return clone


@pytest.fixture
def made(clone):
    """A method over a clone, with two models besides its main one."""

    def made(module, **options):
        pool = pool_at("http://x", "main", "small", "large")
        return module.Released(pool, all_tools(), Options.of(clone=str(clone(module)), **options))

    return made


def state(*history, question="Which?", media=(), round=1):
    tools = ("GoogleSearchAction", "ExecuteCodeAction")
    return State(Task(question, media), "", history, ("main", "small", "large"), tools, round, 9)


def ran(id="t1_1", round=1, status="done", answer="42", error="", steps=3, **more):
    about = {
        "instruction": "look",
        "backend": "large",
        "tools": (),
        "summary": "two\nlines",
        **more,
    }
    return Evidence(round, id, status=status, answer=answer, error=error, steps=steps, **about)


def decided(method, reply, at=None):
    """What the method decides, and what it asks."""
    asked = []
    y_t = method.decide(
        at or state(), lambda *what, **how: asked.append(what[0]) or Reply(reply), "", False
    )
    return y_t, asked


# ---- Orchestra-o1 and AOrchestra -----------------------------------------------------------------


def test_o1_reads_the_question_all_six_tools_and_masked_models(made):
    y_t, ((message,),) = decided(made(o1), '{"action": "complete", "params": {"answer": 1}}')
    assert y_t == Complete("1")
    assert message == {
        "role": "user",
        "content": f"[('question', 'Which?')] []\nGo 1/9; {SIX}; ['model_1', 'model_2']\nNow?",
    }


@pytest.mark.parametrize(("h", "line"), [
    (ran(), "look, model_2: {'result': '42', 'status': 'done', 'summary': 'two\\nlines'} 3 steps were made"),
    (ran(status="blocked", answer=""), "look, model_2: {'result': '', 'status': 'blocked', 'summary': 'two\\nlines'} 3 steps were made"),
    (ran(status="partial", error="No step is left.", steps=30), "look, model_2: {'status': 'late', 'result': '', 'summary': 'All 30 went by'} 30 steps were made"),
    (ran(status="failed", error="no answer"), "look, nobody: {'status': 'unfinished', 'result': '-', 'summary': ''} None"),
], ids=["done", "blocked", "unfinished", "failed"])  # fmt: skip
def test_a_report_is_told_as_the_released_code_tells_it(made, h, line):
    prompt, _ = made(o1).turn(state(h, round=2))
    assert prompt.splitlines()[2] == f"1. {line}"


FORCED = """
    async def _run_gaia_with_forced_finish(self, agent, env, max_steps):
        agent.reset(env.get_basic_info())
        for number in range(1, max_steps + 1):
            action, *_ = await agent.step(current_step=number)
            if number == max_steps:
                end = {"result": shown["output"], "status": "partial", "summary": f"Ended at {number}"}
                action = {"action": "finish", "params": end}
            shown, _, _, info = await env.step(action)
        agent.llm.get_usage_summary().get("model")
        return SimpleNamespace(trace=[SimpleNamespace(info=info)])
"""


@pytest.fixture
def forced(made, clone):
    """AOrchestra's method over a clone of a branch that forces a report in the last step."""
    at = clone(aorchestra) / "aorchestra/tools/delegate.py"
    text = f"from types import SimpleNamespace\n{at.read_text()}{FORCED}"
    method = made(aorchestra, steps=4)
    at.write_text(text)
    return method


def test_a_fix_branch_reports_what_the_last_tool_showed(forced):
    shown = [quoted("first\npage"), "No such tool", quoted("42"), "Too late"]
    trace = tuple(Step("GoogleSearchAction", {}, "", text) for text in shown)
    z = Result("partial", "", "S", trace=trace, error="No step is left.", round=1)
    history = forced.remember((), SubTask("t1", "look", backend="large"), z)
    end = {"result": "42", "status": "partial", "summary": "Ended at 4"}
    line = f"1. look, model_2: {end} 4 steps were made of 4"
    assert forced.turn(state(*history, round=2))[0].splitlines()[2] == line


@pytest.mark.parametrize(("answer", "status"), [("42", "done"), ("", "partial")])
def test_a_report_passes_through_the_environment_of_the_clone(forced, answer, status):
    prompt, _ = forced.turn(state(ran(answer=answer), round=2))
    end = {"result": answer, "status": status, "summary": "two\nlines"}
    assert prompt.splitlines()[2] == f"1. look, model_2: {end} 3 steps were made of 4"


@pytest.mark.parametrize("module", [o1, aorchestra])
def test_a_field_of_the_wrong_type_is_refused_by_the_sub_agent_of_the_clone(made, module):
    task = {"task_instruction": "look", "model": "model_2", "context": None}
    params = {"tasks": [task]} if module is o1 else task
    with pytest.raises(ModelMistake) as caught:
        decided(made(module), json.dumps({"action": "delegate_task", "params": params}))
    told = "The released code raised an error: TypeError: The context must be a text"
    assert explained(caught.value) == told


def test_tool_names_are_compared_as_the_released_sub_agent_does(made):
    task = {"task_instruction": "look", "model": "model_2", "tools": ["google_search", "Execute"]}
    y_t, _ = decided(made(aorchestra), json.dumps({"action": "delegate_task", "params": task}))
    assert y_t.subtasks[0].tools == ("GoogleSearchAction",)


@pytest.mark.parametrize("text", [
    '[{"question":', "[1]", '[{"omni_modal_input": null}]', '{"omni_modal_input": [1]}',
    '[{"omni_modal_input": [{"path": 1}]}]', "\ufeff[]",
])  # fmt: skip
def test_a_damaged_metadata_file_is_named_with_what_it_must_have(made, tmp_path, text):
    at = tmp_path / "rows.json"
    at.write_text(text)
    wrong = f"option data: {at} cannot be read .*It must have a JSON object for each question"
    with pytest.raises(ConfigError, match=wrong):
        made(o1, data=str(at))


def test_an_item_without_a_path_is_a_file_that_does_not_exist(made, tmp_path):
    at = tmp_path / "rows.json"
    at.write_text('{"question": "Which?", "omni_modal_input": [{"type": "image"}]}\n')
    prompt, _ = made(o1, data=str(at)).turn(state())
    assert prompt.splitlines()[0] == "[('question', 'Which?')] []"


def test_a_row_of_omnigaia_has_its_type_and_the_paths_that_exist(made, tmp_path):
    (tmp_path / "a.mp4").touch()
    row = {
        "question": "Which?",
        "task_type": "two hops",
        "omni_modal_input": [{"path": "a.mp4"}, {"path": "b.mp4"}],
    }
    (tmp_path / "rows.json").write_text(json.dumps([{"question": "Who?"}, row]))
    prompt, _ = made(o1, data=str(tmp_path / "rows.json")).turn(state())
    told = [("question", "Which?"), ("task_type", "two hops")]
    assert prompt.splitlines()[0] == f"{told} ['{tmp_path}/a.mp4']"


@pytest.mark.parametrize("module", [o1, aorchestra])
def test_a_file_is_told_by_its_name_in_the_folder_of_the_option(made, module):
    media = (Media("file", "t.csv", Path("t.csv"), ""),)
    assert "['data/t.csv']" in made(module, files="data").turn(state(media=media))[0]


def test_o1_starts_the_tasks_that_the_released_code_starts(made):
    task = {
        "task_instruction": "look",
        "model": "model_2",
        "context": "so far",
        "tools": ["ExecuteCodeAction", "Nothing"],
    }
    tasks = [
        task,
        {"task_instruction": "go", "model": "model_9"},
        {"task_instruction": "on", "model": "model_1"},
    ]
    y_t, _ = decided(made(o1), json.dumps({"action": "delegate_task", "params": {"tasks": tasks}}))
    first, second, third = y_t.subtasks
    assert first == SubTask("t1_1", "look", "so far", "large", ("ExecuteCodeAction",))
    assert (second.id, second.agent) == ("refused1_2", "refused")
    assert (third.backend, third.tools) == ("small", ("GoogleSearchAction", "ExecuteCodeAction"))


@pytest.mark.parametrize("module", [o1, aorchestra])
def test_a_refused_task_is_told_in_the_next_round(made, module):
    task = {"task_instruction": "go", "model": "model_9"}
    params = {"tasks": [task]} if module is o1 else task
    method = made(module)
    (u,) = decided(method, json.dumps({"action": "delegate_task", "params": params}))[0].subtasks
    history = method.remember((), u, Result("failed", "", "", error="refused", round=1))
    name = "nobody" if module is o1 else "model_9"
    line = f"1. go, {name}: {{'status': 'unfinished', 'result': '-', 'summary': ''}} None"
    assert method.turn(state(*history, round=2))[0].splitlines()[2] == line


def test_aorchestra_delegates_one_flat_task(made):
    reply = {"action": "delegate_task", "params": {"task_instruction": "look", "model": "model_2"}}
    y_t, ((message,),) = decided(made(aorchestra), json.dumps(reply), state(ran("t1"), round=2))
    assert [(u.id, u.instruction, u.backend) for u in y_t.subtasks] == [("t2", "look", "large")]
    assert message["content"].splitlines()[2].startswith("1. look, model_2: {'result': '42'")


@pytest.mark.parametrize("module", [o1, aorchestra])
def test_an_unknown_action_loses_a_round_and_a_broken_reply_is_a_mistake(made, module):
    (u,) = decided(made(module), '{"action": "ponder"}')[0].subtasks
    assert made(module).remember((), u, Result("failed", "", "")) == ()
    with pytest.raises(ModelMistake):
        decided(made(module), "so it is 42")


def test_a_run_replays_with_its_clone_and_not_with_another(clone, endpoint, tmp_path):
    task = {"task_instruction": "look", "model": "model_1"}
    replies = [{"action": "ponder"}, {"action": "delegate_task", "params": {"tasks": [task]}}]
    mains = iter([*map(json.dumps, replies), '{"action": "complete", "params": {"answer": "42"}}'])
    prompts = []

    def respond(request):
        if request["model"] != "main":
            return finish("here")
        prompts.append(last_text(request))
        return next(mains)

    at = clone(o1)
    given = {"method": o1.Released, "pool": pool_at(endpoint(respond).url, "main", "small")}
    outcome = orchestra_min.orchestrate(
        "Which?", **given, options=Options.of(clone=str(at)), out=tmp_path / "run"
    )
    assert (outcome.answer, outcome.rounds) == ("42", 3)
    assert prompts[2].splitlines()[2].startswith("2. look, model_1: {'result': 'here'")
    assert orchestra_min.replay(tmp_path / "run", method=o1.Released).answer == "42"
    prompt = at / "orchestra_o1/prompts/omnigaia.py"
    prompt.write_text(prompt.read_text().replace("Now?", "And now?"))
    with pytest.raises(TapeMiss):
        orchestra_min.replay(tmp_path / "run", method=o1.Released)


# ---- ToolOrchestra -------------------------------------------------------------------------------


def worked(tool, observation, failed=False, **params):
    step = Step(tool, params, "", observation, failed)
    return Result("done", "said", "", trace=(step,), round=1)


@pytest.mark.parametrize(("id", "slot", "z", "told"), [
    ("search1", "search-1", worked("GoogleSearchAction", quoted("A page\nabout it.")), "A page\nabout it."),
    ("enhance_reasoning1", "reasoner-1", worked("ExecuteCodeAction", quoted(" 1\n2"), code="print(1)\n"), "\nprint(1)\n| 1\n2\n"),
    ("enhance_reasoning1", "reasoner-1", worked("ExecuteCodeAction", say("notes", "code_silent"), code="x\n"), ""),
    ("enhance_reasoning1", "reasoner-1", worked("ExecuteCodeAction", "Traceback", failed=True, code="x\n"), ""),
    ("search1", "search-1", worked("GoogleSearchAction", quoted("It is long. " * 5)), "It is long. " * 4),
], ids=["documents", "two lines", "silent", "failed", "cut"])  # fmt: skip
def test_the_main_agent_reads_what_tools_have_shown(made, id, slot, z, told):
    method = made(orchestrator)
    (h,) = method.remember((), SubTask(id, slot, backend="small"), z)
    messages, tools = method.turn(state(h, round=2))
    assert messages == [{"role": "user", "content": f"Which?: {told}"}]
    assert tools[0]["function"]["name"] == "search"


@pytest.mark.parametrize(("reply", "called"), [
    ('<tool_call>{"name": "search", "arguments": {"model": "search-1"}}</tool_call>', ["search1"]),
    ('so: <tool_call>{"name": "answer", "arguments": "{\\"model\\": \\"answer-1\\"}"}', ["answer1"]),
    ('<tool_call>{"name": "search", "arguments": {"model": "answer-1"}}</tool_call>', ["lost1"]),
    ('<tool_call>{"name": "search"</tool_call>', ["lost1"]),
    ("It is 42.", ["lost1"]),
])  # fmt: skip
def test_a_turn_is_the_call_that_the_released_code_makes(made, reply, called):
    y_t, _ = decided(made(orchestrator), reply)
    assert [u.id for u in y_t.subtasks] == called
    assert y_t.final == (called == ["answer1"])


# ---- MAS-Orchestra -------------------------------------------------------------------------------

CODE = """code
async def forward(self, task):
    first = await self.CoTAgent(agent_input=Info("", "", f"{task.content}: begin", *"12345"), model="m")
    text = f"end {first}"
    return await self.DebateAgent(Info("", "", text, *"12345"), "m", debate_roles=["P", "Q"])
"""


@pytest.mark.parametrize(("checkpoint", "told"), [
    ("math", ("harmony_minimal", "")), ("multiple-choice", ("harmony_minimal", "multiple_choice")),
    ("hotpotqa", ("harmony_medium", "")), ("browsecomp-plus", ("harmony_medium", "")),
])  # fmt: skip
def test_the_three_messages_are_those_of_the_checkpoint(made, checkpoint, told):
    kind, data = told
    assert made(mas, checkpoint=checkpoint).messages("Why") == [
        {"role": "system", "content": f"Be {kind}, with gpt-oss-120b."},
        {"role": "user", "content": f"{data}\nWhy?"},
        {
            "role": "user",
            "content": "There are ['COT', 'COT_SC', 'Reflexion', 'LLM_debate', 'WebSearch']",
        },
    ]


def test_a_graph_is_what_its_code_calls(made):
    y_t, _ = decided(made(mas), CODE)
    first, second = y_t.subtasks
    assert (first.agent, first.instruction, first.needs) == ("cot", "Which?: begin", ())
    assert (second.agent, second.instruction, second.needs) == ("debate", "end ${A1}", ("A1",))
    assert (second.roles, y_t.answers, y_t.final) == (("P", "Q"), True, True)


def test_a_name_of_an_output_in_the_question_is_text(made):
    y_t, _ = decided(made(mas), CODE, state(question="In bash, what is ${A1}"))
    first, second = y_t.subtasks
    assert (first.instruction, first.needs) == ("In bash, what is ${A1}: begin", ())
    assert (second.instruction, second.needs) == ("end ${AA1}", ("AA1",))


def test_a_graph_whose_code_fails_is_one_sub_task_that_fails(made):
    y_t, _ = decided(
        made(mas), "code\nasync def forward(self, task):\n    raise ValueError('nobody')"
    )
    assert [(u.agent, u.instruction) for u in y_t.subtasks] == [("refused", "nobody")]


def test_a_direct_answer_ends_the_run_and_a_refused_reply_is_a_mistake(made):
    assert decided(made(mas), "answer 42")[0] == Complete("42")
    with pytest.raises(ModelMistake):
        decided(made(mas), "nothing")


# ---- the clone -----------------------------------------------------------------------------------


@pytest.mark.parametrize("module", REPOSITORIES)
def test_a_folder_that_is_not_a_clone_is_an_error_before_the_first_call(module, tmp_path):
    wrong = (
        f"needs a clone of {module.Released.repository}: {tmp_path} has no {module.Released.file}"
    )
    with pytest.raises(ConfigError, match=wrong):
        module.Released(pool_at("http://x"), all_tools(), Options.of(clone=str(tmp_path)))


def test_without_a_clone_the_error_names_the_whole_path_and_what_a_replay_needs(
    monkeypatch, tmp_path
):
    monkeypatch.chdir(tmp_path)
    wrong = f"{tmp_path}/gone has no .*; for a replay, put the clone there again"
    with pytest.raises(ConfigError, match=wrong):
        o1.Released(pool_at("http://x"), all_tools(), Options.of(clone="gone"))


def test_without_a_sandbox_one_message_says_that_unsafe_code_is_not_enough(
    clone, monkeypatch, tmp_path, capsys
):
    monkeypatch.setattr("orchestra.tools.sandbox.trouble", lambda: "no bwrap")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9")
    method = ["--method", "orchestra.methods.released.o1:Released", "--model", "m"]
    options = ["--option", f"clone={clone(o1)}", "--out", str(tmp_path / "run")]
    assert orchestra_min.main(["Q?", *method, *options]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("apt install bubblewrap; --unsafe-code does not replace it here")


@pytest.mark.parametrize(("module", "count"), [(mas, 1), (orchestrator, 1), (aorchestra, 2)])
def test_files_that_the_prompts_do_not_have_leave_no_folder(clone, tmp_path, module, count):
    files = [tmp_path / f"{number}.csv" for number in range(count)]
    for file in files:
        file.write_text("1")
    given = {"pool": pool_at("http://x"), "options": Options.of(clone=str(clone(module)))}
    with pytest.raises(ConfigError, match="leave (them|the others) out"):
        orchestra_min.orchestrate(
            "Q?", files, **given, method=module.Released, out=tmp_path / "run"
        )
    assert not (tmp_path / "run").exists()


def test_a_clone_whose_code_does_not_run_is_an_error_before_the_first_call(
    made, clone, monkeypatch
):
    monkeypatch.setitem(NAMES[o1], "sub_models", "others")
    with pytest.raises(ConfigError, match=r"its code does not run \(TypeError: .*sub_models"):
        made(o1)


def test_the_code_of_a_clone_has_no_network_and_cannot_change_the_clone(made, clone):
    method = made(mas)
    common = clone(mas) / "mas_r1_reasoner/agents/common.py"
    for code in (
        "import socket; socket.create_connection(('1.1.1.1', 53), 1)",
        "open('media/x', 'w')",
    ):
        common.write_text(code)
        with pytest.raises(ModelMistake) as caught:
            method.messages("Why")
        assert "OSError" in caught.value.values["error"]


@pytest.mark.parametrize("module", REPOSITORIES)
def test_the_files_of_released_repositories_have_the_structure(module):
    path = Path(REAL, REPOSITORIES[module])
    if not REAL or not path.is_dir():
        pytest.skip("RELEASED_CLONES names a folder with released repositories")
    method = module.Released(
        pool_at("http://x", "main", "gpt-5"), all_tools(), Options.of(clone=str(path))
    )
    asked = (
        method.messages("Which one?")
        if module is mas
        else method.turn(state(question="Which one?"))
    )
    assert "Which one?" in str(asked)
