"""docs/experiments.md: its commands run as they are written, and print what it shows."""

import inspect
import re
import shlex
import shutil
import threading

import pytest

import orchestra_min
from fixtures import stand_in
from tests.conftest import ROOT
from tests.program import called

PAGE = (ROOT / "docs" / "experiments.md").read_text()
BLOCKS = re.findall(r"```console\n(.*?)```", PAGE, re.S)
PORT = "127.0.0.1:8105"
needs_what_if = pytest.mark.skipif(
    "what_if" not in inspect.signature(orchestra_min.resume).parameters,
    reason="needs resume(what_if=)",
)


@pytest.fixture
def with_a_stand_in(tmp_path, monkeypatch):
    """A folder with the fixtures, and the stand-in for their model at a port that is free."""
    server = stand_in.server(0, [ROOT / "fixtures" / "runs" / "equinox"])
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    for name in ("runs/equinox", "pools"):
        shutil.copytree(ROOT / "fixtures" / name, tmp_path / "fixtures" / name)
    port = f"127.0.0.1:{server.server_port}"
    for file in (tmp_path / "fixtures").rglob("*"):
        if file.suffix in (".json", ".jsonl", ".toml"):
            file.write_text(file.read_text().replace(PORT, port))
    monkeypatch.chdir(tmp_path)
    yield
    server.shutdown()
    server.server_close()


def commands(block):
    """Each command of a block, and the lines that it prints; "..." are any others."""
    for part in re.split(r"^\$ ", block, flags=re.M)[1:]:
        command, *lines = part.splitlines()
        yield shlex.split(command), [line for line in lines if line != "..."]


@needs_what_if
def test_the_experiments_print_what_the_page_shows(with_a_stand_in, edited):
    count = 0
    for words, lines in (pair for block in BLOCKS for pair in commands(block)):
        if words[0] == "sed":
            _, old, new, _ = words[2].split("/")
            edited(words[3].removeprefix("prompts/"), old, new)
        elif words[0] == "git":
            edited("react/system.md", "Do your", "Do your")  # as it is in the repository
        elif words[0] == "orchestra-min":
            done = called(*words[1:])
            printed = (done.stdout + done.stderr).splitlines()
            missing = [line for line in lines if line not in printed]
            assert not missing, (words, printed)
            count += len(lines)
    assert count > 60


def test_the_stand_in_replies_as_the_model_did_to_the_most_similar_request():
    replies = stand_in.recorded([ROOT / "fixtures" / "runs" / "equinox"])
    messages = [{"content": "You are the main agent.\nOne line more."}, {"content": "x"}]
    assert len(replies) == 9
    assert "choices" in stand_in.most_similar({"messages": messages}, replies)
