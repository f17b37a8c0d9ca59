"""The user's Python functions as tools: any typed function with a docstring.

    def library_hours(day: str) -> str:
        '''When the town library is open.

        day: a day of the week, as in Monday
        '''

It is chosen by --tools my_tools.py:library_hours or --tools my_project.tools:library_hours.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, get_type_hints

from orchestra.matching import OF_USER
from orchestra.runtime import user_code
from orchestra.runtime.prompts import fenced, say
from orchestra.toolkit import Environment, Tool, ToolError, tool
from orchestra.vocabulary import ConfigError, EndOfRun

MAX_RESULT_CHARS = 10_000_000  # more would not fit into a line of the tape
BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


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
        types = get_type_hints(function, localns={"Environment": Environment})
        _check_usable(function, types)
        made = tool(function.__name__, OF_USER)(function)
    except Exception as error:  # annotations are the user's code and may raise anything
        reason = user_code.one_line(error)
        raise ConfigError(f"{flag}: cannot be a tool ({reason})") from None
    records_itself = Environment in types.values()
    return made if records_itself else _recording(made)


def _check_usable(function: Callable[..., Any], types: dict[str, Any]) -> None:
    """Raises TypeError if a model could not use a function with parameters of these types."""
    for name, parameter in inspect.signature(function).parameters.items():
        if name not in types or parameter.kind not in BY_NAME:
            raise TypeError(
                f"the parameter {name!r} needs a type, and no * or / around it"
            )
    if Environment in list(types.values())[1:]:
        raise TypeError("the Environment must be its first parameter")
    if not inspect.getdoc(function) or inspect.iscoroutinefunction(function):
        raise TypeError("needs a docstring, for the model, and must not be async")


def _recording(made: Tool) -> Tool:
    """The tool with each result on the tape, under the parameters as the model sent them."""

    def check(params: dict[str, Any]) -> dict[str, Any]:
        return {"params": params, "arguments": made.check(params)}

    def call(
        env: Environment, params: dict[str, Any], arguments: dict[str, Any]
    ) -> str:
        run = partial(made.function, **arguments)
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
            reason = fenced(user_code.one_line(error))
            raise ToolError(
                say("tools/notes", "own_failed", tool=name, reason=reason)
            ) from None
        if len(text) > MAX_RESULT_CHARS:
            raise ToolError(say("tools/notes", "own_too_long", tool=name))
        return text

    return fenced(env.local(f"tool:{name}", params, attempt, str))
