"""README and docs/experiments.md: their commands run as they are written, and print what is shown."""

import re
import shlex
import shutil
import threading

import pytest

from fixtures import stand_in
from orchestra import command
from orchestra.command import way_on
from tests.conftest import ROOT
from tests.program import called

PORT = "127.0.0.1:8105"
LACKING = re.compile(
    "(?i)no such file|not a run|no such folder|is not a git repository|bubblewrap|needs mcp|\\bgit\\b"
)
OFFLINE = ("runs", "report", "replay", "resume", "explain", "diff")


@pytest.fixture
def with_a_stand_in(tmp_path, monkeypatch):
    """A folder with the fixtures, and the stand-in for their model at a port that is free."""
    server = stand_in.server(0, [ROOT / "fixtures" / "runs" / "equinox"])
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    for name in ("runs/equinox", "runs/equinox-toolorchestra", "pools"):
        shutil.copytree(ROOT / "fixtures" / name, tmp_path / "fixtures" / name)
    port = f"127.0.0.1:{server.server_port}"
    for file in (tmp_path / "fixtures").rglob("*"):
        if file.suffix in (".json", ".jsonl", ".toml"):
            file.write_text(file.read_text().replace(PORT, port))
    monkeypatch.chdir(tmp_path)
    yield
    server.shutdown()
    server.server_close()


def commands(page):
    """Each command of a page, and the lines that it prints; "..." are any others."""
    blocks = re.findall(r"```console\n(.*?)```", (ROOT / "docs" / page).read_text(), re.S)
    text = "".join(blocks).replace("\\\n", " ")
    for part in re.split(r"^\$ ", text, flags=re.M)[1:]:
        command, *lines = part.splitlines()
        yield shlex.split(command, comments=True), [line for line in lines if line != "..."]


def printed_as_shown(words, lines):
    """Run a command. Returns how many lines it printed as the page shows them: all."""
    done = called(*words[1:])
    ours = way_on.command([])  # the path of the script, if nothing is installed
    printed = (done.stdout + done.stderr).replace(ours, "orchestra-min")
    printed = re.sub(r"127\.0\.0\.1:\d+", PORT, printed).splitlines()
    missing = [line for line in lines if line not in printed]
    assert not missing, (words, printed)
    return len(lines)


def followed(page, edited):
    """Run the commands of a page that need no key. Returns how many lines they printed as shown."""
    count = 0
    for words, lines in commands(page):
        if words[0] == "sed":
            _, old, new, _ = words[2].split("/")
            edited(words[3].removeprefix("prompts/"), old, new)
        elif words[0] == "git":
            edited("react/system.md", "Do your", "Do your")  # as it is in the repository
        elif words[0] == "orchestra-min" and words[1] in OFFLINE:
            count += printed_as_shown(words, lines)
    return count


def test_the_experiments_print_what_the_page_shows(with_a_stand_in, edited):
    assert followed("experiments.md", edited) > 40


def test_the_commands_of_the_readme_print_what_it_shows(with_a_stand_in, edited):
    assert followed("../README.md", edited) > 15


@pytest.mark.parametrize("page", ["../README.md", *sorted(p.name for p in (ROOT / "docs").glob("*.md"))])  # fmt: skip
def test_the_flags_of_each_command_exist(page, capsys, monkeypatch, in_an_empty_folder):
    """Those that need a model or files that are not here, too: that is all that they lack."""
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    for words, _ in commands(page):
        if words[0] == "orchestra-min":
            code = command.main(words[1:])
            told = capsys.readouterr().err.splitlines()[-1]
            assert (code == 4 and "no connection" in told) or (code == 2 and LACKING.search(told))


def test_the_readme_has_at_most_1500_words():
    assert len((ROOT / "README.md").read_text().split()) <= 1500


def test_the_two_compared_runs_of_the_page_differ_as_it_shows(monkeypatch):
    monkeypatch.chdir(ROOT)
    (example,) = (pair for pair in commands("runs.md") if "diff" in pair[0])
    assert printed_as_shown(*example) > 15


def test_the_stand_in_replies_as_the_model_did_to_the_most_similar_request():
    replies = stand_in.recorded([ROOT / "fixtures" / "runs" / "equinox"])
    messages = [{"content": "You are the main agent.\nOne line more."}, {"content": "x"}]
    assert len(replies) == 10
    assert "choices" in stand_in.most_similar({"messages": messages}, replies)
