"""What a sub-agent reads in the user's texts (--texts): each step of its ReAct loop, and, after its
end, the request for a summary of its trace, which released main agents read of every sub-task.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from orchestra.agents.job import Job
from orchestra.runtime.chat import STOPPED
from orchestra.runtime.parsing import after_thinking
from orchestra.runtime.texts import Texts
from orchestra.seams import Messages
from orchestra.vocabulary import FINISH, SUMMARY, Result, Step

MOST_WARNED = 10  # steps left, as the pieces warning_1 to warning_10 name them


def has_texts(job: Job, call: str) -> bool:
    """Whether the user gave texts for this call."""
    return job.env.texts is not None and job.env.texts.has(call)


# ---- a step --------------------------------------------------------------------------------------


def step_in_texts(job: Job, files: Sequence[str], next_step: str) -> Messages:
    """The messages of the next step. `next_step`: what the program's own prompt says last."""
    texts = job.env.texts
    assert texts is not None  # has_texts
    step = len(job.trace) + 1
    newest = job.trace[-1] if job.trace else None
    tools = texts.tool_rows((t.name, t.manual, t.inputs) for t in job.assigned)
    values = {
        "instruction": job.u.instruction,
        "question": job.task.question,
        "context": job.u.context,
        "files": ", ".join(files),
        "tools": texts.rows("tools", tools),
        "done_steps": texts.rows("done_steps", step_rows(job.trace)),
        "observation": newest.observation if newest else "",
        "memory": newest.memory if newest else "",
        "step": step,
        "max_steps": job.steps,
        "left": job.steps - step,
        "warning": warning(texts, job.steps - step),
        "next": next_step,
    }
    return texts.messages("agent", values)


def step_rows(trace: Sequence[Step]) -> Iterator[Mapping[str, object]]:
    """The steps so far, in order."""
    for number, step in enumerate(trace, 1):
        yield {
            "number": number,
            "action": step.action,
            "params": json.dumps(step.params, ensure_ascii=False),
            "observation": step.observation,
            "memory": step.memory,
        }


def warning(texts: Texts, left: int) -> str:
    """The piece warning_N with the smallest N that is not below the number of steps left."""
    for most in range(max(left, 1), MOST_WARNED + 1):
        if f"warning_{most}" in texts.layout.pieces:
            return texts.piece(f"warning_{most}", left=left)
    return ""


# ---- the summary of a trace ----------------------------------------------------------------------


def with_trace_summary(job: Job, z: Result) -> Result:
    """z with the summary of its trace, if the user's texts have the call `summary`. A call that
    cannot be made leaves it empty.
    """
    if not has_texts(job, SUMMARY) or not z.trace:
        return z
    env = job.env
    assert env.texts is not None  # has_texts
    values = {
        "instruction": job.u.instruction,
        "question": job.task.question,
        "count": len(z.trace),
        "done_steps": env.texts.rows("done_steps", step_rows(z.trace)),
        "status": z.status,
        "answer": z.answer,
        "finish_part": "",
    }
    if z.trace[-1].action == FINISH:
        reported = {"status": z.status, "answer": z.answer}
        values["finish_part"] = env.texts.piece("finish_part", **reported)
    messages = env.texts.messages(SUMMARY, values)
    try:
        with env.tape.call(job.place._replace(step=0, part=SUMMARY)):
            reply = env.chat(env.backend, messages, env.purse)
    except STOPPED:
        return z
    text = after_thinking(reply.text).strip()
    return replace(z, trace_summary=text, cost_usd=env.purse.spent_usd)
