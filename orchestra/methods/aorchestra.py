"""AOrchestra (arXiv 2602.03786): the main agent decides once a round. It writes one 4-tuple
(Instruction, Context, Tools, Model), which makes a sub-agent, or it completes with an answer.

Differences from the paper / the released code
1. Context sharing is an option, as in the paper's ablation: `curated` (what the main agent writes),
   `none`, or `full` (the whole history). Every sub-agent reads at least its instruction.
2. Sub-agents are exchangeable: a ReAct loop, or another --agent, as the mini-SWE one at a shell.
   The ReAct loop is that with rules for small models (react_careful.py), as in the recorded runs.
3. Several tasks in one decision are rejected with an error message, not cut to the first.
4. `complete` is refused if the task has media and nothing was delegated yet, and so is a task whose
   tools cannot open the file that it names. The model reads the error and decides again; the
   schema does not offer a refused action again in that round.
5. The main prompt is learned (OPTIMIZE) by optimize_prompt; the option `instruction` uses the
   result in place of prompts/aorchestra/system.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from orchestra.kernel.folder import Options
from orchestra.kernel.method import Ask, Method, one_of_these
from orchestra.kernel.prompts import as_messages, render, say
from orchestra.kernel.tool import Tool
from orchestra.kernel.vocabulary import (
    Decision,
    Delegate,
    Evidence,
    Messages,
    ModelMistake,
    Pool,
    State,
)
from orchestra.methods.main_agent import (
    decision_schema,
    fill,
    manual_lines,
    media_lines,
    model_lines,
    nothing_seen,
    read_decision,
    read_tasks,
    reported,
    status_lines,
    system_prompt,
    task_schema,
)
from orchestra.methods.react_careful import careful
from orchestra.methods.replies import closed_object

PROMPTS = "aorchestra/messages"


class AOrchestra(Method):
    """pi_theta(a_t | s_t). `sharing`: what a sub-agent reads of earlier results."""

    agents = {"react": careful}
    options = {
        "context": one_of_these("curated", "none", "full"),
        "instruction": system_prompt,
    }

    def __init__(self, pool: Pool, tools: Mapping[str, Tool], options: Options) -> None:
        super().__init__(pool, tools, options)
        self.models = model_lines(pool.backends)
        self.manuals = manual_lines(tools)
        self.sharing = self.own.get("context", "curated")

    def decide(
        self, state: State, ask: Ask, mistake: str, last_chance: bool
    ) -> Decision:
        """y_t ~ pi_theta(. | s_t). Raises ModelMistake."""
        may_complete = not nothing_seen(state)
        delegation = closed_object(task_schema(state))
        schema = decision_schema(delegation, state, last_chance, may_complete)
        reply = ask(self.prompt(state, mistake, last_chance), ("decision", schema))
        y_t = read_decision(read_delegation, reply, state, last_chance, may_complete)
        if isinstance(y_t, Delegate) and self.sharing != "curated":
            context = (
                reported(history_lines(state.history)) if self.sharing == "full" else ""
            )
            (u,) = y_t.subtasks
            return replace(y_t, subtasks=(replace(u, context=context),))
        return y_t

    def prompt(self, state: State, mistake: str, last_chance: bool) -> Messages:
        """s_t as the main agent reads it."""
        about = {"models": self.models, "tools": self.manuals}
        own = self.own.get("instruction")
        system = fill(own, **about) if own else render("aorchestra/system.md", **about)
        user = render(
            "aorchestra/user.md",
            question=state.task.question,
            media=self.files(state),
            history=reported(history_lines(state.history)),
            now=status_lines(state, say(PROMPTS, "next"), mistake, last_chance),
        )
        return as_messages(system, user)

    def files(self, state: State) -> str:
        """M for the prompt."""
        return media_lines(state)


def history_lines(history: Sequence[Evidence]) -> str:
    """The observations o_1 ... o_t in full: each sub-task, its model and tools, and its result."""
    rows = []
    for h in history:
        row = say(
            PROMPTS,
            "observation",
            round=h.round,
            instruction=h.instruction,
            model=h.backend,
            tools=", ".join(h.tools) or "-",
            status=h.status,
            steps=h.steps,
            answer=h.answer or "-",
            summary=" ".join(text for text in (h.error, h.summary) if text) or "-",
        )
        rows.append(row)
    return "\n\n".join(rows)


def read_delegation(params: dict[str, Any], reasoning: str, state: State) -> Delegate:
    """The one task, flat as in the paper or in a list. Raises ModelMistake for several."""
    tasks = params.get("tasks")
    tasks = params if tasks in (None, {}) else tasks
    tasks = [tasks] if isinstance(tasks, dict) else tasks
    count = len(tasks) if isinstance(tasks, list) else 0
    if count != 1:
        raise ModelMistake("one_subtask", PROMPTS, count=count)
    (u,) = read_tasks(tasks, state)
    return Delegate((replace(u, id=f"t{state.round}", needs=()),), reasoning)
