"""The JSON decision, delegate_task or complete: what Orchestra-o1 and AOrchestra share of it.

What their main agents read of files and models; the fields of a task; how a reply is taken apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from orchestra.parsing import find_action
from orchestra.prompts import say
from orchestra.vocabulary import SKILLS, Backend, Complete, ModelMistake, State, SubTask

# ---- what the model reads ------------------------------------------------------------------------


def media_lines(state: State) -> str:
    lines = []
    for m in state.task.media:
        seen_by = [f"{h.id} in round {h.round}" for h in state.history if m.name in h.media]
        key = "media_seen" if seen_by else "media_unseen"
        lines.append(
            say(
                "delegation",
                key,
                name=m.name,
                modality=m.modality,
                ids=", ".join(seen_by),
            )
        )
    return "\n".join(lines) or say("delegation", "no_media")


def model_lines(backends: Sequence[Backend]) -> str:
    """B for the prompt: name, what it is good at, its price."""
    return "\n".join(f"- {b.name}: {_skills(b)}; {_price(b)}" for b in backends)


def _skills(b: Backend) -> str:
    return ", ".join(f"{k} {b.skills[k]:g}" for k in SKILLS if b.skills.get(k))


def _price(b: Backend) -> str:
    return (
        f"USD {b.price.input:g} in, {b.price.output:g} out per million tokens"
        if b.price
        else "price unknown"
    )


# ---- what the model may say ----------------------------------------------------------------------

Text = Annotated[
    str, BeforeValidator(lambda v: "" if v is None else v if isinstance(v, str) else str(v))
]
Names = Annotated[
    tuple[Text, ...],
    BeforeValidator(lambda v: () if v is None else (v,) if isinstance(v, str | int) else v),
]
Table = Annotated[
    dict[str, Annotated[float, Field(ge=0, le=1)]], BeforeValidator(lambda v: v or {})
]


class TaskFields(BaseModel):
    """One entry of `params.tasks`; every key but the instruction may be absent or null."""

    model_config = ConfigDict(extra="ignore")
    task_instruction: Annotated[str, Field(min_length=1)]
    context: Text = ""
    model: Text = ""
    tools: Names | None = None
    id: Text = ""
    needs: Names = ()
    modalities: Names = ()
    requirements: Table = {}
    priority: Annotated[
        float, Field(gt=0, le=1e6), BeforeValidator(lambda v: 1.0 if v is None else v)
    ] = 1.0


def object_schema(
    properties: dict[str, Any], required: Sequence[str] | None = None
) -> dict[str, Any]:
    names = list(properties) if required is None else list(required)
    return {
        "type": "object",
        "properties": properties,
        "required": names,
        "additionalProperties": False,
    }


def action_schema(name: str, params: dict[str, Any]) -> dict[str, Any]:
    return object_schema(
        {
            "action": {"type": "string", "const": name},
            "reasoning": {"type": "string"},
            "params": params,
        }
    )


def read_action(reply: str, cut: bool = False) -> tuple[Any, dict[str, Any], str]:
    """The action, its params (or what stands flat beside it) and the reasoning of a reply."""
    wanted = find_action(reply, cut)
    flat = {k: v for k, v in wanted.items() if k != "action"}
    params = wanted["params"] if isinstance(wanted.get("params"), dict) else flat
    return wanted["action"], params, str(wanted.get("reasoning") or "")


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


def complete(params: dict[str, Any], reasoning: str, state: State) -> Complete:
    said = params.get("answer")
    answer = (
        said.strip() if isinstance(said, str) else "" if said is None else str(said)
    )  # 0 and False are answers
    if not answer or said in ([], {}):
        raise ModelMistake(say("mistakes", "empty_answer"))
    if state.task.media and not any(h.status in ("done", "partial") for h in state.history):
        raise ModelMistake(say("mistakes", "no_evidence"))
    return Complete(answer, reasoning)


def as_subtask(f: TaskFields, id: str, state: State) -> SubTask:
    backend = None if f.model in ("", "auto", "null", "none") else f.model
    if backend is not None and backend not in state.backends:
        raise ModelMistake(
            say("mistakes", "unknown_model", model=repr(backend), known=", ".join(state.backends))
        )
    for name in f.tools or ():
        if name not in state.tools:
            raise ModelMistake(
                say("mistakes", "unknown_tool", tool=repr(name), known=", ".join(state.tools))
            )
    return SubTask(
        id=id,
        instruction=f.task_instruction,
        context=f.context,
        backend=backend,
        tools=f.tools,
        needs=f.needs,
        modalities=f.modalities,
        requirements=f.requirements,
        priority=f.priority,
    )
