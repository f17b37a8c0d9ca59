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

from orchestra.runtime.prompts import fenced, say
from orchestra.runtime.secrets import Secrets
from orchestra.runtime.tape import Tape
from orchestra.runtime.user_code import one_line
from orchestra.tool_schema import without_refs
from orchestra.toolkit import Environment, Tool, ToolError
from orchestra.tools.python_function import CAPABILITY, recorded
from orchestra.vocabulary import ConfigError

TIMEOUT_S = 60.0  # for an answer
STARTS = 2  # in one run
LOST = (
    "Session terminated",
    "Session not found",
)  # errors of an HTTP server that was restarted
NOTES = "tools/notes"


class Server:
    """An MCP server, started or connected to by the first request; `running` ends it."""

    def __init__(self, command: str, log: Path, running: contextlib.ExitStack) -> None:
        self.command, self.log, self._running = command, log, running
        self.name = "mcp"
        self._lock = threading.Lock()
        self._connections: list[Any] = [None]

    def ask(self, method: str, **arguments: Any) -> Any:
        """Sends a request, from any thread; after a crash it is repeated."""
        from mcp import MCPError
        from mcp_types import CONNECTION_CLOSED

        ask = self._connection()
        try:
            return ask(method, **arguments)
        except MCPError as error:
            if error.code != CONNECTION_CLOSED and error.message not in LOST:
                raise
        return self._connection(crashed=ask)(method, **arguments)

    def _connection(self, crashed: Any = None) -> Any:
        with self._lock:
            if self._connections[-1] is crashed and len(self._connections) <= STARTS:
                self._connections.append(self._start())
            return self._connections[-1]

    def _start(self) -> Callable[..., Any]:
        from anyio.from_thread import start_blocking_portal
        from mcp import Client, StdioServerParameters
        from mcp.client.stdio import stdio_client

        logging.getLogger("mcp").setLevel(logging.CRITICAL)  # it logs tracebacks
        start = self._running.enter_context
        server: Any = os.path.expandvars(self.command)
        if not server.startswith(("http://", "https://")):
            program, *rest = map(os.path.expandvars, shlex.split(self.command) or [""])
            errors = start(self.log.open("a", encoding="utf-8"))
            server = stdio_client(
                StdioServerParameters(command=program, args=rest), errlog=errors
            )
        portal = start(start_blocking_portal())
        start(
            contextlib.suppress(Exception)
        )  # `mcp` documents no errors of a lost connection
        connected = Client(server, read_timeout_seconds=TIMEOUT_S)
        client = start(portal.wrap_async_context_manager(connected))
        portal.call(
            client.list_tools
        )  # else the first call would list them, after its answer
        if client.server_info:
            self.name = client.server_info.name
        return lambda method, **named: portal.call(
            partial(getattr(client, method), **named)
        )

    def rows(self) -> list[dict[str, Any]]:
        """Its tools, for the tape."""
        page = self.ask("list_tools")
        found = list(page.tools)
        while page.next_cursor:
            page = self.ask("list_tools", cursor=page.next_cursor)
            found += page.tools
        kept = {"name", "description", "input_schema"}
        return [
            {"server": self.name, **tool.model_dump(include=kept)} for tool in found
        ]

    def call(self, tool: str, arguments: dict[str, Any]) -> str:
        answer = self.ask("call_tool", name=tool, arguments=arguments)
        texts = [_text(part) for part in answer.content]
        if answer.structured_content is not None and all(
            p.type != "text" for p in answer.content
        ):
            texts.append(json.dumps(answer.structured_content, ensure_ascii=False))
        if answer.is_error:
            raise ToolError(
                say(NOTES, "own_failed", tool=tool, reason=fenced("\n".join(texts)))
            )
        return "\n".join(texts)


def _text(part: Any) -> str:
    """The text of one part of an answer, or its fields as JSON without binary data."""
    fields = getattr(part, "resource", part).model_dump(mode="json", exclude_none=True)
    for name in fields.keys() & {"data", "blob"}:
        fields[name] = say(
            NOTES, "mcp_data", bytes=len(fields[name].rstrip("=")) * 3 // 4
        )
    return (
        fields["text"] if "text" in fields else json.dumps(fields, ensure_ascii=False)
    )


class Row(TypedDict):
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
    tools: dict[str, Tool] = {}
    with contextlib.closing(contextlib.ExitStack()) as running:
        running.callback(_redact, log, tape.secrets)  # runs when the server has ended
        server = Server(command, log, running)
        try:
            with tape.call("mcp"):
                rows, _ = tape.exchange(
                    "mcp_tools", {"command": command}, server.rows, list[Row]
                )
            for row in rows:
                made = _tool(row, server, taken | tools.keys())
                tools[made.name] = made
        except KeyboardInterrupt as stop:
            running.__exit__(
                type(stop), stop, None
            )  # cancels the start instead of waiting for it
            raise
        except ImportError:
            raise ConfigError(
                f"--mcp {command}: needs pip install '.[tools]'"
            ) from None
        except (
            Exception
        ) as error:  # errors of four libraries, which do not document them
            printed = (
                log.read_text("utf-8", "replace").splitlines() if log.exists() else []
            )
            why = tape.secrets.text(
                "; ".join([one_line(error)[:300], *printed[-1:]])[:600]
            )
            raise ConfigError(
                f"--mcp {command}: its tools cannot be used ({why})"
            ) from None
        yield tools


def _redact(log: Path, secrets: Secrets) -> None:
    """Removes keys that a server printed."""
    if log.exists():
        log.write_text(secrets.text(log.read_text("utf-8", "replace")), "utf-8")


def _tool(row: Row, server: Server, taken: Set[str]) -> Tool:
    from jsonschema import Draft202012Validator, FormatChecker
    from jsonschema.validators import validator_for

    schema = row["input_schema"]
    validator = validator_for(schema, default=Draft202012Validator)
    # No formats: a regular expression of JavaScript may be invalid in Python.
    validator.check_schema(schema, format_checker=FormatChecker(()))
    inputs = without_refs(schema)
    name = re.sub(r"[^\w./-]+", "_", row["name"])[:100]
    while name in taken:
        name = re.sub(r"\W+", "_", f"{row['server']}_{name}")
    signature = json.dumps(inputs, ensure_ascii=False)
    purpose = " ".join((row["description"] or "").split())
    manual = f"{name}\n    {purpose}\n    parameters: {signature}"

    def call(env: Environment, arguments: dict[str, Any]) -> str:
        return recorded(
            env, name, arguments, lambda: server.call(row["name"], arguments)
        )

    check = partial(_arguments, validator(inputs))
    return Tool(name, frozenset({CAPABILITY}), inputs, signature, manual, check, call)


def _arguments(validator: Any, params: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call, without null for optional parameters. Raises ValueError."""
    from jsonschema.exceptions import best_match

    required = validator.schema.get("required", ())
    given = {k: v for k, v in params.items() if v is not None or k in required}
    problems: list[Any] = []
    with contextlib.suppress(
        re.error, OverflowError
    ):  # the server checks what Python cannot
        errors = (
            e for e in validator.iter_errors(given) if e.validator != "multipleOf"
        )
        problems = [best_match([error]) for error in errors]
    if problems:
        raise ValueError(
            "; ".join(f"{e.json_path}: {e.message[:200]}" for e in problems)
        )
    return {"arguments": given}
