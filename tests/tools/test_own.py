from __future__ import annotations

import sys
from pathlib import Path

import pytest

import orchestra_min
from orchestra.run_folder import Options
from orchestra.trust import Named
from orchestra.vocabulary import ConfigError
from tests.conftest import pool_at
from tests.scripted import act, complete, delegate, finish, is_main, last_text
from tools.own import from_file

HOURS = '''
def library_hours(day: str, late: bool = False) -> str:
    """When the town library is open.

    day: a day of the week, as in Monday
    late: whether to tell the evening hours
    """
    if day == "Doomsday":
        raise LookupError("no such day")
    print(end="")
    return f"{day}: 9 to 17"


def untyped(day):
    """A tool."""


def silent(day: str) -> str:
    return day
'''
SERVER = '''
import os
from mcp.server import MCPServer

server = MCPServer("demo")


@server.tool()
def add(a: int, b: int = 1) -> str:
    """Add two numbers."""
    return f"{a + b} key={os.environ.get('ORCHESTRA_TEST_SECRET', 'none')}"


@server.tool()
def fail(why: str) -> str:
    """Always fails."""
    raise ValueError(why)


server.run()
'''


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "my_tools.py").write_text(HOURS)
    (tmp_path / "server.py").write_text(SERVER)
    return tmp_path / "my_tools.py"


def answering(endpoint, *actions: str):
    """A model that delegates once, takes these actions, reports what it saw and completes."""

    def respond(request):
        if is_main(request):
            seen = any(f"Observation: {n}" in last_text(request) for n in range(9))
            return (
                complete("done")
                if len(model.requests) > 1 or seen
                else delegate(
                    {"task_instruction": "t", "tools": [a.split('"')[3] for a in actions]}
                )
            )
        done = last_text(request).count("Observation:")
        return actions[done] if done < len(actions) else finish("seen")

    model = endpoint(respond)
    return model


def run(model, out: Path, **options):
    return orchestra_min.orchestrate(
        "When?", pool=pool_at(model.url), options=Options(**options), out=out
    )


def observations(result) -> list[str]:
    return [e["observation"] for e in result.events if e["event"] == "step" and e["observation"]]


def test_a_function_of_the_user_is_a_tool(file, endpoint, tmp_path):
    model = answering(endpoint, act("library_hours", day="Monday"))
    result = run(model, tmp_path / "run", tools=(f"{file}:library_hours",))
    assert "Monday: 9 to 17" in observations(result)[0] and "<data " in observations(result)[0]
    assert (
        "library_hours(day: string, late: boolean = False)"
        in model.requests[1]["messages"][0]["content"]
    )
    mine = Named(tools=(f"{file}:library_hours",))
    assert orchestra_min.replay(tmp_path / "run", named=mine).answer == result.answer


def test_an_error_of_a_user_s_function_is_an_observation(file, endpoint, tmp_path):
    model = answering(
        endpoint, act("library_hours", day="Doomsday"), act("library_hours", day="Monday")
    )
    result = run(model, tmp_path / "run", tools=(f"{file}:library_hours",))
    assert "LookupError: no such day" in observations(result)[0]


@pytest.mark.parametrize(("spec", "words"), [
    ("{file}:nothing", "has no function 'nothing'"), ("{file}", "needs FILE.py:FUNCTION"), ("/none.py:f", "there is no file"),
    ("{file}:untyped", "the parameter 'day' needs a type"), ("{file}:silent", "needs a docstring"),
])  # fmt: skip
def test_a_tool_that_can_not_be_used_is_told_before_anything_is_paid(spec, words, file):
    with pytest.raises(ConfigError, match=words):
        from_file(spec.format(file=file))


def test_a_tool_can_not_take_the_name_of_another(file, endpoint, tmp_path):
    twice = (f"{file}:library_hours",) * 2
    with pytest.raises(ConfigError, match="already"):
        run(endpoint(lambda _: "x"), tmp_path / "run", tools=twice)


def test_the_tools_of_an_mcp_server_are_used_recorded_and_replayed(
    file, endpoint, tmp_path, monkeypatch
):
    pytest.importorskip("mcp")
    monkeypatch.setenv("ORCHESTRA_TEST_SECRET", "a-secret-of-the-user")
    model = answering(endpoint, act("add", a=2, b=40), act("fail", why="because"))
    server = file.with_name("server.py")
    result = run(model, tmp_path / "run", mcp=(f"{sys.executable} {server}",))
    assert "42 key=none" in observations(result)[0] and "<data " in observations(result)[0]
    assert "The tool fail failed" in observations(result)[1]
    server.unlink()  # a replay starts no server
    assert orchestra_min.replay(tmp_path / "run").answer == result.answer


@pytest.mark.parametrize("command", ["/no/such/program", f"{sys.executable} -c pass", ""])
def test_an_mcp_server_that_does_not_start_is_told_before_anything_is_paid(
    command, endpoint, tmp_path
):
    pytest.importorskip("mcp")
    model = endpoint(lambda _: "x")
    with pytest.raises(ConfigError, match="--mcp"):
        run(model, tmp_path / "run", mcp=(command,))
    assert not model.requests
