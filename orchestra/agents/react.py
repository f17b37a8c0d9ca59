"""The ReAct sub-agent of Orchestra-o1 (arXiv 2606.13707, Eq. 13-14, App. B.3): think, act, observe,
until it finishes. `run` is the loop; react_rules.py says what it may do in each step.

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
from dataclasses import dataclass, field, replace
from typing import Any

from orchestra.agents.job import OBSERVATION_CHARS, Job
from orchestra.agents.react_rules import (
    FEW_STEPS,
    FINISH,
    INVALID,
    LIKE_PATTERNS,
    Offer,
    alone,
    blocked_tools,
    like_patterns,
    next_offer,
    same_call,
    saw_nothing,
)
from orchestra.runtime.chat import STOPPED, Stopped
from orchestra.runtime.parsing import find_action
from orchestra.runtime.prompts import (
    as_messages,
    capped,
    explained,
    named,
    render,
    say,
    without_marks,
)
from orchestra.runtime.reply_schema import TEXT, closed_object, const, one_of
from orchestra.seams import Messages
from orchestra.toolkit import CODE
from orchestra.vocabulary import (
    BudgetExceeded,
    Cause,
    EndpointError,
    ModelMistake,
    Reply,
    Result,
    Status,
    Step,
)

STATUSES: tuple[Status, ...] = ("done", "partial", "blocked")
REPORT = ("result", "status", "summary")  # the parameters of `finish`
PROMPTS = "react/messages"


def run(job: Job) -> Result:
    """Do u = (I, C, b, T) in at most `job.steps` steps (rho, a, o).

    Failures of a model, an endpoint or a tool are reported in the Result. Raises EndpointError only
    for an agent without a main agent.
    """
    try:
        while len(job.trace) < job.steps:
            offer = next_offer(job)
            reply = think(job, offer)  # Eq. 13: rho and a, as the model writes them
            action = act(job, offer, reply)  # rho and a, read and checked
            step = observe(job, action)  # o
            job.note(step)
            if step.action == FINISH:
                return _finished(job, step)
            if offer.must_finish:
                break
    except STOPPED as failure:
        if alone(job) and isinstance(failure, EndpointError):
            raise  # it is the main agent
        return _stopped(job, failure)
    return _unfinished(job)


@dataclass(frozen=True)
class Action:
    """(rho, a) of Eq. 13. `mistake`: the rule that the reply broke, in a sentence for the model."""

    name: str = INVALID
    params: dict[str, Any] = field(default_factory=dict)
    memory: str = ""
    mistake: str = ""


def think(job: Job, offer: Offer) -> Reply:
    """The reply of the model b to all steps so far."""
    env = job.env
    schema = ("action", action_schema(job, offer))
    with env.tape.call(job.next_place):
        return env.chat(env.backend, messages_of(job), env.purse, schema)


def act(job: Job, offer: Offer, reply: Reply) -> Action:
    """The action of a reply, or the mistake in it."""
    action = Action()
    try:
        action = _read_action(job, reply)
        _check_name(job, offer, action)
        if action.name == FINISH:
            _check_report(job, offer, action)
    except ModelMistake as mistake:
        return replace(action, mistake=explained(mistake))
    return action


def observe(job: Job, action: Action) -> Step:
    """The step of an action, with its observation. That of a mistake is the mistake."""
    step = Step(
        action=action.name, params=action.params, memory=action.memory, observation=""
    )
    if action.mistake:
        error = capped(action.mistake, OBSERVATION_CHARS)
        return replace(step, action=INVALID, observation=error, failed=True)
    if action.name == FINISH:
        return step
    earlier = same_call(job, action.name, action.params)
    if earlier is not None:
        return replace(earlier, memory=action.memory)
    return job.call_tool(action.name, action.params, action.memory)


# ---- how it ends ---------------------------------------------------------------------------------


def _finished(job: Job, step: Step) -> Result:
    """z, as the sub-agent reports it."""
    report = _report(step.params, step.memory)
    status = _status(report)
    why = ""
    if status == "done" and saw_nothing(job):
        status = "partial"  # it had to finish
        why = "none of its tools worked, so nothing supports its answer"
    answer = without_marks(_as_text(report.get("result")))
    summary = _as_text(report.get("summary"))
    if not summary:
        summary = _newest_memory(job.trace)
    return job.result(status, answer, summary, why=why)


def _unfinished(job: Job) -> Result:
    """z of a sub-agent that did not finish although nothing else was left."""
    if len(job.trace) == job.steps:
        error = say(PROMPTS, "out_of_steps", steps=job.steps)
    else:
        error = say(PROMPTS, "would_not_finish")
    return _without_report(job, "partial", error, "steps")


def _stopped(job: Job, failure: Stopped) -> Result:
    """z of a sub-agent that cannot go on."""
    status: Status = "failed"
    if isinstance(failure, BudgetExceeded) and _newest_memory(job.trace):
        status = "partial"
    why = str(failure)
    error = say(PROMPTS, "stopped", reason=why)
    return _without_report(job, status, error, failure.cause, why)


def _without_report(
    job: Job, status: Status, error: str, cause: Cause, why: str = ""
) -> Result:
    if all(step.failed for step in job.trace):
        status = "failed"
    summary = _newest_memory(job.trace)
    return job.result(status, "", summary, error=error, cause=cause, why=why)


def _newest_memory(trace: Sequence[Step]) -> str:
    return next((step.memory for step in reversed(trace) if step.memory), "")


# ---- what the sub-agent reads --------------------------------------------------------------------


def messages_of(job: Job) -> Messages:
    """The messages of the next step. An agent without a main agent has its own prompts."""
    tools = job.assigned
    names = _files_for(job)
    context = job.u.context
    user = render(
        "react/alone_user.md" if alone(job) else "react/user.md",
        instruction=job.u.instruction,
        context=context if context else say(PROMPTS, "no_context"),
        files=", ".join(names) if names else "-",
        steps=_steps_done(job.trace),
        step=len(job.trace) + 1,
        steps_max=job.steps,
        warning=_warning(job),
    )
    system = render(
        "react/alone.md" if alone(job) else "react/system.md",
        tools="\n\n".join(tool.manual for tool in tools),
    )
    return as_messages(system, user)


def _files_for(job: Job) -> list[str]:
    """The files that the tools of the sub-agent can open, as the prompt names them."""
    takes_files = any(tool.files for tool in job.assigned)
    has_code = any(tool.name == CODE for tool in job.assigned)
    names = []
    for media in job.task.media:
        name = named(media.name)
        if has_code and media.modality == "file":
            names.append(say(PROMPTS, "file_for_code", name=name, code=CODE))
        elif takes_files:
            names.append(name)
    return names


def _steps_done(trace: Sequence[Step]) -> str:
    if not trace:
        return say(PROMPTS, "no_steps")
    # A memory is written with an action, before its observation: it belongs to the step before. The
    # memory of the first reply is left out: nothing was observed before it.
    memories = [step.memory for step in trace[1:]]
    memories.append("")
    rows = []
    for number, (step, memory) in enumerate(zip(trace, memories, strict=True), 1):
        row = say(
            PROMPTS,
            "step",
            number=number,
            action=step.action,
            params=json.dumps(step.params, ensure_ascii=False),
            observation=step.observation,
            memory=memory if memory else "-",
        )
        rows.append(row)
    return "\n\n".join(rows)


def _warning(job: Job) -> str:
    steps_left = job.steps - len(job.trace)  # the next step included
    if steps_left == 1:
        return say(PROMPTS, "last_step")
    alike = like_patterns(job.trace)
    if alike >= LIKE_PATTERNS:
        return say(PROMPTS, "repeated", times=alike)
    warnings = [_warning_of_repeats(job)]
    if steps_left <= FEW_STEPS:
        warnings.append(say(PROMPTS, "few_steps_left", left=steps_left))
    return " ".join(warning for warning in warnings if warning)


def _warning_of_repeats(job: Job) -> str:
    blocked = blocked_tools(job)
    if blocked:
        return say(PROMPTS, "same_call", tools=", ".join(sorted(blocked)))
    if not job.trace:
        return ""
    newest = job.trace[-1]
    first = same_call(job, newest.action, newest.params)
    if first is None:
        return ""
    number = job.trace.index(first) + 1
    if number == len(job.trace):
        return ""
    return say(PROMPTS, "seen_before", step=number)


# ---- what it may reply ---------------------------------------------------------------------------


def action_schema(job: Job, offer: Offer) -> dict[str, Any]:
    """The JSON schema of one step: one alternative per action."""
    actions = [_alternative(t.name, t.schema(job.task)) for t in offer.tools]
    if offer.may_finish:
        report = {"result": TEXT, "status": one_of(STATUSES), "summary": TEXT}
        actions.append(_alternative(FINISH, closed_object(report)))
    return {"anyOf": actions}


def _alternative(name: str, params: dict[str, Any]) -> Any:
    return closed_object({"action": const(name), "params": params, "memory": TEXT})


def _read_action(job: Job, reply: Reply) -> Action:
    """Raises ModelMistake if a reply has no action."""
    fields = find_action(reply.text, reply.cut)
    name = _as_text(fields["action"])
    return Action(
        name=name,
        params=_params(job, name, fields),
        memory=_as_text(fields.get("memory")),
    )


def _params(job: Job, name: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of an action. Some models write them next to it, not into `params`."""
    params = fields.get("params")
    if isinstance(params, dict):
        return params
    names = REPORT
    if name in job.tools:
        names = job.tools[name].inputs.get("properties", ())
    return {key: fields[key] for key in names if key in fields}


def _check_name(job: Job, offer: Offer, action: Action) -> None:
    """Raises ModelMistake for an action that is not offered."""
    name = action.name
    known = [*(tool.name for tool in offer.tools), FINISH]
    if name not in known:
        rule = "unassigned_tool" if name in job.tools else "bad_action"
        raise ModelMistake(rule, action=name, tool=name, known=", ".join(known))


def _check_report(job: Job, offer: Offer, action: Action) -> None:
    """Raises ModelMistake for a report of what was not seen, or without a result."""
    report = _report(action.params, action.memory)
    done = _status(report) == "done"
    if done and offer.unopened:
        names = ", ".join(map(named, offer.unopened))
        raise ModelMistake("unopened", files=names)
    if done and offer.tools and saw_nothing(job):
        raise ModelMistake("nothing_worked")
    if alone(job) and not _as_text(report.get("result")):
        raise ModelMistake("no_result")


def _report(params: Mapping[str, Any], memory: str) -> Mapping[str, Any]:
    """The parameters of `finish`. Without any, the memory is the result."""
    return params if params else {"result": memory}


def _status(report: Mapping[str, Any]) -> Status:
    """The status of a report: "done" if there is none, "partial" if it is not one of ours."""
    word = _as_text(report.get("status")).lower()
    if not word:
        return "done"
    return next((status for status in STATUSES if status == word), "partial")


def _as_text(value: Any) -> str:
    """A field of a reply as text; "" for null."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value.strip()
    return json.dumps(value, ensure_ascii=False)
