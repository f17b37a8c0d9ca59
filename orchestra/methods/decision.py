"""The JSON decision of Orchestra-o1 and AOrchestra: its schema, and how a reply is read.

A decision is one of two actions:

    {"reasoning": "...", "action": "delegate_task", "params": {"tasks": [...]}}
    {"reasoning": "...", "action": "complete", "params": {"answer": "7:49"}}

A task is the 4-tuple (instruction, context, model, tools) of Eq. 2 under the papers' keys. Models
write it in many forms, and all of them are read. An unknown model or tool is a ModelMistake, and so
is a tool that cannot open the file of the task: the model reads the error and decides again.

    >>> from orchestra.vocabulary import Task
    >>> state = State(
    ...     task=Task("What time is it?"), context="", history=(), backends=("small", "large"),
    ...     tools=("SeeAction",), round=1, rounds=10,
    ... )
    >>> row = {"task_instruction": "Read the clock.", "model": "auto", "tools": "SeeAction"}
    >>> (u,) = read_tasks([row], state)
    >>> u.id, u.backend, u.tools
    ('t1', None, ('SeeAction',))
    >>> read_tasks([{"task_instruction": ""}], state)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    orchestra.vocabulary.ModelMistake: ('bad_fields', {'problems': 'tasks.0.task_instruction: ...'})
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    BeforeValidator,
    Field,
    StringConstraints,
    ValidationError,
)

from orchestra.contracts import adapter
from orchestra.methods.assignment import check_files, tools_meant
from orchestra.runtime.parsing import find_action
from orchestra.runtime.prompts import without_marks
from orchestra.runtime.reply_schema import TEXT, closed_object, const, list_of, one_of
from orchestra.vocabulary import (
    Action,
    Complete,
    Decision,
    Delegate,
    ModelMistake,
    RefusedAnswer,
    State,
    SubTask,
)

DELEGATE = "delegate_task"
COMPLETE = "complete"

# ---- the schema of a decision --------------------------------------------------------------------


def task_schema(backends: Sequence[str], tools: Sequence[str]) -> dict[str, Any]:
    """The properties of the 4-tuple (I, C, b, T)."""
    tool = one_of(tools) if tools else TEXT  # some endpoints refuse an empty enum
    return {
        "task_instruction": TEXT,
        "context": TEXT,
        "model": one_of((*backends, "auto")),
        "tools": list_of(tool),
    }


def decision_schema(
    delegation: dict[str, Any], state: State, last_chance: bool
) -> dict[str, Any]:
    """The JSON schema of y_t. `delegation` is the schema of a delegation's params.

    The reasoning comes first: a model that names the action first has decided before it reasons.
    There is one alternative per action, because small models mix the actions otherwise.
    """
    of_action = {
        "delegate": _action_schema(DELEGATE, delegation),
        "complete": _action_schema(COMPLETE, closed_object({"answer": TEXT})),
    }
    alternatives = [of_action[action] for action in offered(state, last_chance)]
    return alternatives[0] if len(alternatives) == 1 else {"anyOf": alternatives}


def offered(state: State, last_chance: bool) -> list[Action]:
    """The actions of the next reply: not those that were refused in this round, if another one can
    be accepted. At temperature 0 a model repeats a refused action word for word.
    """
    if last_chance:
        return ["complete"]
    actions: list[Action] = ["delegate", "complete"]
    left = [action for action in actions if action not in state.refused]
    if not left or (left == ["complete"] and nothing_seen(state)):
        return actions
    return left


def nothing_seen(state: State) -> bool:
    """Whether the task has files, and no sub-task has worked on any."""
    return bool(state.task.media) and not state.history


def _action_schema(name: str, params: dict[str, Any]) -> dict[str, Any]:
    return closed_object({"reasoning": TEXT, "action": const(name), "params": params})


# ---- from a reply to a decision ------------------------------------------------------------------


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
    action = wanted["action"]
    reasoning = str(wanted.get("reasoning") or "")
    params = wanted.get("params")
    if not isinstance(params, dict):
        params = wanted  # flat
    if action == COMPLETE:
        with about("complete"):
            return _complete(params, reasoning, state, last_chance)
    if action in (DELEGATE, "delegate") and not last_chance:
        with about("delegate"):
            return delegate(params, reasoning, state)
    known = COMPLETE if last_chance else f"{DELEGATE}, {COMPLETE}"
    raise ModelMistake("bad_action", action=repr(action)[:80], known=known)


@contextmanager
def about(action: Action) -> Iterator[None]:
    """A mistake in the block is one of this action."""
    try:
        yield
    except ModelMistake as mistake:
        mistake.action = action
        raise


def _complete(
    params: dict[str, Any], reasoning: str, state: State, last_chance: bool
) -> Complete:
    answer = answer_in(params)
    if nothing_seen(state) and not last_chance:
        raise RefusedAnswer("no_evidence", answer=answer, seen=False)
    return Complete(answer, reasoning)


def answer_in(params: dict[str, Any]) -> str:
    """The answer in the params of an action. Raises ModelMistake if it is empty."""
    value = params.get("answer")
    is_missing = value in (None, [], {})  # 0 and False are answers
    answer = "" if is_missing else str(value).strip()
    if not answer:
        raise ModelMistake("empty_answer")
    return without_marks(answer)


# ---- from the params of a delegation to sub-tasks ------------------------------------------------


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def _word(value: Any) -> str:
    return _text(value).strip()


def _names(value: Any) -> Any:
    """A list of names, which may be a single one or null."""
    if value is None:
        return ()
    return (value,) if isinstance(value, str | int) else value


def _table(value: Any) -> Any:
    return value if value else {}


def _priority(value: Any) -> Any:
    return 1.0 if value is None else value


Text = Annotated[str, BeforeValidator(_text)]
Word = Annotated[str, BeforeValidator(_word)]
Names = Annotated[tuple[Word, ...], BeforeValidator(_names)]
Share = Annotated[float, Field(ge=0, le=1)]
Table = Annotated[dict[str, Share], BeforeValidator(_table)]
Priority = Annotated[float, Field(gt=0, le=1e6), BeforeValidator(_priority)]
Instruction = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


class TaskFields(BaseModel):
    """One entry of `params.tasks`. All keys but the instruction may be missing or null."""

    model_config = {"extra": "ignore", "defer_build": True}  # built at the first reply
    task_instruction: Instruction
    context: Text = ""
    model: Word = ""
    tools: Names | None = None
    id: Word = ""
    needs: Names = ()
    modalities: Names = ()
    requirements: Table = {}
    priority: Priority = 1.0


def read_tasks(rows: list[Any], state: State) -> tuple[SubTask, ...]:
    """The sub-tasks of the rows; a missing id is made up. Raises ModelMistake."""
    try:
        fields = adapter(list[TaskFields]).validate_python(rows)
    except ValidationError as error:
        raise ModelMistake("bad_fields", problems=_problems(error)) from None
    of_history = {h.id for h in state.history}
    taken = of_history | set(state.waiting) | {f.id for f in fields}
    subtasks = []
    for f in fields:
        id = f.id or _free_id(taken)
        taken.add(id)
        subtasks.append(as_subtask(f, id, state))
    check_files(subtasks, state)
    return tuple(subtasks)


def _problems(error: ValidationError) -> str:
    """The first five, each with the key that is wrong, such as tasks.0.priority."""
    rows = []
    for problem in error.errors()[:5]:
        where = ".".join(str(key) for key in ("tasks", *problem["loc"]))
        rows.append(f"{where}: {problem['msg']}")
    return "; ".join(rows)


def _free_id(taken: set[str]) -> str:
    ids = (f"t{number}" for number in count(1))
    return next(id for id in ids if id not in taken)


def as_subtask(f: TaskFields, id: str, state: State) -> SubTask:
    """u = (I, C, b, T). Raises ModelMistake for an unknown model or tool."""
    is_named = f.model not in ("", "auto", "null", "none")
    if is_named and f.model not in state.backends:
        known = ", ".join(state.backends)
        raise ModelMistake("unknown_model", model=repr(f.model), known=known)
    return SubTask(
        id=id,
        instruction=f.task_instruction,
        context=f.context,
        backend=f.model if is_named else None,
        tools=None if f.tools is None else tools_meant(f.tools, state),
        needs=tuple(need for need in f.needs if need),
        modalities=tuple(modality for modality in f.modalities if modality),
        requirements=f.requirements,
        priority=f.priority,
    )
