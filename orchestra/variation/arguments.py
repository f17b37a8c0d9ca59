"""What the fixture `recorded` takes, checked before anything is paid."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Event
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    InstanceOf,
    TypeAdapter,
    ValidationError,
)

from orchestra.kernel.folder import Options
from orchestra.kernel.tool import Tool
from orchestra.kernel.vocabulary import ConfigError, Pool

Count = Annotated[int, Field(ge=1)]


def _usable(path: str | Path) -> str | Path:
    if str(path) == "" or "\0" in str(path):
        raise ValueError("a path is needed, as in 'runs/capital'")
    return path


PathName = Annotated[str | Path, AfterValidator(_usable)]
File = PathName | tuple[str, PathName]
Function = Callable[..., Any]
OF_SEVERAL = "agents", "tools", "sources", "listeners"


class Arguments(BaseModel):
    """Those of `recorded` and of `orchestrate`."""

    model_config = ConfigDict(extra="forbid", strict=True, arbitrary_types_allowed=True)
    question: str
    media: PathName | list[File] | tuple[File, ...]
    out: PathName
    decisions: bool
    pool: InstanceOf[Pool] | PathName | None = None
    options: InstanceOf[Options] | None = None
    method: Function | None = None
    agents: Mapping[str, Function] | None = None
    tools: Mapping[str, InstanceOf[Tool]] | None = None
    change: Function | None = None
    sources: Sequence[Function] | None = None
    listeners: Sequence[Function] | None = None
    redact: Function | None = None
    send: Function | None = None
    cancelled: InstanceOf[Event] | None = None
    more: Mapping[str, Any] | None = None


class Numbers(BaseModel):
    """Those of Options."""

    model_config = ConfigDict(strict=True)
    rounds: Count | None
    steps: Count
    k_max: Count | None
    parallel: Count
    budget_usd: Annotated[float, Field(gt=0)] | None
    timeout_s: Annotated[float, Field(gt=0)]
    patience_s: Annotated[float, Field(ge=0)]
    context_tokens: Annotated[int, Field(ge=0)]
    more: Mapping[str, Any]


def check(**given: Any) -> None:
    """Raises ConfigError, in one line."""
    try:
        options = Arguments(**given).options
        if options is not None:
            TypeAdapter(Numbers).validate_python(vars(options))
    except ValidationError as errors:
        error = min(errors.errors(), key=lambda e: e["type"] != "extra_forbidden")
        loc = error["loc"] if error["loc"][0] in OF_SEVERAL else error["loc"][:1]
        place = ".".join(map(str, loc[:2]))
        message = error["msg"].removeprefix("Value error, ")
        problem = f"{place}: {message}, not {error['input']!r:.60}"
        if error["type"] == "extra_forbidden":
            known = ", ".join(Arguments.model_fields)
            problem = f"no argument {place!r}; it takes {known}"
        raise ConfigError(f"recorded: {' '.join(problem.split())}") from None
