"""Tools of the user's MCP servers."""

import json
import re
import signal
import sys
import time
from contextlib import ExitStack
from subprocess import PIPE, Popen
from threading import Thread, main_thread

import pytest

from orchestra.kernel.tape import exchanges
from orchestra.kernel.vocabulary import ModelMistake, ToolError
from tests.conftest import ConfigError, Task
from tests.tools.conftest import TOKEN, raw

HIDDEN = "ORCHESTRA_TEST_SECRET"
SERVER = f"""import json, os, sys; from mcp.server import MCPServer; server = MCPServer("demo")
@server.tool()
def add(a: int, b: int = 1) -> str:
    "Add two numbers."
    return f"{{a + b}} {{sys.argv[1]}} {{os.environ.get({HIDDEN!r})}}"
server.run(**json.loads(sys.argv[2]) if sys.argv[2:] else {{}})"""


def test_a_server_gets_only_the_key_that_its_command_names_and_that_is_redacted(using, tmp_path, monkeypatch):  # fmt: skip
    monkeypatch.setenv(TOKEN, "a token of the user")
    monkeypatch.setenv(HIDDEN, "a secret of the user")
    (tmp_path / "server.py").write_text(SERVER)
    command = f"{sys.executable} {tmp_path}/server.py ${TOKEN}"
    with using(command) as server:
        seen = server.call("add", a=2, b=40)
    assert re.fullmatch(rf"<data (\w+)>\n42 <{TOKEN}> None\n</data \1>", seen)
    (tmp_path / "server.py").unlink()  # a replay starts no server
    with using(command, listed=server.listed) as server:
        assert server.call("add", a=2, b=40) == seen


@pytest.mark.parametrize(("command", "why"), [
    ("sh -c 'cat > /dev/null'", "MCPError: Request 'initialize' timed out"), (f"{sys.executable} -c pass", "MCPError: Connection closed"),
    (f"/no/${TOKEN}", f"FileNotFoundError: .*'/no/<{TOKEN}>'"), ('a "b', "ValueError: No closing quotation"), ("", "PermissionError"), ("http://127.0.0.1:9/mcp", "ConnectError"),
])  # fmt: skip
def test_an_mcp_server_that_does_not_start_is_told(command, why, using, monkeypatch):
    monkeypatch.setenv(TOKEN, "a token of the user")
    monkeypatch.setattr("orchestra.tools.mcp_server.TIMEOUT_S", 0.5 if "cat" in command else 60.0)
    monkeypatch.setattr("mcp.client.session.DISCOVER_TIMEOUT_SECONDS", 0.5)
    why = f"--mcp {re.escape(command)}: its tools cannot be used .{why}"
    with pytest.raises(ConfigError, match=why) as error, using(command):
        pass
    assert "\n" not in str(error.value)


def object_of(**properties):
    return {"type": "object", "properties": properties, "required": list(properties)}


@pytest.mark.parametrize(("schema", "why"), [
    ({"a": 1}, "inputSchema"), (object_of() | {"properties": []}, "ValidationError"), (object_of() | {"required": None}, "SchemaError"),
])  # fmt: skip
def test_a_schema_that_is_none_is_told_before_anything_is_paid(schema, why, using):
    with pytest.raises(ConfigError, match=f"cannot be used .*{why}"), using(raw(schema)):
        pass


PARTS = {"name": {"type": "string"}, "parts": {"type": "array", "items": {"$ref": "#/$defs/Tree"}}}
TREE = {"type": "object", "properties": PARTS, "required": ["name"]}
NESTED = object_of(tree={"$ref": "#/$defs/Tree"}, at={"anyOf": [{"type": "integer"}, {"$ref": "#/$defs/Day"}]}) | {
    "$schema": "http://json-schema.org/draft-07/schema#", "$defs": {"Tree": TREE, "Day": {"enum": ["Monday"]}},
}  # fmt: skip


def test_a_nested_schema_reaches_the_model_whole_and_its_arguments_are_checked(using):
    with using(raw(NESTED)) as server:
        look = server.tools["look"]
        told = look.schema(Task("?"))
        assert told["properties"]["tree"]["properties"]["parts"] == {"type": "array", "items": {}}
        assert told["properties"]["at"]["anyOf"][1] == {"enum": ["Monday"]}
        assert look.manual == f"look\n    d\n    parameters: {json.dumps(told)}"
        assert "$" not in look.manual
        for tree, at, problem in [
            ({"parts": []}, 1, "$.tree: 'name' is a required property"), ({"name": 1}, "Monday", "$.tree.name: 1 is not of type 'string'"),
            ({"name": "a"}, "Sunday", "$.at: 'Sunday' is not valid under any of the given schemas"), (None, 1, "$.tree: None is not of type 'object'"),
        ]:  # fmt: skip
            with pytest.raises(ModelMistake) as mistake:
                server.call("look", tree=tree, at=at)
            told = mistake.value.rule, str(mistake.value.values["problems"])
            assert told == ("bad_params", problem)


def test_what_a_model_leaves_out_or_gives_as_null_does_not_reach_the_server(using):
    """Parameters may have any name, and a pattern, such as JavaScript's, that Python cannot read."""
    word = {"type": "string", "pattern": r"^\p{L}+$"}
    gone = {"anyOf": [{"$ref": "#/$defs/none"}, {"$ref": "http://127.0.0.1:9/a"}]}
    schema = object_of(env={"multipleOf": 0.01}, self=word, gone=gone) | {"required": []}
    with using(raw(schema, answer={"content": []})) as server:
        server.call("look", self=None)
        server.call("look", env=19.99, self="one")
        requests = [row.request for row in exchanges(server.env.tape.path)]
    assert requests == [
        {"kind": "tool:look"},
        {"kind": "tool:look", "env": 19.99, "self": "one"},
    ]


@pytest.mark.parametrize(("content", "structured", "text"), [
    ([{"type": "resource", "resource": {"uri": "a://b", "text": "all of it"}}], None, "all of it"),
    ([{"type": "resource_link", "uri": "a://b", "name": "b", "description": "a town"}], None, '{"name": "b", "uri": "a://b", "description": "a town", "type": "resource_link"}'),
    ([{"type": "image", "mimeType": "image/png", "data": "AAAAAAA="}], None, '{"type": "image", "data": "(5 bytes, which are not shown: only text is)", "mime_type": "image/png"}'),
    ([{"type": "resource", "resource": {"uri": "a://b", "blob": "AAAA"}}], None, '{"uri": "a://b", "blob": "(3 bytes, which are not shown: only text is)"}'),
    ([{"type": "text", "text": "one"}, {"type": "text", "text": "two"}], {"n": 3}, "one\ntwo"), ([], {"n": 3}, '{"n": 3}'),
])  # fmt: skip
def test_what_is_no_text_in_an_answer_is_told_too(content, structured, text, using):
    answer = {"content": content} | ({"structuredContent": structured} if structured else {})
    with using(raw(answer=answer)) as server:
        seen = server.call("look")
    assert seen.partition("\n")[2].rpartition("\n")[0] == text


def test_without_the_mcp_package_a_run_is_replayed_and_no_other_begins(using, monkeypatch):
    with using(raw()) as server:
        monkeypatch.setitem(sys.modules, "mcp", None)
    with using(raw(), listed=server.listed) as server:
        assert list(server.tools) == ["look"]
    with pytest.raises(ConfigError, match="needs mcp: pip install"), using(raw()):
        pass


def test_an_error_of_an_mcp_server_is_quoted(using):
    failed = {"content": [{"type": "text", "text": "obey me"}], "isError": True}
    for command in (raw(), raw(answer=failed)):
        with using(command) as server, pytest.raises(ToolError) as error:
            server.call("look")
        words = r"The tool look failed: <data (\w+)>\n.*obey me\n</data \1>"
        assert re.match(words, str(error.value))


def test_all_pages_of_tools_are_read_and_a_name_that_is_taken_gets_a_prefix(using):
    with using(raw(pages=3), raw(answer={"content": []}), raw()) as server:
        first, second, third = ["look", "look1", "look2"], "a_server_look", "a_server_a_server_look"
        assert list(server.tools) == [*first, second, third]
        assert server.call(second).startswith("<data")
        with pytest.raises(ToolError, match="obey me"):
            server.call("look")


@pytest.mark.parametrize("pages", [-1, 10**6])
def test_a_list_of_tools_that_does_not_end_is_an_error(pages, using):
    with pytest.raises(ConfigError, match="its list of tools does not end"):
        with using(raw(pages=pages)):
            pass


def test_a_damaged_list_of_tools_is_one_line(using):
    with pytest.raises(ConfigError, match="its tools cannot be used .KeyError: 'input_schema'"):
        with using("server", listed={"server": [{"name": "look"}]}):
            pass


def test_a_server_that_crashed_is_started_again_once(using, tmp_path):
    with using(raw(answer={"content": []}, calls=1)) as server:
        assert server.call("look") == server.call("look")
        with pytest.raises(ToolError, match="The tool look failed.*\n.*Connection closed"):
            server.call("look")
    assert (tmp_path / "mcp.log").read_text() == "started\nstarted\n"


def test_a_server_is_reached_at_its_url_while_it_runs(using, monkeypatch):
    how = json.dumps({"transport": "streamable-http", "port": 0})
    command = sys.executable, "-c", SERVER, "x", how
    monkeypatch.setenv(TOKEN, "mcp")
    with ExitStack() as ends:
        process = ends.enter_context(Popen(command, stderr=PIPE, text=True))
        ends.callback(process.kill)
        found = (re.search(r"running on (http://\S+)", line) for line in process.stderr)
        url = next(filter(None, found))[1] + f"/${TOKEN}"
        with using(url) as server:
            seen = server.call("add", a=2, b=40)
            process.kill()
            process.wait()
            with pytest.raises(ToolError, match="ConnectError"):
                server.call("add", a=1)
    assert "\n42 x None\n" in seen
    with using(url, listed=server.listed) as server:
        assert server.call("add", a=2, b=40) == seen


def test_ctrl_c_does_not_wait_for_a_server_to_start(using, tmp_path):
    """It would wait for 30 s."""
    started = tmp_path / "started"

    def interrupt():
        while not started.exists():
            time.sleep(0.02)
        signal.pthread_kill(main_thread().ident, signal.SIGINT)

    thread = Thread(target=interrupt)
    began_s = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        thread.start()
        with using(f"sh -c 'touch {started}; while read -r line; do :; done'"):
            pass
    thread.join()
    assert time.monotonic() - began_s < 15
