"""What a run is asked for besides the question: one definition for the library, the command line
and run.json.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable
from string import Template
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer

from runtime.pool import Checked


def _several(value: Any) -> Any:
    return (value,) if isinstance(value, str) or callable(value) else value


def _loadable(tools: tuple[Any, ...]) -> tuple[Any, ...]:
    if not all(isinstance(tool, str) or inspect.isfunction(tool) for tool in tools):
        raise ValueError("needs FILE.py:FUNCTION, or a function defined in a file")
    return tools


def fillable(text: str) -> bool:
    """Whether the program can use a text as a system prompt: its variables are ${models} and
    ${tools}, and every other $ is $$.
    """
    template = Template(text)
    return template.is_valid() and {*template.get_identifiers()} == {"models", "tools"}


def _fillable(text: str) -> str:
    if not fillable(text):
        raise ValueError("needs ${models} and ${tools} and no other variable ($$ is a plain $)")
    return text


def spec_of(tool: str | Callable[..., Any]) -> str:
    """A tool of the user's as FILE.py:FUNCTION."""
    return tool if isinstance(tool, str) else f"{inspect.getsourcefile(tool)}:{tool.__name__}"


Several = Annotated[tuple[str, ...], BeforeValidator(_several)]
HOST = r"^(\[[0-9a-fA-F:.]+\]|[\w.-]+|[0-9a-fA-F:]+)(:\d{1,5})?$"
Hosts = Annotated[tuple[Annotated[str, Field(pattern=HOST)], ...], BeforeValidator(_several)]
OwnTools = Annotated[
    tuple[Any, ...],
    BeforeValidator(_several),
    AfterValidator(_loadable),
    PlainSerializer(lambda tools: [spec_of(t) for t in tools]),
]
Count = Annotated[int, Field(ge=1, le=10_000)]
Seconds = Annotated[float, Field(gt=0, le=86_400)]


def _flag(default: Any, flag: str, metavar: str, help: str) -> Any:
    """A field of Options and its flag on the command line."""
    return Field(default, description=help, json_schema_extra={"flag": flag, "metavar": metavar})


class Options(Checked):
    """`parallel` is K_max of Eq. 10 and the number of threads."""

    method: str = _flag(
        "orchestra-o1", "method", "NAME", "orchestrator, or FILE.py:CLASS of your own"
    )
    rounds: Count | None = _flag(None, "rounds", "N", "most rounds (default: the method's)")
    steps: Count = _flag(30, "steps", "N", "steps of a sub-agent")
    parallel: Count = _flag(8, "parallel", "N", "sub-tasks that run in parallel")
    budget_usd: Annotated[float, Field(ge=0, le=1e9)] | None = _flag(
        None, "budget", "USD", "spending limit; calls that could exceed it are not started"
    )
    timeout_s: Seconds = _flag(120.0, "timeout", "S", "time limit of one attempt of a call")
    patience_s: Annotated[float, Field(ge=0, le=86_400)] = _flag(
        120.0, "patience", "S", "how long one call waits at a rate limit"
    )
    stop_threshold: Annotated[float, Field(ge=0, le=1)] | None = _flag(
        None, "stop-threshold", "P", "orchestra-o1: end above this probability of complete, Eq. 22"
    )
    context_tokens: Count = 6000  # L_ctx of Eq. 20
    context: Literal["curated", "none", "full"] = _flag(
        "curated", "context", "KIND", "aorchestra: what a sub-agent is told of earlier results"
    )
    sub_agent: Literal["react", "mini-swe"] = _flag(
        "react", "sub-agent", "KIND", "aorchestra: style of its sub-agents"
    )
    instruction: Annotated[str, AfterValidator(_fillable)] | None = _flag(
        None, "instruction", "FILE", "aorchestra, orchestra-o1: system prompt of the main agent"
    )
    dom: Literal["low", "high"] = _flag(
        "high", "dom", "KIND", "mas-orchestra: one agent, or a graph of agents"
    )
    allow_hosts: Hosts = _flag(
        (), "allow-host", "HOST[:PORT]", "internal host that pages may be fetched from; repeatable"
    )
    unsafe_code: bool = _flag(
        False, "unsafe-code", "", "run code of models without a sandbox; see SECURITY.md"
    )
    tools: OwnTools = _flag((), "tools", "FILE.py:FUNCTION", "a tool of your own; repeatable")
    mcp: Several = _flag(
        (), "mcp", "COMMAND", "command that starts an MCP server, or the URL of one; repeatable"
    )


def flag_of(name: str) -> str:
    """The flag of a field of Options, or of another argument of the command line."""
    field = Options.model_fields.get(name)
    extra: Any = field.json_schema_extra if field else None
    return f"--{extra['flag'] if extra else name}"


def variables(commands: Iterable[str]) -> list[str]:
    """The environment variables that commands name, as $NAME or ${NAME}."""
    names = [name for command in commands for name in re.findall(r"\$\{?(\w+)", command)]
    return [name for name in names if name not in ("HOME", "PATH", "PWD", "USER")]
