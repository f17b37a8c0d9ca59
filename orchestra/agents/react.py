"""The ReAct sub-agent of Orchestra-o1 (arXiv 2606.13707, Eq. 13-14, App. B.3): think, act, observe,
until it finishes. `run` is the loop; react_rules.py says what it may do in each step.

Differences from the paper / the released code
1. The prompt lists all steps so far, each with its observation and the memory noted after it. The
   paper's prompt has one memory and one observation; the released code pairs a memory with the
   observation before it.
2. After five like patterns and in the last step, `finish` is the only action. The paper asks for it
   in the prompt.
3. The paper warns when five steps are left, however many there are. Here it is the last fifth.
4. A sub-task with tools that reports "done" before a tool has worked is "partial". Without a main
   agent, the agent must also try each file and must not repeat a call that told nothing new:
   without these rules the 1.5B model of fixtures/ sent one search five times and opened none of
   three files.
5. An endpoint that fails or an empty purse ends this sub-task alone, as a Result with the reason.
6. A sub-agent that ends without `finish` is asked for a summary of its trace (trace_summary.py).
7. The whole question, which App. B.3 shows a sub-agent, is in its context for Orchestra-o1 only,
   and not with `--prompts small`: small models answer it instead of their task.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from orchestra.agents import react_prompt
from orchestra.agents.job import OBSERVATION_CHARS, Job
from orchestra.agents.own_texts import has_texts
from orchestra.agents.react_rules import (
    Offer,
    alone,
    next_offer,
    same_call,
    saw_nothing,
)
from orchestra.agents.trace_summary import has_worked
from orchestra.runtime.chat import STOPPED, Stopped
from orchestra.runtime.parsing import find_action
from orchestra.runtime.prompts import capped, explained, named, say, without_marks
from orchestra.runtime.reply_schema import TEXT, closed_object, const, one_of
from orchestra.seams import Schema
from orchestra.vocabulary import (
    FINISH,
    INVALID,
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
PROMPTS = react_prompt.PROMPTS


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
            raise  # it ends the run; executor.py records what was found so far
        return _unreported(job, failure)
    return _unreported(job)


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
    schema: Schema = ("action", action_schema(job, offer))
    wanted: Schema | None = schema
    if env.texts and has_texts(job, "agent"):
        wanted = env.texts.schema("agent", schema)
    with env.tape.call(job.next_place):
        messages = react_prompt.messages_of(job, offer)
        return env.chat(env.backend, messages, env.purse, wanted)


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
    error = ""
    why = ""
    if status == "done" and saw_nothing(job):
        status = "partial"
        error = say(PROMPTS, "nothing_worked")
        why = "none of its tools worked, so nothing supports its answer"
    answer = without_marks(_as_text(report.get("result")))
    summary = _as_text(report.get("summary"))
    if not summary:
        summary = _newest_memory(job.trace)
    return job.result(status, answer, summary, error=error, why=why)


def _unreported(job: Job, failure: Stopped | None = None) -> Result:
    """z of a sub-agent that ended without a report. `failure`: what stopped it; None: it did not
    finish although nothing else was left.
    """
    cause: Cause = "steps"
    why = ""
    if failure is not None:
        cause = failure.cause
        why = str(failure)
        error = say(PROMPTS, "stopped", reason=why)
    elif len(job.trace) == job.steps:
        error = say(PROMPTS, "out_of_steps", steps=job.steps)
    else:
        error = say(PROMPTS, "would_not_finish")
    question = react_prompt.question_for_summary(job)
    summary = job.summary_without_report(failure, question)
    status: Status = "partial" if has_worked(job.trace) else "failed"
    return job.result(status, "", summary, error=error, cause=cause, why=why)


def _newest_memory(trace: Sequence[Step]) -> str:
    return next((step.memory for step in reversed(trace) if step.memory), "")


# ---- what it may reply ---------------------------------------------------------------------------


def action_schema(job: Job, offer: Offer) -> dict[str, Any]:
    """The JSON schema of one step: one alternative per action."""
    actions = [_alternative(t.name, t.schema(job.task)) for t in offer.tools]
    report = {"result": TEXT, "status": one_of(STATUSES), "summary": TEXT}
    if offer.may_finish:
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
