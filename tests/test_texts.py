"""--texts: each method sends what the released code would send for the same state, byte for byte."""

import json
import tomllib
from dataclasses import replace
from types import SimpleNamespace

import pytest

from orchestra import texts as filling
from orchestra.methods.state_texts import StateTexts
from orchestra.runtime.run_folder import read_manifest
from orchestra.runtime.texts import Layout, Texts, read
from orchestra.tools import sandbox, search
from orchestra.tools.shipped import tools_for
from orchestra.vocabulary import Evidence, Price
from tests.program import CLOCK, runs
from tests.released_code import Code, clone, tools_of
from tests.scripted import act, agent, complete, delegate, finish, thought

run = runs("orchestra-o1")
PROMPTED = "orchestra.methods.toolorchestra_prompted:Prompted"


@pytest.fixture
def released(tmp_path, monkeypatch):
    """`released(name, method)`: the texts that are filled from a clone, and the code of the clone."""

    def released(name, method, *flags):
        folder = clone(name, tmp_path / "clone")
        assert filling.main([method, str(folder), str(tmp_path / "texts"), *flags]) == 0
        return read(tmp_path / "texts"), Code(folder, monkeypatch)

    return released


def contents(request):
    return [m["content"] for m in request["messages"]]


def entry(status, instruction, result, summary, trace, model="one", **more):
    row = {"status": status, "instruction": instruction, "result": result, "summary": summary}
    return {
        **row,
        "model": model,
        "trace_summary": trace,
        "steps_taken": 1,
        "max_steps": 30,
        **more,
    }


# ---- the methods ---------------------------------------------------------------------------------


def test_orchestra_o1_sends_what_its_released_code_would(run, released):
    texts, code = released("orchestra_o1", "orchestra-o1")
    task = {"context": "", "tools": [], "model": "one"}
    first = {**task, "task_instruction": "Add 1 and 1"}, {**task, "task_instruction": "Go for $5"}
    turns = iter(
        [
            delegate(*first),
            delegate({**task, "task_instruction": "Again", "model": "two"}),
            complete("2"),
        ]
    )
    reports = {
        "Add 1": finish("2", summary="I added."),
        "Go for": act("finish", "", result="", status="partial", summary=""),
        "Again": finish("2"),
    }

    def respond(request):
        (*_, text) = contents(request)
        if "You lead a band" in text:
            return next(turns)
        if "Tell it in short." in text:
            return "<think>hm</think>\n- one move\n- no more\n"
        return next(report for key, report in reports.items() if f"# Your task\n{key}" in text)

    how = {
        "texts": texts,
        "media": [CLOCK],
        "names": ("one", "two"),
        "price": Price(0.25, 2.0),
        "budget_usd": None,
    }
    assert run(respond=respond, **how).answer == "2"
    moves = "- one move\n- no more"
    batches = [
        [
            entry("done", "Add 1 and 1", "2", "I added.", moves),
            entry("partial", "Go for $5", "", "", moves),
        ],
        [entry("done", "Again", "2", "s", moves, "two")],
    ]
    history = [
        {"attempt": n, "is_parallel_batch": True, "subtask_results": b}
        for n, b in enumerate(batches, 1)
    ]
    shipped = tools_for(read_manifest(run.folder).task(run.folder), read_manifest(run.folder).code)
    package = code["benchmark.omnigaia.tools"]
    about = {name: getattr(package, name) for name in package.__all__}
    environment = code[
        "benchmark.omnigaia.orchestra_o1_bench_omnigaia"
    ].OmniGAIAOrchestraEnvironment()
    given = {"type": "image", "id": "clock.png", "path": "clock.png", "resolved_path": "clock.png"}
    vars(environment).update(question="What is it?", resolved_modal_inputs=[given])
    mains = [r for r in run.requests if "You lead a band" in contents(r)[-1]]
    for attempt, request in enumerate(mains, 1):
        expected = code.json_prompt(
            "orchestra_o1", "omnigaia", "OmniGAIAMainAgentPrompt", {"input": 0.00025, "output": 0.002},
            history[: attempt - 1], instruction=environment._build_instruction(), meta={"modal_inputs": [given]},
            attempt_index=attempt, max_attempts=10, sub_models=["one", "two"], tools=tools_of(shipped, about),
        )  # fmt: skip
        assert request["messages"] == [{"role": "user", "content": expected}]
        assert "response_format" not in request
    assert len(mains) == 3 and "(nothing)" in expected and "$5" in expected
    summaries = [contents(r)[0] for r in run.requests if "Tell it in short." in contents(r)[0]]
    assert min(summaries).startswith(
        "Tell it in short.\n\nJob: Add 1 and 1\nMoves: 1\n\nStep 1: finish"
    )
    assert len(summaries) == 3


def test_a_trace_without_a_summary_has_the_released_text_in_its_place(released):
    texts, code = released("orchestra_o1", "orchestra-o1")
    found = Evidence(1, "t1", "Add", "one", (), "partial", "2", "s", steps=3)
    history = (found, replace(found, steps=0))
    shown = StateTexts(Texts(texts), (), {}, steps=30).history(history)
    moves = [
        entry("partial", "Add", "2", "s", text) for text in ("Moves of it: 3", "It did nothing")
    ]
    moves[0]["steps_taken"], moves[1]["steps_taken"] = 3, 0
    agent = code["orchestra_o1.main_agent"].MainAgent()
    batch = {"attempt": 1, "is_parallel_batch": True, "subtask_results": moves}
    vars(agent).update(task_entries=[batch], mask_model_names=False)
    assert shown == agent._format_subtask_history()


def test_aorchestra_sends_what_its_released_code_would(run, released):
    texts, code = released("aorchestra", "aorchestra")
    task = {"context": "", "tools": [], "model": "one"}
    turns = iter(
        [delegate({**task, "task_instruction": name}) for name in ("Add", "Go")] + [complete("2")]
    )
    reports = {
        "Add": finish("2", summary="I added."),
        "Go": finish("", "partial", summary="It is hard."),
    }

    def respond(request):
        (*_, text) = contents(request)
        if "You lead a band" in text:
            return next(turns)
        if "Tell it in short." in text:
            return "- one move"
        return next(report for key, report in reports.items() if f"# Your task\n{key}" in text)

    assert (
        run(respond=respond, method="aorchestra", texts=texts, names=("one", "two")).answer == "2"
    )
    entries = [
        entry("done", "Add", "2", "I added.", "- one move", attempt=1),
        entry("partial", "Go", "", "It is hard.", "- one move", attempt=2),
    ]
    mains = [r for r in run.requests if "You lead a band" in contents(r)[-1]]
    for attempt, request in enumerate(mains, 1):
        expected = code.json_prompt(
            "aorchestra", "gaia", "GAIAMainAgentPrompt", {"input": 0.0, "output": 0.0}, entries[: attempt - 1],
            instruction="What is it?", meta={}, attempt_index=attempt, max_attempts=10, sub_models=["one", "two"],
        )  # fmt: skip
        assert request["messages"] == [{"role": "user", "content": expected}]
    assert len(mains) == 3 and "Mind: it did not end." in expected
    summaries = [contents(r)[0] for r in run.requests if "Tell it in short." in contents(r)[0]]
    assert summaries[0].startswith("Tell it in short.\nAdd\n\nEnded as: done\nWith: 2\n\nStep 1:")


REASONED = "So:\n```python\nprint(6 * 7)\n```\n"


def test_toolorchestra_sends_what_its_released_code_would(run, released, monkeypatch, tmp_path):
    texts, _ = released("toolorchestra", "toolorchestra")
    monkeypatch.setattr(
        search, "_search", lambda asked: [{"title": f"found for {asked['q']}, and more"}]
    )
    printed = SimpleNamespace(output=b"42\n", ended="end", status=0)  # of the program in REASONED
    monkeypatch.setattr(sandbox, "confined", lambda **_: printed)
    calls = iter(
        [("search", "search-1"), ("enhance_reasoning", "reasoner-1"), ("answer", "answer-1")]
    )

    def respond(request):
        text = contents(request)[-1]
        if "tools" in request:
            name, slot = next(calls)
            return (
                f'<tool_call>{{"name": "{name}", "arguments": {{"model": "{slot}"}}}}</tool_call>'
            )
        if "Write one thing" in text:
            return "<query>a thing</query>"
        return REASONED if "Write code" in text else "<answer>\n42\n</answer>"

    assert (
        run(respond=respond, method="toolorchestra", texts=texts, unsafe_code=True).answer == "42"
    )
    first, looked, second, coded, third, answered = run.requests
    tools = json.loads((tmp_path / "clone" / "evaluation" / "tools.json").read_text())
    assert json.dumps(first["tools"]) == json.dumps(tools)  # with the order of the keys
    document = Texts(texts).rows("expert_search", [{"n": 1, "text": "TEXT"}])
    assert document == "Papers:\nPaper 1: TEXT\n\n"
    page = contents(coded)[0].removeprefix("Papers:\nPaper 1: ").partition("\n\nAsked: ")[0]
    assert "found for a thing, and more" in page and "<data" not in page
    generated = REASONED.split("```python")[-1].split("```")[0]  # as the released code cuts it out
    code = f"\ncode and what it printed:\n```python\n{generated}\n```\n\n```output\n42\n\n```\n\n"
    contexts = ["", f"Papers:\nPaper 1: {page[:30]} ...\n\n"]
    contexts.append(contexts[1] + code)
    for request, context in zip([first, second, third], contexts, strict=True):
        asked = f"Asked: What is it?\n\n{context}\n\nTake a tool.'"
        assert contents(request) == ["You use tools well.", asked]
    whole = f"Papers:\nPaper 1: {page}"
    assert contents(looked) == [
        "\n\nAsked: What is it?\nWrite one thing to look up between <query> and </query>."
    ]
    assert contents(coded) == [
        f"{whole}\n\nAsked: What is it?\nWrite code between ```python and ```, for $1."
    ]
    end = "\n\nThink, and end with <answer> and </answer>.Like this:\n<answer>\n...\n</answer>"
    found = (whole + "\n\n" + code.removeprefix("\ncode and what it printed:\n")).strip()
    assert contents(answered) == [f"{found}\n\nAsked:\nWhat is it?{end}"]


DOM = {  # the names of the modules of a --dom
    "high": ("harmony_medium", "propose_harmony_medium"),
    "low": ("harmony_minimal", "propose_harmony_minmal"),
}


@pytest.mark.parametrize("dom", DOM)
def test_mas_orchestra_sends_what_its_released_code_would(dom, run, released):
    texts, code = released("mas_orchestra", "mas-orchestra", "--dom", dom)
    module, propose = DOM[dom]
    graph = thought(agent("A"))
    respond = lambda r: graph if r["messages"][0]["role"] == "system" else "Answer: 42"  # noqa: E731
    how = {"method": "mas-orchestra", "dom": dom, "texts": texts}
    assert run(respond=respond, names=("nano",), **how).answer == "42"
    prompts, blocks = "mas_r1_reasoner.agents.prompts", "mas_r1_reasoner.agents.blocks_harmony"
    described = code[f"{prompts}.developer_prompt.{module}"].developer_prompt
    agents = [("[COT]", "cot", "COT"), ("[COT_SC]", "cot_sc", "COT_SC"), ("[Websearch]", "web_search", "WebSearch")]  # fmt: skip
    for mark, file, name in agents:
        described = described.replace(mark, json.dumps(getattr(code[f"{blocks}.{file}"], name)))
    system = code[f"{prompts}.system_prompt.{module}"].system_prompt
    user = code[f"{prompts}.user_prompt.{propose}"].base
    assert run.requests[0]["messages"] == [
        {"role": "system", "content": system.replace("[MODEL]", "nano")},
        {"role": "user", "content": user.replace("[QUESTION]", "What is it?")},
        {"role": "user", "content": described},
    ]
    filled = Layout(**tomllib.loads(texts["texts.toml"]))
    assert (filled.method, filled.dom) == ("mas-orchestra", dom)


WORKERS = """
[calls.main]
response_format = "json_object"
messages = [{ role = "user", file = "m.txt" }]
[pieces]
workers_row = "Worker ${id} (${name})"
results_row = "${turn}: ${name} was asked ${input} and said ${output}"
results_row_failed = "${turn}: ${name} failed"
"""
WORKERS_TEXT = "${workers}\n${problem}\n${context}\nturn ${turn} of ${turns}, ${left} left"


def test_the_prompted_mode_sends_the_users_texts(run):
    turns = iter(
        [
            {"action": "call_worker", "worker_id": 2, "input": "Look"},
            {"action": "final_answer", "answer": "42"},
        ]
    )
    respond = lambda r: json.dumps(next(turns)) if "turn" in contents(r)[0] else "Answer: 41"  # noqa: E731
    texts = {"texts.toml": WORKERS, "m.txt": WORKERS_TEXT}
    run(respond=respond, method=PROMPTED, texts=texts, names=("a", "b"))
    first, _, second = run.requests
    workers = "Worker 1 (a)\nWorker 2 (b)\nWorker 3 (web-search)"
    assert contents(first) == [f"{workers}\nWhat is it?\n\nturn 1 of 6, 5 left"]
    said = "1: b was asked Look and said Answer: 41"
    assert contents(second) == [f"{workers}\nWhat is it?\n{said}\nturn 2 of 6, 4 left"]
    assert first["response_format"] == {"type": "json_object"}


STEPS = """
[calls.agent]
keys = ["memory", "action"]
messages = [{ role = "system", file = "s.txt" }, { role = "user", file = "u.txt" }]
[pieces]
tools_row = "${name}"
tools_join = "|"
done_steps_row = "${number} ${action} ${params} -> ${observation} (${memory})"
done_steps_empty = "none"
warning_3 = "only ${left}"
"""


def test_a_react_agent_sends_the_users_texts(run):
    turns = iter([act("Nothing", "first"), finish("42")])
    texts = {
        "texts.toml": STEPS,
        "s.txt": "Tools: ${tools}\n",
        "u.txt": "${instruction} ${done_steps} ${step}/${max_steps} ${warning}",
    }
    assert run(respond=lambda r: next(turns), method="react", texts=texts, steps=5).answer == "42"
    first, second = run.requests
    system, user = contents(first)
    assert (
        system.startswith("Tools: ") and system.endswith("\n") and "GoogleSearchAction|" in system
    )
    assert user == "What is it? none 1/5 "
    assert contents(second)[1].startswith("What is it? 1 invalid {} -> ")
    assert contents(second)[1].endswith("(first) 2/5 only 3")
    shapes = first["response_format"]["json_schema"]["schema"]["anyOf"]
    assert [list(shape["properties"]) for shape in shapes] == [
        ["memory", "action", "params"]
    ] * len(shapes)


# ---- what no template has ------------------------------------------------------------------------

ALONE = {
    "texts.toml": '[calls.main]\nresponse_format = "none"\nmessages = [{ role = "user", file = "m" }]\n',
    "m": "Q: ${question} ${round}/${rounds}",
}


def test_a_mistake_and_the_last_chance_are_below_the_last_message(run):
    turns = iter(["?", delegate({"task_instruction": "x", "tools": []}), complete("42")])
    respond = lambda r: next(turns) if contents(r)[0].startswith("Q: ") else finish("1")  # noqa: E731
    run(respond=respond, texts=ALONE, rounds=1)
    mains = [contents(r)[0] for r in run.requests if contents(r)[0].startswith("Q: ")]
    assert mains[0] == "Q: What is it? 1/1"
    assert mains[1].startswith("Q: What is it? 1/1\n\nYour last decision could not be used.")
    assert mains[2].startswith("Q: What is it? 1/1\n\nThis is the last chance")


def test_pieces_of_the_folder_take_the_place_of_these_sentences(run):
    toml = ALONE["texts.toml"] + '[pieces]\nmistake = "No: ${mistake}"\nlast_chance = ""\n'
    turns = iter(["?", complete("42")])
    run(respond=lambda r: next(turns), texts={**ALONE, "texts.toml": toml})
    assert contents(run.requests[1])[0].startswith("Q: What is it? 1/10\n\nNo: ")


# ---- the main agent's model does nothing else ----------------------------------------------------

MODELS = """[calls.main]
response_format = "none"
messages = [{ role = "user", file = "m" }]
[pieces]
models_row = "<${name}>"
"""


def main_only(pool):
    return pool.with_(main="one", main_only=True)


@pytest.mark.parametrize("method", ["orchestra-o1", "aorchestra"])
def test_with_main_only_no_sub_task_goes_to_the_main_agents_model(method, run):
    texts = {"texts.toml": MODELS, "m": "You lead: ${models}"}
    task = {"task_instruction": "Add", "context": "", "tools": [], "model": "auto"}
    named = {**task, "model": "one"}
    turns = iter([delegate(named), delegate(task), complete("2")])

    def respond(request):
        return next(turns) if "You lead" in contents(request)[0] else finish("2")

    names = ("one", "two", "three")
    run(respond=respond, method=method, texts=texts, names=names, change=main_only)
    is_main = [contents(r)[0].startswith("You lead") for r in run.requests]
    mains = [r for r, main in zip(run.requests, is_main, strict=True) if main]
    workers = {r["model"] for r, main in zip(run.requests, is_main, strict=True) if not main}
    assert {r["model"] for r in mains} == {"one"} and workers == {"two"}
    assert contents(mains[0])[0] == "You lead: <two>\n<three>"
    assert "one of two, three" in contents(mains[1])[0] or "two, three" in contents(mains[1])[0]


@pytest.mark.parametrize(
    "method, models",
    [("react", {"one"}), ("mas-orchestra", {"one", "two"}), ("toolorchestra", {"one", "two"})],
)
def test_with_main_only_a_method_still_answers(method, models, run):
    assert run(method=method, names=("one", "two"), change=main_only).answer == "42"
    assert set(run.models) == models
