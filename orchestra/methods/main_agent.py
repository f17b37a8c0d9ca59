"""What a main agent reads, and what it may reply: parts that Orchestra-o1 and AOrchestra share.

It never opens a file itself: it reads which files there are, and which sub-tasks have opened one or
failed to. It replies with a JSON decision:

    {"reasoning": "...", "action": "delegate_task", "params": {"tasks": [...]}}
    {"reasoning": "...", "action": "complete", "params": {"answer": "7:49"}}

A task is the 4-tuple (instruction, context, model, tools) of Eq. 2. Models write it in many forms,
and all of them are read. What cannot work, such as an unknown tool or one that cannot open the file
of its task, is a ModelMistake: the model reads the error and decides again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, count
from string import Template
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    BeforeValidator,
    Field,
    StringConstraints,
    TypeAdapter,
    ValidationError,
)

from orchestra.kernel.placing import OF_USER, may_open, mentions
from orchestra.kernel.prompts import named, quoted_whole, say, without_marks
from orchestra.kernel.tool import Tool
from orchestra.kernel.vocabulary import (
    OPENED_BY,
    SKILLS,
    Backend,
    Complete,
    Decision,
    Delegate,
    Evidence,
    Media,
    ModelMistake,
    Reply,
    State,
    SubTask,
)
from orchestra.methods.replies import (
    TEXT,
    as_text,
    closed_object,
    const,
    find_action,
    list_of,
    one_of,
)

PROMPTS = "delegation"
DELEGATE = "delegate_task"
COMPLETE = "complete"
MOST_PROBLEMS = 5  # told at once
Read = Callable[[dict[str, Any], str, State], Delegate]


# ---- what it reads -------------------------------------------------------------------------------


def model_lines(backends: Sequence[Backend]) -> str:
    """B for the prompt: name, skills, price."""
    lines = []
    for b in backends:
        skills = ", ".join(f"{k} {b.skills[k]:g}" for k in SKILLS if b.skills.get(k))
        price = b.price_usd_per_mtok
        cost = say(PROMPTS, "no_price")
        if price is not None:
            cost = say(
                PROMPTS, "price", into=f"{price.input:g}", out=f"{price.output:g}"
            )
        lines.append(f"- {b.name}: {skills}; {cost}")
    return "\n".join(lines)


def manual_lines(tools: Mapping[str, Tool]) -> str:
    """T for the prompt: the manual of each tool."""
    return "\n\n".join(tool.manual for tool in tools.values())


def status_lines(
    state: State, next_step: str, mistake: str = "", last_chance: bool = False
) -> str:
    """Round and budget, the error of the previous reply, and the next step."""
    notice = say(PROMPTS, "mistake", mistake=mistake) if mistake else ""
    if last_chance:
        return f"{notice}\n{say(PROMPTS, 'last_chance')}".strip()
    parts = [say(PROMPTS, "round", round=state.round, rounds=state.rounds)]
    if state.budget_usd is not None:
        parts.append(say(PROMPTS, "budget", usd=f"{state.budget_usd:.4f}"))
    if notice:
        parts.append(notice)
    return " ".join(parts) + "\n" + next_step


def reported(text: str) -> str:
    """Reports of sub-agents as data: they may quote pages and files that are not trusted."""
    return quoted_whole(text) if text else say(PROMPTS, "nothing_found")


def media_lines(state: State) -> str:
    """M for the prompt: each file, and the sub-tasks that have opened it or failed to."""
    if not state.task.media:
        return say(PROMPTS, "no_media")
    return "\n".join(_media_line(m, state) for m in state.task.media)


def _media_line(m: Media, state: State) -> str:
    opened = opened_by(m, state)
    tried = tried_by(m, state)
    text = "media_unseen"
    ids = ""
    if opened:
        text = "media_seen"
        ids = ", ".join(say(PROMPTS, "seen_by", id=h.id, round=h.round) for h in opened)
    elif tried:
        text = "media_tried"
        ids = "; ".join(say(PROMPTS, "tried_by", id=h.id, round=h.round) for h in tried)
    return say(PROMPTS, text, name=named(m.name), modality=m.modality, ids=ids)


def tried_by(m: Media, state: State) -> list[Evidence]:
    """The sub-tasks whose instruction names the file."""
    return [h for h in state.history if mentions(h.instruction, m)]


def system_prompt(text: Any) -> str:
    """A text in place of a system prompt. Raises ValueError unless it can be one."""
    template = Template(str(text))
    if not template.is_valid() or {*template.get_identifiers()} != {"models", "tools"}:
        raise ValueError(
            "needs ${models} and ${tools} and no other variable ($$ is a plain $)"
        )
    return str(text)


def fill(text: str, **values: str) -> str:
    return Template(text.strip()).substitute(values)


# ---- the schema of a decision --------------------------------------------------------------------


def task_schema(state: State) -> dict[str, Any]:
    """The properties of the 4-tuple (I, C, b, T)."""
    tool = (
        one_of(state.tools) if state.tools else TEXT
    )  # some endpoints refuse an empty enum
    return {
        "task_instruction": TEXT,
        "context": TEXT,
        "model": one_of((*state.backends, "auto")),
        "tools": list_of(tool),
    }


def decision_schema(
    delegation: dict[str, Any],
    state: State,
    last_chance: bool,
    may_complete: bool = True,
) -> dict[str, Any]:
    """The JSON schema of y_t. `delegation` is the schema of a delegation's params, and without
    `may_complete` an answer would be refused.

    The reasoning comes first: a model that names the action first has decided before it reasons.
    There is one alternative per action, because small models mix the actions otherwise.
    """
    of_action = {
        "delegate": _action_schema(DELEGATE, delegation),
        "complete": _action_schema(COMPLETE, closed_object({"answer": TEXT})),
    }
    alternatives = [
        of_action[action] for action in offered(state, last_chance, may_complete)
    ]
    return alternatives[0] if len(alternatives) == 1 else {"anyOf": alternatives}


def _action_schema(name: str, params: dict[str, Any]) -> dict[str, Any]:
    return closed_object({"reasoning": TEXT, "action": const(name), "params": params})


def offered(state: State, last_chance: bool, may_complete: bool) -> list[str]:
    """The actions of the next reply: not those that were refused in this round, if another one can
    be accepted. At temperature 0 a model repeats a refused action word for word.
    """
    if last_chance:
        return ["complete"]
    actions = ["delegate", "complete"]
    left = [action for action in actions if action not in state.refused]
    if not left or (left == ["complete"] and not may_complete):
        return actions
    return left


def nothing_seen(state: State) -> bool:
    """Whether the task has files, and no sub-task has worked on any."""
    return bool(state.task.media) and not state.history


# ---- from a reply to a decision ------------------------------------------------------------------


def read_decision(
    delegate: Read,
    reply: Reply,
    state: State,
    last_chance: bool,
    may_complete: bool = True,
) -> Decision:
    """y_t from any reply. `delegate` reads the params of a delegation. Raises ModelMistake."""
    found = find_action(reply.text, reply.cut)
    action = found["action"]
    reasoning = str(found.get("reasoning") or "")
    params = found.get("params")
    if not isinstance(params, dict):
        params = found  # flat
    if action == COMPLETE:
        answer = answer_in(params)
        if not may_complete and not last_chance:
            raise ModelMistake("no_evidence", wanted="complete", answer=answer)
        return Complete(answer, reasoning)
    if action in (DELEGATE, "delegate") and not last_chance:
        try:
            return delegate(params, reasoning, state)
        except ModelMistake as mistake:
            mistake.wanted = "delegate"
            raise
    known = COMPLETE if last_chance else f"{DELEGATE}, {COMPLETE}"
    raise ModelMistake("bad_action", action=repr(action)[:80], known=known)


def answer_in(params: dict[str, Any]) -> str:
    """The answer in the params of an action. Raises ModelMistake if there is none."""
    value = params.get("answer")
    answer = "" if value in ([], {}) else without_marks(as_text(value))
    if not answer:
        raise ModelMistake("empty_answer", wanted="complete")
    return answer


# ---- from the params of a delegation to sub-tasks ------------------------------------------------


def _word(value: Any) -> str:
    return "" if value is None else str(value).strip()


def _names(value: Any) -> Any:
    """A list of names, which may be a single one or null."""
    if value is None:
        return ()
    return (value,) if isinstance(value, str | int) else value


Text = Annotated[
    str, BeforeValidator(lambda value: "" if value is None else str(value))
]
Word = Annotated[str, BeforeValidator(_word)]
Names = Annotated[tuple[Word, ...], BeforeValidator(_names)]
Share = Annotated[float, Field(ge=0, le=1)]
Table = Annotated[dict[str, Share], BeforeValidator(lambda value: value or {})]
Weight = Annotated[float, Field(gt=0, le=1e6)]
Priority = Annotated[
    Weight, BeforeValidator(lambda value: 1.0 if value is None else value)
]
Instruction = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


class TaskFields(BaseModel):
    """One entry of `params.tasks`. All keys but the instruction may be missing or null."""

    model_config = {"extra": "ignore"}
    task_instruction: Instruction
    context: Text = ""
    model: Word = ""
    tools: Names | None = None
    id: Word = ""
    needs: Names = ()
    modalities: Names = ()
    requirements: Table = {}
    priority: Priority = 1.0


Rows = TypeAdapter(list[TaskFields])


def read_tasks(rows: list[Any], state: State) -> tuple[SubTask, ...]:
    """The sub-tasks of the rows; a missing id is made up. Raises ModelMistake."""
    try:
        fields = Rows.validate_python(rows)
    except ValidationError as error:
        problems = []
        for problem in error.errors()[:MOST_PROBLEMS]:
            where = ".".join(map(str, ("tasks", *problem["loc"])))
            problems.append(f"{where}: {problem['msg']}")
        raise ModelMistake("bad_fields", problems="; ".join(problems)) from None
    taken = {h.id for h in state.history} | set(state.waiting) | {f.id for f in fields}
    subtasks = []
    for f in fields:
        id = f.id or next(id for n in count(1) if (id := f"t{n}") not in taken)
        taken.add(id)
        subtasks.append(_as_subtask(f, id, state))
    check_files(subtasks, state)
    return tuple(subtasks)


def _as_subtask(f: TaskFields, id: str, state: State) -> SubTask:
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
        tools=None if f.tools is None else _tools_meant(f.tools, state),
        needs=tuple(need for need in f.needs if need),
        modalities=tuple(modality for modality in f.modalities if modality),
        requirements=f.requirements,
        priority=f.priority,
    )


def _tools_meant(names: Sequence[str], state: State) -> tuple[str, ...]:
    """The tools that these names mean, each once. Raises ModelMistake for one that means none."""
    for name in names:
        if name not in state.tools:
            rule = "unknown_tool" if state.tools else "no_tools"
            raise ModelMistake(rule, tool=repr(name), known=", ".join(state.tools))
    return tuple(dict.fromkeys(names))


# ---- whether the tools of a sub-task open its files ----------------------------------------------


def check_files(subtasks: Sequence[SubTask], state: State) -> None:
    """Raises ModelMistake if an instruction names a file that no tool of its sub-task opens."""
    problems = chain.from_iterable(_problems(u, state) for u in subtasks)
    told = list(dict.fromkeys(problems))[:MOST_PROBLEMS]
    if told:
        raise ModelMistake("bad_assignment", problems=" ".join(told))


def _problems(u: SubTask, state: State) -> Iterator[str]:
    """Without a tool for files, a sub-task may still name a file that was opened before, or that
    another sub-task opens for it: it can work with what that one reported.
    """
    psi = state.capabilities
    if u.tools is None or not all(tool in psi for tool in u.tools):
        return  # Eq. 7 chooses the tools, or it is not known what they open
    files = [m for m in state.task.media if mentions(u.instruction, m)]
    useless = [tool for tool in u.tools if _opens_others(psi[tool], files)]
    for m in files:
        right = tools_for_file(m, state)
        if not right or any(may_open(psi[tool], m) for tool in u.tools):
            continue
        about = {"name": named(m.name), "modality": m.modality, "right": right[0]}
        if useless:
            yield say(PROMPTS, "wrong_tool", tool=useless[0], **about)
        elif not u.needs and not opened_by(m, state):
            yield say(PROMPTS, "no_file_tool", **about)


def tools_for_file(m: Media, state: State) -> list[str]:
    """The tools that are made for files of this kind."""
    made_for = OPENED_BY[m.modality][0]
    return [tool for tool, psi in state.capabilities.items() if made_for in psi]


def _opens_others(psi: frozenset[str], files: Sequence[Media]) -> bool:
    """Whether a tool is made for files, but opens none of these."""
    made_for = {capabilities[0] for capabilities in OPENED_BY.values()}
    is_for_files = not psi.isdisjoint(made_for) and OF_USER not in psi
    return is_for_files and not any(may_open(psi, m) for m in files)


def opened_by(m: Media, state: State) -> list[Evidence]:
    """The entries of the history whose sub-task opened a file."""
    return [h for h in state.history if m.name in h.media]
