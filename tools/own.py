"""The user's own tools: Python functions and the tools of MCP servers.

    --tools my_tools.py:library_hours      --mcp "python my_server.py"

They are assigned, recorded and replayed like the others. A model gets their results marked as data.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from orchestra.runtime.tape import Tape
from orchestra.toolkit import Tool
from orchestra.tools import mcp_server, python_function
from orchestra.tools.shipped import all_tools
from orchestra.vocabulary import ConfigError

RESERVED = {"finish", "invalid"}  # actions of the sub-agents' loop


@contextlib.contextmanager
def own_tools(
    functions: Sequence[str | Callable[..., Any]], servers: Sequence[str], tape: Tape
) -> Iterator[dict[str, Tool]]:
    """The user's tools by name, for one run; MCP servers end with the block. `functions`: as
    --tools names them, or the functions themselves; `servers`: as --mcp names them. Raises
    ConfigError.
    """
    own: dict[str, Tool] = {}
    taken = set(RESERVED)
    if functions or servers:  # else no tool need be imported
        taken |= all_tools().keys()
    with contextlib.ExitStack() as stack:
        for function in functions:
            made = _as_tool(function)
            name = made.name
            if name in taken or name in own:
                raise ConfigError(f"--tools: the name {name} is taken; use another")
            own[name] = made
        for server in servers:
            log = tape.path.with_name("mcp.log")
            names = taken | own.keys()
            serving = mcp_server.serving(server, tape, log, taken=names)
            own |= stack.enter_context(serving)
        yield own


def _as_tool(function: str | Callable[..., Any]) -> Tool:
    if isinstance(function, str):
        return python_function.from_file(function)
    return python_function.from_function(function)
