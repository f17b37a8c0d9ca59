"""Tools of the user beside the six: typed functions with a docstring, and what MCP servers offer.

    def library_hours(day: str) -> str:
        '''When the town library is open.

        day: a day of the week, as in Monday
        '''

    --tools my_tools.py:library_hours      --mcp "python my_server.py"

Each is assigned, recorded, replayed and quoted like the others: what it returns is data to a model.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import inspect
import os
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, get_type_hints

from pydantic import PydanticUserError

from orchestra.vocabulary import CAPABILITIES, ConfigError, EndOfRun, Task
from runtime.prompts import fenced, say
from runtime.tape import Tape
from tools import Environment, Tool, ToolError, all_tools, tool

CAPABILITY = "txt"  # psi(g) of a tool that does not say
RESERVED = {"finish", "invalid"}  # what the sub-agents' loop itself says
BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


@contextlib.contextmanager
def own_tools(
    files: Sequence[str | Callable[..., Any]], servers: Sequence[str], tape: Tape
) -> Iterator[dict[str, Tool]]:
    """The user's tools by name, for one run. Raises ConfigError; MCP servers end with the block."""
    with contextlib.ExitStack() as stack:
        given = [(f"--tools {spec}", from_file(spec)) for spec in files if isinstance(spec, str)]
        given += [("tools", from_function(f)) for f in files if not isinstance(f, str)]
        for server in servers:
            from tools.mcp_server import serving

            offered = stack.enter_context(serving(server, tape, tape.path.with_name("mcp.log")))
            given += [(f"--mcp {server}", t) for t in offered]
        tools = all_tools() if given else {}
        for flag, own in given:
            if own.name in tools or own.name in RESERVED:
                raise ConfigError(f"{flag}: the name {own.name} is taken; give it another")
            tools[own.name] = own
        yield {own.name: own for _, own in given}


def from_file(spec: str) -> Tool:
    """The tool `path/to/module.py:function`. Raises ConfigError."""
    path, _, name = spec.rpartition(":")
    flag = f"--tools {spec}"
    file = Path(path)
    if not path or Path(spec).is_file():
        raise ConfigError(f"{flag}: needs FILE.py:FUNCTION; add :FUNCTION, the name of the tool")
    function = getattr(loaded(file, flag), name, None)
    if isinstance(function, Tool):
        return function
    if not inspect.isfunction(function):
        raise ConfigError(f"{flag}: {file} has no function {name!r}; check the name")
    return from_function(function, flag)


def loaded(path: str | Path, flag: str) -> ModuleType:
    """The module of a user's file; it finds the modules in its folder. Raises ConfigError."""
    file = Path(path)
    if not file.is_file():
        raise ConfigError(f"{flag}: there is no file {str(path)!r}")
    folder = str(file.resolve().parent)
    name = f"own_tools.{file.stem}_{zlib.crc32(os.fsencode(folder)):x}"
    found = importlib.util.spec_from_file_location(name, file)
    if found is None or found.loader is None:
        raise ConfigError(f"{flag}: {file} is no Python module; its name must end in .py")
    module = sys.modules[name] = importlib.util.module_from_spec(found)
    if folder not in sys.path:
        sys.path.append(folder)  # last: it hides no module of ours
    try:
        found.loader.exec_module(module)
    except (EndOfRun, KeyboardInterrupt):
        raise
    except BaseException as error:  # the user's own code: whatever it raises
        raise ConfigError(f"{flag}: cannot be loaded ({_told(error)})") from None
    return module


def from_function(function: Callable[..., Any], flag: str = "tool") -> Tool:
    """A Tool of a plain typed function. One whose first parameter is an Environment sees to its
    tape itself, as the six do. Raises ConfigError where a model could not be told how to use it.
    """
    parameters = list(inspect.signature(function).parameters.values())
    try:
        hints = get_type_hints(function, localns={"Environment": Environment})
    except (NameError, TypeError, AttributeError, SyntaxError) as error:
        raise ConfigError(f"{flag}: an annotation cannot be resolved ({_told(error)})") from None
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigError(f"{flag}: is an async function; give a plain one, as with asyncio.run")
    if not inspect.getdoc(function):
        raise ConfigError(f"{flag}: needs a docstring: it is all that a model learns of the tool")
    if untyped := [p.name for p in parameters if p.name not in hints]:
        raise ConfigError(f"{flag}: the parameter {untyped[0]!r} needs a type")
    if parameters and hints[parameters[0].name] is Environment:
        del parameters[0]
    else:
        function = _on_the_tape(function, parameters)
    if unnamed := [p.name for p in parameters if p.kind not in BY_NAME]:
        raise ConfigError(f"{flag}: the parameter {unnamed[0]!r} cannot be given by its name")
    try:
        made = tool(function.__name__, CAPABILITY)(function)
        made.schema(Task("?"))
    except (PydanticUserError, NameError, ValueError) as error:
        raise ConfigError(
            f"{flag}: a parameter cannot be told to a model ({_told(error)})"
        ) from None
    if lost := [p.name for p in parameters if p.name not in made.parameters.model_fields]:
        raise ConfigError(f"{flag}: a parameter cannot be called {lost[0]!r}; rename it")
    return made


def _on_the_tape(
    function: Callable[..., Any], parameters: Sequence[inspect.Parameter]
) -> Callable[..., str]:
    @functools.wraps(function)
    def call(env: Environment, /, **arguments: Any) -> str:
        return recorded(env, function.__name__, arguments, lambda: function(**arguments))

    unlike = "_".join(["env", *(p.name for p in parameters)])  # any name of theirs
    first = inspect.Parameter(unlike, inspect.Parameter.POSITIONAL_ONLY)
    call.__signature__ = inspect.Signature([first, *parameters])  # type: ignore[attr-defined]
    return call


def recorded(env: Environment, name: str, arguments: dict[str, Any], run: Callable[[], Any]) -> str:
    """What a tool of the user returns, on the tape and as data. Whatever it raises is an
    observation: it is not our code, so its error is not our bug.
    """

    def attempt() -> str:
        try:
            value = run()
            return value if isinstance(value, str) else repr(value)
        except (ToolError, EndOfRun, KeyboardInterrupt):
            raise
        except BaseException as error:
            reason = fenced(f"{type(error).__name__}: {_words(error)}")
            raise ToolError(say("tools/notes", "own_failed", tool=name, reason=reason)) from None

    return fenced(env.local(f"tool:{name}", arguments, attempt))


def _told(error: BaseException) -> str:
    said = " ".join(_words(error).split())[:200]
    return f"{type(error).__name__}: {said}"


def _words(error: BaseException) -> str:
    """The text of an error whose class can be the user's own."""
    try:
        return str(error)
    except Exception as other:  # as whatever its __str__ does
        return f"(its text cannot be told: {type(other).__name__})"


assert CAPABILITY in CAPABILITIES
