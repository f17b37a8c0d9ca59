"""The tools of an MCP server, through the official `mcp` package: a command that the run starts, or
the URL of a running server. A replay needs neither: the list of tools and every answer are on the
tape. A command gets only the environment variables that `mcp` passes on.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import shlex
import threading
from collections.abc import Callable, Iterator, Set
from functools import partial
from pathlib import Path
from typing import Any

from typing_extensions import TypedDict

from orchestra.matching import OF_USER
from orchestra.runtime.prompts import fenced, say
from orchestra.runtime.secrets import Secrets
from orchestra.runtime.tape import Tape
from orchestra.runtime.user_code import one_line
from orchestra.tool_schema import without_refs
from orchestra.toolkit import Environment, Tool, ToolError
from orchestra.tools.python_function import recorded
from orchestra.vocabulary import ConfigError

TIMEOUT_S = 60.0  # for an answer
STARTS = 2  # in one run
# Errors of an HTTP server that was restarted.
LOST = ("Session terminated", "Session not found")
NOTES = "tools/notes"

Ask = Callable[..., Any]  # ask(method, **arguments): one request over a connection


class Server:
    """An MCP server, started or connected to by the first request; `running` ends it."""

    def __init__(self, command: str, log: Path, running: contextlib.ExitStack) -> None:
        self.command = command
        self.log = log
        self.name = "mcp"
        self._running = running
        self._lock = threading.Lock()
        self._ask: Ask | None = None
        self._starts = 0

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
        program, *arguments = words if words else [""]
        errors = self._running.enter_context(self.log.open("a", encoding="utf-8"))
        parameters = StdioServerParameters(command=program, args=arguments)
        return stdio_client(parameters, errlog=errors)

    def rows(self) -> list[dict[str, Any]]:
        """Its tools, for the tape."""
        page = self.ask("list_tools")
        found = list(page.tools)
        while page.next_cursor:
            page = self.ask("list_tools", cursor=page.next_cursor)
            found += page.tools
        kept = {"name", "description", "input_schema"}
        dumps = [tool.model_dump(include=kept) for tool in found]
        return [{"server": self.name, **dump} for dump in dumps]

    def call(self, tool: str, arguments: dict[str, Any]) -> str:
        """The answer of a tool as text. Raises ToolError."""
        answer = self.ask("call_tool", name=tool, arguments=arguments)
        texts = [_text(part) for part in answer.content]
        has_text = any(part.type == "text" for part in answer.content)
        if answer.structured_content is not None and not has_text:
            texts.append(json.dumps(answer.structured_content, ensure_ascii=False))
        text = "\n".join(texts)
        if answer.is_error:
            raise ToolError(say(NOTES, "own_failed", tool=tool, reason=fenced(text)))
        return text


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


class ToolRow(TypedDict):
    """A tool of a server on the tape."""

    server: str
    name: str
    description: str | None
    input_schema: dict[str, Any]


@contextlib.contextmanager
def serving(
    command: str, tape: Tape, log: Path, taken: Set[str]
) -> Iterator[dict[str, Tool]]:
    """The tools of a server, under names that are not `taken`. Raises ConfigError if they cannot be
    used.
    """
    # The stack itself would suppress exceptions of the block; its close() does not get them.
    with contextlib.closing(contextlib.ExitStack()) as running:
        running.callback(_redact, log, tape.secrets)  # runs when the server has ended
        server = Server(command, log, running)
        try:
            tools = _tools(server, tape, taken)
        except KeyboardInterrupt as stop:
            # Cancels the start instead of waiting for it.
            running.__exit__(type(stop), stop, None)
            raise
        except ImportError:
            raise ConfigError(
                f"--mcp {command}: needs pip install '.[tools]'"
            ) from None
        # Errors come from four libraries, which do not document them.
        except Exception as error:
            reason = tape.secrets.text(_reason(error, log))
            raise ConfigError(
                f"--mcp {command}: its tools cannot be used ({reason})"
            ) from None
        yield tools


def _tools(server: Server, tape: Tape, taken: Set[str]) -> dict[str, Tool]:
    """The tools of a server, which a replay lists from the tape."""
    request = {"command": server.command}
    with tape.call("mcp"):
        rows = tape.value("mcp_tools", request, server.rows, list[ToolRow])
    tools: dict[str, Tool] = {}
    for row in rows:
        made = _tool(row, server, taken | tools.keys())
        tools[made.name] = made
    return tools


def _reason(error: Exception, log: Path) -> str:
    """An error in one line, with the last line that the server printed."""
    printed: list[str] = []
    if log.exists():
        printed = log.read_text("utf-8", "replace").splitlines()
    return "; ".join([one_line(error)[:300], *printed[-1:]])[:600]


def _redact(log: Path, secrets: Secrets) -> None:
    """Removes keys that a server printed."""
    if log.exists():
        log.write_text(secrets.text(log.read_text("utf-8", "replace")), "utf-8")


def _tool(row: ToolRow, server: Server, taken: Set[str]) -> Tool:
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

    def call(env: Environment, arguments: dict[str, Any]) -> str:
        run = partial(server.call, row["name"], arguments)
        return recorded(env, name, arguments, run)

    return Tool(
        name=name,
        capabilities=frozenset({OF_USER}),
        inputs=inputs,
        signature=signature,
        manual=_manual(name, row["description"], signature),
        check=partial(_arguments, validator(inputs)),
        function=call,
    )


def _free_name(row: ToolRow, taken: Set[str]) -> str:
    """The name of a tool; if that is taken, with the name of the server before it."""
    name = re.sub(r"[^\w./-]+", "_", row["name"])[:100]
    while name in taken:
        name = re.sub(r"\W+", "_", f"{row['server']}_{name}")
    return name


def _manual(name: str, description: str | None, signature: str) -> str:
    """The description for a model, like that of the shipped tools."""
    purpose = "" if description is None else " ".join(description.split())
    return f"{name}\n    {purpose}\n    parameters: {signature}"


def _arguments(validator: Any, params: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call, without null for optional parameters. Raises ValueError."""
    required = validator.schema.get("required", ())
    given = {
        name: value
        for name, value in params.items()
        if value is not None or name in required
    }
    problems = _problems(validator, given)
    if problems:
        raise ValueError("; ".join(problems))
    return {"arguments": given}


def _problems(validator: Any, arguments: dict[str, Any]) -> list[str]:
    """What the schema forbids, as far as Python can check it; the server checks the rest."""
    from jsonschema.exceptions import best_match

    problems: list[str] = []
    # An error in the middle is one of a pattern that Python cannot read, or of a huge number.
    try:
        for error in validator.iter_errors(arguments):
            if error.validator == "multipleOf":  # floats are inexact
                continue
            best = best_match([error])
            problems.append(f"{best.json_path}: {best.message[:200]}")
    except (re.error, OverflowError):
        return []
    return problems
