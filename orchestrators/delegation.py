"""The JSON decision, delegate_task or complete: what Orchestra-o1 and AOrchestra share of it.

What their main agents read of files and models; the fields of a task; how a reply is taken apart.
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
from orchestra.vocabulary import (
    SKILL_OF,
    SKILLS,
    Backend,
    Complete,
    Decision,
    Delegate,
    Evidence,
    Media,
    ModelMistake,
    State,
    SubTask,
)
from tools import all_tools

Messages = list[dict[str, Any]]
ReadDelegation = Callable[[dict[str, Any], str, State], Delegate]

# ---- what the model reads ------------------------------------------------------------------------


def media_lines(state: State) -> str:
    """M for the prompt: each file, and which sub-tasks have read it or have failed to."""

    def one(m: Media) -> str:
        seen, tried = read_by(m, state), tried_by(m, state)
        key = "media_seen" if seen else "media_tried" if tried else "media_unseen"
        rows = [say("delegation", "seen_by", id=h.id, round=h.round) for h in seen or tried]
        return say("delegation", key, name=m.name, modality=m.modality, ids=", ".join(rows))

    return "\n".join(map(one, state.task.media)) or say("delegation", "no_media")


def read_by(m: Media, state: State) -> list[Evidence]:
    return [h for h in state.history if m.name in h.media]


def tried_by(m: Media, state: State) -> list[Evidence]:
    """The sub-tasks meant for a file that none has read: they name it, or they name and read no
    file and had a tool for its kind.
    """
    if read_by(m, state):
        return []
    names = [other.name for other in state.task.media]
    skill, known = SKILL_OF[m.modality], all_tools()
    opens = {name for name, tool in known.items() if skill in tool.capabilities}

    def vague(h: Evidence) -> bool:
        return not h.media and not any(name in h.instruction for name in names)

    return [
        h
        for h in state.history
        if m.name in h.instruction or (vague(h) and not opens.isdisjoint(h.tools))
    ]


def now(state: State, next_step: str, mistake: str = "", last_chance: bool = False) -> str:
    """Where the run stands, what was wrong with the reply before, and what to do next."""
    told = say("delegation", "mistake", mistake=mistake) if mistake else ""
    if last_chance:
        return f"{told}\n{say('delegation', 'last_chance')}".strip()
    place = say("delegation", "round", round=state.round, rounds=state.rounds)
    usd = "" if state.budget_usd is None else f"{state.budget_usd:.4f}"
    money = say("delegation", "budget", usd=usd) if usd else ""
    return " ".join(part for part in (place, money, told) if part) + "\n" + next_step


def as_messages(system: str, user: str) -> Messages:
    return [{"role": "system", "content": system}, {"role": "user", "content": user}]


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

    model_config = ConfigDict(extra="ignore")
    task_instruction: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
    context: Text = ""
    model: Word = ""
    tools: Names | None = None
    id: Word = ""
    needs: GivenNames = ()
    modalities: GivenNames = ()
    requirements: Table = {}
    priority: Priority = 1.0


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


def task_schema(backends: Sequence[str], tools: Sequence[str]) -> dict[str, Any]:
    """The properties of the 4-tuple (I, C, b, T)."""
    text = {"type": "string"}
    return {
        "task_instruction": text,
        "context": text,
        "model": {"type": "string", "enum": [*backends, "auto"]},
        "tools": {"type": "array", "items": {"type": "string", "enum": list(tools)}},
    }


def actions_schema(delegation: dict[str, Any], last_chance: bool) -> dict[str, Any]:
    """One alternative an action: a loose schema lets small models mix the two."""
    complete = _action_schema("complete", object_schema({"answer": {"type": "string"}}))
    return (
        complete
        if last_chance
        else {"anyOf": [_action_schema("delegate_task", delegation), complete]}
    )


def _action_schema(name: str, params: dict[str, Any]) -> dict[str, Any]:
    action = {"type": "string", "const": name}
    return object_schema({"reasoning": {"type": "string"}, "action": action, "params": params})


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


def _complete(params: dict[str, Any], reasoning: str, state: State) -> Complete:
    said = params.get("answer")
    answer = "" if said in (None, [], {}) else str(said).strip()  # 0 and False are answers
    if not answer:
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
