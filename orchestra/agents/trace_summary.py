"""The summary of a sub-agent that ends without a report of its own: omega of Eq. 14.

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

from collections.abc import Sequence

from orchestra.runtime.chat import STOPPED
from orchestra.runtime.completion import input_token_bound
from orchestra.runtime.parsing import after_thinking, find_action
from orchestra.runtime.prompts import (
    as_messages,
    capped,
    quoted,
    render,
    say,
    without_marks,
)
from orchestra.runtime.reply_schema import TEXT, closed_object, const
from orchestra.seams import Messages, Schema
from orchestra.toolkit import Environment
from orchestra.tools.code import cut_in_the_middle
from orchestra.vocabulary import (
    FINISH,
    INVALID,
    SUMMARY,
    Backend,
    ConfigError,
    EndpointError,
    ModelMistake,
    Place,
    Reply,
    Step,
    SubTask,
)

SHOWN_STEPS = 4  # the newest ones, in a short request and in a digest
SHOWN_CHARS = 1000  # of an observation in a short request
DIGEST_CHARS = 300  # of one in a digest
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
_PARAMS = closed_object({"summary": TEXT})
SCHEMA: Schema = (
    "summary",
    closed_object({"action": const("summary"), "params": _PARAMS}),
)
Question = tuple[Messages, Schema | None]


def seen_in(trace: Sequence[Step]) -> list[tuple[int, Step]]:
    """The steps with an observation, and their numbers."""
    numbered = enumerate(trace, 1)
    no_call = (FINISH, INVALID)
    return [(n, s) for n, s in numbered if s.action not in no_call and s.observation]


def has_worked(trace: Sequence[Step]) -> bool:
    """Whether some step has shown something that is not an error."""
    return any(not step.failed for _, step in seen_in(trace))


# ---- the call ------------------------------------------------------------------------------------


def summary_of(
    env: Environment,
    place: Place,
    u: SubTask,
    trace: Sequence[Step],
    failure: Exception | None = None,
    further: Question | None = None,
) -> str:
    """omega, Eq. 14. `failure`: what stopped the sub-agent. `further`: the prompt that goes on from
    that of its last step. "" if no step has shown anything.
    """
    env.purse.kept_usd = 0.0
    questions: list[Question] = []
    if has_worked(trace) and _may_answer(failure):
        questions = [(short_request(u, trace), None)]
        if further is not None and failure is None:
            questions.insert(0, further)
    for messages, schema in questions:
        try:
            with env.tape.call(place._replace(step=0, part=SUMMARY)):
                reply = env.chat(env.backend, messages, env.purse, schema)
        except STOPPED as error:
            if not _may_answer(error):
                break
        else:
            text = text_of(reply)
            return capped(text, SUMMARY_CHARS) if text else digest(trace)
    return digest(trace)


def _may_answer(failure: Exception | None) -> bool:
    """Whether the endpoint may answer a short request, whatever happened to the one before it."""
    if isinstance(failure, EndpointError):
        return failure.failure is not None and failure.failure.status in TOO_LONG
    return not isinstance(failure, ConfigError)


def short_request(u: SubTask, trace: Sequence[Step]) -> Messages:
    """The task and the newest observations, cut: a request that is small after any steps."""
    user = render(
        "trace_summary/user.md",
        instruction=capped(u.instruction, INSTRUCTION_CHARS),
        steps=_newest(trace, SHOWN_CHARS),
        now=say(PROMPTS, "now"),
    )
    return as_messages(render("trace_summary/system.md"), user)


def most_usd(backend: Backend, u: SubTask, trace: Sequence[Step]) -> float:
    """What the short request may cost after one more observation; 0 while there is none to report.
    An unknown price counts as 0.
    """
    if not has_worked(trace):
        return 0.0
    input_tokens = input_token_bound(backend, short_request(u, trace), {})
    return backend.cost_usd(input_tokens + SHOWN_CHARS, SUMMARY_TOKENS) or 0.0


def text_of(reply: Reply) -> str:
    """The summary in a reply, which is an action with it or plain text. "" if there is none, or if
    the reply was cut off.
    """
    if reply.cut:
        return ""
    try:
        action = find_action(reply.text)
    except ModelMistake:
        return after_thinking(reply.text).partition(FENCE)[0].strip()
    params = action.get("params")
    fields = params if isinstance(params, dict) else {}
    found = [fields.get("result"), fields.get("summary")]
    texts = [text.strip() for text in found if isinstance(text, str) and text.strip()]
    return " ".join(texts)


# ---- the digest ----------------------------------------------------------------------------------


def digest(trace: Sequence[Step]) -> str:
    """The newest notes and the newest observations, which are data. "" without an observation."""
    if not seen_in(trace):
        return ""
    parts = [say(PROMPTS, "digest", steps=_newest(trace, DIGEST_CHARS))]
    memory = next((step.memory for step in reversed(trace) if step.memory), "")
    if memory:
        notes = without_marks(capped(memory, DIGEST_CHARS))
        parts.insert(0, say(PROMPTS, "notes", memory=notes))
    return "\n".join(parts)


def _newest(trace: Sequence[Step], chars: int) -> str:
    """The newest observations in order, each cut and marked as data."""
    rows = []
    for number, step in seen_in(trace)[-SHOWN_STEPS:]:
        text = cut_in_the_middle(without_marks(step.observation), chars)
        observation = quoted(text, limit=2 * chars)
        rows.append(
            say(
                PROMPTS,
                "step",
                number=number,
                action=step.action,
                observation=observation,
            )
        )
    return "\n".join(rows)
