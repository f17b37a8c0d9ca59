"""The options of a run, defined once for the library, the command line and run.json."""

from __future__ import annotations

import re
from collections.abc import Iterable
from string import Template
from types import FunctionType
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer

from orchestra.runtime.pool import Checked
from orchestra.runtime.user_code import spec_of


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


Several = Annotated[tuple[str, ...], BeforeValidator(_as_tuple)]
Host = Annotated[str, AfterValidator(_host)]
Hosts = Annotated[tuple[Host, ...], BeforeValidator(_as_tuple)]
OwnTools = Annotated[
    tuple[str | FunctionType, ...],
    BeforeValidator(_as_tuple),
    PlainSerializer(lambda tools: [spec_of(tool) for tool in tools]),
]
# A name of the program's own, FILE.py:NAME or package.module:NAME, or (in Python) the object itself
Chosen = Annotated[Any, PlainSerializer(spec_of)]
Count = Annotated[int, Field(ge=1, le=10_000)]
Seconds = Annotated[float, Field(gt=0, le=86_400)]
Patience = Annotated[float, Field(ge=0, le=86_400)]
Share = Annotated[float, Field(ge=0, le=1)]
Money = Annotated[float, Field(ge=0, le=1e9)]
Instruction = Annotated[str, AfterValidator(_instruction)]
Measure = Literal["outcome", "cost", "latency", "enhance_reasoning", "answer", "search"]
Preference = Annotated[dict[Measure, Share], BeforeValidator(_weights)]

METHODS = {  # --method: its class, in orchestra/methods/
    "orchestra-o1": "OrchestraO1",
    "aorchestra": "AOrchestra",
    "toolorchestra": "ToolOrchestra",
    "mas-orchestra": "MasOrchestra",
    "react": "React",
}
AGENTS = {  # --agent: the methods whose sub-tasks it can do
    "react": ("orchestra-o1", "aorchestra", "react"),
    "mini-swe": (
        "aorchestra",
    ),  # one sub-task at a time: each goes on in the last one's folder
}
SEAMS = (
    "method",
    "agent",
    "memory",
    "scheduler",
)  # options that may name Python of the user
# What may be given again to a replay or resume
GIVEN_AGAIN = (
    *SEAMS,
    "parallel",
    "tools",
    "timeout_s",
    "patience_s",
    "mcp",
    "allow_hosts",
    "unsafe_code",
)


def _flag(
    default: Any,
    help: str,
    metavar: str = "",
    flag: str = "",
    methods: tuple[str, ...] = (),
) -> Any:
    """A field of Options and its flag on the command line, by default the name of the field.
    `methods`: those that use it; all by default.
    """
    extra: Any = {"flag": flag, "metavar": metavar, "methods": methods}
    return Field(default, description=help, json_schema_extra=extra)


class Options(Checked):
    """`parallel` is K_max of Eq. 10 and the number of threads."""

    method: str = _flag(
        "orchestra-o1", f"orchestrator: {', '.join(METHODS)}, or your own", "NAME"
    )
    agent: Chosen = _flag(
        "react",
        "sub-agent: react, mini-swe, or your own",
        "NAME",
        methods=AGENTS["react"],
    )
    memory: Chosen = _flag(
        "evidence", "what prompts say of results, or your own", "NAME"
    )
    scheduler: Chosen = _flag(
        "utility", "which sub-tasks run, and where, or your own", "NAME"
    )
    rounds: Count | None = _flag(
        None,
        "most rounds (default: the method's own)",
        "N",
        methods=("orchestra-o1", "aorchestra", "toolorchestra"),
    )
    steps: Count = _flag(30, "steps of a sub-agent", "N")
    parallel: Count = _flag(8, "sub-tasks that run in parallel", "N")
    budget_usd: Money | None = _flag(
        None,
        "spending limit; calls that could exceed it are not started",
        "USD",
        flag="budget",
    )
    timeout_s: Seconds = _flag(
        120.0, "time limit of one attempt of a call", "S", flag="timeout"
    )
    patience_s: Patience = _flag(
        120.0, "most seconds that a call waits at rate limits", "S", flag="patience"
    )
    prompts: Literal["full", "small"] = _flag(
        "full", "the paper's prompt, or one for small models", methods=("orchestra-o1",)
    )
    stop_threshold: Share | None = _flag(
        None, "stop when p exceeds P, Eq. 22", "P", methods=("orchestra-o1",)
    )
    context_tokens: Count = 6000  # L_ctx of Eq. 20
    context: Literal["curated", "none", "full"] = _flag(
        "curated",
        "what a sub-agent is told of earlier results",
        methods=("aorchestra",),
    )
    instruction: Instruction | None = _flag(
        None,
        "system prompt of the main agent",
        "FILE",
        methods=("aorchestra", "orchestra-o1"),
    )
    prefer: Preference = _flag(
        {},
        "what you prefer, as cost=0.5,latency=0.2",
        "NAME=WEIGHT,...",
        methods=("toolorchestra",),
    )
    dom: Literal["low", "high"] = _flag(
        "high", "one agent, or a graph of agents", methods=("mas-orchestra",)
    )
    allow_hosts: Hosts = _flag(
        (),
        "internal host that pages may be fetched from; repeatable",
        "HOST[:PORT]",
        flag="allow-host",
    )
    unsafe_code: bool = _flag(
        False, "run code of models without a sandbox; see SECURITY.md"
    )
    tools: OwnTools = _flag((), "a tool of your own; repeatable", "FILE.py:FUNCTION")
    mcp: Several = _flag(
        (), "command of an MCP server, or its URL; repeatable", "COMMAND"
    )

    def again(self) -> dict[str, Any]:
        """What a replay or resume is given again: a run folder may come from someone else."""
        return {name: getattr(self, name) for name in GIVEN_AGAIN}


def flag_of(name: str) -> str:
    """The flag of a field of Options, or of another argument of the command line."""
    flag = extra_of(name).get("flag") or name.replace("_", "-")
    return f"--{flag}"


def extra_of(name: str) -> dict[str, Any]:
    """What `_flag` noted of a field of Options; {} for another name."""
    field = Options.model_fields.get(name)
    extra: Any = field.json_schema_extra if field else None
    return extra or {}


def methods_of(name: str, value: object) -> tuple[str, ...]:
    """The methods that use this value of a field; () for all of them."""
    if name == "agent" and isinstance(value, str) and value in AGENTS:
        return AGENTS[value]
    methods: tuple[str, ...] = extra_of(name).get("methods", ())
    return methods


def variables(commands: Iterable[str]) -> list[str]:
    """The environment variables that commands use, as $NAME or ${NAME}."""
    names = [
        name for command in commands for name in re.findall(r"\$\{?(\w+)", command)
    ]
    return [name for name in names if name not in ("HOME", "PATH", "PWD", "USER")]
