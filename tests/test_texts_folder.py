"""--texts: a folder that cannot be used, and a clone that has another layout, are one line before
the first call.
"""

import os
import shutil
import time

import pytest

from orchestra import texts as filling
from orchestra.evaluation.provenance import VERSION, difference
from orchestra.page import run_data
from orchestra.page.run_data import page_row
from orchestra.runtime import command_line
from orchestra.runtime.run_folder import read_manifest
from orchestra.runtime.texts import described, read
from orchestra.texts.source import Source
from tests.conftest import ConfigError, Options
from tests.program import called, line_of
from tests.released_code import clone
from tests.scripted import complete

LIMIT_S = 3.0  # mostly 0.3 s; what is quadratic takes minutes

ALONE = {
    "texts.toml": '[calls.main]\nresponse_format = "none"\nmessages = [{ role = "user", file = "m" }]\n',
    "m": "Q: ${question} ${round}/${rounds}",
}


# ---- the folder ----------------------------------------------------------------------------------


def write(folder, files):
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder


def test_a_replay_does_not_need_the_folder(endpoint, tmp_path):
    server = endpoint(lambda r: complete("42"))
    folder = write(tmp_path / "texts", ALONE)
    out = tmp_path / "run"
    done = called("What is it?", "--texts", folder, "--out", out, at=server.url)
    assert (done.returncode, done.stdout) == (0, "42\n"), done.stderr
    shutil.rmtree(folder)
    assert called("--replay", out).stdout == "42\n"
    (message,) = server.requests[0]["messages"]
    assert message["content"] == "Q: What is it? 1/10"
    which = described(read_manifest(out).options.texts)
    log = (out / "log.txt").read_text().splitlines()
    assert which.startswith("--texts (2 files, SHA-256 ") and which in log[0]
    assert page_row(run_data.read(out), run_data.Texts())["other_texts"] == which
    again = line_of(called("--replay", out, "--texts", write(folder, ALONE)))
    assert "--texts" in again and "is stored in" in again


MAIN = '[calls.main]\nmessages = [{ role = "user", file = "m" }]\n'
BAD = {
    "texts.toml does not exist": {"m": "x"},
    "m does not exist": {"texts.toml": MAIN},
    "texts.toml: is not TOML": {"texts.toml": "[calls"},
    "texts.toml: calls.main.role: is not a known key": {"texts.toml": MAIN.replace("messages", 'role = "x"\nmessages'), "m": "x"},
    "texts.toml: calls.main.messages.0.role": {"texts.toml": MAIN.replace('"user"', '"tool"'), "m": "x"},
    "texts: texts.toml: needs [calls.main]; the method has the calls main, agent, summary": {"texts.toml": ""},
    "the method has no 'expert'; it has main, agent, summary": {"texts.toml": MAIN + MAIN.replace("main", "expert"), "m": "x"},
    "texts.toml: is for method toolorchestra; give --method toolorchestra, or texts for orchestra-o1": {"texts.toml": 'method = "toolorchestra"\n' + MAIN, "m": "x"},
    "texts.toml: is for dom low; give --dom low, or texts for high": {"texts.toml": 'dom = "low"\n' + MAIN, "m": "x"},
    "the method has no 'mainn'; did you mean main?": {"texts.toml": MAIN + MAIN.replace("main", "mainn"), "m": "x"},
    "the method has no 'modells_row'; did you mean models_row?": {"texts.toml": MAIN + '[pieces]\nmodells_row = ""', "m": "x"},
    "m: unknown variable ${quastion}; it may have: question, ": {"texts.toml": MAIN, "m": "${quastion}"},
    "pieces.models_row: unknown variable ${price}": {"texts.toml": MAIN + '[pieces]\nmodels_row = "$price"', "m": "x"},
    "m: has a $ before no variable; write $$ for a $": {"texts.toml": MAIN, "m": "for $5"},
    "m: has the list ${models}, so texts.toml needs the piece models_row": {"texts.toml": MAIN, "m": "${models}"},
    "m is not UTF-8": {"texts.toml": MAIN, "m": b"\xff"},
    "m is larger than 1 MiB": {"texts.toml": MAIN, "m": "x" * (1 << 20) + "y"},
    "'../m' is not the name of a file": {"texts.toml": MAIN.replace('"m"', '"../m"'), "m": "x"},
    't.json: needs a list of {"type"': {"texts.toml": 'tools = "t.json"\n' + MAIN, "m": "x", "t.json": '{"name": 1}'},
    "t.json: needs a list of {\"type\": \"function\", \"function\": {\"name\": ...}} (Out of range": {"texts.toml": 'tools = "t.json"\n' + MAIN, "m": "x", "t.json": '[{"type": "function", "function": {"name": "a", "x": NaN}}]'},
    "texts.toml: is not TOML (maximum recursion": {"texts.toml": "a = " + "[" * 5000, "m": "x"},
    "calls.main.keys: the method has no 'reason'; did you mean reasoning?": {"texts.toml": MAIN + 'keys = ["reason"]', "m": "x"},
    "the files are larger than 8 MiB together": {"texts.toml": MAIN.replace("}", '}, { role = "user", file = "n" }'), "m": "\1" * (1 << 20), "n": "\1" * (1 << 20)},
    "t.json: needs a list of": {"texts.toml": 'tools = "t.json"\n' + MAIN, "m": "x", "t.json": "[" * 200 + "]" * 200},
}  # fmt: skip


@pytest.mark.parametrize("problem", BAD)
def test_a_bad_folder_is_one_line_before_the_first_call(problem, endpoint, tmp_path):
    server = endpoint(lambda r: complete("42"))
    folder = write(tmp_path / "texts", BAD[problem])
    line = line_of(
        called("What is it?", "--texts", folder, "--out", tmp_path / "run", at=server.url)
    )
    assert problem in line and not server.requests and not (tmp_path / "run").exists()


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/etc/passwd"), os.mkdir])
def test_a_link_or_a_special_file_is_not_read(make, tmp_path):
    folder = write(tmp_path / "texts", {"texts.toml": MAIN})
    make(folder / "m")
    with pytest.raises(ConfigError, match="m is a link, a folder or a special file"):
        read(folder)


@pytest.mark.parametrize("other", [{"prompts": "small"}, {"instruction": "${models} ${tools}"}])
def test_texts_go_with_no_other_prompt(other):
    with pytest.raises(ConfigError, match="cannot go with --instruction or --prompts small"):
        Options(texts=ALONE, **other)


def test_texts_in_a_run_folder_are_texts_and_never_a_path(tmp_path):
    with pytest.raises(ConfigError, match="texts"):
        Options(texts=str(write(tmp_path / "texts", ALONE)))


def test_a_mark_of_the_encoding_as_editors_write_it_is_not_sent(tmp_path):
    folder = write(
        tmp_path / "texts", {"texts.toml": b"\xef\xbb\xbf" + MAIN.encode(), "m": "\ufeffx"}
    )
    assert read(folder) == {"texts.toml": MAIN, "m": "x"}


def test_a_text_with_many_names_is_checked_in_no_time():
    began_s = time.process_time()
    with pytest.raises(ConfigError, match="unknown variable"):
        Options(texts={**ALONE, "m": "".join(f"${{v{n}}}" for n in range(90_000))})
    rows = "".join(f'files_row_{n} = ""\n' for n in range(40_000))
    Options(texts={"texts.toml": MAIN + "[pieces]\n" + rows, "m": ""})
    assert time.process_time() - began_s < LIMIT_S


OWN = "orchestra.methods.orchestra_o1:OrchestraO1"  # named as a method of the user's is
AGENT = MAIN + MAIN.replace("main", "agent").replace('"m"', '"a"')


def test_a_method_of_the_users_names_what_it_likes_but_in_what_react_agents_read():
    files = {"texts.toml": AGENT, "m": "${mine}", "a": "${instruction}"}
    assert Options(method=OWN, texts=files).texts == files
    with pytest.raises(ConfigError, match="a: unknown variable"):
        Options(method=OWN, texts={**files, "a": "${mine}"})
    with pytest.raises(ConfigError, match="tools_row: unknown variable"):
        rows = '[pieces]\ntools_row = "${mine}"'
        Options(method=OWN, texts={**files, "texts.toml": AGENT + rows, "a": "${tools}"})


EXPERTS = {**ALONE, "m": "${problem} ${context}"}  # of ToolOrchestra


@pytest.mark.parametrize("words", [("--resume", "run"), ("?", "--compare", "toolorchestra")])
def test_texts_are_checked_for_the_method_of_the_run_and_not_for_the_default_one(words, tmp_path):
    parsed = command_line.parse([*words, "--texts", str(write(tmp_path / "texts", EXPERTS))])
    assert parsed.given == {"texts": EXPERTS}


def test_texts_are_filled_for_a_dom_only_where_the_method_has_one(tmp_path, capsys):
    words = ["toolorchestra", str(tmp_path), str(tmp_path / "texts"), "--dom", "low"]
    assert filling.main(words) == 2
    assert "--dom: belongs to mas-orchestra; leave it out" in capsys.readouterr().err


def test_a_comparison_refuses_texts_that_a_method_cannot_use(endpoint, tmp_path):
    server = endpoint(lambda r: complete("42"))
    words = ("?", "--texts", write(tmp_path / "texts", EXPERTS), "--compare", "toolorchestra,react")
    line = line_of(called(*words, "--out", tmp_path / "run", at=server.url))
    problem = (
        f"--texts: {words[2]}: texts.toml: needs [calls.agent]; the method has the calls agent"
    )
    assert problem in line and not server.requests


# ---- a clone -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "file, old, new, problem",
    [
        ("orchestra_o1/main_agent.py", "total_subtasks} pieces", "rest} pieces", "main_agent.py:LINE: {rest} is not known (known are done_count, total_subtasks); see docs/released-models.md"),
        ("orchestra_o1/main_agent.py", "_format_subtask_history", "_history", "has no function _format_subtask_history"),
        ("orchestra_o1/main_agent.py", "def ", "def def ", "is not Python"),
        ("benchmark/omnigaia/tools/__init__.py", "from", "import os  # from", "has no import of a tool"),
    ],
)  # fmt: skip
def test_another_layout_of_a_clone_is_an_error_of_one_line(file, old, new, problem, tmp_path):
    folder = clone("orchestra_o1", tmp_path / "clone")
    path = folder / file
    path.write_text(path.read_text().replace(old, new))
    line = path.read_text().partition(new)[0].count("\n") + 1
    with pytest.raises(ConfigError) as error:
        filling.fill("orchestra-o1", folder, tmp_path / "texts")
    assert problem.replace("LINE", str(line)) in str(error.value) and file in str(error.value)
    assert not (tmp_path / "texts").exists()
    path.unlink()
    assert filling.main(["orchestra-o1", str(folder), str(tmp_path / "texts")]) == 2


def test_a_text_in_another_form_is_an_error_of_one_line(tmp_path):
    folder = clone("toolorchestra", tmp_path / "clone")
    path = folder / "evaluation" / "eval_hle.py"
    path.write_text(path.read_text().replace("doc[:30]", "doc[:most]"))
    with pytest.raises(ConfigError, match="a text has another form; see docs/released-models.md"):
        filling.fill("toolorchestra", folder, tmp_path / "texts")


@pytest.mark.parametrize(
    "name, method, file, before, problem",
    [
        ("orchestra_o1", "orchestra-o1", "orchestra_o1/prompts/omnigaia.py", 'return f"""', "surrogates"),
        ("orchestra_o1", "orchestra-o1", "benchmark/omnigaia/orchestra_o1_bench_omnigaia.py", "", "another form"),
        ("toolorchestra", "toolorchestra", "evaluation/eval_hle.py", "", "nested too deeply"),
    ],
)  # fmt: skip
def test_a_hostile_clone_is_an_error_of_one_line(name, method, file, before, problem, tmp_path):
    hostile = {"surrogates": "\\ud800", "another form": "OMNI_MODAL_TOOL_HINTS = [1]\n"}
    folder = clone(name, tmp_path / "clone")
    path = folder / file
    new = before + hostile.get(problem, f"x = {'-' * 100_000}1\n")
    path.write_text(path.read_text().replace(before, new, 1))
    with pytest.raises(ConfigError, match=problem):
        filling.fill(method, folder, tmp_path / "texts")
    assert not (tmp_path / "texts").exists()


def test_a_function_that_returns_nothing_is_another_layout(tmp_path):
    folder = clone("orchestra_o1", tmp_path / "clone")
    path = folder / "orchestra_o1" / "main_agent.py"
    head, found, tail = path.read_text().partition("def _format_subtask_history")
    path.write_text(head + found + tail.replace("return ", "yield "))
    with pytest.raises(ConfigError, match="has no summary of the history"):
        filling.fill("orchestra-o1", folder, tmp_path / "texts")


def test_a_link_out_of_a_clone_is_not_followed(tmp_path):
    folder = clone("toolorchestra", tmp_path / "clone")
    (folder / "evaluation").rename(tmp_path / "elsewhere")
    (folder / "evaluation").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="is outside the clone, by a link"):
        filling.fill("toolorchestra", folder, tmp_path / "texts")


@pytest.mark.parametrize("name", ["toolorchestra", "mas_orchestra"])
def test_a_clone_with_windows_line_ends_has_the_same_texts(name, tmp_path):
    folder = clone(name, tmp_path / "clone")
    method = name.replace("_", "-")
    filling.fill(method, folder, tmp_path / "one")
    for path in folder.rglob("*.*"):
        data = path.read_bytes().replace(b"\n", b"\r\n")
        path.write_bytes(b"\xef\xbb\xbf" + data)
    filling.fill(method, folder, tmp_path / "other")
    assert read(tmp_path / "one") == read(tmp_path / "other")


def test_an_escape_that_python_warns_about_is_no_error():
    assert Source("a.py", 'X = "\\d"').constant("X") == "\\d"


def test_a_folder_with_files_is_not_written_to(tmp_path):
    folder = clone("toolorchestra", tmp_path / "clone")
    write(tmp_path / "texts", {"mine": "x"})
    with pytest.raises(ConfigError, match="not an empty folder"):
        filling.fill("toolorchestra", folder, tmp_path / "texts")


# ---- a sweep -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "texts, found", [({"a": "x", "b": "z"}, "'b' differs"), (None, "'a' is missing and 1 more")]
)
def test_a_sweep_goes_on_only_with_its_texts(texts, found):
    stored = {"version": VERSION, "texts": {"a": "x", "b": "y"}}
    problem = f"is a sweep with another text of --texts ({found})"
    assert difference(stored, {**stored, "texts": texts}, extend=False) == problem
    assert difference(stored, stored, extend=False) == ""
