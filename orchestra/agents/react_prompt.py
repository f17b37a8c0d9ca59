"""What the ReAct sub-agent reads in each step: the same text as in the step before, then the newest
observation, and last what to do now. So a server has all but the end in its prefix cache.

What to do now is one sentence, so no two of them can contradict each other.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from orchestra.agents import trace_summary
from orchestra.agents.job import Job
from orchestra.agents.own_texts import has_texts, step_in_texts
from orchestra.agents.react_rules import (
    LIKE_PATTERNS,
    Offer,
    alone,
    blocked_tools,
    has_few_steps,
    like_patterns,
    same_call,
    saw_nothing,
    was_refused,
)
from orchestra.runtime.prompts import as_messages, named, render, say
from orchestra.seams import Messages
from orchestra.toolkit import CODE
from orchestra.vocabulary import Step

PROMPTS = "react/messages"


def messages_of(job: Job, offer: Offer) -> Messages:
    """The messages of the next step. An agent without a main agent has its own prompts."""
    notices = [
        say(PROMPTS, "step_number", step=len(job.trace) + 1, steps=job.steps),
        _notice_of_repeats(job) or _notice_of_failure(job),
    ]
    notice = " ".join(notice for notice in notices if notice)
    step = _next(job, offer)
    if has_texts(job, "agent"):
        return step_in_texts(job, _files_for(job), f"{notice} {step}")
    now = say(
        PROMPTS,
        "now_alone" if alone(job) else "now",
        notice=notice,
        instruction=job.u.instruction,
        next=step,
    )
    return _messages(job, now)


def question_for_summary(job: Job) -> trace_summary.Question:
    """The messages after the last step, which ask for a summary, and the schema of the reply."""
    instruction = job.u.instruction
    steps = len(job.trace)
    now = say(trace_summary.PROMPTS, "now_json", steps=steps, instruction=instruction)
    return _messages(job, now), trace_summary.SCHEMA


def _messages(job: Job, now: str) -> Messages:
    tools = job.assigned
    names = _files_for(job)
    context = job.u.context
    user = render(
        "react/alone_user.md" if alone(job) else "react/user.md",
        instruction=job.u.instruction,
        context=context if context else say(PROMPTS, "no_context"),
        files=", ".join(names) if names else "-",
        steps=_steps_done(job.trace),
        now=now,
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
            params=_params_shown(step),
            observation=step.observation,
            memory=memory if memory else "-",
        )
        rows.append(row)
    return "\n\n".join(rows)


def _params_shown(step: Step) -> str:
    """The parameters of a step. Those of a refused report are not shown: small models copy them."""
    if was_refused(step):
        return ""
    return json.dumps(step.params, ensure_ascii=False)


def _next(job: Job, offer: Offer) -> str:
    """The one sentence that says what to do now."""
    steps_left = job.steps - len(job.trace)  # the next step included
    if steps_left == 1:
        return say(PROMPTS, "last_step")
    alike = like_patterns(job.trace)
    if alike >= LIKE_PATTERNS:
        return say(PROMPTS, "repeated", times=alike)
    if offer.must_finish:
        return say(PROMPTS, "no_tool_left")
    if has_few_steps(job):
        return say(PROMPTS, "few_steps_left", left=steps_left)
    if not offer.may_finish:
        return say(
            PROMPTS, "next_unopened", files=", ".join(map(named, offer.unopened))
        )
    if saw_nothing(job):
        return say(PROMPTS, "next_unseen")
    return say(PROMPTS, "next_alone" if alone(job) else "next")


def _notice_of_repeats(job: Job) -> str:
    """What came of a repeated call; "" if the newest one was not repeated."""
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


def _notice_of_failure(job: Job) -> str:
    """That the newest call of a tool failed; "" if it did not. Small models repeat such a call."""
    if not job.trace:
        return ""
    newest = job.trace[-1]
    is_call = newest.action in job.tools
    return say(PROMPTS, "call_failed") if is_call and newest.failed else ""
