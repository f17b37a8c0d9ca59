"""The tools of an MCP server, through the official `mcp` package: a command that the run starts, or
the URL of a running server. A replay needs neither: run.json has the list of tools, and the tape
has every answer. A command gets only the environment variables that `mcp` passes on.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
import shlex
import tempfile
import threading
from collections.abc import Callable, Set
from functools import partial
from pathlib import Path
from typing import Any

from orchestra import install
from orchestra.kernel.depends import anew, digest_of, digest_of_files
from orchestra.kernel.placing import OF_USER
from orchestra.kernel.prompts import fenced, say
from orchestra.kernel.tape import Redact
from orchestra.kernel.tool import Environment, Tool
from orchestra.kernel.vocabulary import ConfigError, ToolError
from orchestra.tools.python_function import one_line, recorded
from orchestra.tools.schemas import without_refs

TIMEOUT_S = 60.0  # for an answer
STARTS = 2  # in one run
ROUNDS = 200_000  # of the hash of its command
MAX_PAGES = 100  # of the list of its tools
# Errors of an HTTP server that was restarted.
LOST = ("Session terminated", "Session not found")
NOTES = "tools/notes"

Ask = Callable[..., Any]  # ask(method, **arguments): one request over a connection
Row = dict[str, Any]  # a tool of a server: server, name, description, input_schema


class Server:
    """An MCP server, started or connected to by the first request. `running` ends it: its close(),
    because the stack itself would suppress exceptions of its block.
    """

    def __init__(
        self, command: str, log: Path, redact: Redact, running: contextlib.ExitStack
    ) -> None:
        """`log` gets what it prints to standard error, without keys, if the folder of that is there
        at the end: a run folder is made after its tools are known.
        """
        self.command = command
        self.redact = redact
        self.name = "mcp"
        self.program = ""  # a digest of what was started
        self.version = ""
        self.listed: list[Row] = []
        self._running = running
        folder = running.enter_context(tempfile.TemporaryDirectory())
        self._printed = Path(folder, "printed")
        running.callback(self._keep_log, log)  # when it has ended
        self._lock = threading.Lock()
        self._ask: Ask | None = None
        self._starts = 0

    def _text_printed(self) -> str:
        if not self._printed.exists():
            return ""
        return self.redact(self._printed.read_text("utf-8", "replace"))

    def _keep_log(self, log: Path) -> None:
        text = self._text_printed()
        if text and log.parent.is_dir():
            with log.open("a", encoding="utf-8") as file:
                file.write(text)

    def ask(self, method: str, **arguments: Any) -> Any:
        """Sends a request, from any thread; after a crash it is repeated."""
        from mcp import MCPError
        from mcp_types import CONNECTION_CLOSED

        ask = self._connected()
        try:
            return ask(method, **arguments)
        except MCPError as error:
            if error.code != CONNECTION_CLOSED and error.message not in LOST:
                raise
        return self._connected(crashed=ask)(method, **arguments)

    def _connected(self, crashed: Ask | None = None) -> Ask:
        """The connection, a new one if the last is the one that crashed. After STARTS it stays."""
        with self._lock:
            if self._ask is None or (self._ask is crashed and self._starts < STARTS):
                self._ask = self._start()
                self._starts += 1
            return self._ask

    def _start(self) -> Ask:
        from anyio.from_thread import start_blocking_portal
        from mcp import Client

        logging.getLogger("mcp").setLevel(logging.CRITICAL)  # it logs tracebacks
        enter = self._running.enter_context
        self.program = _program(self.command)
        server = self._transport()
        portal = enter(start_blocking_portal())
        # `mcp` does not document the errors of a lost connection.
        enter(contextlib.suppress(Exception))
        connected = Client(server, read_timeout_seconds=TIMEOUT_S)
        client = enter(portal.wrap_async_context_manager(connected))
        # Otherwise the first call would list the tools, after its answer.
        portal.call(client.list_tools)
        if client.server_info:
            self.name = client.server_info.name
            self.version = client.server_info.version

        def ask(method: str, **arguments: Any) -> Any:
            return portal.call(partial(getattr(client, method), **arguments))

        return ask

    def _transport(self) -> Any:
        """The URL of the server, or its command with the variables that it names filled in."""
        from mcp import StdioServerParameters
        from mcp.client.stdio import stdio_client

        url = os.path.expandvars(self.command)
        if url.startswith(("http://", "https://")):
            return url
        words = [os.path.expandvars(word) for word in shlex.split(self.command)]
        program, *arguments = words or [""]
        errors = self._running.enter_context(self._printed.open("a"))
        parameters = StdioServerParameters(command=program, args=arguments)
        return stdio_client(parameters, errlog=errors)

    def tools(self, listed: list[Row] | None, taken: Set[str]) -> dict[str, Tool]:
        """Its tools, as it lists them or as it is `listed` in run.json, under names that are not
        `taken`. Raises ConfigError if they cannot be used.
        """
        flag = f"--mcp {self.command}"
        try:
            self.listed = self._rows() if listed is None else listed
            tools: dict[str, Tool] = {}
            for row in self.listed:
                made = _tool(row, self, taken | tools.keys())
                tools[made.name] = made
            return tools
        except KeyboardInterrupt as stop:
            # Cancels the start instead of waiting for it.
            self._running.__exit__(type(stop), stop, None)
            raise
        except ImportError:
            raise ConfigError(f"{flag}: needs mcp: {install('tools')}") from None
        # Errors come from four libraries, which do not document them.
        except Exception as error:
            last_line = self._text_printed().splitlines()[-1:]
            reason = "; ".join([self.redact(one_line(error))[:300], *last_line])[:600]
            raise ConfigError(f"{flag}: its tools cannot be used ({reason})") from None

    def identity(self) -> str:
        """A digest of its command, the files that this names, its version and its tools."""
        with contextlib.suppress(Exception):  # a call will tell
            self._connected()
        return digest_of(self.program, self.version, json.dumps(self.listed))

    def _rows(self) -> list[Row]:
        page = self.ask("list_tools")
        found = list(page.tools)
        cursors: set[str] = set()
        while page.next_cursor:
            if page.next_cursor in cursors or len(cursors) == MAX_PAGES:
                problem = "its list of tools does not end: page after page, cursor"
                raise ValueError(f"{problem} {page.next_cursor[:40]!r}")
            cursors.add(page.next_cursor)
            page = self.ask("list_tools", cursor=page.next_cursor)
            found += page.tools
        kept = {"name", "description", "input_schema"}
        dumps = [tool.model_dump(include=kept) for tool in found]
        return [{"server": self.name, **dump} for dump in dumps]

    def call(self, tool: str, arguments: dict[str, Any]) -> str:
        """The answer of a tool as text. Raises ToolError."""
        answer = self.ask("call_tool", name=tool, arguments=arguments)
        text = "\n".join(_text(part) for part in answer.content)
        structured = answer.structured_content
        if structured is not None and "text" not in {p.type for p in answer.content}:
            text += json.dumps(structured, ensure_ascii=False)
        if answer.is_error:
            raise ToolError(say(NOTES, "own_failed", tool=tool, reason=fenced(text)))
        return text


def _program(command: str) -> str:
    """A digest of a command, of the files that it names or that `python -m` finds, and of the
    Python files beside them. What a server finds in a folder cannot be known.
    """
    words = shlex.split(os.path.expandvars(command))
    named = [*words, *(word.partition("=")[2] for word in words)]
    for flag, module in zip(words, words[1:], strict=False):
        if flag == "-m":
            place = module.replace(".", "/")
            named += [f"{place}.py", f"{place}/__main__.py"]
    paths = [Path(name) for name in named if name]
    if any(path.is_dir() for path in paths):
        return anew()
    files = [path for path in paths if path.is_file()]
    beside = [other for file in files for other in file.parent.glob("*.py")]
    # A slow hash, since a variable in the command may be a key: nobody can try them all.
    secret = hashlib.pbkdf2_hmac("sha256", "\0".join(words).encode(), b"", ROUNDS)
    return digest_of(secret.hex(), digest_of_files(sorted({*files, *beside})))


def _text(part: Any) -> str:
    """The text of one part of an answer, or its fields as JSON without binary data."""
    content = getattr(part, "resource", part)
    fields = content.model_dump(mode="json", exclude_none=True)
    for name in fields.keys() & {"data", "blob"}:
        base64_chars = len(fields[name].rstrip("="))
        fields[name] = say(NOTES, "mcp_data", bytes=base64_chars * 3 // 4)
    if "text" in fields:
        return str(fields["text"])
    return json.dumps(fields, ensure_ascii=False)


def _tool(row: Row, server: Server, taken: Set[str]) -> Tool:
    """A tool of a server. Raises SchemaError if its parameters have no valid schema."""
    from jsonschema import Draft202012Validator, FormatChecker
    from jsonschema.validators import validator_for

    schema = row["input_schema"]
    validator = validator_for(schema, default=Draft202012Validator)
    # No formats: a regular expression of JavaScript may be invalid in Python.
    validator.check_schema(schema, format_checker=FormatChecker(()))
    inputs = without_refs(schema)
    name = _free_name(row, taken)
    signature = json.dumps(inputs, ensure_ascii=False)
    purpose = " ".join((row["description"] or "").split())

    def call(env: Environment, arguments: dict[str, Any]) -> str:
        run = partial(server.call, row["name"], arguments)
        return recorded(env, name, arguments, run)

    return Tool(
        name=name,
        capabilities=frozenset({OF_USER}),
        inputs=inputs,
        signature=signature,
        manual=f"{name}\n    {purpose}\n    parameters: {signature}",
        check=partial(_arguments, validator(inputs)),
        function=call,
        depends_on=lambda task: server.identity(),
    )


def _free_name(row: Row, taken: Set[str]) -> str:
    """The name of a tool; if that is taken, with the name of the server before it."""
    name = re.sub(r"[^\w./-]+", "_", row["name"])[:100]
    while name in taken:
        name = re.sub(r"\W+", "_", f"{row['server']}_{name}")
    return name


def _arguments(validator: Any, params: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call, without null for optional parameters. Raises ValueError for what the
    schema forbids, as far as Python can check it; the server checks the rest.
    """
    from jsonschema.exceptions import best_match

    required = validator.schema.get("required", ())
    given = {n: v for n, v in params.items() if v is not None or n in required}
    # An error in the middle is one of a pattern that Python cannot read, or of a huge number.
    with contextlib.suppress(re.error, OverflowError):
        errors = validator.iter_errors(given)
        best = [
            best_match([e]) for e in errors if e.validator != "multipleOf"
        ]  # inexact
        problems = "; ".join(f"{e.json_path}: {e.message[:200]}" for e in best)
        if problems:
            raise ValueError(problems)
    return {"arguments": given}
