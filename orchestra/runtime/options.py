"""The options of a run, defined once for the library, the command line and run.json.

Each field of Options has a default, a check and the text of --help. A wrong value is a ConfigError
of one line, wherever it comes from.

    >>> Options(method="aorchestra", budget_usd=0.5).parallel
    8
    >>> Options(prefer="cost=0.5,latency=0.2").prefer
    {'cost': 0.5, 'latency': 0.2}
    >>> flag_of("budget_usd"), methods_of("prefer", None)
    ('--budget', ('toolorchestra',))
    >>> Options(parallel=0)
    Traceback (most recent call last):
    orchestra.runtime.pool.Invalid: parallel: should be greater than or equal to 1
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from string import Template
from types import FunctionType
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainSerializer,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    field_validator,
)

from orchestra.runtime import text_variables
from orchestra.runtime.pool import Checked
from orchestra.runtime.texts import Files
from orchestra.runtime.user_code import is_spec, spec_of
from orchestra.vocabulary import ConfigError

# ---- checks of values ----------------------------------------------------------------------------


def _as_tuple(value: Any) -> Any:
    is_one = isinstance(value, str) or callable(value)
    return (value,) if is_one else value


def _weights(value: Any) -> Any:
    """Parse cost=0.5,latency=0.2."""
    if not isinstance(value, str):
        return value
    weights = {}
    for pair in value.split(","):
        name, _, weight = pair.partition("=")
        weights[name.strip()] = weight
    return weights


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


HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[\w.-]+|[0-9a-fA-F:]+)(:\d{1,5})?")


def _host(text: str) -> str:
    if not HOST.fullmatch(text):
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
SecondsOrZero = Annotated[float, Field(ge=0, le=86_400)]
Share = Annotated[float, Field(ge=0, le=1)]
Money = Annotated[float, Field(ge=0, le=1e9)]
Instruction = Annotated[str, AfterValidator(_instruction)]
Measure = Literal["outcome", "cost", "latency", "enhance_reasoning", "answer", "search"]
Preference = Annotated[dict[Measure, Share], BeforeValidator(_weights)]

# ---- what can be chosen by name ------------------------------------------------------------------

METHODS = {  # --method: its class, in orchestra/methods/
    "orchestra-o1": "OrchestraO1",
    "aorchestra": "AOrchestra",
    "toolorchestra": "ToolOrchestra",
    "mas-orchestra": "MasOrchestra",
    "react": "React",
}
# --agent: the methods whose sub-tasks it can do. A mini-swe sub-agent goes on in the folder of the
# one before, so there must be one sub-task at a time.
METHODS_OF_AGENT = {
    "react": ("orchestra-o1", "aorchestra", "react"),
    "mini-swe": ("aorchestra",),
}
# Options that may name Python of the user
SEAMS = ("method", "agent", "memory", "scheduler")
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


# ---- the options ---------------------------------------------------------------------------------


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
        "orchestra-o1",
        help=f"who decides: {', '.join(METHODS)} or FILE.py:NAME",
        metavar="NAME",
    )
    agent: Chosen = _flag(
        "react",
        help="who does a sub-task: react, mini-swe or FILE.py:NAME",
        metavar="NAME",
        methods=METHODS_OF_AGENT["react"],
    )
    memory: Chosen = _flag(
        "evidence",
        help="what is kept of results: evidence or FILE.py:NAME",
        metavar="NAME",
    )
    scheduler: Chosen = _flag(
        "utility",
        help="which sub-tasks run now: utility or FILE.py:NAME",
        metavar="NAME",
    )
    rounds: Count | None = _flag(
        None,
        help="most rounds (default: the method's own)",
        metavar="N",
        methods=("orchestra-o1", "aorchestra", "toolorchestra"),
    )
    steps: Count = _flag(
        30,
        help="steps of a sub-agent",
        metavar="N",
    )
    parallel: Count = _flag(
        8,
        help="sub-tasks that run in parallel",
        metavar="N",
    )
    budget_usd: Money | None = _flag(
        None,
        help="spending limit; calls that could exceed it are not started",
        metavar="USD",
        flag="budget",
    )
    timeout_s: Seconds = _flag(
        120.0,
        help="time limit of one attempt of a call",
        metavar="S",
        flag="timeout",
    )
    patience_s: SecondsOrZero = _flag(
        120.0,
        help="most seconds that a call waits at rate limits",
        metavar="S",
        flag="patience",
    )
    prompts: Literal["full", "small"] = _flag(
        "full",
        help="the paper's prompt, or one for small models",
        methods=("orchestra-o1",),
    )
    stop_threshold: Share | None = _flag(
        None,
        help="stop when p exceeds P, Eq. 22",
        metavar="P",
        methods=("orchestra-o1",),
    )
    context_tokens: Count = 6000  # L_ctx of Eq. 20
    context: Literal["curated", "none", "full"] = _flag(
        "curated",
        help="what a sub-agent is told of earlier results",
        methods=("aorchestra",),
    )
    instruction: Instruction | None = _flag(
        None,
        help="system prompt of the main agent",
        metavar="FILE",
        methods=("aorchestra", "orchestra-o1"),
    )
    prefer: Preference = _flag(
        {},
        help="what you prefer, as cost=0.5,latency=0.2",
        metavar="NAME=WEIGHT,...",
        methods=("toolorchestra",),
    )
    dom: Literal["low", "high"] = _flag(
        "high",
        help="one agent, or a graph of agents",
        methods=("mas-orchestra",),
    )
    lenient: bool = _flag(
        False,
        help="read replies as forgivingly as the released code",
        methods=("mas-orchestra", "toolorchestra"),
    )
    # Below `method` and `dom`, which its check reads
    texts: dict[str, str] | None = _flag(
        None,
        help="texts of a released model in place of prompts/; the command texts fills FOLDER",
        metavar="FOLDER",
    )
    allow_hosts: Hosts = _flag(
        (),
        help="internal host that pages may be fetched from; repeatable",
        metavar="HOST[:PORT]",
        flag="allow-host",
    )
    unsafe_code: bool = _flag(
        False,
        help="run code of models without a sandbox; see SECURITY.md",
    )
    tools: OwnTools = _flag(
        (),
        help="a tool of your own; repeatable",
        metavar="FILE.py:FUNCTION",
    )
    mcp: Several = _flag(
        (),
        help="command of an MCP server, or its URL; repeatable",
        metavar="COMMAND",
    )

    @field_validator("texts", mode="wrap")
    @classmethod
    def _check_texts(
        cls, given: Any, handler: ValidatorFunctionWrapHandler, info: ValidationInfo
    ) -> dict[str, str] | None:
        """Raises ValueError for texts that the method cannot use."""
        files: dict[str, str] | None = handler(given)
        if files is None or not {"method", "dom"} <= info.data.keys():
            return files
        if info.data.get("instruction") or info.data.get("prompts") == "small":
            raise ValueError("cannot go with --instruction or --prompts small")
        try:
            text_variables.check(files, info.data["method"], info.data["dom"])
        except ConfigError as error:
            where = f"{given.folder}: " if isinstance(given, Files) else ""
            raise ValueError(f"{where}{error}") from None
        return files

    def again(self) -> dict[str, Any]:
        """What a replay or resume is given again: a run folder may come from someone else."""
        given = {name: getattr(self, name) for name in GIVEN_AGAIN}
        return {k: value for k, value in given.items() if is_permission(k, value)}


def is_permission(name: str, value: object) -> bool:
    """Whether a replay or resume needs this option again, or it is a time limit. Naming another one
    varies a run, even with the value that it had.
    """
    if name in SEAMS:
        return is_spec(spec_of(value))
    return name in GIVEN_AGAIN and name != "parallel"


def flag_of(name: str) -> str:
    """The flag of a field of Options, or of another argument of the command line."""
    flag = extra_of(name).get("flag") or name.replace("_", "-")
    return f"--{flag}"


def extra_of(name: str) -> dict[str, Any]:
    """What `_flag` noted of a field of Options; {} for another name."""
    field = Options.model_fields.get(name)
    if field is None or not isinstance(field.json_schema_extra, dict):
        return {}
    return dict(field.json_schema_extra)


def methods_of(name: str, value: object) -> tuple[str, ...]:
    """The methods that use this value of a field; () for all of them."""
    if name == "agent" and isinstance(value, str) and value in METHODS_OF_AGENT:
        return METHODS_OF_AGENT[value]
    methods: tuple[str, ...] = extra_of(name).get("methods", ())
    return methods


def check_use(given: Mapping[str, Any], methods: Sequence[str]) -> None:
    """Raises ConfigError for an option that none of these methods uses. The user's own method may
    use any.
    """
    if any(is_spec(method) for method in methods):
        return
    for name, value in given.items():
        users = methods_of(name, value)
        if users and not {*users} & {*methods}:
            owners = " or ".join(sorted(users))
            shown = f" {value}" if name == "agent" else ""
            raise ConfigError(f"{flag_of(name)}{shown}: belongs to --method {owners}")


def variables(commands: Iterable[str]) -> list[str]:
    """The environment variables that commands use, as $NAME or ${NAME}.

    >>> variables(["python server.py --key $MY_KEY --home $HOME"])
    ['MY_KEY']
    """
    harmless = ("HOME", "PATH", "PWD", "USER")
    found = []
    for command in commands:
        names = re.findall(r"\$\{?(\w+)", command)
        found += [name for name in names if name not in harmless]
    return found
