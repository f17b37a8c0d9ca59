"""The JSON decision, delegate_task or complete: what the models of Orchestra-o1 and AOrchestra may
say, and how a reply is taken apart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
)

from orchestra.parsing import find_action
from orchestra.prompts import say
from orchestra.schemas import TEXT, closed_object, const, list_of, one_of
from orchestra.vocabulary import Complete, Decision, Delegate, ModelMistake, State, SubTask

ReadDelegation = Callable[[dict[str, Any], str, State], Delegate]

Text = Annotated[str, BeforeValidator(lambda v: "" if v is None else str(v))]
Word = Annotated[Text, AfterValidator(str.strip)]
Names = Annotated[
    tuple[Word, ...],
    BeforeValidator(lambda v: () if v is None else (v,) if isinstance(v, str | int) else v),
]
GivenNames = Annotated[Names, AfterValidator(lambda names: tuple(n for n in names if n))]
Share = Annotated[float, Field(ge=0, le=1)]
Table = Annotated[dict[str, Share], BeforeValidator(lambda v: v or {})]
Priority = Annotated[float, Field(gt=0, le=1e6), BeforeValidator(lambda v: 1.0 if v is None else v)]


class TaskFields(BaseModel):
    """One entry of `params.tasks`; every key but the instruction may be absent or null."""

    model_config = ConfigDict(extra="ignore", defer_build=True)  # at the first reply, not before
    task_instruction: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
    context: Text = ""
    model: Word = ""
    tools: Names | None = None
    id: Word = ""
    needs: GivenNames = ()
    modalities: GivenNames = ()
    requirements: Table = {}
    priority: Priority = 1.0


def task_schema(backends: Sequence[str], tools: Sequence[str]) -> dict[str, Any]:
    """The properties of the 4-tuple (I, C, b, T)."""
    model = one_of((*backends, "auto"))
    names = list_of(one_of(tools) if tools else TEXT)  # some endpoints refuse an empty enum
    return {"task_instruction": TEXT, "context": TEXT, "model": model, "tools": names}


def decision_schema_of(delegation: dict[str, Any], last_chance: bool) -> dict[str, Any]:
    """y_t by the schema of a delegation's params. A loose one lets small models mix the actions.
    The reasoning comes first: who names the action first has decided before he reasons.
    """

    def reasoned(name: str, params: dict[str, Any]) -> dict[str, Any]:
        return closed_object({"reasoning": TEXT, "action": const(name), "params": params})

    complete = reasoned("complete", closed_object({"answer": TEXT}))
    delegate = reasoned("delegate_task", delegation)
    return complete if last_chance else {"anyOf": [delegate, complete]}


def read_decision(
    reply: str, state: State, cut: bool, last_chance: bool, delegate: ReadDelegation
) -> Decision:
    """y_t from any reply (wire-formats: fenced, thinking around it, flat params, nulls, extra
    keys); `delegate` makes that of a delegation's params.

    Raises ModelMistake with the words the model is told.
    """
    wanted = find_action(reply, cut)
    action, reasoning = wanted["action"], str(wanted.get("reasoning") or "")
    flat = {k: v for k, v in wanted.items() if k != "action"}
    params = wanted["params"] if isinstance(wanted.get("params"), dict) else flat
    if action == "complete":
        return _complete(params, reasoning, state)
    if action in ("delegate_task", "delegate") and not last_chance:
        return delegate(params, reasoning, state)
    known = "complete" if last_chance else "delegate_task, complete"
    raise ModelMistake(say("mistakes", "bad_action", action=repr(action)[:80], known=known))


class TaskList(BaseModel):
    """`params.tasks`: an error in a field says in which of them."""

    tasks: list[TaskFields]


def read_tasks(rows: list[Any]) -> list[TaskFields]:
    """The fields of the tasks. Raises ModelMistake with the places that do not fit."""
    try:
        return TaskList.model_validate({"tasks": rows}).tasks
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()[:5]
        )
        raise ModelMistake(say("mistakes", "bad_fields", problems=problems)) from None


def answer_in(params: dict[str, Any]) -> str:
    """The answer among the params of an action. Raises ModelMistake where it is empty."""
    said = params.get("answer")
    answer = "" if said in (None, [], {}) else str(said).strip()  # 0 and False are answers
    if not answer:
        raise ModelMistake(say("mistakes", "empty_answer"))
    return answer


def _complete(params: dict[str, Any], reasoning: str, state: State) -> Complete:
    answer = answer_in(params)
    if state.task.media and not any(h.status in ("done", "partial") for h in state.history):
        raise ModelMistake(say("mistakes", "no_evidence"))
    return Complete(answer, reasoning)


def as_subtask(f: TaskFields, id: str, state: State) -> SubTask:
    """u = (I, C, b, T). Raises ModelMistake for a model or a tool that is not there."""
    backend = None if f.model in ("", "auto", "null", "none") else f.model
    if backend is not None and backend not in state.backends:
        known = ", ".join(state.backends)
        raise ModelMistake(say("mistakes", "unknown_model", model=repr(backend), known=known))
    for name in f.tools or ():
        if name not in state.tools:
            key, known = "unknown_tool" if state.tools else "no_tools", ", ".join(state.tools)
            raise ModelMistake(say("mistakes", key, tool=repr(name), known=known))
    return SubTask(
        id, f.task_instruction, f.context, backend, f.tools, f.needs,
        modalities=f.modalities, requirements=f.requirements, priority=f.priority,
    )  # fmt: skip
