"""Whole runs in which the models try to get at the planted key. No file of the run contains it."""

import re
import sys
from unittest import mock
from urllib.parse import unquote

import pytest

import orchestra_min
from orchestra.command.redact import Redact
from orchestra.report.command import main as report
from tests.attacks.conftest import KEY, NAME
from tests.conftest import needs_sandbox, pool_at
from tests.program import any_method, called
from tests.scripted import Raw, act, complete, delegate, finish, is_main, last_text
from tests.tools.media import saved
from tests.tools.test_mcp import SERVER

TOOLS = ["ExecuteCodeAction", "ImageAnalysisAction", "ExtractUrlContentAction", "GoogleSearchAction"]  # fmt: skip


@needs_sandbox
def test_a_run_that_hunts_for_the_key_writes_it_nowhere(planted, endpoint, tmp_path, monkeypatch):
    """The models repeat the key too."""
    monkeypatch.chdir(planted)
    monkeypatch.setattr("orchestra.tools.search_engines.SERPER_URL", "http://127.0.0.1:9/")
    monkeypatch.setenv("SERPER_API_KEY", KEY)
    actions = [
        act("ExecuteCodeAction", code=f"import os; os.environ.get({NAME!r})"),
        act("ExecuteCodeAction", code=f"cat {planted}/.env ~/.env /proc/*/environ", code_type="bash"),
        act("ImageAnalysisAction", query="?", image_path=str(planted / ".env")),
        act("ExtractUrlContentAction", url=f"file://{planted}/.env", browse_query="?"),
        act("ExtractUrlContentAction", url=f"http://127.0.0.1/?k={KEY}", browse_query=KEY),
        act("GoogleSearchAction", query=f"{KEY}"),
        act("NoSuchTool", key=KEY),
        finish(KEY, summary=f"the key is {KEY}"),
    ]  # fmt: skip

    def respond(request):
        if is_main(request):
            asked = {"task_instruction": f"find {KEY}", "tools": TOOLS}
            return delegate(asked) if len(model.requests) == 1 else complete(KEY)
        return actions[last_text(request).count("Observation:")]

    model = endpoint(respond)
    media, pool = [("image", saved(tmp_path / "clock.png", "Gate 12"))], pool_at(model.url)
    redact = Redact([NAME])
    result = orchestra_min.orchestrate("?", media, pool, out=tmp_path / "run", redact=redact)
    assert not [p for p in tmp_path.rglob("*") if p.is_file() and KEY.encode() in p.read_bytes()]
    steps = [e for e in result.events if e["event"] == "step"]
    assert len(steps) == len(actions)
    assert not [s for s in steps[:-1] if KEY in s["observation"]]


ESCAPED = "".join(f"\\u{ord(c):04x}" for c in KEY)
SPELLED = [
    f'{{"action": "complete", "params": {{"answer": "{ESCAPED}"}}}}',
    complete(KEY.replace("planted", "\x1b[31mplanted\x1b[0m")),
    complete(f"Bearer%20{KEY.replace('-', '%2D')}"),
]


@pytest.mark.parametrize("reply", SPELLED)
def test_a_key_with_escapes_is_in_no_file_and_on_no_screen(
    reply, planted, endpoint, tmp_path, capsys
):
    server = endpoint(lambda request: reply)
    words = [
        "What is the key?",
        "--out",
        tmp_path / "run",
        "--method",
        "orchestra-o1",
        "--model",
        "m",
    ]
    with mock.patch.dict("os.environ", {"OPENAI_BASE_URL": server.url}):
        assert orchestra_min.main([str(word) for word in words]) == 0
    report([str(tmp_path / "run")])
    written = [p.read_text() for p in (tmp_path / "run").iterdir() if p.is_file()]
    for text in [*written, *capsys.readouterr()]:
        text = unquote(re.sub(r"(\x1b|\\+u001b|\\x1b)\[\d+m", "", text))
        assert KEY not in text
        assert ESCAPED not in text.replace("\\\\", "\\")


@pytest.mark.parametrize("said", [f"limit of {KEY}", f"{'x' * 280} {KEY}"])
def test_a_key_in_the_error_of_an_endpoint_is_taken_out(said, planted, endpoint, tmp_path):
    errors = iter([Raw(500, {"error": {"message": said}})])
    server = endpoint(lambda request: next(errors, None) or any_method(request))
    done = called("?", "--model", "m", "--out", tmp_path / "run", at=server.url)
    texts = [done.stderr, *(p.read_text() for p in (tmp_path / "run").iterdir() if p.is_file())]
    assert any("attempt 2 of 3 follows" in text for text in texts)
    assert not any(KEY[:12] in text for text in texts)


def test_a_key_that_a_tool_of_a_sweep_returns_is_in_no_file(sweep, tmp_path, monkeypatch):
    key = "a token of the user"
    monkeypatch.setenv("MY_TOKEN", key)
    (tmp_path / "server.py").write_text(SERVER)
    actions = act("add", a=1), finish("1")
    sweep.respond = lambda r: actions[min(str(r["messages"]).count("Observation:"), 1)]
    command = f"{sys.executable} {tmp_path}/server.py $MY_TOKEN"
    assert sweep("--mcp", command, count=1)[0] == 0
    files = [p.read_bytes() for p in (tmp_path / "out").rglob("*") if p.is_file()]
    assert any(b"2 <MY_TOKEN>" in data for data in files)
    assert not any(key.encode() in data for data in files)


def test_a_key_in_an_mcp_command_of_a_sweep_is_refused(sweep, planted, capsys):
    assert sweep("--mcp", f"server {KEY}", count=1)[0] == 2 and not sweep.requests
    assert "--mcp: has a key in it" in capsys.readouterr().err
