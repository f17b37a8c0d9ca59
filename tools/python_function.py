"""The user's Python functions as tools: any typed function with a docstring.

def library_hours(day: str) -> str:
    '''When the town library is open.

    day: a day of the week, as in Monday
    '''
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, get_type_hints

from orchestra.kernel.depends import source_of
from orchestra.kernel.placing import OF_USER
from orchestra.kernel.prompts import fenced, say
from orchestra.kernel.tape import EndOfRun
from orchestra.kernel.tool import Environment, Tool, tool
from orchestra.kernel.vocabulary import ConfigError, ToolError
from orchestra.tools.schemas import without_refs

MAX_RESULT_CHARS = 10_000_000  # more would not fit into a line of the tape
BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def tool_of(function: Any, flag: str = "tool") -> Tool:
    """Turns a typed function into a Tool. If its first parameter is an Environment, it records its
    side effects itself, like our tools. Raises ConfigError if a model could not use it. The text of
    the error begins with `flag`, the setting that names the function.
    """
    if isinstance(function, Tool):
        return function
    if not inspect.isfunction(function):
        raise ConfigError(
            f"{flag}: is not a function, but of type {type(function).__name__}; name a "
            "typed function with a docstring"
        )
    try:
        types = get_type_hints(function, localns={"Environment": Environment})
        _check_usable(function, types)
        made = tool(function.__name__, OF_USER, plain=without_refs)(function)
    except ConfigError as error:
        raise ConfigError(f"{flag}: cannot be a tool: {error}") from None
    except Exception as error:  # annotations are the user's code and may raise anything
        raise ConfigError(f"{flag}: cannot be a tool ({one_line(error)})") from None
    source_of(function)  # as it is now: the file may change before it is called
    records_itself = Environment in types.values()
    return made if records_itself else _recording(made)


def _check_usable(function: Callable[..., Any], types: dict[str, Any]) -> None:
    """Raises ConfigError if a model could not use a function with parameters of these types."""
    for name, parameter in inspect.signature(function).parameters.items():
        if name not in types:
            raise ConfigError(f"the parameter {name!r} needs a type")
        if parameter.kind not in BY_NAME:
            raise ConfigError(f"the parameter {name!r} has a * or / next to it")
    if Environment in list(types.values())[1:]:
        raise ConfigError("the Environment must be its first parameter")
    if not inspect.getdoc(function):
        raise ConfigError("needs a docstring: the model reads it")
    if inspect.iscoroutinefunction(function):
        raise ConfigError("is async; make it an ordinary function")


def _recording(made: Tool) -> Tool:
    """The tool with each result on the tape, under the parameters as the model sent them."""

    def check(params: dict[str, Any]) -> dict[str, Any]:
        return {"params": params, "arguments": made.check(params)}

    def call(
        env: Environment, params: dict[str, Any], arguments: dict[str, Any]
    ) -> str:
        def run() -> str:
            try:
                return made.function(**arguments)
            except Exception as error:
                where = f"{made.name} at {place_of(error)}"
                env.chat.notify(f"{where}: {one_line(error)}")
                raise

        return recorded(env, made.name, params, run)

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
            text = value if isinstance(value, str) else repr(value)
        except (ToolError, EndOfRun, KeyboardInterrupt):
            raise
        except BaseException as error:
            why = {"tool": name, "reason": fenced(one_line(error))}
            raise ToolError(say("tools/notes", "own_failed", **why)) from None
        if len(text) > MAX_RESULT_CHARS:
            raise ToolError(say("tools/notes", "own_too_long", tool=name))
        return text

    return fenced(env.local(f"tool:{name}", params, attempt))


def place_of(error: BaseException) -> str:
    """The line that raised an error, as in "mine.py:12"."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{Path(frame.filename).name}:{frame.lineno}"


def one_line(error: BaseException) -> str:
    """The type and message of an error in one line; of a group, those of its first error."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    text = f"{type(error).__name__}: {error}"
    return " ".join(text.split())[:1000]
