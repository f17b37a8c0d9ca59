"""The ReAct sub-agent of Orchestra-o1 (arXiv 2606.13707, Eq. 13-14, App. B.3): think, act, observe,
until it finishes.

Differences from the paper / the released code
1. The steps so far are shown as a growing list, each action beside its own observation and the
   memory noted after it. The paper's prompt has one memory and one observation; the released code
   pairs the memory with the observation before it.
2. The five-like-patterns rule and the last step are enforced: only `finish` is left. The paper asks
   for it in the prompt.
3. A sub-agent with tools has to use one before it may report as done: small models answer from thin
   air. Tools that were not assigned are refused, not only left out of the list.
4. An endpoint that fails or a purse that is empty ends this sub-task alone, as a Result with the
   reason.
5. A sub-agent does not read the whole question, which App. B.3 shows it beside its task: small
   models answer the question in place of their own task. What it must know is in its context.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from orchestra.parsing import find_action
from orchestra.prompts import render, say
from orchestra.replies import Reply
from orchestra.vocabulary import (
    BudgetExceeded,
    EndpointError,
    ModelMistake,
    Result,
    Status,
    Step,
    SubTask,
    Task,
)
from tools import Environment, Tool, ToolError

OBSERVATION_CHARS = 8000
FEW_STEPS = 5  # a warning when no more are left
LIKE_PATTERNS = 5
TRIES_BEFORE_FINISH = 3  # steps that failed before the schema offers `finish` all the same
STATUSES: tuple[Status, ...] = ("done", "partial", "blocked")
SEARCH, VISIT = "GoogleSearchAction", "ExtractUrlContentAction"

Call = tuple[str, ...]  # the name of a logical call, as in ("r1", "t2")
OnStep = Callable[[int, Step], None]


def run(
    u: SubTask,
    env: Environment,
    tools: Mapping[str, Tool],
    call: Call,
    steps: int,
    on_step: OnStep,
    prompts: tuple[str, str] = ("react/system.md", "react/user.md"),
) -> Result:
    """Do u = (I, C, b, T) in at most `steps` steps; `call` names the logical calls, as in ("r1",
    "t2").

    Never raises for what a model, an endpoint or a tool did: that is the Result's status and error.
    """
    trace: list[Step] = []
    system = render(prompts[0], tools="\n\n".join(tools[name].manual for name in u.tools or ()))
    status: Status = "partial"
    error = say("react/messages", "out_of_steps", steps=steps)
    try:
        for number in range(1, steps + 1):
            must_finish = number == steps or like_patterns(trace) >= LIKE_PATTERNS
            messages = [
                {"role": "system", "content": system},
                {
                    "role": "user",
                    "content": render(prompts[1], **_shown(u, env, tools, trace, number, steps)),
                },
            ]
            usable = [] if must_finish else [tools[name] for name in u.tools or ()]
            free = not usable or len(trace) >= TRIES_BEFORE_FINISH or not saw_nothing(u, env, trace)
            schema = action_schema(usable, env.task, finish=free)
            with env.tape.logical_call(*call, f"s{number}"):
                reply = env.chat(env.backend, messages, env.purse, schema=("action", schema))
            step, finish = _act(reply, trace, u, env, tools, (*call, f"s{number}"), must_finish)
            trace.append(step)
            on_step(number, step)
            if finish:
                return _report(finish, u, env, trace)
            if must_finish and number < steps:
                error = say("react/messages", "would_not_finish")
                break
    except (EndpointError, BudgetExceeded) as failure:
        status = "partial" if _memory(trace) and isinstance(failure, BudgetExceeded) else "failed"
        error = say("react/messages", "stopped", reason=str(failure))
    if all(s.failed for s in trace):
        status = "failed"
    return Result(status, "", _memory(trace), env.purse.spent_usd, trace=tuple(trace), error=error)


run_alone = partial(run, prompts=("react/alone.md", "react/alone_user.md"))  # no main agent above


def saw_nothing(u: SubTask, env: Environment, trace: Sequence[Step]) -> bool:
    """No tool has worked, and one has to: but the agent without a main agent above it, asked
    without files, may know the answer.
    """
    may_know = not u.tools or (u.agent == "single" and not env.task.media)
    return not may_know and all(s.failed or s.action == "finish" for s in trace)


def _act(
    reply: Reply,
    trace: Sequence[Step],
    u: SubTask,
    env: Environment,
    tools: Mapping[str, Tool],
    call: Call,
    must_finish: bool,
) -> tuple[Step, dict[str, Any] | None]:
    """One step of Eq. 13, and the parameters of `finish` if that was the action."""
    action, memory = "invalid", ""
    params: dict[str, Any] = {}
    try:
        wanted = find_action(reply.text, reply.cut)
        memory = as_text(wanted.get("memory"))
        name = as_text(wanted["action"])
        params = wanted["params"] if isinstance(wanted.get("params"), dict) else {}
        if name == "finish":
            done = _status(params) == "done"
            if done and not must_finish and saw_nothing(u, env, trace):
                raise ModelMistake(say("mistakes", "nothing_worked"))
            return Step("finish", params, memory, ""), params or {"result": memory}
        known = ("finish",) if must_finish else (*(u.tools or ()), "finish")
        if name not in known:
            raise ModelMistake(
                say(
                    "mistakes",
                    "unassigned_tool" if name in tools else "bad_action",
                    action=name,
                    tool=name,
                    known=", ".join(known),
                )
            )
        action = name
        with env.tape.logical_call(*call, name):
            return Step(action, params, memory, _capped(tools[name](env, params))), None
    except (ModelMistake, ToolError) as failure:
        return Step(action, params, memory, _capped(str(failure)), failed=True), None


def _status(params: Mapping[str, Any]) -> Status:
    """ "done" where none is given; "partial" for a word of the model's own."""
    said = as_text(params.get("status")).lower() or "done"
    return next((s for s in STATUSES if s == said), "partial")


def _report(
    params: Mapping[str, Any], u: SubTask, env: Environment, trace: Sequence[Step]
) -> Result:
    """z = Omega(zeta), Eq. 14: the status, the result, the summary and the cost."""
    status = _status(params)
    if status == "done" and saw_nothing(u, env, trace):
        status = "partial"  # forced to finish, and no tool has shown anything
    answer = as_text(params.get("result"))
    return Result(
        status,
        answer,
        as_text(params.get("summary")) or _memory(trace),
        env.purse.spent_usd,
        trace=tuple(trace),
    )


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
    """The JSON schema of one step: one alternative an action, so that no action comes with
    another's parameters. Without `finish`, a tool has to be used first.
    """
    status = {"type": "string", "enum": list(STATUSES)}
    report = {"result": {"type": "string"}, "status": status, "summary": {"type": "string"}}
    actions = [_alternative(t.name, t.schema(task)) for t in tools]
    return {"anyOf": [*actions, _alternative("finish", _closed(report))] if finish else actions}


def _closed(properties: dict[str, Any]) -> dict[str, Any]:
    closed = {"required": list(properties), "additionalProperties": False}
    return {"type": "object", "properties": properties, **closed}


def _alternative(name: str, params: dict[str, Any]) -> dict[str, Any]:
    action = {"type": "string", "const": name}
    return _closed({"action": action, "params": params, "memory": {"type": "string"}})


def _shown(
    u: SubTask,
    env: Environment,
    tools: Mapping[str, Tool],
    trace: Sequence[Step],
    number: int,
    steps: int,
) -> dict[str, object]:
    """What a step's prompt is filled with."""
    # Who has no tool that opens a file would only try to open it with code, which can not.
    fields = [f for name in u.tools or () for f in tools[name].parameters.model_fields.values()]
    files = [m.name for m in env.task.media] if any(f.metadata for f in fields) else []
    # A memory is written with the next action, before that action's own observation: it belongs to
    # the step before. What stood in the first reply was written before anything was seen.
    noted = [*(s.memory for s in trace[1:]), ""]
    steps_done = [
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
    ]
    return {
        "instruction": u.instruction,
        "context": u.context or say("react/messages", "no_context"),
        "files": ", ".join(files) or "-",
        "steps": "\n\n".join(steps_done) or say("react/messages", "no_steps"),
        "step": number,
        "steps_max": steps,
        "warning": _warning(trace, number, steps),
    }


def _warning(trace: Sequence[Step], number: int, steps: int) -> str:
    if number == steps:
        return say("react/messages", "last_step")
    if (times := like_patterns(trace)) >= LIKE_PATTERNS:
        return say("react/messages", "repeated", times=times)
    left = steps - number + 1
    return say("react/messages", "few_steps_left", left=left) if left <= FEW_STEPS else ""


def _memory(trace: Sequence[Step]) -> str:
    return next((s.memory for s in reversed(trace) if s.memory), "")


def as_text(value: Any) -> str:
    """A model's value as text: 0 stays "0", a missing one is ""."""
    if value is None:
        return ""
    return value.strip() if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _capped(text: str) -> str:
    if len(text) <= OBSERVATION_CHARS:
        return text
    return say(
        "notes", "capped", text=text[:OBSERVATION_CHARS], shown=OBSERVATION_CHARS, total=len(text)
    )
