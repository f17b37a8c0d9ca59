"""The options of a run, defined once for the library, the command line and run.json."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from string import Template
from types import FunctionType
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer

from orchestra.runtime.pool import Checked


def _as_tuple(value: Any) -> Any:
    return (value,) if isinstance(value, str) or callable(value) else value


def _weights(value: Any) -> Any:
    """Parse cost=0.5,latency=0.2."""
    pairs = (
        [pair.partition("=") for pair in value.split(",")]
        if isinstance(value, str)
        else []
    )
    return {name.strip(): weight for name, _, weight in pairs} or value


def fillable(text: str) -> bool:
    """Whether a text can be a system prompt: its only variables are ${models} and ${tools}."""
    template = Template(text)
    return template.is_valid() and {*template.get_identifiers()} == {"models", "tools"}


def _instruction(text: str) -> str:
    if not fillable(text):
        raise ValueError(
            "needs ${models} and ${tools} and no other variable ($$ is a plain $)"
        )
    return text


def _host(text: str) -> str:
    if not re.fullmatch(r"(\[[0-9a-fA-F:.]+\]|[\w.-]+|[0-9a-fA-F:]+)(:\d{1,5})?", text):
        raise ValueError(
            f"{text}: needs HOST or HOST:PORT, as in intranet.example:8080"
        )
    return text


def spec_of(tool: str | FunctionType) -> str:
    """The FILE.py:FUNCTION of a user's tool."""
    return (
        tool
        if isinstance(tool, str)
        else f"{inspect.getsourcefile(tool)}:{tool.__name__}"
    )


Several = Annotated[tuple[str, ...], BeforeValidator(_as_tuple)]
Hosts = Annotated[
    tuple[Annotated[str, AfterValidator(_host)], ...], BeforeValidator(_as_tuple)
]
OwnTools = Annotated[
    tuple[str | FunctionType, ...],
    BeforeValidator(_as_tuple),
    PlainSerializer(lambda tools: [spec_of(t) for t in tools]),
]
Count = Annotated[int, Field(ge=1, le=10_000)]
Seconds = Annotated[float, Field(gt=0, le=86_400)]
Share = Annotated[float, Field(ge=0, le=1)]
Measure = Literal["outcome", "cost", "latency", "enhance_reasoning", "answer", "search"]
Preference = Annotated[dict[Measure, Share], BeforeValidator(_weights)]


def _flag(default: Any, help: str, metavar: str = "", flag: str = "") -> Any:
    """A field of Options and its flag on the command line, by default the name of the field."""
    return Field(
        default, description=help, json_schema_extra={"flag": flag, "metavar": metavar}
    )


METHODS = {  # --method: its class, in orchestra/methods/
    "orchestra-o1": "OrchestraO1", "aorchestra": "AOrchestra", "toolorchestra": "ToolOrchestra",
    "mas-orchestra": "MasOrchestra", "react": "React",
}  # fmt: skip
GIVEN_AGAIN = (  # may be given again to a replay or resume
    "method", "parallel", "tools", "timeout_s", "patience_s", "mcp", "allow_hosts", "unsafe_code",
)  # fmt: skip


class Options(Checked):
    """`parallel` is K_max of Eq. 10 and the number of threads."""

    method: str = _flag(
        "orchestra-o1", "orchestrator, or FILE.py:CLASS of your own", "NAME"
    )
    rounds: Count | None = _flag(
        None,
        "orchestra-o1 or aorchestra or toolorchestra: most rounds (default: its own)",
        "N",
    )
    steps: Count = _flag(30, "steps of a sub-agent", "N")
    parallel: Count = _flag(8, "sub-tasks that run in parallel", "N")
    budget_usd: Annotated[float, Field(ge=0, le=1e9)] | None = _flag(
        None,
        "spending limit; calls that could exceed it are not started",
        "USD",
        "budget",
    )
    timeout_s: Seconds = _flag(
        120.0, "time limit of one attempt of a call", "S", "timeout"
    )
    patience_s: Annotated[float, Field(ge=0, le=86_400)] = _flag(
        120.0, "most seconds that a call waits at rate limits", "S", "patience"
    )
    prompts: Literal["full", "small"] = _flag(
        "full", "orchestra-o1: the paper's prompt, or one for small models"
    )
    stop_threshold: Share | None = _flag(
        None, "orchestra-o1: stop when p exceeds P, Eq. 22", "P"
    )
    context_tokens: Count = 6000  # L_ctx of Eq. 20
    context: Literal["curated", "none", "full"] = _flag(
        "curated", "aorchestra: what a sub-agent is told of earlier results"
    )
    sub_agent: Literal["react", "mini-swe"] = _flag(
        "react", "aorchestra: style of its sub-agents"
    )
    instruction: Annotated[str, AfterValidator(_instruction)] | None = _flag(
        None, "aorchestra or orchestra-o1: system prompt of the main agent", "FILE"
    )
    prefer: Preference = _flag(
        {}, "toolorchestra: what you prefer, as cost=0.5,latency=0.2", "NAME=WEIGHT,..."
    )
    dom: Literal["low", "high"] = _flag(
        "high", "mas-orchestra: one agent, or a graph of agents"
    )
    allow_hosts: Hosts = _flag(
        (),
        "internal host that pages may be fetched from; repeatable",
        "HOST[:PORT]",
        "allow-host",
    )
    unsafe_code: bool = _flag(
        False, "run code of models without a sandbox; see SECURITY.md"
    )
    tools: OwnTools = _flag((), "a tool of your own; repeatable", "FILE.py:FUNCTION")
    facts: tuple[
        dict[str, Any], ...
    ] = ()  # MiniGAIA's: orchestra/evaluation/world.py plays the sub-agents
    mcp: Several = _flag(
        (), "command of an MCP server, or its URL; repeatable", "COMMAND"
    )

    def again(self) -> dict[str, Any]:
        """What a replay or resume is given again: a run folder may come from someone else."""
        return {name: getattr(self, name) for name in GIVEN_AGAIN}


def flag_of(name: str) -> str:
    """The flag of a field of Options, or of another argument of the command line."""
    field = Options.model_fields.get(name)
    extra: Any = field and field.json_schema_extra
    return "--" + ((extra and extra["flag"]) or name.replace("_", "-"))


def variables(commands: Iterable[str]) -> list[str]:
    """The environment variables that commands use, as $NAME or ${NAME}."""
    names = [
        name for command in commands for name in re.findall(r"\$\{?(\w+)", command)
    ]
    return [name for name in names if name not in ("HOME", "PATH", "PWD", "USER")]
