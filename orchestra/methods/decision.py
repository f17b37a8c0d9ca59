"""The JSON decision of Orchestra-o1 and AOrchestra: its schema, and how a reply is read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    BeforeValidator,
    Field,
    StringConstraints,
    ValidationError,
)

from orchestra.runtime.parsing import find_action
from orchestra.runtime.prompts import without_marks
from orchestra.runtime.reply_schema import TEXT, closed_object, const, list_of, one_of
from orchestra.runtime.tape import adapter
from orchestra.vocabulary import (
    Complete,
    Decision,
    Delegate,
    ModelMistake,
    RefusedAnswer,
    State,
    SubTask,
)

Text = Annotated[str, BeforeValidator(lambda v: "" if v is None else str(v))]
Word = Annotated[str, BeforeValidator(lambda v: "" if v is None else str(v).strip())]
Names = Annotated[
    tuple[Word, ...],
    BeforeValidator(
        lambda v: () if v is None else (v,) if isinstance(v, str | int) else v
    ),
]
Share = Annotated[float, Field(ge=0, le=1)]
Table = Annotated[dict[str, Share], BeforeValidator(lambda v: v or {})]
Priority = Annotated[
    float, Field(gt=0, le=1e6), BeforeValidator(lambda v: 1.0 if v is None else v)
]


class TaskFields(BaseModel):
    """One entry of `params.tasks`. All keys but the instruction may be missing or null."""

    model_config = {"extra": "ignore", "defer_build": True}  # built at the first reply
    task_instruction: Annotated[
        str, StringConstraints(strip_whitespace=True, min_length=1)
    ]
    context: Text = ""
    model: Word = ""
    tools: Names | None = None
    id: Word = ""
    needs: Names = ()
    modalities: Names = ()
    requirements: Table = {}
    priority: Priority = 1.0


def task_schema(backends: Sequence[str], tools: Sequence[str]) -> dict[str, Any]:
    """The properties of the 4-tuple (I, C, b, T)."""
    names = list_of(
        one_of(tools) if tools else TEXT
    )  # some endpoints refuse an empty enum
    model = one_of((*backends, "auto"))
    return {"task_instruction": TEXT, "context": TEXT, "model": model, "tools": names}


def decision_schema(delegation: dict[str, Any], last_chance: bool) -> dict[str, Any]:
    """The JSON schema of y_t; `delegation`: of a delegation's params. The reasoning comes first: a
    model that names the action first has decided before it reasons. There is one alternative per
    action, because small models mix the actions otherwise.
    """

    def reasoned(name: str, params: dict[str, Any]) -> Any:
        return closed_object(
            {"reasoning": TEXT, "action": const(name), "params": params}
        )

    complete = reasoned("complete", closed_object({"answer": TEXT}))
    return (
        complete
        if last_chance
        else {"anyOf": [reasoned("delegate_task", delegation), complete]}
    )


def read_decision(
    delegate: Callable[[dict[str, Any], str, State], Delegate],
    reply: str,
    state: State,
    cut: bool = False,
    last_chance: bool = False,
) -> Decision:
    """y_t from any reply: with fences, thinking, flat params, nulls or extra keys. `delegate` reads
    the params of a delegation.

    Raises ModelMistake.
    """
    wanted = find_action(reply, cut)
    action, reasoning = wanted["action"], str(wanted.get("reasoning") or "")
    params = (
        wanted["params"] if isinstance(wanted.get("params"), dict) else wanted
    )  # or flat
    if action == "complete":
        answer = answer_in(params)
        if state.task.media and not state.history and not last_chance:
            raise RefusedAnswer("no_evidence", answer=answer, seen=False)
        return Complete(answer, reasoning)
    if action in ("delegate_task", "delegate") and not last_chance:
        return delegate(params, reasoning, state)
    known = "complete" if last_chance else "delegate_task, complete"
    raise ModelMistake("bad_action", action=repr(action)[:80], known=known)


def answer_in(params: dict[str, Any]) -> str:
    """The answer in the params of an action. Raises ModelMistake if it is empty."""
    value = params.get("answer")
    answer = (
        "" if value in (None, [], {}) else str(value).strip()
    )  # 0 and False are answers
    if not answer:
        raise ModelMistake("empty_answer")
    return without_marks(answer)


def read_tasks(rows: list[Any], state: State) -> tuple[SubTask, ...]:
    """The sub-tasks of the rows; a missing id is made up. Raises ModelMistake."""
    try:
        fields = adapter(list[TaskFields]).validate_python(rows)
    except ValidationError as error:
        places = [
            (".".join(map(str, ("tasks", *e["loc"]))), e["msg"])
            for e in error.errors()[:5]
        ]
        problems = "; ".join(f"{place}: {problem}" for place, problem in places)
        raise ModelMistake("bad_fields", problems=problems) from None
    taken = {h.id for h in state.history} | set(state.waiting) | {f.id for f in fields}
    free = (id for n in count(1) if (id := f"t{n}") not in taken)
    return tuple(as_subtask(f, f.id or next(free), state) for f in fields)


def as_subtask(f: TaskFields, id: str, state: State) -> SubTask:
    """u = (I, C, b, T). Raises ModelMistake for an unknown model or tool."""
    backend = None if f.model in ("", "auto", "null", "none") else f.model
    if backend is not None and backend not in state.backends:
        known = ", ".join(state.backends)
        raise ModelMistake("unknown_model", model=repr(backend), known=known)
    if unknown := [name for name in f.tools or () if name not in state.tools]:
        rule = "unknown_tool" if state.tools else "no_tools"
        raise ModelMistake(rule, tool=repr(unknown[0]), known=", ".join(state.tools))
    needs, modalities = (
        tuple(filter(None, names)) for names in (f.needs, f.modalities)
    )
    return SubTask(
        id, f.task_instruction, f.context, backend, f.tools, needs,
        modalities=modalities, requirements=f.requirements, priority=f.priority,
    )  # fmt: skip
