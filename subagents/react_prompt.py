"""What the ReAct sub-agent reads in a step, and the schema of what it may reply (App. B.3)."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from orchestra.prompts import render, say
from orchestra.schemas import TEXT, closed_object, const, one_of
from orchestra.vocabulary import Status, Step, SubTask, Task
from subagents.executor import SEARCH, VISIT
from tools import Tool

FEW_STEPS = 5  # a warning when no more are left
LIKE_PATTERNS = 5
SAME_CALLS = 3
STATUSES: tuple[Status, ...] = ("done", "partial", "blocked")
Messages = list[dict[str, Any]]


def render_step(
    u: SubTask,
    task: Task,
    tools: Mapping[str, Tool],
    trace: Sequence[Step],
    steps: int,
    resting: Collection[str],
) -> Messages:
    """The messages of the next step of `trace`; one without a main agent has prompts of its own."""
    system, user = (
        ("alone.md", "alone_user.md") if u.agent == "single" else ("system.md", "user.md")
    )
    manuals = "\n\n".join(tools[name].manual for name in u.tools or ())
    shown = render(
        f"react/{user}",
        instruction=u.instruction,
        context=u.context or say("react/messages", "no_context"),
        files=", ".join(_files(u, task, tools)) or "-",
        steps=_steps_done(trace) or say("react/messages", "no_steps"),
        step=len(trace) + 1,
        steps_max=steps,
        warning=_warning(trace, steps, resting),
    )
    return [
        {"role": "system", "content": render(f"react/{system}", tools=manuals)},
        {"role": "user", "content": shown},
    ]


def _files(u: SubTask, task: Task, tools: Mapping[str, Tool]) -> list[str]:
    """Who has no tool that opens a file would only try to open it with code, which can not."""
    fields = [f for name in u.tools or () for f in tools[name].parameters.model_fields.values()]
    return [m.name for m in task.media] if any(f.metadata for f in fields) else []


def _steps_done(trace: Sequence[Step]) -> str:
    # A memory is written with the next action, before that action's own observation: it belongs to
    # the step before. What stood in the first reply was written before anything was seen.
    noted = [*(s.memory for s in trace[1:]), ""]
    return "\n\n".join(
        say(
            "react/messages",
            "step",
            number=n,
            action=s.action,
            params=json.dumps(s.params, ensure_ascii=False),
            observation=s.observation,
            memory=memory or "-",
        )
        for n, (s, memory) in enumerate(zip(trace, noted, strict=False), 1)
    )


def _warning(trace: Sequence[Step], steps: int, resting: Collection[str]) -> str:
    left = steps - len(trace)  # the next step included
    if left == 1:
        return say("react/messages", "last_step")
    if (times := like_patterns(trace)) >= LIKE_PATTERNS:
        return say("react/messages", "repeated", times=times)
    few = say("react/messages", "few_steps_left", left=left) if left <= FEW_STEPS else ""
    names = ", ".join(sorted(resting))
    return (say("react/messages", "same_call", tools=names) if names else "") + few


def exhausted(u: SubTask, trace: Sequence[Step]) -> set[str]:
    """Of the agent without a main agent, which has all tools: those that were called in the very
    same way again and said the very same, since a call last showed something new; and for good,
    those that were so three times.
    """
    if u.agent != "single":
        return set()
    calls = [(s.action, s.params, s.observation) for s in trace]
    found = {call[0] for call in calls if calls.count(call) >= SAME_CALLS}
    for n in reversed(range(len(calls))):
        if calls[n] in calls[:n]:
            found.add(trace[n].action)
        elif not trace[n].failed:
            break
    return found - {"invalid", "finish"}


def unopened(task: Task, tools: Sequence[Tool], trace: Sequence[Step]) -> list[str]:
    """The files of the task that one of `tools` can open, and that no tool was tried on."""
    schemas = [json.dumps(t.schema(task)) for t in tools]
    tried = {str(value) for s in trace for value in s.params.values()}
    names = [m.name for m in task.media if m.name not in tried]
    return [name for name in names if any(json.dumps(name) in schema for schema in schemas)]


def like_patterns(trace: Sequence[Step]) -> int:
    """How many of the last steps are of one kind. A visit right after a search belongs to that
    search.
    """
    patterns: list[str] = []
    for before, step in zip([None, *trace], trace, strict=False):
        if not (step.action == VISIT and before and before.action == SEARCH):
            patterns.append(step.action)
    return next((n for n, p in enumerate(reversed(patterns)) if p != patterns[-1]), len(patterns))


def action_schema(tools: Sequence[Tool], task: Task, finish: bool) -> dict[str, Any]:
    """The JSON schema of one step: one alternative an action. Without `finish`, a tool has to be
    used first.
    """

    def alternative(name: str, params: dict[str, Any]) -> dict[str, Any]:
        return closed_object({"action": const(name), "params": params, "memory": TEXT})

    actions = [alternative(t.name, t.schema(task)) for t in tools]
    report = closed_object({"result": TEXT, "status": one_of(STATUSES), "summary": TEXT})
    return {"anyOf": [*actions, alternative("finish", report)] if finish else actions}
