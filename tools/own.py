"""The user's own tools: Python functions and the tools of MCP servers.

They are assigned, recorded and replayed like the others. A model gets their results marked as data.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from orchestra.kernel.tape import Redact
from orchestra.kernel.tool import Tool
from orchestra.kernel.vocabulary import FINISH, INVALID, ConfigError
from orchestra.tools.mcp_server import Row, Server
from orchestra.tools.python_function import tool_of


class Own(NamedTuple):
    """The tools by name, and what each MCP server lists, by command: with that, a replay and a
    resume know the tools without the server. It belongs into run.json.
    """

    tools: dict[str, Tool]
    listed: dict[str, list[Row]]


@contextlib.contextmanager
def own_tools(
    functions: Sequence[Any],
    servers: Sequence[str],
    log: Path,
    taken: Collection[str] = (),
    listed: Mapping[str, list[Row]] | None = None,
    redact: Redact = str,
) -> Iterator[Own]:
    """The tools of functions (or Tools), and of MCP servers, which end with the block. `log` gets
    what these print; `taken`: the names of other tools; `listed`: what run.json has. Raises
    ConfigError.
    """
    own = Own({}, {})
    others = {FINISH, INVALID, *taken}
    with contextlib.closing(contextlib.ExitStack()) as running:
        for function in functions:
            name = getattr(function, "__name__", function)
            made = tool_of(function, f"--tools {name}")
            if made.name in others or made.name in own.tools:
                raise ConfigError(
                    f"--tools: the name {made.name} is taken; use another"
                )
            own.tools[made.name] = made
        for command in servers:
            server = Server(command, log, redact, running)
            rows = (listed or {}).get(command)
            found = server.tools(rows, others | own.tools.keys())
            own.tools.update(found)
            own.listed[command] = server.listed
        yield own
