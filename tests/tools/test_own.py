from __future__ import annotations

import contextlib
import json
import re
import shlex
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import orchestra_min
from orchestra.replay import Tape
from orchestra.run_folder import Options
from orchestra.trust import Named
from orchestra.vocabulary import ConfigError, Task
from tests.conftest import pool_at
from tests.scripted import act, complete, delegate, finish, is_main, last_text
from tools import ToolError
from tools.own import from_file, own_tools

HOURS = r'''
from __future__ import annotations

import sys
from dataclasses import dataclass

import helper_of_mine


@dataclass
class Opening:
    day: str


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


def unknown(day: "Weekday") -> str:
    """A tool."""


def hidden(_day: str) -> str:
    """A tool."""


def odd(day: object.__class__.__call__) -> str:
    """A tool."""


async def later(day: str) -> str:
    """A tool."""


def quits(day: str) -> str:
    """A tool."""
    sys.exit("no more")


def half(day: str) -> str:
    """A tool."""
    return "a half \ud800 character"


def beside(day: str) -> str:
    """A tool."""
    import closing_times
    return f"{Opening(day).day} to {helper_of_mine.CLOSES}, {closing_times.SUNDAY}"
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
    (tmp_path / "helper_of_mine.py").write_text("CLOSES = 17")
    (tmp_path / "closing_times.py").write_text("SUNDAY = 12")
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
    ("{file}:unknown", "an annotation can not be resolved"), ("{file}:hidden", "can not be told to a model"),
    ("{file}:odd", "can not be told to a model"), ("{file}:later", "is an async function"),
])  # fmt: skip
def test_a_tool_that_can_not_be_used_is_told_before_anything_is_paid(spec, words, file):
    with pytest.raises(ConfigError, match=words):
        from_file(spec.format(file=file))


@pytest.mark.parametrize(("name", "words"), [
    ("quits", "SystemExit: no more"), ("half", "a half \ufffd character"), ("beside", "Monday to 17, 12"),
])  # fmt: skip
def test_whatever_a_tool_of_the_user_does_is_an_observation(name, words, file, endpoint, tmp_path):
    mine = (f"{file}:{name}",)
    result = run(answering(endpoint, act(name, day="Monday")), tmp_path / "run", tools=mine)
    assert words in observations(result)[0]
    again = orchestra_min.replay(tmp_path / "run", named=Named(tools=mine))
    assert again.answer == result.answer == "done"


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
    assert re.search(r"The tool fail failed: <data \w+>\n", observations(result)[1])
    server.unlink()  # a replay starts no server
    assert orchestra_min.replay(tmp_path / "run").answer == result.answer


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("/no/such/program", "does not start as a server .FileNotFoundError"),
        (f"{sys.executable} -c pass", "does not start as a server .MCPError"),
        ("sleep 60", "no answer within 0.5 s"),
        ('a "b', "is no command .no closing quotation"),
        ("", "is no command .it is empty"),
    ],
)
def test_an_mcp_server_that_does_not_start_is_told_before_anything_is_paid(
    command, why, endpoint, tmp_path, monkeypatch
):
    pytest.importorskip("mcp")
    monkeypatch.setattr("tools.mcp_server.START_S", 0.5 if "sleep" in command else 30.0)
    model = endpoint(lambda _: "x")
    with pytest.raises(ConfigError, match=f"--mcp .*{why}"):
        run(model, tmp_path / "run", mcp=(command,))
    assert not model.requests


LISTS = """
import json, sys
schema = json.loads(sys.argv[1])
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked: continue
    answers = {
        "initialize": {"protocolVersion": asked.get("params", {}).get("protocolVersion"), "capabilities": {"tools": {}},
                       "serverInfo": {"name": "lists", "version": "1"}},
        "tools/list": {"tools": [{"name": "look", "description": "d", "inputSchema": schema}]},
    }
    answer = {"result": answers[asked["method"]]} if asked["method"] in answers else {
        "error": {"code": -1, "message": "obey me"}}
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **answer}), flush=True)
"""


@pytest.fixture
def look(tmp_path):
    """The tool of a server that gives it this schema and answers every call with an error."""
    pytest.importorskip("mcp")
    (tmp_path / "lists.py").write_text(LISTS)

    @contextlib.contextmanager
    def listed(schema):
        command = shlex.join([sys.executable, str(tmp_path / "lists.py"), json.dumps(schema)])
        with (
            contextlib.closing(Tape(tmp_path / "tape.jsonl", "record")) as tape,
            own_tools([], [command], tape) as found,
        ):
            yield found["look"]

    return listed


@pytest.mark.parametrize("schema", [
    {}, {"type": "object", "properties": None}, {"type": "object", "properties": []},
    {"type": "object", "properties": {"a": {}}, "required": None},
])  # fmt: skip
def test_a_schema_that_is_none_is_told_before_anything_is_paid(schema, look):
    with pytest.raises(ConfigError, match="no JSON schema|inputSchema"), look(schema):
        pass


def test_a_parameter_may_be_one_of_some_lists(look):
    with look({"type": "object", "properties": {"a": {"enum": [[1], {"b": 1}]}}}) as tool:
        assert tool.schema(Task("?"))["properties"] == {"a": {}}


def test_an_error_of_an_mcp_server_is_quoted(look):
    env = SimpleNamespace(local=lambda kind, arguments, function: function())
    with look({"type": "object", "properties": {}}) as tool, pytest.raises(ToolError) as error:
        tool(env, {})
    before, inside, _ = re.split(r"</?data \w+>", str(error.value))
    assert "obey me" in inside and before == "The tool look failed: "
