"""Orchestra-o1 for models of few parameters (--prompts small). It inherits all else.

1. The prompt names the next step, which follows from the history, and writes out the sub-tasks that
   read files.
2. Sub-agents do not read the whole question, as in App. B.3: small models answer it instead of
   their task.
3. `complete` is refused if the task has files and nothing was delegated yet: the main agent cannot
   have seen them.
4. Sub-agents have the rules of react_careful.py against loops and invented reports.
5. L_ctx is 6,000 tokens, as a small model reads no more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from orchestra.kernel.prompts import named, say
from orchestra.kernel.tool import CODE
from orchestra.kernel.vocabulary import Evidence, Media, State, Task
from orchestra.methods.main_agent import (
    nothing_seen,
    opened_by,
    reported,
    task_schema,
    tools_for_file,
    tried_by,
)
from orchestra.methods.orchestra_o1 import OrchestraO1, found_so_far
from orchestra.methods.react_careful import careful
from orchestra.methods.replies import TEXT, closed_object, list_of

PROMPTS = "orchestra_o1/small/messages"


class SmallModels(OrchestraO1):
    """pi_theta(y_t | s_t), Eq. 3, with help."""

    context_tokens = 6000
    system = "orchestra_o1/small/system.md"
    agents = {"react": careful}

    def may_complete(self, state: State) -> bool:
        return not nothing_seen(state)

    def also_read(self, task: Task, context: str) -> list[str]:
        return [found_so_far(context)] if context else []

    def delegation_schema(self, state: State) -> dict[str, Any]:
        """The keys of the paper, all of them needed, and `id` and `needs`."""
        required = task_schema(state)
        task = {**required, "id": TEXT, "needs": list_of(TEXT)}
        return closed_object({"tasks": list_of(closed_object(task, required))})

    def next_step(self, state: State) -> str:
        """The next step, from the history alone: small models follow what they read last."""
        unopened = [m for m in state.task.media if not opened_by(m, state)]
        new = [m for m in unopened if not tried_by(m, state)]
        if new:
            tasks = "\n".join(_reading_task(m, state) for m in new)
            return say(PROMPTS, "next_unseen", tasks=tasks)
        if unopened:
            names = ", ".join(named(m.name) for m in unopened)
            return say(PROMPTS, "next_tried", files=names)
        newest = [h for h in state.history if h.round == state.history[-1].round]
        failed = [h.id for h in newest if h.status in ("failed", "blocked")]
        if failed:
            return say(PROMPTS, "next_failed", ids=", ".join(failed))
        half = [
            h.id for h in newest if h.status == "partial" and h.summary and not h.answer
        ]
        if half:
            return say(PROMPTS, "next_unfinished", ids=", ".join(half))
        if state.waiting:
            return say(PROMPTS, "next_waiting")
        if not newest:
            return say(PROMPTS, "next_start")
        return _use_findings(newest, has_code=CODE in state.tools)


def _reading_task(m: Media, state: State) -> str:
    """The sub-task that reads a file, for the model to copy."""
    tools = ", ".join(f'"{tool}"' for tool in tools_for_file(m, state)[:1])
    instruction = say(PROMPTS, f"read_{m.modality}", file=named(m.name))
    return say(PROMPTS, "reading_task", instruction=instruction, tools=tools)


def _use_findings(newest: Sequence[Evidence], has_code: bool) -> str:
    answered = [h for h in newest if h.answer] or newest
    ids = ", ".join(h.id for h in answered)
    if any(h.media for h in newest):
        compute = " " + say(PROMPTS, "next_compute", ids=ids) if has_code else ""
        return say(PROMPTS, "next_seen", ids=ids, compute=compute)
    answers = "\n".join(h.answer or h.summary for h in answered)
    return say(PROMPTS, "next_found", ids=ids, answers=reported(answers))
