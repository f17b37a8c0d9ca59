"""The ReAct sub-agent of Orchestra-o1 (arXiv 2606.13707, Eq. 13-14, App. B.3): think, act, observe,
until it finishes.

Differences from the paper / the released code
1. The prompt lists all steps so far, each with its observation and the memory noted after it. The
   paper's prompt has one memory and one observation; the released code pairs a memory with the
   observation before it.
2. In the last step `finish` is the only action. The paper warns when five steps are left, however
   many there are; here it is the last fifth.
3. A call that opens the same file with the same parameters again gets the observation of the first.
4. An endpoint that fails or an empty purse ends this sub-task alone, as a Result with the reason.
5. A sub-agent that ends without `finish` is asked for a summary of its trace (summary.py).
6. Ten unusable replies in a row end a sub-task.

That five steps of one kind are enough is a sentence of the prompt, as in the paper, and what the
sub-agent reports is taken as it is. The rules that models of few parameters need are in
react_careful.py.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any

from orchestra.kernel.job import OBSERVATION_CHARS, Agent, Job, Question
from orchestra.kernel.prompts import (
    as_messages,
    capped,
    explained,
    named,
    outside,
    render,
    say,
    without_marks,
)
from orchestra.kernel.tool import CODE, SEARCH, VISIT, Tool
from orchestra.kernel.vocabulary import (
    FINISH,
    INVALID,
    BudgetExceeded,
    EndpointError,
    Messages,
    ModelMistake,
    Reply,
    Result,
    Schema,
    Status,
    Step,
)
from orchestra.methods.replies import (
    TEXT,
    as_text,
    closed_object,
    const,
    find_action,
    one_of,
)

PROMPTS = "react/messages"
STATUSES: tuple[Status, ...] = ("done", "partial", "blocked")
REPORT = ("result", "status", "summary")  # the parameters of `finish`
LIKE_PATTERNS = 5  # of one kind are enough
WARNED_PART = 5  # the warning comes in the last fifth of the steps
MOST_UNUSABLE = 10  # replies in a row
START_CHARS = 80  # of a reply that was not usable


@dataclass(frozen=True)
class Offer:
    """What the sub-agent may do in its next step: use one of these tools, or finish. `may_finish`:
    whether the schema has `finish`; `unopened`: files that it must try before it is done.
    """

    tools: Sequence[Tool]
    must_finish: bool = False
    may_finish: bool = True
    unopened: Sequence[str] = ()


@dataclass(frozen=True)
class Action:
    """(rho, a) of Eq. 13. `mistake`: the rule that the reply broke, in a sentence for the model."""

    name: str = INVALID
    params: dict[str, Any] = field(default_factory=dict)
    memory: str = ""
    mistake: str = ""

    @property
    def report(self) -> Mapping[str, Any]:
        """The parameters of `finish`. Without any, the memory is the result."""
        return self.params or {"result": self.memory}


class Unreported(Exception):
    """A sub-agent has ended without a report: `error` says why to models, `cause` to people. It is
    raised from the failure that ended the sub-agent, if there is one. `answer`: what it wrote in
    place of a report.
    """

    def __init__(self, error: str, cause: str, answer: str = "") -> None:
        super().__init__(error)
        self.error = error
        self.cause = cause
        self.answer = answer


class React:
    """The loop. A subclass may have other prompts, offer less, and accept less."""

    system = "react/system.md"
    user = "react/user.md"
    now = "now"  # the last section of the prompt
    next = "next"  # its usual sentence
    enough = "enough"  # the sentence after LIKE_PATTERNS steps of one kind

    def __call__(self, job: Job) -> Result:
        """Do u = (I, C, b, T) in at most `job.steps` steps (rho, a, o). Raises Unreported."""
        reply = Reply("")
        try:
            while len(job.trace) < job.steps:
                offer = self.offer(job)
                reply = job.ask(
                    self.messages(job, offer), schema_of(job, offer)
                )  # Eq. 13: rho, a
                action = self.parse(job, offer, reply)
                job.note(act(job, action))  # o
                if action.name == FINISH and not action.mistake:
                    return self.finished(job, action)
                if offer.must_finish or len(unusable(job)) == MOST_UNUSABLE:
                    raise self.unfinished(job, reply)
        except (EndpointError, BudgetExceeded) as failure:
            raise self.stopped(failure) from failure
        raise self.unfinished(job, reply)

    def unfinished(self, job: Job, reply: Reply) -> Unreported:
        """What the loop ends with if no step was left, or its last `reply` should have finished."""
        calls = [step for step in job.trace if step.action not in (INVALID, FINISH)]
        if not calls:
            return out_of_steps(job, reply.text)
        newest = calls[-1]
        cause = "tools" if newest.failed else "replies"
        repeats = sum(step.params == newest.params != {} for step in job.trace)
        if repeats >= LIKE_PATTERNS and 2 * repeats > len(job.trace):
            about = {"tool": newest.action, "times": repeats}
            about["params"] = outside(json.dumps(newest.params, ensure_ascii=False))
            shown = " ".join(without_marks(newest.observation).split())
            about["shown"] = outside(shown)
            return Unreported(say(PROMPTS, "same_again", **about), cause)
        if not steps_left(job) or len(unusable(job)) >= LIKE_PATTERNS:
            return out_of_steps(job, reply.text)
        about = {"tool": newest.action, "times": like_patterns(calls)}
        return Unreported(say(PROMPTS, "did_not_finish", **about), cause)

    def stopped(self, failure: EndpointError | BudgetExceeded) -> Exception:
        """What a failure of an endpoint or an empty purse ends the loop with."""
        return Unreported(say(PROMPTS, "stopped", reason=str(failure)), failure.cause)

    def offer(self, job: Job) -> Offer:
        """The actions of the next step."""
        if steps_left(job) == 1:
            return Offer([], must_finish=True)
        return Offer(job.assigned)

    # ---- what it reads ---------------------------------------------------------------------------

    def messages(self, job: Job, offer: Offer) -> Messages:
        """The messages of the next step: the same text as before, then the newest observation, and
        last what to do now, so that a server has all but the end in its prefix cache.
        """
        number = say(PROMPTS, "step_number", step=len(job.trace) + 1, steps=job.steps)
        notice = f"{number} {self.about_newest(job)}".strip()
        about = {"instruction": job.u.instruction, "next": self.what_now(job, offer)}
        return self.prompt(job, say(PROMPTS, self.now, notice=notice, **about))

    def question(self, job: Job) -> Question:
        """The messages after the last step, which ask for a summary."""
        about = {"steps": len(job.trace), "instruction": job.u.instruction}
        now = say("trace_summary/messages", "now_json", **about)
        params = closed_object({"summary": TEXT})
        summary = closed_object({"action": const("summary"), "params": params})
        return self.prompt(job, now), ("summary", summary)

    def prompt(self, job: Job, now: str) -> Messages:
        user = render(
            self.user,
            instruction=job.u.instruction,
            context=job.u.context or say(PROMPTS, "no_context"),
            files=", ".join(_files_for(job)) or "-",
            steps=_steps_done(job),
            now=now,
        )
        tools = "\n\n".join(tool.manual for tool in job.assigned)
        return as_messages(render(self.system, tools=tools), user)

    def what_now(self, job: Job, offer: Offer) -> str:
        """One sentence, so that no two can contradict each other."""
        left = steps_left(job)
        alike = like_patterns(job.trace)
        if left == 1:
            return say(PROMPTS, "last_step")
        if alike >= LIKE_PATTERNS:
            return say(PROMPTS, self.enough, times=alike)
        if has_few_steps(job):
            return say(PROMPTS, "few_steps_left", left=left)
        return self.usual(job)

    def usual(self, job: Job) -> str:
        """The sentence for a step about which there is nothing else to say."""
        return say(PROMPTS, self.next)

    def about_newest(self, job: Job) -> str:
        """What came of the newest step, if it was a repeat or a failure."""
        if not job.trace:
            return ""
        newest = job.trace[-1]
        first = same_call(job, newest.action, newest.params)
        if first is not None and job.trace.index(first) + 1 < len(job.trace):
            return say(PROMPTS, "seen_before", step=job.trace.index(first) + 1)
        is_call = newest.action in job.tools
        return say(PROMPTS, "call_failed") if newest.failed and is_call else ""

    # ---- what it may reply -----------------------------------------------------------------------

    def parse(self, job: Job, offer: Offer, reply: Reply) -> Action:
        """The action of a reply, or the mistake in it."""
        action = Action()
        try:
            action = _read(job, reply)
            self.check(job, offer, action)
        except ModelMistake as mistake:
            return replace(action, mistake=explained(mistake))
        return action

    def check(self, job: Job, offer: Offer, action: Action) -> None:
        """Raises ModelMistake for an action that is not offered, and for a report that says "done"
        and nothing else.
        """
        name = action.name
        known = [*(tool.name for tool in offer.tools), FINISH]
        if name not in known:
            rule = "unassigned_tool" if name in job.tools else "bad_action"
            raise ModelMistake(rule, action=name, tool=name, known=", ".join(known))
        report = action.report
        is_empty = not as_text(report.get("result")) and not as_text(
            report.get("summary")
        )
        if name == FINISH and is_empty and status_of(report) == "done":
            raise ModelMistake("no_result")

    def finished(self, job: Job, action: Action) -> Result:
        """z, as the sub-agent reports it."""
        report = action.report
        answer = without_marks(as_text(report.get("result")))
        memories = [step.memory for step in job.trace if step.memory]
        text = as_text(report.get("summary")) or "".join(memories[-1:])
        return job.result(status_of(report), answer, text)


def _files_for(job: Job) -> list[str]:
    """The files that the tools of the sub-agent can open."""
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


def _steps_done(job: Job) -> str:
    if not job.trace:
        return say(PROMPTS, "no_steps")
    # A memory is written with an action, before its observation: it belongs to the step before.
    memories = [step.memory for step in job.trace[1:]]
    memories.append("")
    rows = []
    for number, (step, memory) in enumerate(zip(job.trace, memories, strict=True), 1):
        # The parameters of a refused report are not shown: small models copy them.
        is_shown = not is_refused_report(step)
        row = say(
            PROMPTS,
            "step",
            number=number,
            action=step.action,
            params=json.dumps(step.params, ensure_ascii=False) if is_shown else "",
            observation=step.observation,
            memory=memory or "-",
        )
        rows.append(row)
    return "\n\n".join(rows)


def schema_of(job: Job, offer: Offer) -> Schema:
    """The JSON schema of one step: one alternative per action."""
    actions = [_alternative(tool.name, tool.schema(job.task)) for tool in offer.tools]
    report = {"result": TEXT, "status": one_of(STATUSES), "summary": TEXT}
    if offer.may_finish:
        actions.append(_alternative(FINISH, closed_object(report)))
    return "action", {"anyOf": actions}


def _alternative(name: str, params: dict[str, Any]) -> Any:
    return closed_object({"action": const(name), "params": params, "memory": TEXT})


def _read(job: Job, reply: Reply) -> Action:
    """Raises ModelMistake if a reply has no action. Some models write the parameters next to it."""
    fields = find_action(reply.text, reply.cut)
    name = as_text(fields["action"])
    params = fields.get("params")
    if name == FINISH and isinstance(params, str) and params.strip():
        params = {"result": params}
    if not isinstance(params, dict):
        names = (
            job.tools[name].inputs.get("properties", ())
            if name in job.tools
            else REPORT
        )
        params = {key: fields[key] for key in names if key in fields}
    return Action(name, params, as_text(fields.get("memory")))


def act(job: Job, action: Action) -> Step:
    """Do an action: its step, with the observation. That of a mistake is the mistake."""
    if action.mistake:
        error = capped(action.mistake, OBSERVATION_CHARS)
        return Step(INVALID, action.params, action.memory, error, failed=True)
    if action.name == FINISH:
        return Step(FINISH, action.params, action.memory, "")
    earlier = same_call(job, action.name, action.params)
    if earlier is not None:
        return replace(earlier, memory=action.memory)
    return job.use(action.name, action.params, action.memory)


def status_of(report: Mapping[str, Any]) -> Status:
    """The status of a report: "done" if there is none, "partial" if it is not one of ours."""
    word = as_text(report.get("status")).lower() or "done"
    return next((status for status in STATUSES if status == word), "partial")


# ---- what the steps say about the next one -------------------------------------------------------


def unusable(job: Job) -> list[Step]:
    """The replies since the last usable one, the newest first."""
    return list(takewhile(lambda step: step.action == INVALID, reversed(job.trace)))


def out_of_steps(job: Job, reply: str) -> Unreported:
    """What ends a sub-agent that has no step left, or none that would help. `reply`: the last."""
    replies = unusable(job)
    if len(replies) >= LIKE_PATTERNS:
        about = {"count": len(replies), "mistake": replies[0].observation}
        about["start"] = repr(reply.strip()[:START_CHARS])
        return Unreported(say(PROMPTS, "unusable", **about), "replies")
    return Unreported(say(PROMPTS, "out_of_steps", steps=job.steps), "steps")


def steps_left(job: Job) -> int:
    """The next step included."""
    return job.steps - len(job.trace)


def has_few_steps(job: Job) -> bool:
    """Whether the steps that are left are the last fifth of all, or the last one."""
    return steps_left(job) <= max(1, job.steps // WARNED_PART)


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


def is_refused_report(step: Step) -> bool:
    """Whether a step is a report that was not accepted."""
    return step.action == INVALID and "result" in step.params


def same_call(job: Job, name: str, params: Mapping[str, Any]) -> Step | None:
    """The first successful step that opened the same file with the same parameters."""
    if name not in job.tools or not job.tools[name].files:
        return None
    for step in job.trace:
        if step.action == name and step.params == params and not step.failed:
            return step
    return None


# ---- a sub-agent around another one --------------------------------------------------------------


def summarized(agent: Agent, further: Callable[[Job], Question] | None = None) -> Agent:
    """The same sub-agent, with a summary where it ends as Unreported. The money for that call is
    kept back from its share meanwhile. `further`: the prompt that goes on from that of its last
    step.
    """

    @functools.wraps(agent, updated=())
    def run(job: Job) -> Result:
        purse = job.env.purse
        share_usd = purse.limit_usd
        if share_usd is not None:
            from orchestra.methods import summary

            summary.keep_money(job, share_usd)
        try:
            return agent(job)
        except Unreported as end:
            from orchestra.methods import summary

            purse.limit_usd = share_usd
            z = job.unreported(end.error, end.cause)
            text = summary.ask(job, end.__cause__, further) or z.summary
            cost_usd = purse.spent_usd
            return replace(z, answer=end.answer, summary=text, cost_usd=cost_usd)
        finally:
            purse.limit_usd = share_usd

    return run


LOOP = React()
run = summarized(LOOP, LOOP.question)
