"""The shape of each event of a trajectory, which is checked when one is read: it may come from
someone else. An event may have more fields than those that some reader of it needs.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired

from pydantic import ConfigDict, Field, FiniteFloat, ValidationError, with_config
from typing_extensions import TypedDict

from orchestra.contracts import adapter

MORE = ConfigDict(extra="allow", strict=True)
Number = Annotated[int, Field(ge=0, lt=1 << 40)]
Usd = Annotated[FiniteFloat, Field(gt=-1e12, lt=1e12)] | None
At = Annotated[list[Number], Field(min_length=3, max_length=3)]  # round, sub-task, step
AtEnd = Annotated[list[Number], Field(min_length=1, max_length=1)]


@with_config(MORE)
class Timing(TypedDict):
    latency_s: NotRequired[Annotated[FiniteFloat, Field(lt=1e12)]]


@with_config(MORE)
class Options(TypedDict):
    context_tokens: Number
    budget_usd: Usd


@with_config(MORE)
class Named(TypedDict):
    name: str


@with_config(MORE)
class Pool(TypedDict):
    backend: list[Named]


@with_config(MORE)
class Run(TypedDict):
    event: Literal["run"]
    v: Number
    at: AtEnd
    question: str
    options: Options
    pool: Pool


@with_config(MORE)
class PlacedSubTask(TypedDict):
    id: str
    instruction: str
    backend: str
    tools: list[str]
    agent: NotRequired[str]


@with_config(MORE)
class Decided(TypedDict):
    action: Literal["delegate", "complete"]
    answer: NotRequired[str]
    subtasks: NotRequired[list[dict[str, Any]]]


@with_config(MORE)
class Decision(TypedDict):
    event: Literal["decision"]
    v: Number
    at: At
    reply: str
    rounds: Number
    budget_usd: Usd
    cost_usd: Usd
    waiting: dict[str, list[str]]
    decision: NotRequired[Decided]
    mistake: NotRequired[str]
    timing: NotRequired[Timing]


@with_config(MORE)
class SubTaskEvent(TypedDict):
    event: Literal["subtask"]
    v: Number
    at: At
    subtask: PlacedSubTask


@with_config(MORE)
class Step(TypedDict):
    event: Literal["step"]
    v: Number
    at: At
    action: str
    params: Any
    observation: str


@with_config(MORE)
class ResultEvent(TypedDict):
    event: Literal["result"]
    v: Number
    at: At
    status: Literal["done", "partial", "blocked", "failed"]
    answer: str
    summary: str
    error: str
    media: list[str]
    steps: NotRequired[Number]
    trace_summary: NotRequired[str]
    cost_usd: Usd
    timing: NotRequired[Timing]


@with_config(MORE)
class End(TypedDict):
    event: Literal["end"]
    v: Number
    at: AtEnd
    answer: str
    fallback: bool
    rounds: Number
    calls: Number
    tokens: Number
    cost_usd: Usd
    failed_subtasks: Number
    why: str
    timing: NotRequired[Timing]


AnyEvent = Annotated[
    Run | Decision | SubTaskEvent | Step | ResultEvent | End,
    Field(discriminator="event"),
]


def problem(row: dict[str, Any]) -> str:
    """What is wrong with a line of a trajectory, or ""."""
    try:
        adapter(AnyEvent).validate_python(row)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(map(str, first["loc"]))[:80]
        return " ".join(f"{where}: {first['msg']}".split())[:200]
    if row["event"] == "decision" and not row.keys() & {"decision", "mistake"}:
        return "decision: has neither a decision nor a mistake"
    return ""
