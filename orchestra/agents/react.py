"""The ReAct sub-agent of Orchestra-o1 (arXiv 2606.13707, Eq. 13-14, App. B.3): think, act, observe,
until it finishes. `run` is the loop. A sub-agent without a main agent (--method react) is `alone`.

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
from itertools import takewhile
from typing import Any

from orchestra.agents.job import OBSERVATION_CHARS, SEARCH, VISIT, Job
from orchestra.runtime.chat import STOPPED
from orchestra.runtime.parsing import TEXT, closed_object, const, find_action, one_of
from orchestra.runtime.prompts import (
    as_messages,
    capped,
    explained,
    render,
    say,
    without_marks,
)
from orchestra.seams import Messages
from orchestra.toolkit import Tool
from orchestra.vocabulary import (
    BudgetExceeded,
    EndpointError,
    ModelMistake,
    Reply,
    Result,
    Status,
    Step,
)

LIKE_PATTERNS = 5
FEW_STEPS = 5  # when no more are left, the prompt warns
SAME_CALLS = 3
FAILED_STEPS = 3  # after these, `finish` is offered even if no tool has worked
STATUSES: tuple[Status, ...] = ("done", "partial", "blocked")
FINISH = "finish"
REPORT = ("result", "status", "summary")  # the parameters of `finish`
INVALID = "invalid"  # the action of a step whose reply broke a rule
MESSAGES = "react/messages"


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
class Offer:
    """What the sub-agent may do in its next step. `unopened` are the files that it must try to open
    before it is done.
    """

    tools: Sequence[Tool]
    may_finish: bool
    must_finish: bool
    unopened: Sequence[str] = ()


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
    if action.mistake:
        error = capped(action.mistake, OBSERVATION_CHARS)
        return Step(INVALID, action.params, action.memory, error, failed=True)
    if action.name == FINISH:
        return Step(FINISH, action.params, action.memory, observation="")
    earlier = same_call(job, action.name, action.params)
    if earlier is not None:
        return replace(earlier, memory=action.memory)
    return job.call_tool(action.name, action.params, action.memory)


# ---- how it ends ---------------------------------------------------------------------------------


def _finished(job: Job, step: Step) -> Result:
    """z, as the sub-agent reports it."""
    report = _report(step.params, step.memory)
    status = _status(report)
    if status == "done" and saw_nothing(job):
        status = "partial"  # it had to finish, and no tool has worked
    answer = without_marks(_as_text(report.get("result")))
    summary = _as_text(report.get("summary"))
    if not summary:
        summary = _newest_memory(job.trace)
    return job.result(status, answer, summary)


def _unfinished(job: Job) -> Result:
    """z of a sub-agent that did not finish although nothing else was left."""
    if len(job.trace) == job.steps:
        error = say(MESSAGES, "out_of_steps", steps=job.steps)
    else:
        error = say(MESSAGES, "would_not_finish")
    return _without_report(job, "partial", error)


def _stopped(job: Job, failure: Exception) -> Result:
    """z of a sub-agent that cannot go on."""
    status: Status = "failed"
    if isinstance(failure, BudgetExceeded) and _newest_memory(job.trace):
        status = "partial"
    return _without_report(job, status, say(MESSAGES, "stopped", reason=str(failure)))


def _without_report(job: Job, status: Status, error: str) -> Result:
    if all(step.failed for step in job.trace):
        status = "failed"
    return job.result(status, "", _newest_memory(job.trace), error)


def _newest_memory(trace: Sequence[Step]) -> str:
    return next((step.memory for step in reversed(trace) if step.memory), "")


# ---- what the sub-agent reads --------------------------------------------------------------------


def messages_of(job: Job) -> Messages:
    """The messages of the next step. An agent without a main agent has its own prompts."""
    tools = job.assigned
    takes_files = any(tool.files for tool in tools)
    names = [media.name for media in job.task.media] if takes_files else []
    context = job.u.context
    user = render(
        "react/alone_user.md" if alone(job) else "react/user.md",
        instruction=job.u.instruction,
        context=context if context else say(MESSAGES, "no_context"),
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


def _steps_done(trace: Sequence[Step]) -> str:
    if not trace:
        return say(MESSAGES, "no_steps")
    # A memory is written with an action, before its observation: it belongs to the step before. The
    # memory of the first reply is left out: nothing was observed before it.
    memories = [step.memory for step in trace[1:]]
    memories.append("")
    rows = []
    for number, (step, memory) in enumerate(zip(trace, memories, strict=True), 1):
        row = say(
            MESSAGES,
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
        return say(MESSAGES, "last_step")
    alike = like_patterns(job.trace)
    if alike >= LIKE_PATTERNS:
        return say(MESSAGES, "repeated", times=alike)
    warnings = [_warning_of_repeats(job)]
    if steps_left <= FEW_STEPS:
        warnings.append(say(MESSAGES, "few_steps_left", left=steps_left))
    return " ".join(warning for warning in warnings if warning)


def _warning_of_repeats(job: Job) -> str:
    blocked = blocked_tools(job)
    if blocked:
        return say(MESSAGES, "same_call", tools=", ".join(sorted(blocked)))
    if not job.trace:
        return ""
    newest = job.trace[-1]
    first = same_call(job, newest.action, newest.params)
    if first is None:
        return ""
    number = job.trace.index(first) + 1
    if number == len(job.trace):
        return ""
    return say(MESSAGES, "seen_before", step=number)


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
        raise ModelMistake("unopened", files=", ".join(offer.unopened))
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


# ---- rules against loops, and against reports of what was not seen -------------------------------


def next_offer(job: Job) -> Offer:
    """The actions of the next step."""
    blocked = blocked_tools(job)
    tools = [tool for tool in job.assigned if tool.name not in blocked]
    if must_finish(job, tools):
        return Offer(tools=[], may_finish=True, must_finish=True)
    unopened = unopened_files(job, tools)
    may_finish = not unopened and not is_early(job)
    return Offer(tools, may_finish, must_finish=False, unopened=unopened)


def alone(job: Job) -> bool:
    """Whether the agent has no main agent: it answers the whole question."""
    return job.u.agent == "single"


def must_finish(job: Job, tools: Sequence[Tool]) -> bool:
    """Whether `finish` is the only action of the next step: it is the last one, all tools are
    blocked, or the steps repeat themselves.
    """
    is_last = len(job.trace) + 1 == job.steps
    all_blocked = bool(job.u.tools) and not tools
    return is_last or all_blocked or like_patterns(job.trace) >= LIKE_PATTERNS


def is_early(job: Job) -> bool:
    """Whether a tool must work, and it is too early to give up."""
    return saw_nothing(job) and len(job.trace) < FAILED_STEPS


def saw_nothing(job: Job) -> bool:
    """Whether a tool must work, but none has. An agent without a main agent may answer a question
    without files from its own knowledge.
    """
    if not job.u.tools:
        return False
    if alone(job) and not job.task.media:
        return False
    return all(step.failed or step.action == FINISH for step in job.trace)


def unopened_files(job: Job, tools: Sequence[Tool]) -> list[str]:
    """For an agent without a main agent that has enough steps left: the files of the task that it
    has not tried to open although one of `tools` opens them.
    """
    steps_left = job.steps - len(job.trace)
    if not alone(job) or steps_left <= FEW_STEPS:
        return []
    tried = []
    for step in job.trace:
        tried += [job.task.file(str(value)) for value in step.params.values()]
    kinds: set[str] = set()
    for tool in tools:
        kinds.update(tool.files.values())
    can_open = [media for media in job.task.media if media.modality in kinds]
    return [media.name for media in can_open if media not in tried]


def like_patterns(trace: Sequence[Step]) -> int:
    """How many of the last steps are of one kind. A visit right after a search counts with it."""
    patterns: list[str] = []
    before = ""
    for step in trace:
        if not (step.action == VISIT and before == SEARCH):
            patterns.append(step.action)
        before = step.action
    alike = takewhile(lambda pattern: pattern == patterns[-1], reversed(patterns))
    return len(list(alike))


def same_call(job: Job, name: str, params: Mapping[str, Any]) -> Step | None:
    """The first successful step that opened the same file with the same parameters."""
    opens_files = name in job.tools and job.tools[name].files
    if not opens_files:
        return None
    for step in job.trace:
        if step.action == name and step.params == params and not step.failed:
            return step
    return None


def blocked_tools(job: Job) -> set[str]:
    """For an agent without a main agent: the tools that it must not use in this step. A tool that
    was called twice with the same parameters and the same result is blocked until another call
    succeeds. After SAME_CALLS such calls it stays blocked.
    """
    if not alone(job):
        return set()
    calls = [(step.action, step.params, step.observation) for step in job.trace]
    blocked = {call[0] for call in calls if calls.count(call) >= SAME_CALLS}
    for n in reversed(range(len(calls))):
        if calls[n] in calls[:n]:
            blocked.add(job.trace[n].action)
        elif not job.trace[n].failed:
            break  # a call that succeeded and told something new
    return blocked - {INVALID, FINISH}
