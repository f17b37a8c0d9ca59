"""The tools of an MCP server, through the official `mcp` package: a program that is started for the
run, asked for its tools, and ended with the run. A replay never starts it: the list and every
answer are on the tape. It gets no key: the environment it sees is the few names `mcp` lets through.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import os
import shlex
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PydanticUserError,
    ValidationError,
    create_model,
    model_validator,
)

from orchestra.vocabulary import ConfigError, Task
from runtime.prompts import fenced, say
from runtime.tape import Tape
from tools import Environment, Tool, ToolError
from tools.own import CAPABILITY, recorded

TIMEOUT_S = 60.0  # for an answer
START_S = 30.0
END_S = 0.5  # for a server to end by itself, before it is told to
MAX_PAGES = 100  # of a list of tools
TYPES: Mapping[str, Any] = {
    "string": str, "integer": int, "number": float, "boolean": bool, "array": list, "object": dict,
}  # fmt: skip


class Server:
    """An MCP server as a program, started with the first question to it."""

    def __init__(self, command: str, log: Path) -> None:
        self.command, self.log = command, log
        self._starting = threading.Lock()
        self._running = contextlib.ExitStack()
        self._client: Any = None

    def ask(self, method: str, *arguments: Any, **named: Any) -> Any:
        """One question, from any thread. Raises ConfigError; MCPError and ValidationError for an
        error and for what is no answer.
        """
        with self._starting:
            if self._client is None:
                self._start()
        return self._portal.call(
            functools.partial(getattr(self._client, method), *arguments, **named)
        )

    def _start(self) -> None:
        from anyio.from_thread import start_blocking_portal
        from mcp import Client, MCPError, StdioServerParameters
        from mcp.client import stdio

        try:
            program, *arguments = map(os.path.expandvars, shlex.split(self.command))
        except ValueError as error:
            why = f"{error}".lower() if self.command.strip() else "it is empty"
            raise ConfigError(f"--mcp {self.command!r}: is not a command ({why})") from None
        self._portal = self._running.enter_context(start_blocking_portal())
        # A traceback for each line of a server that prints beside the protocol is for nobody.
        logging.getLogger("mcp.client.stdio").setLevel(logging.CRITICAL)
        stdio.PROCESS_TERMINATION_TIMEOUT = END_S
        parameters = StdioServerParameters(command=program, args=arguments)
        stderr = self._running.enter_context(self.log.open("a", encoding="utf-8"))
        client = Client(
            stdio.stdio_client(parameters, errlog=stderr), read_timeout_seconds=TIMEOUT_S
        )
        try:
            self._client = self._running.enter_context(
                self._portal.wrap_async_context_manager(_started_in_time(client))
            )
        except (MCPError, OSError, ValueError, ExceptionGroup) as error:
            first: BaseException = error
            while isinstance(first, BaseExceptionGroup):
                first = first.exceptions[0]
            why = " ".join(f"{type(first).__name__}: {first}".split())[:200]
            raise ConfigError(f"--mcp {self.command}: does not start as a server ({why})") from None
        except KeyboardInterrupt:
            self._running.__exit__(*sys.exc_info())  # cancels the start instead of waiting for it
            raise

    def close(self) -> None:
        self._running.close()


@contextlib.asynccontextmanager
async def _started_in_time(client: Any) -> AsyncIterator[Any]:
    import anyio

    with anyio.CancelScope(deadline=anyio.current_time() + START_S) as start:
        async with client as server:
            start.deadline = math.inf
            yield server
    if start.cancelled_caught:
        raise TimeoutError(f"no answer within {START_S:g} s")


@contextlib.contextmanager
def serving(command: str, tape: Tape, log: Path) -> Iterator[list[Tool]]:
    """The tools that the server `command` offers. Raises ConfigError where it does not start."""
    server = Server(command, log)
    try:
        with contextlib.closing(server):
            with tape.call("mcp"):
                rows, _ = tape.exchange("mcp_tools", {"command": command}, lambda: _list(server))
            yield [_tool(row, server) for row in rows]
    finally:
        if log.exists():  # a server may print its key
            log.write_text(tape.secrets.text(log.read_text(encoding="utf-8", errors="replace")))


def _list(server: Server) -> list[dict[str, Any]]:
    try:
        from mcp import MCPError
    except ImportError:
        raise ConfigError(f"--mcp {server.command}: needs the extra [tools], see README") from None
    untold = f"--mcp {server.command}: does not list its tools"
    rows: list[dict[str, Any]] = []
    cursor: str | None = None
    for _ in range(MAX_PAGES):
        try:
            page = server.ask("list_tools", cursor=cursor)
        except (MCPError, ValidationError) as error:
            raise ConfigError(f"{untold} ({' '.join(str(error).split())[:200]})") from None
        rows += [
            {"name": t.name, "description": t.description or t.name, "schema": t.input_schema}
            for t in page.tools
        ]
        cursor = page.next_cursor
        if cursor is None:
            return rows
    raise ConfigError(f"{untold} (there are more than {MAX_PAGES} pages of them)")


class _Parameters(BaseModel):
    """What a tool takes. Its fields are numbered, and the server's names, any that JSON has, are
    their aliases: no name is one that pydantic or Python keeps for itself.
    """

    model_config = ConfigDict(extra="ignore")

    @model_validator(mode="wrap")
    @classmethod
    def by_name(cls, given: Any, validate: Callable[[Any], Any]) -> Any:
        read = validate(given)
        return _Named({f.alias: getattr(read, n) for n, f in cls.model_fields.items()})


class _Named:
    """Attributes of any name."""

    def __init__(self, values: dict[str | None, Any]) -> None:
        self.values = values

    def __getattribute__(self, name: str) -> Any:
        return object.__getattribute__(self, "values")[name]


class _Offered(Tool):
    def schema(self, task: Task) -> dict[str, Any]:
        fields = self.parameters.model_fields.values()
        return super().schema(task) | {"required": [f.alias for f in fields if f.is_required()]}


def _tool(row: dict[str, Any], server: Server) -> Tool:
    def call(env: Environment, /, **arguments: Any) -> str:
        given = {k: v for k, v in arguments.items() if v is not None}
        return recorded(env, row["name"], given, lambda: _call(server, row["name"], given))

    try:
        fields = _fields(row["schema"])
        model = create_model(row["name"], __base__=_Parameters, **fields)
    except (TypeError, AttributeError, ValueError, NameError, PydanticUserError) as error:
        why = " ".join(str(error).split())[:200]
        tool = f"--mcp {server.command}: the tool {row['name']}"
        raise ConfigError(f"{tool} has parameters that are no JSON schema ({why})") from None
    description = " ".join(str(row["description"]).split())
    return _Offered(row["name"], frozenset({CAPABILITY}), description, model, call)


def _fields(schema: Mapping[str, Any]) -> dict[str, Any]:
    """What pydantic's create_model takes of a JSON schema. What it raises where it is none is
    whatever the schema is not.
    """
    required = schema.get("required", [])
    fields: dict[str, Any] = {}
    for n, (name, about) in enumerate(schema.get("properties", {}).items()):
        about = about if isinstance(about, dict) else {}
        one_of, kind = about.get("enum"), TYPES.get(str(about.get("type")), Any)
        if one_of and not any(isinstance(value, list | dict) for value in one_of):
            kind = Literal[tuple(one_of)]
        meaning = str(about.get("description") or about.get("title") or "")
        default = ... if name in required else about.get("default")
        fields[f"p{n}"] = (
            kind if name in required else kind | None,
            Field(default, alias=name, description=meaning),
        )
    return fields


def _call(server: Server, name: str, arguments: dict[str, Any]) -> str:
    answer = server.ask("call_tool", name, arguments)
    texts = [getattr(part, "text", f"[{part.type}]") for part in answer.content]
    if answer.is_error:
        reason = fenced("\n".join(texts))
        raise ToolError(say("tools/notes", "own_failed", tool=name, reason=reason))
    return "\n".join(texts)
