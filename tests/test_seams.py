"""The seven hooks of the kernel take plain objects; the examples of docs/contributing.md run as they are
written.
"""

import json
import re
import shlex
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from orchestra.kernel.folder import read_events
from orchestra.kernel.http import NoAnswer, Response
from orchestra.kernel.memory import summarize
from orchestra.kernel.method import Method
from orchestra.kernel.prompts import as_messages, say
from orchestra.kernel.tape import Answer, exchanges
from orchestra.kernel.tool import Environment, tool
from orchestra.kernel.vocabulary import Complete, Delegate, ModelMistake, SubTask, ToolError
from orchestra.methods.orchestra_o1 import OrchestraO1
from orchestra_min import orchestrate
from tests.conftest import ROOT, ConfigError, EndpointError, pool_at
from tests.program import called, replay
from tests.scripted import act, complete, completion, delegate, finish, is_main, last_text

SECTION = re.compile(r"^## ([^\n]+)\n(?:(?!^## ).)*?```python\n# (\w+\.py)\n(.*?)```\n\n```console\n(.*?)```", re.M | re.S)  # fmt: skip
FOUND = SECTION.findall((ROOT / "docs/contributing.md").read_text())
EXAMPLES = {section: example for section, *example in FOUND if " replay " in example[-1]}


# ---- the examples of docs/contributing.md -------------------------------------------------------------


def respond(request):
    """The replies of all models: 397.8, as soon as a sub-agent has found it."""
    text = last_text(request)
    if is_main(request):
        return complete("397.8") if "397.8" in text else delegate("Compute it")
    if "Write a Python program" in text:
        return "```python\nprint(17 * 2340 / 100)\n```"
    if "Is this answer right?" in text:
        return "yes"
    return finish("397.8") if '"action"' in str(request) else "397.8"


@pytest.mark.parametrize("section", EXAMPLES)
def test_the_example_of_a_section_runs_and_is_named_again_for_a_replay(
    section, endpoint, in_an_empty_folder
):
    file, source, console = EXAMPLES[section]
    Path(file).write_text(source)
    run, again = [shlex.split(line)[2:] for line in console.splitlines()]
    done = called(*run, "--model", "m", at=endpoint(respond).url)
    assert done.stdout == "397.8\n", done.stderr
    assert called(*again).stdout == "397.8\n"


def test_contributing_shows_how_to_add_each_part():
    assert len(EXAMPLES) >= 2


# ---- Method --------------------------------------------------------------------------------------


class Alone(Method):
    """One sub-task, whose answer is the run's."""

    def decide(self, state, ask, mistake, last_chance):
        if state.history:
            return Complete(state.history[-1].answer)
        return Delegate((SubTask("a", "look", tools=()),))


class Short(OrchestraO1):
    """Its own memory and its own scheduler: the rest is Orchestra-o1's."""

    def remember(self, history, u, z):
        return (*history, replace(summarize(u, z), summary="forgotten"))

    def context(self, question, history, limit):
        return f"{len(history)} results, {history[-1].summary}"

    def place(self, candidates, task, pool, tools, k_max, budget_usd):
        placed = super().place(candidates, task, pool, tools, k_max, budget_usd)
        return placed[:1]


def test_a_method_decides_and_the_rest_has_defaults(run):
    result = run(method=Alone, work=finish("seen"))
    assert (result.answer, result.rounds, result.calls) == ("seen", 2, 1)


def test_a_method_may_replace_the_memory_and_the_scheduler(run):
    run(delegate("one", "two"), complete("42"), method=Short, work=finish("seen"))
    assert "1 results, forgotten" in run.mains[-1] and len(run.prompts) == 1


def test_a_mistake_of_a_model_is_told_to_it_and_a_bug_is_not_hidden(run):
    class Strict(Method):
        def decide(self, state, ask, mistake, last_chance):
            reply = ask(as_messages("You are the main agent.", mistake or "answer"))
            if reply.text != "42":
                raise ModelMistake("say 42")
            return Complete(reply.text)

    assert run("7", "42", method=Strict).answer == "42" and run.mains[-1] == "say 42"
    with pytest.raises(AttributeError, match="NoneType"):
        run("42", method=lambda *parts: None, out="second")


def deciding(value):
    return type("Mine", (Alone,), {"decide": lambda self, *state: value()})


@pytest.mark.parametrize(("method", "error", "told"), [
    (deciding(lambda: None), TypeError, r"Mine\.decide returned None"),
    (deciding(lambda: Complete(97)), TypeError, "97 is not a text"),
    (deciding(lambda: Delegate(SubTask("a", "look"))), TypeError, "a tuple of sub-tasks"),
    (type("Mine", (Alone,), {"context": lambda *_: None}), TypeError, r"Mine\.context returned None"),
    (type("Mine", (Alone,), {"remember": lambda *_: []}), TypeError, r"Mine\.remember returned \[\]"),
    (type("Mine", (Method,), {}), NotImplementedError, "Mine has no decide"),
])  # fmt: skip
def test_what_a_method_of_ones_own_does_wrong_is_named(method, error, told, run):
    with pytest.raises(error, match=told):
        run(method=method, work=finish("seen"))


def test_an_empty_answer_of_a_method_is_no_answer(run):
    result = run(method=deciding(lambda: Complete(" ")))
    assert (result.answer, result.state) == ("", "stopped")


def test_a_schema_that_is_no_pair_is_not_sent(run):
    class Asking(Alone):
        def decide(self, state, ask, mistake, last_chance):
            return Complete(ask(as_messages("", ""), {"type": "object", "properties": {}}).text)

    with pytest.raises(TypeError, match="a schema is a pair"):
        run("42", method=Asking)
    assert run.requests == []


def test_a_prompt_without_a_value_is_named():
    with pytest.raises(KeyError) as raised:
        say("mistakes", "not_json")
    assert raised.value.__notes__ == ["in the prompt mistakes.md, not_json"]


PERCENT = """
from orchestra.kernel.method import Method
from orchestra.kernel.vocabulary import Complete

class Percent(Method):
    options = {"percent": lambda value: float(value) / 100}

    def decide(self, state, ask, mistake, last_chance):
        return Complete(str(self.own["percent"]))
"""


def test_an_option_of_a_method_is_read_once(endpoint, in_an_empty_folder):
    Path("percent.py").write_text(PERCENT)
    flags = ["--method", "percent.py:Percent", "--model", "m", "--out", "run"]
    server = endpoint("")
    done = called("?", *flags, "--option", "percent=50", at=server.url)
    again = called("replay", "run", *flags[:2])
    assert done.stdout == again.stdout == "0.5\n"
    wrong = called("?", *flags, "--option", "prozent=50", at=server.url)
    assert "'prozent' is no option" in wrong.stderr and "percent" in wrong.stderr
    wrong = called("?", *flags, "--option", "percent=half", at=server.url)
    assert "--option percent: could not convert" in wrong.stderr


@pytest.mark.parametrize("name", ["unsafe_code", "parallel", "patience_s", "rounds", "budget"])
def test_an_option_of_a_method_has_no_name_of_the_programs(name, endpoint, in_an_empty_folder):
    Path("percent.py").write_text(PERCENT.replace('"percent":', f'"{name}":'))
    flags = ["--method", "percent.py:Percent", "--option", f"{name}=1", "--out", "run"]
    done = called("?", *flags, "--model", "m", at=endpoint("").url)
    assert f"cannot have the name {name}" in done.stderr and not Path("run").exists()


def test_a_resume_refuses_an_option_that_the_run_has(endpoint, in_an_empty_folder):
    Path("percent.py").write_text(PERCENT)
    named = ["--method", "percent.py:Percent"]
    url = endpoint("").url
    called("?", *named, "--option", "percent=5", "--out", "run", "--model", "m", at=url)
    done = called("resume", "run", *named, "--option", "percent=7", at=url)
    assert "--option percent: is stored in run" in done.stderr and done.returncode == 2


@pytest.mark.parametrize("made", [lambda: None, lambda *parts: sys.exit("bye")])
def test_a_method_that_cannot_be_made_leaves_no_folder(made, run, tmp_path):
    with pytest.raises((TypeError, SystemExit)):
        run(method=made)
    assert list(tmp_path.iterdir()) == []


# ---- Agent and Tool ------------------------------------------------------------------------------


def tool_error(job):
    raise ToolError("no such page")


def mistake(job):
    raise ModelMistake("it never answered")


def rule(job):
    raise ModelMistake("empty_answer")


@pytest.mark.parametrize(("agent", "told"), [
    (tool_error, "no such page"), (mistake, "it never answered"), (rule, '"answer" is empty.'),
])  # fmt: skip
def test_a_sub_agent_that_gives_up_fails_alone_with_the_reason(agent, told, run):
    result = run(delegate("look"), complete("no"), agents={"react": agent})
    (z,) = (row for row in result.events if row["event"] == "result")
    assert (result.answer, z["status"]) == ("no", "failed") and z["error"].startswith(told)


def test_a_bug_of_a_sub_agent_ends_the_run_with_an_end_row(run):
    with pytest.raises(ZeroDivisionError):
        run(delegate("look"), agents={"react": lambda job: 1 / 0})
    *_, end = read_events(run.folder)
    assert (end["event"], end["state"], end["finished"]) == ("end", "stopped", False)
    assert "ZeroDivisionError" in end["why"]


def test_a_sub_agent_asks_uses_tools_and_reports(run):
    def agent(job):
        step = job.use("Double", {"n": job.ask(as_messages("?", job.u.instruction)).text})
        job.note(step)
        return job.result("done", step.observation, "doubled")

    @tool("Double", "txt")
    def double(env: Environment, n: int) -> str:
        """Double a number.

        n: the number
        """
        return str(2 * n)

    tools = {"Double": double}
    result = run(delegate("which?"), complete("42"), work="21", agents={"react": agent}, tools=tools)  # fmt: skip
    (step,) = (row for row in result.events if row["event"] == "step")
    assert (step["action"], step["observation"]) == ("Double", "42")
    assert "doubled" in run.mains[-1]


@pytest.mark.parametrize("u", [SubTask("a", "do", agent="gone"), SubTask("a", "do", tools=("Hammer",))])  # fmt: skip
def test_a_sub_task_for_nobody_ends_the_run_before_a_sub_agent_starts(u, run):
    class Own(Method):
        def decide(self, state, ask, mistake, last_chance):
            return Delegate((u,))

    with pytest.raises(ConfigError, match=r"gone.*react|Hammer.*it has"):
        run(method=Own)
    assert run.requests == []


@pytest.mark.parametrize("name", ["finish", "invalid"])
def test_a_tool_has_no_name_of_an_action(name, run):
    def nothing(env: Environment) -> str:
        """Do nothing."""

    with pytest.raises(ConfigError, match=name):
        run(tools={name: tool(name)(nothing)})


# ---- Source, Send, Listener, Redact --------------------------------------------------------------


def test_a_source_knows_answers_of_another_run_and_nobody_is_paid(run):
    run(delegate("look"), complete("42"), work=finish("seen"))
    known = {(row.call, row.key): row for row in exchanges(run.folder / "tape.jsonl")}

    def source(kind, call, key, made):
        row = known.get((call, key))
        return row and replace(row, reused="first")

    again = run(respond=lambda r: OSError(), sources=[source], out="second")
    assert (again.answer, again.paid_usd, run.requests) == ("42", 0.0, [])
    assert all(row.reused == "first" for row in exchanges(run.folder / "tape.jsonl"))


def test_a_send_of_ones_own_needs_no_server(tmp_path, no_network):
    def send(url, body, key, timeout_s):
        text = complete("42") if is_main(body) and "seen" in last_text(body) else delegate("look")
        reply = text if is_main(body) else finish("seen")
        return Response(200, json.dumps(completion(reply)).encode())

    pool = pool_at("http://nowhere.test/v1")
    assert orchestrate("?", pool=pool, out=tmp_path / "run", send=send).answer == "42"
    assert replay(tmp_path / "run").answer == "42"


def test_a_send_without_an_answer_is_an_endpoint_error(tmp_path):
    def send(*request):
        raise NoAnswer("the model is not loaded", billed=False)

    with pytest.raises(EndpointError, match="not loaded"):
        orchestrate("?", pool=pool_at("http://nowhere.test/v1"), out=tmp_path / "run", send=send)


def test_a_listener_sees_each_event_as_it_is_recorded(run):
    seen = []
    run(delegate("look"), complete("42"), work=finish("seen"), listeners=[seen.append])
    seen = json.loads(json.dumps([row for row in seen if row["event"] != "notice"]))
    assert seen == read_events(run.folder)


def test_redact_takes_a_secret_out_of_everything_that_is_written(run):
    secret = "the word is xyzzy-1234"
    redact = lambda text: text.replace("xyzzy-1234", "<word>")  # noqa: E731
    run(delegate(secret), complete(secret), work=finish(secret), question=secret, redact=redact)
    for path in run.folder.rglob("*"):
        assert path.is_dir() or "xyzzy" not in path.read_text(), path


def test_an_answer_is_used_as_a_replay_will_read_it(tmp_path):
    from orchestra.kernel.tape import Tape

    tape = Tape(tmp_path / "tape.jsonl", "record", redact=lambda text: text.replace("key", "<k>"))
    with tape.call("r1"):
        assert tape.exchange("x", {}, lambda: {"a": "key"}) == Answer({"a": "<k>"})


def test_an_action_of_the_users_own_tool_is_played_in_a_replay(run):
    asked = []

    @tool("Ask", "txt")
    def ask(env: Environment, n: int = 1) -> str:
        """Ask somebody outside."""
        return env.local("ask", {"n": n}, lambda: asked.append(n) or "seen 42")

    work = lambda text: finish("42") if "seen 42" in text else act("Ask")  # noqa: E731
    task = {"task_instruction": "look", "tools": ["Ask"]}
    assert run(delegate(task), complete("42"), work=work, tools={"Ask": ask}).answer == "42"
    assert asked == [1]  # and not again in the replay
