"""A run folder that comes from someone else, and a machine without a sandbox."""

import json
import shlex
import shutil
import subprocess

import pytest

from orchestra.command.trust import check_named_again
from orchestra.kernel.folder import Manifest
from orchestra.tools import sandbox
from tests.conftest import ROOT, ConfigError, Options, needs_sandbox, pool_at
from tests.program import any_method, called, cut_end, line_of, pool_file, tool_file
from tests.scripted import Endpoint
from tests.tools.conftest import raw

pytestmark = pytest.mark.usefixtures("in_an_empty_folder")
CODE = "ExecuteCodeAction(code"


# ---- what its command line names -----------------------------------------------------------------


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    """A run with a tool, a server, a host and a key of its user's, and the flags that name them."""
    pytest.importorskip("mcp")
    folder, server = tmp_path_factory.mktemp("theirs"), Endpoint(any_method)
    server_command = shlex.join(["sh", "-c", f"touch {folder}/started; exec {raw()}"])
    pool = str(pool_file(folder, server.url, "MY_KEY", a=(0, 0)))
    flags = ["--tools", tool_file(folder), "--mcp", server_command]
    flags += ["--allow-host", "wiki:80", "--backends", pool]
    done = called("--question", "?", "--out", folder / "run", *flags, MY_KEY="k1")
    assert done.stdout == "42\n", done.stderr
    yield folder, flags, server
    server.close()


@pytest.mark.parametrize("left_out", ["--tools", "--mcp", "--allow-host", "--backends", None])
def test_a_resume_or_replay_uses_only_what_its_command_line_names(left_out, theirs, tmp_path):
    folder, flags, server = theirs
    shutil.copytree(folder / "run", tmp_path / "run")
    for name in ("tape.jsonl", "trajectory.jsonl"):
        (tmp_path / "run" / name).write_text("")
    for name in ("loaded", "started"):
        (folder / name).unlink(missing_ok=True)
    pairs = [pair for pair in zip(flags[::2], flags[1::2], strict=True) if pair[0] != left_out]
    asked = len(server.requests)
    done = called("--resume", "run", *(part for pair in pairs for part in pair), MY_KEY="k1")
    if left_out is None:
        assert done.stdout == "42\n" and not (folder / "started").exists()  # nobody called it
        assert called("--replay", "run", *flags[:2]).stdout == "42\n"
    else:
        assert "--tools" in line_of(called("--replay", "run"))
        assert left_out in line_of(done) and len(server.requests) == asked
        assert not (folder / "loaded").exists() and not (folder / "started").exists()


def test_a_command_is_named_again_as_it_is_wherever_its_files_are(tmp_path):
    """Tools are found by the name of their file; a command is not."""
    pool = pool_at("http://127.0.0.1:9/v1")
    stored = Manifest("?", (), pool, Options.of(mcp=["run /theirs/server.py:app"]))
    with pytest.raises(ConfigError, match="--mcp 'run /mine/server.py:app'"):
        given = {"mcp": ["run /mine/server.py:app"]}
        check_named_again(tmp_path, [stored], given, resumed=True)


# ---- what is in it -------------------------------------------------------------------------------


@pytest.fixture
def line_of_replay(tmp_path):
    """The one line of a replay of the demo's folder, after `change` of it."""
    shutil.copytree(ROOT / "fixtures/runs/equinox", tmp_path / "run")

    def line(change):
        change(tmp_path / "run")
        done = called("--quiet", "--replay", "run")
        assert done.returncode in (2, 3)
        return line_of(done, done.returncode)

    yield line
    shutil.rmtree(tmp_path / "run")  # it may have 3 GiB, which other tests would search for a key


@pytest.mark.parametrize(("command", "problem"), [
    *((f"rm -f {n}; mkfifo {n}", "special file") for n in ("tape.jsonl", "log.txt", "media/x", "lock")),
    ("rm run.json; mkfifo run.json", "special file"), ("rm tape.jsonl; mkdir tape.jsonl", "special file"),
    ("mkdir -p workdir.git/objects/info; touch workdir.git/objects/info/alternates", "special file"),
    ("mkdir -p workdir.git/refs; ln -s /x workdir.git/refs/main", "special file"),
    ("truncate -s 3G run.json", "is larger than"), ("truncate -s 3G tape.jsonl", "is larger than"),
    ("yes [ | head -99999 > run.json", "is damaged"), ("yes [ | head -99999 | tr -d '\n' > tape.jsonl", "nested too deep"),
])  # fmt: skip
def test_a_damaged_or_hostile_folder_is_one_line(command, problem, line_of_replay):
    assert problem in line_of_replay(lambda run: subprocess.run(command, shell=True, cwd=run))


LOCAL = "ocr", "transcribe", "code"
NO_TEXT, TOO_MANY = {"choices": []}, {"choices": [{"message": {}}]}


@pytest.mark.parametrize(("kinds", "value"), [
    *((["chat"], value) for value in (None, [], "x", {"data": None, "unanswered": 0}, {"data": NO_TEXT, "unanswered": 0}, {"data": TOO_MANY, "unanswered": 1 << 40})),
    *((LOCAL, value) for value in (None, [], {"value": 5}, {"value": [[1]]})),
])  # fmt: skip
def test_an_answer_of_another_shape_is_one_line(kinds, value, line_of_replay):
    def change(run):
        rows = [json.loads(line) for line in (run / "tape.jsonl").read_text().splitlines()]
        for row in (row for row in rows if row.get("request", {}).get("kind") in kinds):
            row["answer"] = value
        (run / "tape.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")

    assert "is damaged" in line_of_replay(change)


# ---- without a sandbox ---------------------------------------------------------------------------


def test_without_a_sandbox_code_is_not_offered_and_one_line_says_so(endpoint, monkeypatch):
    monkeypatch.setattr(sandbox, "trouble", lambda: "not here")
    server = endpoint(any_method)
    flags = "--model", "m", "--method", "react"
    done = called("?", *flags, at=server.url)
    assert done.stdout == "42\n" and CODE not in str(server.requests)
    assert "no code of models runs" in done.stderr
    assert (
        "no code of models runs" not in called("?", *flags, "--unsafe-code", at=server.url).stderr
    )
    assert CODE in str(server.requests)
    flags = "--model", "m", "--method", "aorchestra", "--agent", "mini-swe", "--out", "swe"
    line = line_of(called("?", *flags, at=server.url))
    assert "mini-swe" in line and "bubblewrap" in line


@needs_sandbox
def test_a_run_with_code_needs_a_sandbox_to_go_on_and_none_to_replay(endpoint, monkeypatch):
    server = endpoint(any_method)
    flags = "--model", "m", "--method", "react", "--out"
    called("?", *flags, "safe", at=server.url)
    called("?", *flags, "unsafe", "--unsafe-code", at=server.url)
    for name in ("safe", "unsafe"):  # they were killed before their end
        cut_end(name)
    assert "add --unsafe-code" in line_of(called("resume", "unsafe", at=server.url))
    monkeypatch.setattr(sandbox, "trouble", lambda: "not here")
    assert called("replay", "safe").stdout == "42\n"
    assert called("resume", "unsafe", "--unsafe-code", at=server.url).stdout == "42\n"
    assert "may run code; bubblewrap" in line_of(called("resume", "safe", at=server.url))
