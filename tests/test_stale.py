"""--reuse takes nothing that depends on something that has changed since."""

import json
import shlex
import sys
from pathlib import Path

import pytest

from orchestra.kernel.folder import read_events
from orchestra.kernel.tape import exchanges
from orchestra.variation.fork import run_fork
from orchestra.variation.reuse import answers_of
from tests.conftest import ROOT, needs_sandbox
from tests.program import called, replay
from tests.scripted import act, complete, delegate, finish, is_main, last_text

RAW_SERVER = ROOT / "tests" / "tools" / "raw_server.py"
CODE = "ExecuteCodeAction"
TOOL = '''from words import WORD
def look(topic: str) -> str:
    """Look something up.

    topic: a word
    """
    return f"{topic} is {WORD}"'''


@pytest.fixture
def twice(endpoint, tmp_path):
    """`twice(action, *flags, change=None)`: a run of one action, and after a change the same with
    --reuse. Returns what each observed, and the kinds of the exchanges that were not reused.
    """

    def twice(action, *flags, change=lambda: None, more=()):
        server = endpoint(lambda r: finish("seen") if "Observation:" in last_text(r) else action)
        named = "--question", "What is it?", "--model", "m", "--method", "react", *flags
        done = called(*named, "--out", tmp_path / "a", at=server.url)
        assert done.returncode == 0, done.stderr
        change()
        again = *named, *more, "--out", tmp_path / "b", "--reuse", tmp_path / "a"
        done = called(*again, at=server.url)
        assert done.returncode == 0, done.stderr
        made = [e for e in exchanges(tmp_path / "b" / "tape.jsonl") if not e.reused]
        return *map(observed, (tmp_path / "a", tmp_path / "b")), [e.request["kind"] for e in made]

    return twice


def observed(folder):
    return next(e["observation"] for e in read_events(folder) if e["event"] == "step")


@needs_sandbox
def test_a_program_whose_file_was_corrected_runs_again(twice, tmp_path):
    data = tmp_path / "data.csv"
    data.write_text("price\n100\n")
    action = act(CODE, code="print(open('media/data.csv').read())")
    how = {"change": lambda: data.write_text("price\n250\n")}
    before, after, made = twice(action, "--file", data, **how)
    assert ("100" in before, "250" in after, "100" in after) == (True, True, False)
    assert made == ["code", "chat"]  # the prompt that shows the new value, too


@needs_sandbox
def test_a_program_whose_files_are_the_same_is_taken(twice, tmp_path):
    data = tmp_path / "data.csv"
    data.write_text("price\n100\n")
    before, after, made = twice(act(CODE, code="print(6 * 7)  # not data.csv"), "--file", data)
    assert (before, made) == (after, []) and "42" in after


@needs_sandbox
def test_a_program_that_found_the_file_of_an_earlier_one_runs_again(run):
    """The second program deletes what the first one left, so the folder shows no trace of it."""
    writes = "open('x', 'w').write('7')"
    reads = "import os; print(open('x').read()); os.remove('x')"

    def respond(request):
        if is_main(request):
            done = "=> seen" in last_text(request)
            return complete("42") if done else delegate({"task_instruction": "go", "tools": [CODE]})
        step = last_text(request).count("Observation:")
        return [act(CODE, code=writes), act(CODE, code=reads), finish("seen")][step]

    first = run(respond=respond)
    again = run(respond=respond, sources=[answers_of(first.run)], out="again")
    shown = [e["observation"] for e in again.events if e["event"] == "step"]
    assert "7" in shown[1] and not any(Path(again.run, "work", "r1-t1").iterdir())
    programs = [e for e in exchanges(again.run / "tape.jsonl") if e.request["kind"] == "code"]
    assert [e.reused for e in programs] == ["", ""]


@pytest.mark.parametrize("edited", ["mine.py", "words.py", ""])
def test_a_tool_is_called_again_where_its_source_has_changed(edited, twice, tmp_path):
    (tmp_path / "mine.py").write_text(TOOL)
    (tmp_path / "words.py").write_text("WORD = 'blue'")

    def change():
        sys.modules.pop(str(tmp_path / "mine.py"))
        del sys.modules["words"]
        if edited:
            file = tmp_path / edited
            file.write_text(file.read_text().replace("{WORD}", "red").replace("blue", "red"))

    flags = "--tools", f"{tmp_path / 'mine.py'}:look"
    before, after, made = twice(act("look", topic="sky"), *flags, change=change)
    word = "red" if edited else "blue"
    assert ("sky is blue" in before, f"sky is {word}" in after) == (True, True)
    assert made == (["tool:look", "chat"] if edited else [])
    del sys.modules["words"]


@pytest.mark.parametrize("old, new", [("'version': '1'", "'version': '2'"), ("", "# changed")])
def test_an_mcp_tool_is_called_again_where_its_server_has_changed(old, new, twice, tmp_path):
    program = tmp_path / "server.py"
    source = RAW_SERVER.read_text().replace('"version": "1"', "'version': '1'")
    program.write_text(source)
    answer = {"content": [{"type": "text", "text": "blue"}]}
    given = {"type": "object", "properties": {}}, 1, answer, 9
    command = shlex.join([sys.executable, str(program), *map(json.dumps, given)])

    def change():
        program.write_text(source.replace(old, new) if old else f"{source}\n{new}\n")

    _, _, made = twice(act("look"), "--mcp", command, change=change)
    assert made == ["tool:look"]


def test_an_mcp_tool_of_the_same_server_is_taken(twice):
    given = {"type": "object", "properties": {}}, 1, {"content": []}, 9
    command = shlex.join([sys.executable, str(RAW_SERVER), *map(json.dumps, given)])
    assert twice(act("look"), "--mcp", command)[2] == []


def test_a_page_is_visited_again_where_other_hosts_are_allowed(twice, monkeypatch):
    from orchestra.tools import pages

    monkeypatch.setattr(pages, "page_text", lambda url, allow, redact: f"allowed: {list(allow)}")
    action = act("ExtractUrlContentAction", url="http://a.example/", browse_query="?")
    _, _, made = twice(action, more=["--allow-host", "intra.example"])
    assert made[0] == "visit"


def test_a_reply_of_another_model_is_not_taken(twice):
    assert twice(act("nothing"), more=["--model", "other"])[2] == ["chat", "chat"]


# ---- forks ---------------------------------------------------------------------------------------


def test_a_round_that_a_user_completed_can_be_forked_again(run, tmp_path):
    def respond(request):
        if not is_main(request):
            return finish("seen")
        return complete("42") if "=> seen" in last_text(request) else delegate("look")

    first = run(respond=respond)
    decision = {"action": "complete", "answer": "7"}
    forked = run_fork(first.run, tmp_path / "b", what_if={"r2": decision})
    assert forked.answer == "7"
    again = run_fork(forked.run, tmp_path / "c", 2)
    assert (again.answer, replay(again.run).answer) == ("42", "42")
    third = run_fork(forked.run, tmp_path / "d", what_if={"r2": {**decision, "answer": "8"}})
    assert third.answer == "8"
