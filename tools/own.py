"""The user's own tools: typed functions with a docstring, and the tools of MCP servers.

    def library_hours(day: str) -> str:
        '''When the town library is open.

        day: a day of the week, as in Monday
        '''

    --tools my_tools.py:library_hours      --mcp "python my_server.py"

They are assigned, recorded and replayed like the others. A model gets their results marked as data.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, get_type_hints

from orchestra.runtime import user_code
from orchestra.runtime.prompts import fenced, say
from orchestra.runtime.tape import Tape
from orchestra.toolkit import Environment, Tool, ToolError, tool
from orchestra.tools.shipped import all_tools
from orchestra.vocabulary import ConfigError, EndOfRun

CAPABILITY = "txt"  # psi(g) of these tools
RESERVED = {"finish", "invalid"}  # actions of the sub-agents' loop
BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


@contextlib.contextmanager
def own_tools(
    files: Sequence[str | Callable[..., Any]], servers: Sequence[str], tape: Tape
) -> Iterator[dict[str, Tool]]:
    """The user's tools by name, for one run; MCP servers end with the block. Raises ConfigError."""
    own: dict[str, Tool] = {}
    taken = RESERVED | (all_tools().keys() if files or servers else set())
    with contextlib.ExitStack() as stack:
        for file in files:
            made = from_file(file) if isinstance(file, str) else from_function(file)
            if made.name in taken | own.keys():
                raise ConfigError(
                    f"--tools: the name {made.name} is taken; use another"
                )
            own[made.name] = made
        for server in servers:
            from orchestra.tools.mcp_server import serving

            log = tape.path.with_name("mcp.log")
            own |= stack.enter_context(serving(server, tape, log, taken | own.keys()))
        yield own


def from_file(spec: str) -> Tool:
    """The tool that FILE.py:FUNCTION or package.module:FUNCTION names. Raises ConfigError."""
    flag = f"--tools {spec}"
    function = user_code.load(spec, flag)
    if isinstance(function, Tool):
        return function
    if not inspect.isfunction(function):
        raise ConfigError(
            f"{flag}: is not a function; name a typed function with a docstring"
        )
    return from_function(function, flag)


def from_function(function: Callable[..., Any], flag: str = "tool") -> Tool:
    """Turns a typed function into a Tool. If its first parameter is an Environment, it records its
    side effects itself, like our tools. Raises ConfigError if a model could not use it.
    """
    try:
        hints = get_type_hints(function, localns={"Environment": Environment})
        for name, parameter in inspect.signature(function).parameters.items():
            if name not in hints or parameter.kind not in BY_NAME:
                raise TypeError(
                    f"the parameter {name!r} needs a type, and no * or / around it"
                )
        if Environment in list(hints.values())[1:]:
            raise TypeError("the Environment must be its first parameter")
        if not inspect.getdoc(function) or inspect.iscoroutinefunction(function):
            raise TypeError("needs a docstring, for the model, and must not be async")
        made = tool(function.__name__, CAPABILITY)(function)
    except Exception as error:  # annotations are the user's code and may raise anything
        raise ConfigError(
            f"{flag}: cannot be a tool ({user_code.one_line(error)})"
        ) from None
    if Environment in hints.values():
        return made

    def check(params: dict[str, Any]) -> dict[str, Any]:
        return {"params": params, "arguments": made.check(params)}

    def call(
        env: Environment, params: dict[str, Any], arguments: dict[str, Any]
    ) -> str:
        return recorded(env, made.name, params, partial(function, **arguments))

    return replace(made, check=check, function=call)


def recorded(
    env: Environment, name: str, params: dict[str, Any], run: Callable[[], Any]
) -> str:
    """The result of a user's tool for these parameters, on the tape and marked as data. Any
    exception becomes an observation: an error in the user's code is not a bug of ours.
    """

    def attempt() -> str:
        try:
            value = run()
            return value if isinstance(value, str) else repr(value)
        except (ToolError, EndOfRun, KeyboardInterrupt):
            raise
        except BaseException as error:
            reason = fenced(user_code.one_line(error))
            raise ToolError(
                say("tools/notes", "own_failed", tool=name, reason=reason)
            ) from None

    return fenced(env.local(f"tool:{name}", params, attempt, str))
