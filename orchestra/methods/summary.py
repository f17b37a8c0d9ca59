"""The summary of a sub-agent that ends without a report of its own: omega of Eq. 14.

    run = summarized(loop)       # react.py: a sub-agent around another one

What its steps have shown was paid for, so it reaches the main agent, whatever ended the sub-agent.
One more call asks the sub-agent's model for the summary. Without an answer to it, a digest of the
newest observations is the summary.

    what ended the sub-agent              what the model is asked
    its steps or its unusable replies     the next step's prompt with another last section, which a
                                          server has in its prefix cache; if that is too long or
                                          too dear, a short request of its own
    its budget, or a full context         the short request: under a budget, the purse has kept
                                          the money for it
    an endpoint that gives no answer      nothing: it would give no answer again
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from orchestra.kernel.digest import newest_steps
from orchestra.kernel.job import Job, Question, has_worked, seen_in
from orchestra.kernel.money import input_token_bound
from orchestra.kernel.prompts import (
    after_thinking,
    as_messages,
    capped,
    render,
    say,
)
from orchestra.kernel.tape import SUMMARY
from orchestra.kernel.vocabulary import (
    BudgetExceeded,
    EndpointError,
    Messages,
    ModelMistake,
    Place,
    Reply,
    Step,
    SubTask,
)
from orchestra.methods.replies import find_action

SHOWN_CHARS = 1000  # of an observation in a short request
INSTRUCTION_CHARS = 1000
SUMMARY_CHARS = 1500
SUMMARY_TOKENS = 200  # that the purse keeps for the reply
TOO_LONG = (
    400,
    413,
    422,
)  # HTTP status of a request that is refused, as for its length
FENCE = "```"
PROMPTS = "trace_summary/messages"


def keep_money(job: Job, share_usd: float) -> None:
    """After each step, hold back what the short request may cost, if the sub-agent should end."""
    show = job.on_step

    def on_step(place: Place, step: Step) -> None:
        show(place, step)
        trace = [*job.trace[: place.step - 1], step]
        job.env.purse.limit_usd = share_usd - _most_usd(job, trace)

    job.on_step = on_step


def _most_usd(job: Job, trace: Sequence[Step]) -> float:
    """What the short request may cost after one more observation; 0 while there is none to report.
    An unknown price counts as 0.
    """
    if not has_worked(trace):
        return 0.0
    backend = job.env.backend
    read = input_token_bound(backend, short_request(job.u, trace), {})
    return backend.cost_usd(read + SHOWN_CHARS, SUMMARY_TOKENS) or 0.0


# ---- the call ------------------------------------------------------------------------------------


def ask(
    job: Job, failure: BaseException | None, further: Callable[[Job], Question] | None
) -> str:
    """omega, Eq. 14, from the sub-task's model; "" without an answer, or if nothing was shown."""
    questions: list[Question] = []
    if has_worked(job.trace) and _may_answer(failure):
        questions = [(short_request(job.u, job.trace), None)]
        if further is not None and failure is None:
            questions.insert(0, further(job))
    env = job.env
    for messages, schema in questions:
        try:
            with env.tape.call(job.place._replace(part=SUMMARY)):
                reply = env.chat(env.backend, messages, env.purse, schema)
            return capped(text_of(reply), SUMMARY_CHARS)
        except (EndpointError, BudgetExceeded) as error:
            if not _may_answer(error):
                break
    return ""


def _may_answer(failure: BaseException | None) -> bool:
    """Whether the endpoint may answer a short request, whatever happened to the one before it."""
    return not isinstance(failure, EndpointError) or failure.status in TOO_LONG


def short_request(u: SubTask, trace: Sequence[Step]) -> Messages:
    """The task and the newest observations, cut: a request that is small after any steps."""
    user = render(
        "trace_summary/user.md",
        instruction=capped(u.instruction, INSTRUCTION_CHARS),
        steps="\n".join(newest_steps(seen_in(trace), SHOWN_CHARS)),
        now=say(PROMPTS, "now"),
    )
    return as_messages(render("trace_summary/system.md"), user)


def text_of(reply: Reply) -> str:
    """The summary in a reply, which is an action with it or plain text. "" if there is none, or if
    the reply was cut off or ends within its JSON.
    """
    if reply.cut:
        return ""
    try:
        action = find_action(reply.text)
    except ModelMistake as mistake:
        if mistake.rule == "open":
            return ""
        return after_thinking(reply.text).partition(FENCE)[0].strip()
    params = action.get("params")
    fields = params if isinstance(params, dict) else {}
    found = [fields.get("result"), fields.get("summary")]
    return " ".join(
        text.strip() for text in found if isinstance(text, str) and text.strip()
    )
