"""The seams: the examples of CONTRIBUTING.md run as they are written, and what does not fit is one line."""

import json
import re
import shlex
from pathlib import Path

import pytest

from orchestra.runtime.user_code import load
from orchestra.vocabulary import Result, SubTask
from tests.conftest import ROOT
from tests.program import called, line_of, pool_file
from tests.scripted import Raw, complete, delegate, finish, is_main, last_text

pytestmark = pytest.mark.usefixtures("in_an_empty_folder")
SECTION = re.compile(r"^## ([^\n]+)\n(?:(?!^## ).)*?```python\n# (\w+\.py)\n(.*?)```\n\n```console\n(.*?)```", re.M | re.S)  # fmt: skip
TEXT = (ROOT / "CONTRIBUTING.md").read_text()
EXAMPLES = {section: example for section, *example in SECTION.findall(TEXT)}
PROGRAM, CHECK = "Write a Python program", "Is this answer right?"
FOUND = {"Swap the memory": "- t1 (done): 397.8", "Swap the scheduler": "=> 397.8"}


def saved(section):
    """The two commands of a section, whose file is written to the current folder."""
    file, source, console = EXAMPLES[section]
    Path(file).write_text(source)
    return [shlex.split(line)[2:] for line in console.splitlines()]


def answering(section, **instead):
    """The replies of all models: 397.8, as soon as a sub-agent has found it."""

    def respond(request):
        text = last_text(request)
        if is_main(request):
            return complete("397.8") if FOUND[section] in text else delegate("Compute it")
        if section != "Add a sub-agent":
            return finish("397.8")
        if PROGRAM in text:
            return instead.get("program", "```python\nprint(17 * 2340 / 100)\n```")
        return instead.get("check", "yes") if CHECK in text else "397.8"

    return respond


# ---- the examples of CONTRIBUTING.md -------------------------------------------------------------


@pytest.mark.parametrize(
    "section", ["Add an orchestrator", "Add a sub-agent", "Swap the memory", "Swap the scheduler"]
)
def test_the_example_of_a_section_runs_and_is_named_again_for_a_replay(section, endpoint):
    run, again = saved(section)
    assert called(*run, at=endpoint(answering(section)).url).stdout == "397.8\n"
    assert called(*again).stdout == "397.8\n"
    replay, named = again[:2], again[2:]
    assert f"add {shlex.join(named)}" in line_of(called(*replay))


def checked(endpoint, **instead):
    """The example of a sub-agent with other replies: its result, its steps, and its prompts."""
    run, _ = saved("Add a sub-agent")
    server = endpoint(answering("Add a sub-agent", **instead))
    called(*run, at=server.url)
    rows = map(json.loads, Path("runs/checked/trajectory.jsonl").read_text().splitlines())
    *steps, z = (row for row in rows if row["event"] in ("step", "result"))
    return z, steps, [last_text(request) for request in server.requests]


def test_the_sub_agent_answers_from_what_its_tool_shows(endpoint):
    z, steps, prompts = checked(endpoint)
    assert [s["action"] for s in steps] == ["program", "ExecuteCodeAction", "answer", "check"]
    assert "397.8" in steps[1]["observation"] and "A program printed: 397.8" in prompts[1]
    assert (z["status"], z["answer"], z["error"]) == ("done", "397.8", "")


def test_the_sub_agent_sees_that_a_tool_has_failed(endpoint):
    _, steps, prompts = checked(endpoint, program="1 / 0")
    assert steps[1]["failed"] and "A program failed: " in prompts[1]


def test_the_sub_agent_reports_what_its_check_finds_wrong(endpoint):
    z, *_ = checked(endpoint, check="No, it is 398.")
    assert (z["status"], z["answer"], z["error"]) == (
        "partial",
        "397.8",
        "the check: No, it is 398.",
    )


def test_an_answer_is_kept_as_partial_if_a_later_call_fails(endpoint):
    z, *_ = checked(endpoint, check=Raw(400, "broken"))
    assert (z["status"], z["answer"]) == ("partial", "397.8") and "status 400" in z["error"]


def test_the_memory_shows_the_newest_results_that_fit():
    saved("Swap the memory")
    memory, history = load("newest.py:Newest", "--memory")(), ()
    for id in "abc":
        history = memory.remember(history, SubTask(id, "do"), Result("done", "42", "s"))
    assert memory.context("?", history, 100).splitlines()[0] == "- a (done): 42"
    assert memory.context("?", history, 12) == "- b (done): 42\n- c (done): 42"


def test_the_scheduler_takes_the_cheapest_backend_and_splits_the_budget(endpoint, tmp_path):
    run, _ = saved("Swap the scheduler")
    server = endpoint(answering("Swap the scheduler"))
    pool = pool_file(tmp_path, server.url, dear=(2, 8), cheap=(0.1, 0.4))
    assert called(*run, "--backends", pool, "--budget", 1).stdout == "397.8\n"
    assert [r["model"] for r in server.requests] == ["dear", "cheap", "dear"]
    rows = map(json.loads, Path("runs/cheapest/trajectory.jsonl").read_text().splitlines())
    (placed,) = (row for row in rows if row["event"] == "subtask")
    assert placed["subtask"]["backend"] == "cheap" and 0.9 < placed["share_usd"] < 1


# ---- what does not fit ---------------------------------------------------------------------------

OWN = """
from dataclasses import replace
from orchestra.matching import Placed
from orchestra.memory import summarize
from orchestra.money import Purse
from orchestra.toolkit import ToolError
from orchestra.vocabulary import Backend, Complete, Delegate, ModelMistake, Result, SubTask

class Own:
    rounds, shares_context = 1, False
    def __init__(self, pool, tools, options): pass
    def decide(self, state, ask, mistake, last_chance): return self.y_t
class NoRounds:
    def __init__(self, pool, tools, options): pass
    def decide(self, state, ask, mistake, last_chance): pass
class FewGiven(Own):
    def __init__(self, pool): pass
class FewParameters(Own):
    def decide(self, state): pass
class Nothing(Own): y_t = None
class NoText(Own): y_t = Complete(42)
class Alone(Own): y_t = Delegate(SubTask("a", "do"))
class Texts(Own): y_t = Delegate(("do",))
class NoAgent(Own): y_t = Delegate((SubTask("a", "do"), SubTask("b", "do", agent="ReAct")))
class NoFile(Own): y_t = Delegate((SubTask("a", "do", agent="gone.py:run"),))
class NoTool(Own): y_t = Delegate((SubTask("a", "do", tools=("Hammer",)),))

def no_parameter(): pass
def none(job): pass
def text(job): return "42"
def status(job): return job.result("finished", "42", "")
def number(job): return job.result("done", 42, "")
def trace(job): return Result("done", "42", "", trace=["step"])
def leaves(job): raise SystemExit(0)
class NoRun: pass

class Kept:
    def remember(self, history, subtask, result): return (*history, summarize(subtask, result))
    def context(self, question, history, limit): return ""
class NoContext: remember = Kept.remember
class FewRemembered(Kept):
    def remember(self, history): pass
class Unmade(Kept):
    def __init__(self, path): pass
class Forgot(Kept):
    def remember(self, history, subtask, result): pass
class Numbers(Kept):
    def remember(self, history, u, z): return (*history, replace(summarize(u, z), answer=42))
class Half(Kept):
    def context(self, question, history, limit): return "\\ud83d"
class Results(Kept):
    def remember(self, history, subtask, result): return [*history, result]
class NoWords(Kept):
    def context(self, question, history, limit): return history

def few(candidates): pass
def nothing(candidates, task, pool, tools, k_max, budget_usd): pass
def no_batch(candidates, *rest): return []
def bare(candidates, *rest): return candidates
def swapped(candidates, task, pool, *rest): return [Placed(pool[0], candidates[0], Purse())]
def untooled(candidates, task, pool, *rest): return [Placed(candidates[0], pool[0], Purse())]
def twice(candidates, task, pool, *rest):
    return [Placed(replace(u, tools=()), pool[0], Purse()) for u in candidates * 2]
def spent(candidates, task, pool, *rest):
    return [Placed(replace(candidates[0], tools=()), pool[0], Purse(-1.0))]
def circular(candidates, task, pool, *rest):
    return [Placed(replace(u, tools=(), needs=(u.id,)), pool[0], Purse()) for u in candidates]
def elsewhere(candidates, task, pool, *rest):
    return [Placed(replace(u, tools=()), Backend("far", "m", "http://x"), Purse()) for u in candidates]
"""
MISFITS = [
    ("--method", "NoRounds", "is not a class with rounds, shares_context, decide; missing: rounds, shares_context"),
    ("--method", "FewGiven", "(too many positional arguments)"),
    ("--method", "FewParameters", "needs decide(state, ask, mistake, last_chance) (too many"),
    ("--method", "Nothing", "decide returned None; it must be Delegate(subtasks) or Complete(answer); see CONTR"),
    ("--method", "NoText", "decide returned Complete(answer=42, reasoning=''); it must be Delegate"),
    ("--method", "Alone", "decide delegates SubTask(id='a', "),
    ("--method", "Texts", "decide delegates 'do'; it must be a SubTask"),
    ("--agent", "NoRun", "is not a function or a class with run; missing: run (SubAgent in orchestra/seams.py"),
    ("--agent", "no_parameter", "needs run(job) (too many positional arguments); see CONTRIBUTING.md"),
    ("--agent", "none", "of sub-task t1: run returned None; it must be a Result, as of job.result(...)"),
    ("--agent", "text", "run returned '42'; it must be a Result"),
    ("--agent", "status", "run returned the status 'finished'; it must be one of done, partial, blocked, failed"),
    ("--agent", "number", "run returned the answer 42; it must be a str"),
    ("--agent", "leaves", "ended the program (sys.exit(0))"),
    ("--agent", "trace", "run returned the trace ['step']; it must be a tuple of Step"),
    ("--memory", "NoContext", "is not a class with remember, context; missing: context (Memory in"),
    ("--memory", "FewRemembered", "needs remember(history, subtask, result) (too many"),
    ("--memory", "Unmade", "(missing a required argument: 'path')"),
    ("--memory", "few", "is not a class with remember, context; missing: remember, context"),
    ("--memory", "Forgot", "remember returned None; it must be a tuple of Evidence"),
    ("--memory", "Numbers", "Evidence t1, answer: Input should be a valid string"),
    ("--memory", "Half", "a str without half a surrogate pair"),
    ("--memory", "Results", "an entry of the history is Result(status='partial', answer='42'"),
    ("--memory", "NoWords", "context returned (Evidence("),
    ("--scheduler", "few", "needs place(candidates, task, pool, tools, k_max, budget_usd) (too many"),
    ("--scheduler", "Kept", "is not a function or a class with place; missing: place (Scheduler in"),
    ("--scheduler", "nothing", "place returned None; it must be a list of Placed(subtask, backend, purse)"),
    ("--scheduler", "no_batch", "placed no sub-task; raise BudgetExceeded if none is affordable"),
    ("--scheduler", "bare", "an entry of the batch is SubTask(id='t1', "),
    ("--scheduler", "swapped", "the subtask of a Placed is Backend(name="),
    ("--scheduler", "untooled", "left the tools of t1 None; choose them"),
    ("--scheduler", "twice", "placed t1, t1; the candidates are t1, each once"),
    ("--scheduler", "spent", "the purse of t1 must be new, with a share of 0 or more"),
    ("--scheduler", "circular", "changed the needs of t1"),
    ("--scheduler", "elsewhere", "placed t1 on 'far', which is not in the pool"),
]  # fmt: skip


def work(request):
    return delegate({"task_instruction": "Look"}) if is_main(request) else finish("42")


@pytest.mark.parametrize(("flag", "name", "told"), MISFITS)
def test_what_does_not_fit_is_one_line_that_names_it(flag, name, told, endpoint):
    Path("own.py").write_text(OWN)
    line = line_of(called("?", flag, f"own.py:{name}", at=endpoint(work).url))
    assert f"own.py:{name}" in line and told in line


@pytest.mark.parametrize(("name", "told"), [
    ("NoAgent", "sub-task b: agent ReAct: needs one of react, single, mini-swe,"),
    ("NoFile", "sub-task a: agent gone.py:run: cannot be loaded (FileNotFoundError"),
    ("NoTool", "sub-task a: 'Hammer' is not a tool of this run; it has "),
])  # fmt: skip
def test_a_sub_task_for_nobody_ends_the_run_before_a_sub_agent_starts(name, told, endpoint):
    Path("own.py").write_text(OWN)
    server = endpoint(work)
    assert told in line_of(called("?", "--method", f"own.py:{name}", at=server.url))
    assert server.requests == []


# ---- a sub-agent that raises ---------------------------------------------------------------------

RAISES = """
from orchestra.toolkit import ToolError
from orchestra.vocabulary import ModelMistake
def tool_error(job): raise ToolError("no such page")
def mistake(job): raise ModelMistake("it never answered")
def rule(job): raise ModelMistake("empty_answer")
def bug(job): return 1 / 0
"""


@pytest.mark.parametrize(("name", "told"), [
    ("tool_error", "no such page"), ("mistake", "it never answered"), ("rule", '"answer" is empty.'),
])  # fmt: skip
def test_a_sub_agent_that_gives_up_fails_alone_with_the_reason(name, told, endpoint):
    Path("own.py").write_text(RAISES)
    respond = lambda request: complete("no") if "failed" in last_text(request) else work(request)  # noqa: E731
    done = called("?", "--agent", f"own.py:{name}", "--out", "run", at=endpoint(respond).url)
    assert done.returncode == 0 and f"r1/t1 failed: {told}" in done.stderr


def test_a_bug_of_a_sub_agent_is_not_hidden(endpoint):
    Path("own.py").write_text(RAISES)
    with pytest.raises(ZeroDivisionError):
        called("?", "--agent", "own.py:bug", at=endpoint(work).url)


def test_the_file_of_a_sub_agent_may_be_in_another_place_at_a_replay(endpoint, tmp_path):
    Path("mine.py").write_text("def run(job): return job.result('done', job.ask('q', '?'), '')")
    flags = "?", "--method", "react", "--agent", "mine.py:run", "--out", "run"
    assert called(*flags, at=endpoint(lambda r: "42").url).stdout == "42\n"
    (tmp_path / "moved").mkdir()
    Path("mine.py").rename("moved/mine.py")
    moved = called("--replay", "run", "--agent", f"{tmp_path}/moved/mine.py:run")
    assert (moved.returncode, moved.stdout) == (0, "42\n"), moved.stderr


def test_a_file_is_executed_once_and_again_after_a_change():
    Path("counted.py").write_text("RUNS = []\ndef run(job): pass")
    load("counted.py:RUNS", "--agent").append(1)
    assert load("counted.py:RUNS", "--agent") == [1]
    Path("counted.py").write_text("RUNS = [2]")
    assert load("counted.py:RUNS", "--agent") == [2]


def test_mini_swe_is_for_one_sub_task_at_a_time(endpoint):
    flags = "--compare", "orchestra-o1,aorchestra", "--agent", "mini-swe"
    assert "belongs to --method aorchestra" in line_of(called("?", *flags, at=endpoint(work).url))
