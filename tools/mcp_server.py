"""The tools of an MCP server, through the official `mcp` package: a command that is started for the
run, or the URL of a server that runs already. A replay reaches neither: the list of tools and every
answer are on the tape. A command sees the few environment variables that `mcp` passes on.
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

from orchestra.vocabulary import ConfigError
from runtime.prompts import fenced, say
from runtime.secrets import Secrets
from runtime.tape import Tape
from tools import Environment, Tool, ToolError, without_refs
from tools.own import CAPABILITY, one_line, recorded

TIMEOUT_S = 60.0  # for an answer
STARTS = 2  # in one run
MOST_PAGES = 100  # of the list of tools
LOST = ("Session terminated", "Session not found")  # of an HTTP server that was started again
NOTES = "tools/notes"


class Server:
    """An MCP server, started or connected to by the first question to it; `running` ends it."""

    def __init__(self, command: str, log: Path, running: contextlib.ExitStack) -> None:
        self.command, self.log, self._running = command, log, running
        self.name = "mcp"
        self._lock = threading.Lock()
        self._connections: list[Any] = [None]

    def ask(self, method: str, **arguments: Any) -> Any:
        """One question, from any thread; after a crash it is asked again."""
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

        logging.getLogger("mcp").setLevel(logging.CRITICAL)  # its tracebacks are for nobody
        start = self._running.enter_context
        server: Any = os.path.expandvars(self.command)
        if not server.startswith(("http://", "https://")):
            program, *rest = map(os.path.expandvars, shlex.split(self.command) or [""])
            errors = start(self.log.open("a", encoding="utf-8"))
            server = stdio_client(StdioServerParameters(command=program, args=rest), errlog=errors)
        portal = start(start_blocking_portal())
        start(contextlib.suppress(Exception))  # `mcp` lists no errors of a client that lost it
        connected = Client(server, read_timeout_seconds=TIMEOUT_S)
        client = start(portal.wrap_async_context_manager(connected))
        portal.call(client.list_tools)  # or it would list them behind the first answer, to check it
        if client.server_info:
            self.name = client.server_info.name
        return lambda method, **named: portal.call(partial(getattr(client, method), **named))

    def rows(self) -> list[dict[str, Any]]:
        """The tools that it offers, for the tape."""
        page = self.ask("list_tools")
        found, cursors = list(page.tools), set[str]()
        while page.next_cursor and page.next_cursor not in cursors and len(cursors) < MOST_PAGES:
            cursors.add(page.next_cursor)
            page = self.ask("list_tools", cursor=page.next_cursor)
            found += page.tools
        kept = {"name", "description", "input_schema"}
        return [{"server": self.name, **tool.model_dump(include=kept)} for tool in found]

    def call(self, tool: str, arguments: dict[str, Any]) -> str:
        answer = self.ask("call_tool", name=tool, arguments=arguments)
        texts = [_text(part) for part in answer.content]
        if answer.structured_content is not None and all(p.type != "text" for p in answer.content):
            texts.append(json.dumps(answer.structured_content, ensure_ascii=False))
        if answer.is_error:
            raise ToolError(say(NOTES, "own_failed", tool=tool, reason=fenced("\n".join(texts))))
        return "\n".join(texts)


def _text(part: Any) -> str:
    """What a model reads of one part of an answer: its text, or what is known about it."""
    about = getattr(part, "resource", part).model_dump(mode="json", exclude_none=True)
    for name in about.keys() & {"data", "blob"}:
        size = len(about[name].rstrip("=")) * 3 // 4
        about[name] = say(NOTES, "mcp_data", bytes=size)
    return about["text"] if "text" in about else json.dumps(about, ensure_ascii=False)


class Row(TypedDict):
    """A tool of a server on the tape."""

    server: str
    name: str
    description: str | None
    input_schema: dict[str, Any]


@contextlib.contextmanager
def serving(command: str, tape: Tape, log: Path, taken: Set[str]) -> Iterator[dict[str, Tool]]:
    """The tools that a server offers, by names that are not `taken`. Raises ConfigError where they
    cannot be used.
    """
    tools: dict[str, Tool] = {}
    with contextlib.closing(contextlib.ExitStack()) as running:
        running.callback(_redact, log, tape.secrets)  # runs when the server has ended
        server = Server(command, log, running)
        try:
            with tape.call("mcp"):
                rows, _ = tape.exchange("mcp_tools", {"command": command}, server.rows, list[Row])
            for row in rows:
                made = _tool(row, server, taken | tools.keys())
                tools[made.name] = made
        except KeyboardInterrupt as stop:
            running.__exit__(type(stop), stop, None)  # cancels the start, does not wait for it
            raise
        except ImportError:
            raise ConfigError(f"--mcp {command}: needs pip install '.[tools]'") from None
        except Exception as error:  # of four libraries on what a server sent; none lists them
            printed = log.read_text("utf-8", "replace").splitlines() if log.exists() else []
            why = tape.secrets.text("; ".join([one_line(error)[:300], *printed[-1:]])[:600])
            raise ConfigError(f"--mcp {command}: its tools cannot be used ({why})") from None
        yield tools


def _redact(log: Path, secrets: Secrets) -> None:
    """A server may print its key."""
    if log.exists():
        text = secrets.text(log.read_text(encoding="utf-8", errors="replace"))
        log.write_text(text, encoding="utf-8")


def _tool(row: Row, server: Server, taken: Set[str]) -> Tool:
    from jsonschema import Draft202012Validator, FormatChecker
    from jsonschema.validators import validator_for

    kind = validator_for(row["input_schema"], default=Draft202012Validator)
    # Without the check of formats: a pattern of a server in JavaScript may not be one of Python's.
    kind.check_schema(row["input_schema"], format_checker=FormatChecker(()))
    inputs = without_refs(row["input_schema"])
    name = re.sub(r"[^\w./-]+", "_", row["name"])[:100]
    while name in taken:
        name = re.sub(r"\W+", "_", f"{row['server']}_{name}")
    signature = json.dumps(inputs, ensure_ascii=False)
    about = " ".join((row["description"] or "").split())
    manual = f"{name}\n    {about}\n    parameters: {signature}"

    def call(env: Environment, arguments: dict[str, Any]) -> str:
        return recorded(env, name, arguments, lambda: server.call(row["name"], arguments))

    check = partial(_arguments, kind(inputs))
    return Tool(name, frozenset({CAPABILITY}), inputs, signature, manual, check, call)


def _arguments(validator: Any, params: dict[str, Any]) -> dict[str, Any]:
    """What a server is given; null stands for a parameter that is left out. Raises ValueError."""
    from jsonschema.exceptions import best_match

    needed = validator.schema.get("required", ())
    given = {k: v for k, v in params.items() if v is not None or k in needed}
    wrong: list[Any] = []
    with contextlib.suppress(re.error, OverflowError):  # what Python cannot check the server does
        found = (e for e in validator.iter_errors(given) if e.validator != "multipleOf")
        wrong = [best_match([error]) for error in found]
    if wrong:
        raise ValueError("; ".join(f"{e.json_path}: {e.message[:200]}" for e in wrong))
    return {"arguments": given}
