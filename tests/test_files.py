"""--file: tables, documents and code go the way of media, from the command line to the page."""

import json
from pathlib import Path

import pytest

from orchestra import install
from orchestra.kernel.folder import read_manifest
from orchestra.kernel.memory import opened
from orchestra.kernel.placing import materialize
from orchestra.kernel.vocabulary import Result, Step, SubTask
from orchestra.methods import all_tools
from orchestra.report.command import report
from orchestra.report.run_data import data_of, read
from tests.conftest import Backend, ConfigError, Media, Task, needs_sandbox
from tests.program import called, line_of, replay, resume
from tests.scripted import act, agent, complete, delegate, finish, is_main, last_text, thought

TABLE = "city,people\nBrno,379526\n"
READ = act("ReadFileAction", query="people of Brno", file_path="data.csv")
PROGRAM = "import csv\nprint(next(csv.DictReader(open('media/data.csv')))['people'])"
TASK = {"task_instruction": "How many people live in Brno, by data.csv?"}


@pytest.fixture
def table(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data.csv").write_text(TABLE)
    return tmp_path / "data.csv"


def work(text):
    """The sub-agent reads the table, and reports what it says."""
    return finish("379526") if "379526" in text else READ


@needs_sandbox
def test_a_file_is_listed_read_recorded_and_replayed(table, run):
    seen = run(delegate(TASK), complete("379526"), work=work, media=[table])
    assert seen.answer == "379526"
    subtask, *_ = [e["subtask"] for e in seen.events if e["event"] == "subtask"]
    assert {"ReadFileAction", "ExecuteCodeAction"} <= {*subtask["tools"]}
    (result,) = [e for e in seen.events if e["event"] == "result"]
    assert result["status"] == "done" and [*result["media"]] == ["data.csv"]
    table.unlink()
    assert replay(run.folder).answer == "379526"
    manifest = read_manifest(run.folder)
    assert [media[:2] for media in manifest.media] == [("file", "data.csv")]


def test_a_changed_file_ends_a_replay(table, run):
    run(delegate(TASK), complete("379526"), work=work, media=[("file", table)])
    (run.folder / "media/data.csv").write_text("changed")
    with pytest.raises(ConfigError, match="data.csv is missing or changed"):
        replay(run.folder)


@needs_sandbox
@pytest.mark.parametrize(
    "words", [["How many?", "data.csv"], ["--question", "How many?", "--file", "data.csv"]]
)
def test_the_main_agent_reads_its_name_and_the_tool_that_opens_it(words, table, endpoint):
    server = endpoint(
        lambda request: (
            delegate(TASK)
            if is_main(request) and "Round 1 of" in str(request)
            else complete("379526")
            if is_main(request)
            else work(last_text(request))
        )
    )
    done = called(*words, "--out", "run", at=server.url)
    assert done.stdout == "379526\n", done.stderr
    first, second, *_ = server.requests
    text = json.dumps(first["messages"])
    assert "- data.csv (file): not analysed yet" in text and "ReadFileAction(query" in text
    assert "data.csv (ExecuteCodeAction finds it in the folder media)" in last_text(second)
    assert called("replay", "run").stdout == "379526\n"
    asked = len(server.requests)
    assert resume(Path("run")).answer == "379526" and len(server.requests) == asked


def test_the_page_names_the_file_and_does_not_hold_it(table, run):
    run(delegate(TASK), complete("379526"), work=work, media=[table])
    (row,) = data_of(read(run.folder))["media"]
    assert row == {"name": "data.csv", "modality": "file", "where": "media/data.csv", "url": ""}
    assert "</html>" in report(run.folder)


def test_without_such_a_file_no_request_changes(run, endpoint):
    run(delegate("look"), complete("42"))
    assert "ReadFileAction" not in (run.folder / "tape.jsonl").read_text()
    assert "ReadFileAction" not in (run.folder / "trajectory.jsonl").read_text()


def test_a_file_brings_its_reading_tool_and_code_also_with_stated_requirements():
    task = Task("?", (Media("file", "data.csv", Path("data.csv"), ""),))
    psi = {name: tool.capabilities for name, tool in all_tools().items()}
    pool = [Backend("a", "a", "http://a/v1")]

    def tools(u):
        return {*materialize(u, task, pool, psi)[0].tools}

    both = {"ReadFileAction", "ExecuteCodeAction"}
    assert both <= tools(SubTask("t", "Sum data.csv"))
    assert both <= tools(SubTask("t", "Sum data.csv", requirements={"txt": 0.3}))
    assert both <= tools(SubTask("t", "Sum it", modalities=("file",), requirements={"txt": 0.3}))
    assert "ReadFileAction" not in tools(SubTask("t", "Search for Brno"))
    assert tools(SubTask("t", "Sum data.csv", tools=("GoogleSearchAction",))) == {
        "GoogleSearchAction"
    }


def test_a_program_that_names_the_file_has_opened_it():
    files = (
        Media("file", "data.csv", Path("data.csv"), ""),
        Media("image", "clock.png", Path("clock.png"), ""),
    )
    task = Task("?", files)

    def step(action, failed=False, **params):
        return Result("done", "1", "", trace=(Step(action, params, "", "1", failed),))

    assert opened(step("ExecuteCodeAction", code=PROGRAM), task) == ("data.csv",)
    assert opened(step("ExecuteCodeAction", code=PROGRAM, failed=True), task) == ()
    assert opened(step("ExecuteCodeAction", code="open('media/my-data.csv2')"), task) == ()
    assert (
        opened(step("ExecuteCodeAction", code="open('media/clock.png')"), task) == ()
    )  # it sees nothing
    assert opened(step("GoogleSearchAction", query="what data.csv says"), task) == ()


@needs_sandbox
def test_an_agent_without_a_main_agent_may_read_it_by_a_program(table, run):
    def by_program(text):
        return finish("379526") if "379526" in text else act("ExecuteCodeAction", code=PROGRAM)

    assert run(method="react", work=by_program, media=[table]).answer == "379526"
    assert replay(run.folder).answer == "379526"


@pytest.mark.parametrize("method", ["toolorchestra", "mas-orchestra"])
def test_methods_whose_agents_read_text_read_it_first(method, table, endpoint):
    def respond(request):
        system = request["messages"][0]["content"]
        if "agent_name" in system:
            return thought(agent("A", input="find"))
        if "tools" in request or "tool_call" in system:
            return '<tool_call>{"name": "answer", "arguments": {"model": "answer-1"}}</tool_call>'
        return "Answer: 379526" if "Brno,379526" in json.dumps(request) else "Answer: unknown"

    flags = "--method", method, "--out", "run"
    assert (
        called("How many people?", "data.csv", *flags, at=endpoint(respond).url).stdout
        == "379526\n"
    )


# ---- what cannot be used -------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "content", "problem"), [
    ("huge.csv", 65 << 20, "--file huge.csv: 65 MiB is over the limit of 64 MiB"), ("gone.csv", None, "cannot be read"), ("broken.png", b"x", "--file broken.png: no image can be read from it: it is damaged, or of another kind; if it is text: --file file:broken.png"), ("empty.png", b"", "--file empty.png: the file is empty"),
])  # fmt: skip
def test_a_file_that_cannot_be_used_is_one_line_before_anything_is_paid(
    name, content, problem, table, endpoint
):
    if isinstance(content, int):
        with Path(name).open("wb") as file:
            file.truncate(content)
    elif content is not None:
        Path(name).write_bytes(content)
    server = endpoint(lambda request: complete("42"))
    flag = [] if name.endswith(".png") else ["--file"]
    assert problem in line_of(called("--question", "?", *flag, name, at=server.url))
    assert server.requests == []
    Path(name).unlink(missing_ok=True)


def test_a_document_without_its_reader_is_refused_with_what_to_install(
    table, endpoint, monkeypatch
):
    monkeypatch.setattr("orchestra.tools.reader.find_spec", lambda name: None)
    Path("a.docx").write_bytes(b"PK")
    Path("a.pdf").write_bytes(b"%PDF")
    server = endpoint(lambda request: complete("42"))
    assert f"needs markitdown to be read as text: {install('files')}" in line_of(
        called("What is it?", "a.docx", at=server.url)
    )
    assert "needs pypdf" in line_of(called("What is it?", "a.pdf", at=server.url))


@pytest.mark.parametrize("name", ["drawing.svg", "notes.md", "no-suffix", "data.xyz"])
def test_what_is_no_medium_is_a_file_whatever_its_name(name, table, endpoint):
    Path(name).write_text("<svg>plain</svg>")
    called("Which?", name, "--out", "run", at=endpoint(lambda request: complete("42")).url)
    assert [modality for modality, _, _ in read_manifest(Path("run")).media] == ["file"]
