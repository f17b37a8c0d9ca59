"""The ReAct sub-agent of Orchestra-o1 (arXiv 2606.13707, Eq. 13-14, App. B.3): think, act, observe,
until it finishes.

Differences from the paper / the released code
1. The prompt lists all steps so far, each with its observation and the memory noted after it. The
   paper's prompt has one memory and one observation; the released code pairs a memory with the
   observation before it.
2. After five like patterns and in the last step, `finish` is the only action. The paper asks for it
   in the prompt.
3. A sub-task with tools is "done" only after one successful tool call. Without a main agent, the
   agent must also try each file and must not repeat a call that told nothing new: without these
   rules the 1.5B model of fixtures/ sent one search five times and opened none of three files.
4. An endpoint that fails or an empty purse ends this sub-task alone, as a Result with the reason.
5. The whole question, which App. B.3 shows a sub-agent, is in its context for Orchestra-o1 only,
   and not with `--prompts small`: small models answer it instead of their task.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from orchestra.agents.job import OBSERVATION_CHARS, SEARCH, VISIT, Job
from orchestra.runtime.chat import STOPPED
from orchestra.runtime.parsing import find_action
from orchestra.runtime.prompts import (
    as_messages,
    capped,
    explained,
    render,
    say,
    without_marks,
)
from orchestra.runtime.reply_schema import TEXT, closed_object, const, one_of
from orchestra.seams import Messages, Schema
from orchestra.toolkit import Tool
from orchestra.vocabulary import (
    BudgetExceeded,
    EndpointError,
    ModelMistake,
    Result,
    Status,
    Step,
)

LIKE_PATTERNS = 5
FEW_STEPS = 5  # when no more are left, the prompt warns
SAME_CALLS = 3
FAILED_STEPS = 3  # after these, `finish` is offered even if no tool has worked
STATUSES: tuple[Status, ...] = ("done", "partial", "blocked")
REPORT = "result", "status", "summary"  # the parameters of `finish`
MESSAGES = "react/messages"


def run(job: Job) -> Result:
    """Do u = (I, C, b, T) in at most `job.steps` steps.

    Failures of a model, an endpoint or a tool are reported in the Result. Raises EndpointError only
    for an agent without a main agent.
    """
    u, trace = job.u, job.trace
    status: Status = "partial"
    error = say(MESSAGES, "out_of_steps", steps=job.steps)
    try:
        for number in range(1, job.steps + 1):
            blocked = blocked_tools(job)
            usable = [job.tools[name] for name in u.tools or () if name not in blocked]
            looped = like_patterns(trace) >= LIKE_PATTERNS or bool(
                u.tools and not usable
            )
            must_finish = number == job.steps or looped
            usable = [] if must_finish else usable
            unopened = unopened_files(job, usable)
            early = len(trace) < FAILED_STEPS and saw_nothing(job)
            may_finish = not usable or not (unopened or early)
            schema = ("action", action_schema(usable, job, may_finish))
            step, report = _act(job, schema, usable, unopened)
            job.note(step)
            if report:
                return _result(report, job)
            if must_finish and number < job.steps:
                error = say(MESSAGES, "would_not_finish")
                break
    except STOPPED as failure:
        if u.agent == "single" and isinstance(failure, EndpointError):
            raise  # it is the main agent
        noted = _memory(trace) and isinstance(failure, BudgetExceeded)
        status = "partial" if noted else "failed"
        error = say(MESSAGES, "stopped", reason=str(failure))
    status = "failed" if all(s.failed for s in trace) else status
    return job.result(status, "", _memory(trace), error)


# ---- what the sub-agent reads --------------------------------------------------------------------


def render_step(job: Job) -> Messages:
    """The messages of the next step. An agent without a main agent has its own prompts."""
    u, trace, alone = job.u, job.trace, job.u.agent == "single"
    offered = [job.tools[name] for name in u.tools or ()]
    files = (
        ", ".join(m.name for m in job.env.task.media)
        if any(t.files for t in offered)
        else ""
    )
    user = render(
        "react/alone_user.md" if alone else "react/user.md",
        instruction=u.instruction,
        context=u.context or say(MESSAGES, "no_context"),
        files=files or "-",
        steps=_steps_done(trace) or say(MESSAGES, "no_steps"),
        step=len(trace) + 1,
        steps_max=job.steps,
        warning=_warning(job),
    )
    manuals = "\n\n".join(t.manual for t in offered)
    system = render("react/alone.md" if alone else "react/system.md", tools=manuals)
    return as_messages(system, user)


def _steps_done(trace: Sequence[Step]) -> str:
    # A memory is written with an action, before its observation: it belongs to the step before. The
    # memory of the first reply is left out: nothing was observed before it.
    memories = [*(s.memory for s in trace[1:]), ""]
    rows = [
        say(
            MESSAGES, "step", number=n, action=s.action, observation=s.observation,
            params=json.dumps(s.params, ensure_ascii=False), memory=memory or "-",
        )
        for n, (s, memory) in enumerate(zip(trace, memories, strict=False), 1)
    ]  # fmt: skip
    return "\n\n".join(rows)


def _warning(job: Job) -> str:
    trace, left = job.trace, job.steps - len(job.trace)  # the next step included
    if left == 1:
        return say(MESSAGES, "last_step")
    if (times := like_patterns(trace)) >= LIKE_PATTERNS:
        return say(MESSAGES, "repeated", times=times)
    names = ", ".join(sorted(blocked_tools(job)))
    few = say(MESSAGES, "few_steps_left", left=left) if left <= FEW_STEPS else ""
    same = say(MESSAGES, "same_call", tools=names) if names else ""
    if (
        trace
        and not same
        and (first := same_call(trace[-1].action, trace[-1].params, job))
    ):
        number = trace.index(first) + 1
        same = say(MESSAGES, "seen_before", step=number) if number < len(trace) else ""
    return " ".join(filter(None, (same, few)))


# ---- what it may reply ---------------------------------------------------------------------------


def action_schema(tools: Sequence[Tool], job: Job, finish: bool) -> dict[str, Any]:
    """The JSON schema of one step: one alternative per action."""

    def alternative(name: str, params: dict[str, Any]) -> Any:
        return closed_object({"action": const(name), "params": params, "memory": TEXT})

    actions = [alternative(t.name, t.schema(job.env.task)) for t in tools]
    report = closed_object(
        {"result": TEXT, "status": one_of(STATUSES), "summary": TEXT}
    )
    return {"anyOf": [*actions, alternative("finish", report)] if finish else actions}


def _act(
    job: Job, schema: Schema, usable: Sequence[Tool], unopened: Sequence[str]
) -> tuple[Step, dict[str, Any] | None]:
    """One step of Eq. 13, and the parameters of `finish` if that was the action."""
    env, memory, params = job.env, "", dict[str, Any]()
    with env.tape.call(job.next_place):
        reply = env.chat(env.backend, render_step(job), env.purse, schema)
    try:
        wanted = find_action(reply.text, reply.cut)
        memory, name = _as_text(wanted.get("memory")), _as_text(wanted["action"])
        params = _params(wanted, name, job)
        known = (*(t.name for t in usable), "finish")
        if name not in known:
            rule = "unassigned_tool" if name in job.tools else "bad_action"
            raise ModelMistake(rule, action=name, tool=name, known=", ".join(known))
        if name == "finish":
            if _status(params) == "done" and unopened:
                raise ModelMistake("unopened", files=", ".join(unopened))
            if usable and _status(params) == "done" and saw_nothing(job):
                raise ModelMistake("nothing_worked")
            report = params or {"result": memory}
            if job.u.agent == "single" and not _as_text(report.get("result")):
                raise ModelMistake("no_result")
            return Step("finish", params, memory, ""), report
    except ModelMistake as mistake:
        error = capped(explained(mistake), OBSERVATION_CHARS)
        return Step("invalid", params, memory, error, failed=True), None
    if earlier := same_call(name, params, job):
        return replace(earlier, memory=memory), None
    return job.call_tool(name, params, memory), None


def _params(wanted: Mapping[str, Any], name: str, job: Job) -> dict[str, Any]:
    """The parameters of an action. Some models write them next to it, not into `params`."""
    params = wanted.get("params")
    fields = (
        job.tools[name].inputs.get("properties", ()) if name in job.tools else REPORT
    )
    return (
        params
        if isinstance(params, dict)
        else {k: wanted[k] for k in fields if k in wanted}
    )


def _result(report: Mapping[str, Any], job: Job) -> Result:
    status = _status(report)
    if status == "done" and saw_nothing(job):
        status = "partial"  # it had to finish, and no tool has worked
    answer = without_marks(_as_text(report.get("result")))
    summary = _as_text(report.get("summary")) or _memory(job.trace)
    return job.result(status, answer, summary)


def _status(report: Mapping[str, Any]) -> Status:
    """The status of a report: "done" if there is none, "partial" if it is not one of ours."""
    word = _as_text(report.get("status")).lower() or "done"
    return next((s for s in STATUSES if s == word), "partial")


def _memory(trace: Sequence[Step]) -> str:
    return next((s.memory for s in reversed(trace) if s.memory), "")


def _as_text(value: Any) -> str:
    """A field of a reply as text; "" for null."""
    if value is None:
        return ""
    return (
        value.strip()
        if isinstance(value, str)
        else json.dumps(value, ensure_ascii=False)
    )


# ---- rules against loops, and against reports of what was not seen -------------------------------


def blocked_tools(job: Job) -> set[str]:
    """For an agent without a main agent: the tools that it must not use in this step. A tool that
    was called twice with the same parameters and the same result is blocked until another call
    succeeds. After SAME_CALLS such calls it stays blocked.
    """
    if job.u.agent != "single":
        return set()
    calls = [(s.action, s.params, s.observation) for s in job.trace]
    blocked = {call[0] for call in calls if calls.count(call) >= SAME_CALLS}
    for n in reversed(range(len(calls))):
        if calls[n] in calls[:n]:
            blocked.add(job.trace[n].action)
        elif not job.trace[n].failed:
            break
    return blocked - {"invalid", "finish"}


def like_patterns(trace: Sequence[Step]) -> int:
    """How many of the last steps are of one kind. A visit right after a search counts with it."""
    patterns: list[str] = []
    for before, step in zip([None, *trace], trace, strict=False):
        if not (step.action == VISIT and before and before.action == SEARCH):
            patterns.append(step.action)
    return next(
        (n for n, p in enumerate(reversed(patterns)) if p != patterns[-1]),
        len(patterns),
    )


def same_call(name: str, params: Mapping[str, Any], job: Job) -> Step | None:
    """The first successful step that opened the same file with the same parameters."""
    if not (name in job.tools and job.tools[name].files):
        return None
    same = (
        s for s in job.trace if (s.action, s.params, s.failed) == (name, params, False)
    )
    return next(same, None)


def saw_nothing(job: Job) -> bool:
    """Whether a tool must work, but none has. An agent without a main agent may answer a question
    without files from its own knowledge.
    """
    if not job.u.tools or (job.u.agent == "single" and not job.env.task.media):
        return False
    return all(s.failed or s.action == "finish" for s in job.trace)


def unopened_files(job: Job, tools: Sequence[Tool]) -> list[str]:
    """For an agent without a main agent that has enough steps left: the files of the task that it
    has not tried to open although one of `tools` opens them.
    """
    if job.u.agent != "single" or job.steps - len(job.trace) <= FEW_STEPS:
        return []
    task = job.env.task
    tried = [task.file(str(value)) for s in job.trace for value in s.params.values()]
    kinds = {kind for tool in tools for kind in tool.files.values()}
    return [m.name for m in task.media if m.modality in kinds and m not in tried]
