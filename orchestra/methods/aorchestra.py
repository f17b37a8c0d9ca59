"""AOrchestra (arXiv 2602.03786): the main agent writes one 4-tuple (Instruction, Context, Tools,
Model) a turn, or completes.

Differences from the paper / the released code
1. Context sharing is an option, as in the paper's ablation: `curated` (what the main agent writes),
   `none`, or `full` (the whole history). Every sub-agent reads at least its instruction.
2. Sub-agents are exchangeable: the ReAct loop of Orchestra-o1, or a mini-SWE agent at a shell.
3. Several tasks in one decision are rejected with an error message, not cut to the first.
4. `complete` is refused if the task has media and nothing was delegated yet.
5. The main prompt is learned (OPTIMIZE) by optimize_prompt.py; `--instruction` uses the result in
   place of prompts/aorchestra/system.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from orchestra.methods.decision import (
    decision_schema,
    read_decision,
    read_tasks,
    task_schema,
)
from orchestra.methods.state_prompt import (
    media_lines,
    model_lines,
    reported,
    status_lines,
)
from orchestra.runtime.options import Options
from orchestra.runtime.pool import Pool
from orchestra.runtime.prompts import as_messages, render, say
from orchestra.runtime.reply_schema import closed_object
from orchestra.seams import Ask, Messages
from orchestra.toolkit import Tool
from orchestra.vocabulary import Decision, Delegate, Evidence, ModelMistake, State

MESSAGES = "aorchestra/messages"


# ---- what the model reads ------------------------------------------------------------------------


def history_lines(history: Sequence[Evidence]) -> str:
    """The observations o_1 ... o_t in full: each sub-task, its model and tools, and its result."""
    rows = [
        say(
            MESSAGES, "observation", round=h.round, instruction=h.instruction, model=h.backend,
            tools=", ".join(h.tools) or "-", status=h.status, answer=h.answer or "-",
            summary=h.summary or h.error or "-",
        )
        for h in history
    ]  # fmt: skip
    return "\n\n".join(rows)


# ---- what the model may reply --------------------------------------------------------------------


def _delegate(params: dict[str, Any], reasoning: str, state: State) -> Delegate:
    tasks = params.get("tasks")
    if tasks is None or isinstance(tasks, dict):
        tasks = [tasks or params]  # flat in params, as in the paper, or one object
    count = len(tasks) if isinstance(tasks, list) else 0
    if count != 1:
        raise ModelMistake("one_subtask", MESSAGES, count=count)
    (u,) = read_tasks(tasks, state)
    return Delegate((replace(u, id=f"t{state.round}", needs=()),), reasoning)


parse_decision = partial(read_decision, _delegate)  # y_t from any reply; ModelMistake


# ---- the decision --------------------------------------------------------------------------------


class AOrchestra:
    """pi_theta(a_t | s_t)."""

    rounds = 10
    shares_context = False

    def __init__(self, pool: Pool, tools: Mapping[str, Tool], options: Options) -> None:
        self.models, self.options = model_lines(pool.backends), options
        self.shell = options.agent == "mini-swe"
        manuals = "\n\n".join(t.manual for t in tools.values())
        self.manuals = say(MESSAGES, "shell") if self.shell else manuals

    def decide(
        self, state: State, ask: Ask, mistake: str, last_chance: bool
    ) -> Decision:
        """y_t ~ pi_theta(. | s_t). Raises ModelMistake."""
        offered = replace(state, tools=() if self.shell else state.tools)
        task = closed_object(task_schema(state.backends, offered.tools))
        prompt = self.prompt(state, mistake, last_chance)
        reply = ask(prompt, ("decision", decision_schema(task, last_chance)))
        y_t = parse_decision(reply.text, offered, reply.cut, last_chance)
        return self.equipped(y_t, state) if isinstance(y_t, Delegate) else y_t

    def prompt(
        self, state: State, mistake: str = "", last_chance: bool = False
    ) -> Messages:
        """s_t as the main agent reads it. It depends on the arguments and the options alone."""
        top = ", ".join(state.task.repo)
        repo = "\n\n" + say(MESSAGES, "repo", top=top) if top else ""
        user = render(
            "aorchestra/user.md",
            question=state.task.question,
            media=media_lines(state) + repo,
            history=reported(history_lines(state.history)),
            now=status_lines(state, say(MESSAGES, "next"), mistake, last_chance),
        )
        how = {"models": self.models, "tools": self.manuals}
        return as_messages(
            render("aorchestra/system.md", self.options.instruction, **how), user
        )

    def equipped(self, y_t: Delegate, state: State) -> Delegate:
        """The sub-task with the context and the executor that the options name."""
        (u,) = y_t.subtasks
        shared = {
            "curated": u.context,
            "none": "",
            "full": reported(history_lines(state.history)),
        }
        tools, context = () if self.shell else u.tools, shared[self.options.context]
        u = replace(u, context=context, tools=tools)
        return replace(y_t, subtasks=(u,))
