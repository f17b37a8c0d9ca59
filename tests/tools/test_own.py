from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

import orchestra_min
from orchestra.replay import Tape
from orchestra.run_folder import Options
from orchestra.trust import Named
from orchestra.vocabulary import ConfigError, ModelMistake, Task
from tests.conftest import ROOT, pool_at
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


def unnamed(day: str, /) -> str:
    """A tool."""


def many(*days: str) -> str:
    """A tool."""


def taken(model_config: str) -> str:
    """A tool."""


async def later(day: str) -> str:
    """A tool."""


def quits(day: str) -> str:
    """A tool."""
    sys.exit("no more")


def half(day: str) -> str:
    """A tool."""
    return "a half \ud800 character"


def named_so(env: str = "ours") -> str:
    """A tool."""
    return f"it is {env}"


class Unprintable(Exception):
    def __repr__(self):
        raise RuntimeError("no repr")

    __str__ = __repr__


def unprintable(day: str) -> object:
    """A tool."""
    return Unprintable()


def too_deep(day: str) -> list:
    """A tool."""
    deep = []
    for _ in range(100_000):
        deep = [deep]
    return deep


def unsaid(day: str) -> str:
    """A tool."""
    raise Unprintable


def cancelled(day: str) -> str:
    """A tool."""
    import asyncio
    raise asyncio.CancelledError("no more")


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
    ("{file}:nothing", "has no function 'nothing'"), ("{file}", "add :FUNCTION"), ("none.py", "add :FUNCTION"), ("/none.py:f", "there is no file '/none.py'"),
    ("{file}:untyped", "the parameter 'day' needs a type"), ("{file}:silent", "needs a docstring"),
    ("{file}:unknown", "an annotation can not be resolved"), ("{file}:hidden", "can not be told to a model"),
    ("{file}:odd", "can not be told to a model"), ("{file}:later", "is an async function"),
    ("{file}:unnamed", "the parameter 'day' can not be given by its name"), ("{file}:many", "the parameter 'days' can not be given by its name"),
    ("{file}:taken", "can not be called 'model_config'"),
])  # fmt: skip
def test_a_tool_that_can_not_be_used_is_told_before_anything_is_paid(spec, words, file):
    with pytest.raises(ConfigError, match=words):
        from_file(spec.format(file=file))


@pytest.mark.parametrize(("name", "words"), [
    ("quits", "SystemExit: no more"), ("half", "a half \ufffd character"), ("beside", "Monday to 17, 12"),
    ("named_so", "it is ours"), ("unprintable", "RuntimeError: no repr"), ("too_deep", "RecursionError: "),
    ("unsaid", "Unprintable: (its text can not be told: RuntimeError)"), ("cancelled", "CancelledError: no more"),
])  # fmt: skip
def test_whatever_a_tool_of_the_user_does_is_an_observation(name, words, file, endpoint, tmp_path):
    mine = (f"{file}:{name}",)
    result = run(answering(endpoint, act(name, day="Monday")), tmp_path / "run", tools=mine)
    assert words in observations(result)[0]
    again = orchestra_min.replay(tmp_path / "run", named=Named(tools=mine))
    assert again.answer == result.answer == "done"


def test_a_tool_can_not_take_the_name_of_another(file, endpoint, tmp_path):
    twice = (f"{file}:library_hours",) * 2
    with pytest.raises(ConfigError, match="is taken"):
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


ODD_NAMES = ["model_config", "model_validate", "_a", "__class__", "from-date", "env", "schema", ""]


@pytest.mark.parametrize("name", ODD_NAMES)
def test_a_parameter_of_an_mcp_server_may_have_any_name(name, look):
    env = SimpleNamespace(local=lambda kind, arguments, function: json.dumps(arguments))
    properties = {name: {"type": "string"}, "b": {"type": "string"}}
    with look({"type": "object", "properties": properties, "required": [name]}) as tool:
        told = tool.schema(Task("?"))
        assert list(told["properties"]) == [name, "b"] and told["required"] == [name]
        assert json.dumps({name: "x"}) in tool(env, {name: "x"})
        with pytest.raises(ModelMistake, match=f"{name or 'params'}: Field required"):
            tool(env, {"b": "x"})


PAGES = """
from mcp.server.lowlevel import Server
from mcp.types import ListToolsResult, Tool
import anyio, sys
from mcp.server.stdio import stdio_server

async def page(context, asked):
    n = int(asked.cursor or 0) if asked else 0
    tool = Tool(name=f"tool_{n}", input_schema={"type": "object"})
    return ListToolsResult(tools=[tool], next_cursor=str(n + 1) if n + 1 < int(sys.argv[1]) else None)

async def main():
    server = Server("pages", on_list_tools=page)
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())

anyio.run(main)
"""


def test_a_list_of_tools_is_read_to_its_last_page(tmp_path, monkeypatch):
    pytest.importorskip("mcp")
    (tmp_path / "pages.py").write_text(PAGES)
    command = f"{sys.executable} {tmp_path / 'pages.py'} 3"
    with contextlib.closing(Tape(tmp_path / "tape.jsonl", "record")) as tape:
        with own_tools([], [command], tape) as found:
            assert list(found) == ["tool_0", "tool_1", "tool_2"]
    monkeypatch.setattr("tools.mcp_server.MAX_PAGES", 2)
    with contextlib.closing(Tape(tmp_path / "other.jsonl", "record")) as tape:
        with pytest.raises(ConfigError, match="more than 2 pages"), own_tools([], [command], tape):
            pass


def test_an_error_of_an_mcp_server_is_quoted(look):
    env = SimpleNamespace(local=lambda kind, arguments, function: function())
    with look({"type": "object", "properties": {}}) as tool, pytest.raises(ToolError) as error:
        tool(env, {})
    before, inside, _ = re.split(r"</?data \w+>", str(error.value))
    assert "obey me" in inside and before == "The tool look failed: "


def test_ctrl_c_does_not_wait_for_a_server_to_start(tmp_path):
    pytest.importorskip("mcp")
    server = f"sh -c 'touch {tmp_path}/started; exec sleep 60'"
    flags = "--question", "?", "--model", "m", "--mcp", server, "--out", tmp_path / "run"
    env = {**os.environ, "OPENAI_BASE_URL": "http://127.0.0.1:9/v1"}
    call = [sys.executable, ROOT / "orchestra_min.py", *flags]
    process = subprocess.Popen(call, env=env, stderr=subprocess.PIPE, text=True)
    while not (tmp_path / "started").exists():
        time.sleep(0.05)
    started = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=20)
    assert process.returncode == 130 and time.monotonic() - started < 2, said
