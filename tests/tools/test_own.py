"""Tools of the user beside the six: typed functions, and what MCP servers offer."""

import contextlib
import json
import re
import shlex
import signal
import sys
import time
from types import SimpleNamespace

import pytest

import orchestra_min
from tests.conftest import ConfigError, ModelMistake, Options, Tape, Task, pool_at
from tests.program import program, start, tool_file
from tests.scripted import act, complete, delegate, finish, is_main, last_text
from tools import ToolError
from tools.own import from_file, own_tools

TOKEN, HIDDEN = "ORCHESTRA_TEST_TOKEN", "ORCHESTRA_TEST_SECRET"
SERVER = f"""import os, sys; from mcp.server import MCPServer; server = MCPServer("demo")
@server.tool()
def add(a: int, b: int = 1) -> str:
    "Add two numbers."
    return f"{{a + b}} {{sys.argv[1]}} {{os.environ.get({HIDDEN!r})}}"
server.run()"""


def test_own_tools_are_used_recorded_and_replayed(endpoint, tmp_path, monkeypatch):
    """A server gets no key but the one that its command names, and that is redacted."""
    monkeypatch.setenv(TOKEN, "a token of the user")
    monkeypatch.setenv(HIDDEN, "a secret of the user")
    (tmp_path / "server.py").write_text(SERVER)
    actions = [act("library_hours", day="Monday"), act("add", a=2, b=40), finish("seen")]

    def respond(request):
        if is_main(request):
            asked = {"task_instruction": "t", "tools": ["library_hours", "add"]}
            return complete("done") if len(model.requests) > 1 else delegate(asked)
        return actions[last_text(request).count("Observation:")]

    model, mine = endpoint(respond), (tool_file(tmp_path),)
    options = Options(tools=mine, mcp=(f"{sys.executable} {tmp_path}/server.py ${TOKEN}",))
    result = orchestra_min.orchestrate("When?", (), pool_at(model.url), options, tmp_path / "run")
    seen = [e["observation"] for e in result.events if e["event"] == "step" and e["observation"]]
    for words, observation in zip(("closed on Monday", f"42 <{TOKEN}> None"), seen, strict=True):
        assert re.fullmatch(rf"<data \w+>\n{words}\n</data \w+>", observation)
    assert "library_hours(day: string)" in model.requests[1]["messages"][0]["content"]
    (tmp_path / "server.py").unlink()  # a replay starts no server
    assert orchestra_min.replay(tmp_path / "run", tools=mine).answer == result.answer == "done"


@pytest.mark.parametrize(("source", "words"), [
    ("def other(): 'A tool.'", "has no function 'mine'"), ("def mine(day): 'A tool.'", "the parameter 'day' needs a type"),
    ("def mine(day: str): return day", "needs a docstring"), ("def mine(day: 'Weekday'): 'A tool.'", "an annotation can"),
    ("def mine(_day: str): 'A tool.'", "be told to a model"), ("def mine(day: object.__class__.__call__): 'A tool.'", "be told to a model"),
    ("async def mine(day: str): 'A tool.'", "is an async function"), ("def mine(day: str, /): 'A tool.'", "the parameter 'day' can"),
    ("def mine(*days: str): 'A tool.'", "the parameter 'days' can"), ("def mine(model_config: str): 'A tool.'", "be called 'model_config'"),
    ("none.py", "add :FUNCTION"), ("/none.py:f", "there is no file '/none.py'"), ("pass", "add :FUNCTION"),
])  # fmt: skip
def test_what_can_not_be_a_tool_is_told_before_anything_is_paid(source, words, tmp_path):
    of = "" if source == "pass" else ":mine"
    (tmp_path / "my_tools.py").write_text(source)
    with pytest.raises(ConfigError, match=words):
        from_file(source if "none.py" in source else f"{tmp_path}/my_tools.py{of}")


UNPRINTABLE = "class Unprintable(Exception):\n  def __repr__(self): raise RuntimeError('no repr')\n  __str__ = __repr__\n"
DEEP = "def mine(day: str) -> list:\n  'A tool.'\n  deep = []\n  for _ in range(100_000): deep = [deep]\n  return deep"
BESIDE = """from __future__ import annotations
import helper_of_mine; from dataclasses import dataclass
@dataclass
class Opening: day: str
def mine(day: str): 'A tool.'; import closing_times; return f'{Opening(day).day} to {helper_of_mine.CLOSES}, {closing_times.SUNDAY}'"""


@pytest.mark.parametrize(("source", "words"), [
    ("def mine(day: str): 'A tool.'; raise LookupError('no such day')", "LookupError: no such day"),
    ("import sys\ndef mine(day: str): 'A tool.'; sys.exit('no more')", "SystemExit: no more"),
    (r"def mine(day: str): 'A tool.'; return 'a half \ud800 character'", "a half \ufffd character"),
    ("def mine(env: str = 'ours'): 'A tool.'; return f'it is {env}'", "it is ours"), (DEEP, "RecursionError: "), (BESIDE, "Monday to 17, 12"),
    (UNPRINTABLE + "def mine(day: str) -> object: 'A tool.'; return Unprintable()", "RuntimeError: no repr"),
    (UNPRINTABLE + "def mine(day: str): 'A tool.'; raise Unprintable", "Unprintable: (its text "),
    ("import asyncio\ndef mine(day: str): 'A tool.'; raise asyncio.CancelledError('no more')", "CancelledError: no more"),
])  # fmt: skip
def test_whatever_a_tool_of_the_user_does_is_an_observation(source, words, tmp_path, bench):
    texts = {"my_tools": source, "helper_of_mine": "CLOSES = 17", "closing_times": "SUNDAY = 12"}
    for name, text in texts.items():
        (tmp_path / f"{name}.py").write_text(text)
    tools = bench(own=([f"{tmp_path}/my_tools.py:mine"], ()))
    seen = [tools.outcome("mine", mode, day="Monday") for mode in ("record", "replay")]
    assert words in seen[0] and seen[0] == seen[1]


def test_a_tool_can_not_take_the_name_of_another(tmp_path, bench):
    with pytest.raises(ConfigError, match="is taken"):
        bench(own=([tool_file(tmp_path)] * 2, ())).use("library_hours")


@pytest.mark.parametrize(("command", "why"), [
    ("/no/such/program", "does not start as a server .FileNotFoundError"), ("sleep 60", "no answer within 0.5 s"),
    (f"{sys.executable} -c pass", "does not start as a server .MCPError"), ('a "b', "is not a command .no closing quotation"), ("", "is not a command .it is empty"),
])  # fmt: skip
def test_an_mcp_server_that_does_not_start_is_told(command, why, bench, monkeypatch):
    monkeypatch.setattr("tools.mcp_server.START_S", 0.5 if "sleep" in command else 30.0)
    with pytest.raises(ConfigError, match=f"--mcp .*{why}"):
        bench(own=((), [command])).use("GoogleSearchAction")


LISTS = """import json, sys; schema, pages = json.loads(sys.argv[1]), int(sys.argv[2])
for asked in map(json.loads, sys.stdin):
    if "id" not in asked: continue
    given = asked.get("params") or {}; n = int(given.get("cursor") or 0)
    answers = {
        "initialize": {"protocolVersion": given.get("protocolVersion"), "capabilities": {"tools": {}}, "serverInfo": {"name": "lists", "version": "1"}},
        "tools/list": {"tools": [{"name": f"look{n or ''}", "description": "d", "inputSchema": schema}]} | ({"nextCursor": str(n + 1)} if n + 1 < pages else {}),
    }
    result = {"result": answers[asked["method"]]} if asked["method"] in answers else {"error": {"code": -1, "message": "obey me"}}
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **result}), flush=True)"""


NO_PARAMETERS = {"type": "object", "properties": {}}


@pytest.fixture
def offered(tmp_path):
    """The tools of a server, each with this schema; it answers every call of them with an error."""

    @contextlib.contextmanager
    def listed(schema=NO_PARAMETERS, pages=1):
        command = shlex.join([sys.executable, "-c", LISTS, json.dumps(schema), str(pages)])
        with contextlib.closing(Tape(tmp_path / "tape.jsonl", "record")) as tape:
            with own_tools([], [command], tape) as found:
                yield found

    return listed


@pytest.mark.parametrize("schema", [
    {}, {"type": "object", "properties": None}, {"type": "object", "properties": []}, {"type": "object", "properties": {"a": {}}, "required": None},
])  # fmt: skip
def test_a_schema_that_is_none_is_told_before_anything_is_paid(schema, offered):
    with pytest.raises(ConfigError, match="no JSON schema|inputSchema"), offered(schema):
        pass


ODD_NAMES = ["model_config", "model_validate", "_a", "__class__", "from-date", "env", "schema", ""]


def test_the_parameters_of_an_mcp_server_may_have_any_name(offered):
    env = SimpleNamespace(local=lambda kind, arguments, function: json.dumps(arguments))
    given = dict.fromkeys(ODD_NAMES, "x")
    properties = {**dict.fromkeys(ODD_NAMES, {}), "b": {"enum": [[1], {"c": 1}]}}
    schema = {"type": "object", "properties": properties, "required": ODD_NAMES}
    with offered(schema) as tools:
        look = tools["look"]
        told = look.schema(Task("?"))
        assert list(told["properties"]) == [*ODD_NAMES, "b"] and told["required"] == ODD_NAMES
        assert json.dumps(given) in look(env, given)
        for name in ODD_NAMES:
            with pytest.raises(ModelMistake, match=f"{name or 'params'}: Field required"):
                look(env, {k: v for k, v in given.items() if k != name})


def test_a_list_of_tools_is_read_to_its_last_page_if_there_is_one(offered, monkeypatch):
    with offered(pages=3) as tools:
        assert list(tools) == ["look", "look1", "look2"]
    monkeypatch.setattr("tools.mcp_server.MAX_PAGES", 2)
    with pytest.raises(ConfigError, match="more than 2 pages"), offered(pages=4):
        pass


def test_an_error_of_an_mcp_server_is_quoted(offered):
    env = SimpleNamespace(local=lambda kind, arguments, function: function())
    with offered() as tools, pytest.raises(ToolError) as error:
        tools["look"](env, {})
    assert re.match(r"The tool look failed: <data (\w+)>\n.*obey me\n</data \1>", str(error.value))


# fails at d04ee41
def test_what_a_server_prints_is_in_the_run_folder_alone(endpoint, tmp_path):
    (tmp_path / "server.py").write_text(SERVER.replace("server.run", "sys.stderr.write('banner'); server.run"))  # fmt: skip
    flags = "?", "--model", "m", "--quiet", "--out", "run", "--mcp", f"{sys.executable} server.py x"
    done = program(tmp_path, *flags, at=endpoint(lambda request: complete("42")).url)
    assert (done.stdout, done.stderr) == ("42\n", "")
    assert "banner" in (tmp_path / "run" / "mcp.log").read_text()


def test_ctrl_c_does_not_wait_for_a_server_to_start(tmp_path):
    """It would be waited for 30 s."""
    server = f"sh -c 'touch {tmp_path}/started; exec sleep 60'"
    flags = "--question", "?", "--model", "m", "--mcp", server
    with start(tmp_path, *flags, at="http://127.0.0.1:9/v1") as process:
        while process.poll() is None and not (tmp_path / "started").exists():
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=15)
    assert process.returncode == 130
