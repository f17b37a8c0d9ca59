"""ReAct (arXiv 2210.03629) without a main agent, the baseline: it answers the whole question alone.

It has the rules of react_careful.py, and three more, because nobody reads its report and asks again
3. It must try each file of the task that its tools open. After a report that was refused for that,
   the schema of the next step has no `finish`: small models repeat it. If it never does, what it
   reports as done is partial.
4. A tool that was called twice with the same parameters and the same result is blocked until
   another call succeeds; for good after three such calls. Without rules 3 and 4 the 1.5B model of
   fixtures/ sent one search five times and opened none of three files.
5. An empty result is refused, and an endpoint that fails ends the run, which can be resumed.
6. A model that answers in words, and gives no action for that, is not done; but its last reply is
   the fallback answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from orchestra.kernel.folder import Options
from orchestra.kernel.job import Job
from orchestra.kernel.method import Ask, Method
from orchestra.kernel.placing import in_program
from orchestra.kernel.prompts import after_thinking, named, say
from orchestra.kernel.tool import Tool
from orchestra.kernel.vocabulary import (
    FINISH,
    INVALID,
    BudgetExceeded,
    Decision,
    Delegate,
    EndpointError,
    ModelMistake,
    Pool,
    Reply,
    Result,
    RunEndpointError,
    State,
    SubTask,
)
from orchestra.methods.react import (
    LIKE_PATTERNS,
    PROMPTS,
    Action,
    Offer,
    Unreported,
    has_few_steps,
    is_refused_report,
    like_patterns,
    status_of,
    steps_left,
    summarized,
)
from orchestra.methods.react_careful import CarefulReact
from orchestra.methods.replies import as_text

SAME_CALLS = 3


class SingleReact(CarefulReact):
    """All rules."""

    system = "react/alone.md"
    user = "react/alone_user.md"
    now = "now_alone"
    next = "next_alone"

    def stopped(self, failure: EndpointError | BudgetExceeded) -> Exception:
        if isinstance(failure, EndpointError) and failure.cause != "context":
            return RunEndpointError(str(failure), failure.status)
        return super().stopped(failure)

    def unfinished(self, job: Job, reply: Reply) -> Unreported:
        end = super().unfinished(job, reply)
        words = after_thinking(reply.text).strip()
        is_prose = not words.startswith(("{", "<", "`")) and '{"' not in words
        if end.cause == "replies" and not reply.cut and is_prose:
            end.answer = words
        return end

    def offer(self, job: Job) -> Offer:
        offer = super().offer(job)
        blocked = blocked_tools(job)
        tools = [tool for tool in offer.tools if tool.name not in blocked]
        if offer.must_finish or (job.u.tools and not tools):
            return Offer([], must_finish=True)
        unopened = [] if has_few_steps(job) else unopened_files(job, tools)
        is_refused = bool(job.trace) and is_refused_report(job.trace[-1])
        return Offer(tools, may_finish=not (unopened and is_refused), unopened=unopened)

    def what_now(self, job: Job, offer: Offer) -> str:
        repeats = like_patterns(job.trace) >= LIKE_PATTERNS
        if offer.must_finish and steps_left(job) > 1 and not repeats:
            return say(PROMPTS, "no_tool_left")
        if not offer.may_finish and not has_few_steps(job):
            return say(
                PROMPTS, "next_unopened", files=", ".join(map(named, offer.unopened))
            )
        return super().what_now(job, offer)

    def about_newest(self, job: Job) -> str:
        blocked = blocked_tools(job)
        if blocked:
            return say(PROMPTS, "same_call", tools=", ".join(sorted(blocked)))
        return super().about_newest(job)

    def saw_nothing(self, job: Job) -> bool:
        """A question without files may be answered from what the model knows."""
        return bool(job.task.media) and super().saw_nothing(job)

    def finished(self, job: Job, action: Action) -> Result:
        z = super().finished(job, action)
        names = unopened_files(job, job.assigned)
        if z.status == "done" and names:
            error = say(PROMPTS, "never_opened", files=", ".join(map(named, names)))
            return replace(z, status="partial", error=error)
        return z

    def check(self, job: Job, offer: Offer, action: Action) -> None:
        """Raises ModelMistake also for a report of what was not seen, or without a result."""
        if action.name in blocked_tools(job):
            known = ", ".join([*(tool.name for tool in offer.tools), FINISH])
            raise ModelMistake(
                "withdrawn", "react/messages", tool=action.name, known=known
            )
        super().check(job, offer, action)
        if action.name == FINISH:
            if status_of(action.report) == "done" and offer.unopened:
                raise ModelMistake(
                    "unopened", files=", ".join(map(named, offer.unopened))
                )
            if not as_text(action.report.get("result")):
                raise ModelMistake("no_result")


def unopened_files(job: Job, tools: Sequence[Tool]) -> list[str]:
    """The files of the task that the agent has not tried to open although a tool opens them."""
    tried = []
    for step in job.trace:
        tried += [job.task.file(str(value)) for value in step.params.values()]
        tried += in_program(step.params, job.task)
    kinds = {kind for tool in tools for kind in tool.files.values()}
    return [m.name for m in job.task.media if m.modality in kinds and m not in tried]


def blocked_tools(job: Job) -> set[str]:
    """The tools that the agent must not use in this step: rule 4."""
    calls = [(step.action, step.params, step.observation) for step in job.trace]
    blocked = {call[0] for call in calls if calls.count(call) >= SAME_CALLS}
    for n in reversed(range(len(calls))):
        if calls[n] in calls[:n]:
            blocked.add(job.trace[n].action)
        elif not job.trace[n].failed:
            break  # a call that succeeded and told something new
    return blocked - {INVALID, FINISH}


LOOP = SingleReact()
single = summarized(LOOP, LOOP.question)


class ReactAlone(Method):
    """The question is the only sub-task, and its answer is the run's. It is the single-agent
    baseline of Orchestra-o1's Figure 6.

    Differences from the paper / the released code
    1. The agent is the pool's main model, so that methods differ only in the orchestration.
    2. Its loop has the rules above, and a system prompt that asks for the answer.
    """

    rounds = 1
    agents = {"single": single}

    def __init__(self, pool: Pool, tools: Mapping[str, Tool], options: Options) -> None:
        super().__init__(pool, tools, options)
        self.main = pool.main
        self.agent = (
            "single" if options.agent in ("", "react") else ""
        )  # "": that of --agent

    def decide(
        self, state: State, ask: Ask, mistake: str, last_chance: bool
    ) -> Decision:
        """Calls no model: the one agent decides step by step in its loop."""
        question = state.task.question
        u = SubTask(
            "answer", question, backend=self.main, tools=state.tools, agent=self.agent
        )
        return Delegate((u,), whole_graph=True, answers=True, final=True)
