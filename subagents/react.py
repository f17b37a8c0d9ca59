"""The ReAct sub-agent of Orchestra-o1 (arXiv 2606.13707, Eq. 13-14, App. B.3): think, act, observe,
until it finishes.

Differences from the paper / the released code
1. The steps so far are shown as a growing list, each action beside its own observation and the
   memory noted after it. The paper's prompt has one memory and one observation; the released code
   pairs the memory with the observation before it.
2. The five-like-patterns rule and the last step are enforced: only `finish` is left. The paper asks
   for it in the prompt.
3. A sub-agent with tools has to use one before it may report as done: small models answer from thin
   air. Tools that were not assigned are refused, not only left out of the list. One without a main
   agent, with all tools, has to open each file of the task; and a tool that it called again in the
   very same way rests until another call shows something new, after the third time for good.
4. An endpoint that fails or a purse that is empty ends this sub-task alone, as a Result with the
   reason.
5. A sub-agent does not read the whole question, which App. B.3 shows it beside its task: small
   models answer the question in place of their own task. What it must know is in its context.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from orchestra.parsing import find_action
from orchestra.prompts import say
from orchestra.replies import Reply
from orchestra.vocabulary import (
    BudgetExceeded,
    EndpointError,
    ModelMistake,
    Result,
    Status,
    Step,
    SubTask,
)
from subagents.executor import STOPPED, Call, OnStep, capped
from subagents.react_prompt import (
    FEW_STEPS,
    LIKE_PATTERNS,
    STATUSES,
    action_schema,
    exhausted,
    like_patterns,
    render_step,
    unopened,
)
from tools import Environment, Tool, ToolError

TRIES_BEFORE_FINISH = 3  # steps that failed before the schema offers `finish` all the same


def run(
    u: SubTask, env: Environment, tools: Mapping[str, Tool], call: Call, steps: int, on_step: OnStep
) -> Result:
    """Do u = (I, C, b, T) in at most `steps` steps; `call` names the logical calls.

    Never raises for what a model, an endpoint or a tool did: that is the Result's status and error.
    """
    trace: list[Step] = []
    status: Status = "partial"
    error = say("react/messages", "out_of_steps", steps=steps)
    try:
        for number in range(1, steps + 1):
            resting = exhausted(u, trace)
            fresh = [name for name in u.tools or () if name not in resting]
            looped = like_patterns(trace) >= LIKE_PATTERNS or bool(u.tools and not fresh)
            must_finish = number == steps or looped
            usable = [] if must_finish else [tools[name] for name in fresh]
            alone = u.agent == "single" and steps - len(trace) > FEW_STEPS
            unread = unopened(env.task, usable, trace) if alone else []
            early = len(trace) < TRIES_BEFORE_FINISH and _saw_nothing(u, env, trace)
            schema = action_schema(usable, env.task, not usable or not (unread or early))
            messages = render_step(u, env.task, tools, trace, steps, resting)
            with env.tape.logical_call(*call, f"s{number}"):
                reply = env.chat(env.backend, messages, env.purse, schema=("action", schema))
            step, report = _act(reply, trace, u, env, tools, (*call, f"s{number}"), usable, unread)
            trace.append(step)
            on_step(number, step)
            if report:
                return _result(report, u, env, trace)
            if must_finish and number < steps:
                error = say("react/messages", "would_not_finish")
                break
    except STOPPED as failure:
        if u.agent == "single" and isinstance(failure, EndpointError):
            raise  # it is the main agent
        status = "partial" if _memory(trace) and isinstance(failure, BudgetExceeded) else "failed"
        error = say("react/messages", "stopped", reason=str(failure))
    if all(s.failed for s in trace):
        status = "failed"
    return Result(status, "", _memory(trace), env.purse.spent_usd, trace=tuple(trace), error=error)


def _act(
    reply: Reply,
    trace: Sequence[Step],
    u: SubTask,
    env: Environment,
    tools: Mapping[str, Tool],
    call: Call,
    usable: Sequence[Tool],
    unread: Sequence[str],
) -> tuple[Step, dict[str, Any] | None]:
    """One step of Eq. 13, and the parameters of `finish` if that was the action."""
    action, memory = "invalid", ""
    params: dict[str, Any] = {}
    try:
        wanted = find_action(reply.text, reply.cut)
        memory, name = as_text(wanted.get("memory")), as_text(wanted["action"])
        params = wanted["params"] if isinstance(wanted.get("params"), dict) else {}
        known = (*(t.name for t in usable), "finish")
        if name not in known:
            key = "unassigned_tool" if name in tools else "bad_action"
            told = {"action": name, "tool": name, "known": ", ".join(known)}
            raise ModelMistake(say("mistakes", key, **told))
        if name == "finish":
            done = _status(params) == "done"
            if done and unread:
                raise ModelMistake(say("mistakes", "unread", files=", ".join(unread)))
            if done and usable and _saw_nothing(u, env, trace):
                raise ModelMistake(say("mistakes", "nothing_worked"))
            return Step("finish", params, memory, ""), params or {"result": memory}
        action = name
        with env.tape.logical_call(*call, name):
            return Step(action, params, memory, capped(tools[name](env, params))), None
    except (ModelMistake, ToolError) as failure:
        return Step(action, params, memory, capped(str(failure)), failed=True), None


def _saw_nothing(u: SubTask, env: Environment, trace: Sequence[Step]) -> bool:
    """No tool has worked, and one has to: but the agent without a main agent above it, asked
    without files, may know the answer.
    """
    may_know = not u.tools or (u.agent == "single" and not env.task.media)
    return not may_know and all(s.failed or s.action == "finish" for s in trace)


def _result(
    report: Mapping[str, Any], u: SubTask, env: Environment, trace: Sequence[Step]
) -> Result:
    """z = Omega(zeta), Eq. 14: the status, the result, the summary and the cost."""
    status = _status(report)
    if status == "done" and _saw_nothing(u, env, trace):
        status = "partial"  # forced to finish, and no tool has shown anything
    answer, summary = as_text(report.get("result")), as_text(report.get("summary"))
    spent_usd, steps = env.purse.spent_usd, tuple(trace)
    return Result(status, answer, summary or _memory(trace), spent_usd, trace=steps)


def _status(report: Mapping[str, Any]) -> Status:
    """ "done" where none is given; "partial" for a word of the model's own."""
    said = as_text(report.get("status")).lower() or "done"
    return next((s for s in STATUSES if s == said), "partial")


def _memory(trace: Sequence[Step]) -> str:
    return next((s.memory for s in reversed(trace) if s.memory), "")


def as_text(value: Any) -> str:
    """A model's value as text: 0 stays "0", a missing one is ""."""
    if value is None:
        return ""
    return value.strip() if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
