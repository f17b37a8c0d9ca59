"""AOrchestra (arXiv 2602.03786): the main agent decides once a round. It writes one 4-tuple
(Instruction, Context, Tools, Model), which makes a sub-agent, or it completes with an answer.

Differences from the paper / the released code
1. Context sharing is an option, as in the paper's ablation: `curated` (what the main agent writes),
   `none`, or `full` (the whole history). Every sub-agent reads at least its instruction.
2. Sub-agents are exchangeable: the ReAct loop of Orchestra-o1, or a mini-SWE agent at a shell.
3. Several tasks in one decision are rejected with an error message, not cut to the first.
4. `complete` is refused if the task has media and nothing was delegated yet, and so is a task whose
   tools cannot open the file that it names. The model reads the error and decides again; the schema
   does not offer a refused action again in that round.
5. The main prompt is learned (OPTIMIZE) by optimize_prompt.py; `--instruction` uses the result in
   place of prompts/aorchestra/system.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from orchestra.methods.decision import (
    decision_schema,
    read_decision,
    read_tasks,
    task_schema,
)
from orchestra.methods.state_prompt import (
    manual_lines,
    media_lines,
    model_lines,
    reported,
    status_lines,
)
from orchestra.methods.state_texts import state_texts
from orchestra.runtime.options import Options
from orchestra.runtime.pool import Pool
from orchestra.runtime.prompts import as_messages, named, render, say
from orchestra.runtime.reply_schema import closed_object
from orchestra.seams import Ask, Messages
from orchestra.toolkit import Tool
from orchestra.vocabulary import Decision, Delegate, Evidence, ModelMistake, State

PROMPTS = "aorchestra/messages"


# ---- what the model reads ------------------------------------------------------------------------


def history_lines(history: Sequence[Evidence]) -> str:
    """The observations o_1 ... o_t in full: each sub-task, its model and tools, and its result."""
    return "\n\n".join(_observation(h) for h in history)


def _observation(h: Evidence) -> str:
    return say(
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


def repo_line(top_level: Sequence[str]) -> str:
    """The names at the top level of the user's repository, if there is one."""
    if not top_level:
        return ""
    return "\n\n" + say(PROMPTS, "repo", top=", ".join(map(named, top_level)))


# ---- what the model may reply --------------------------------------------------------------------


def delegation_schema(state: State) -> dict[str, Any]:
    """The JSON schema of a delegation's params: the one task itself."""
    return closed_object(task_schema(state.backends, state.tools))


def _delegate(params: dict[str, Any], reasoning: str, state: State) -> Delegate:
    tasks = params.get("tasks")
    if tasks is None or tasks == {}:
        tasks = params  # flat, as in the paper
    if isinstance(tasks, dict):
        tasks = [tasks]
    count = len(tasks) if isinstance(tasks, list) else 0
    if count != 1:
        raise ModelMistake("one_subtask", PROMPTS, count=count)
    (u,) = read_tasks(tasks, state)
    u = replace(u, id=f"t{state.round}", needs=())
    return Delegate((u,), reasoning)


def parse_decision(
    reply: str, state: State, cut: bool = False, last_chance: bool = False
) -> Decision:
    """y_t from any reply. Raises ModelMistake."""
    return read_decision(_delegate, reply, state, cut, last_chance)


# ---- the decision --------------------------------------------------------------------------------


class AOrchestra:
    """pi_theta(a_t | s_t). `options.context` says what a sub-agent reads of earlier results."""

    rounds = 10
    shares_context = False

    def __init__(self, pool: Pool, tools: Mapping[str, Tool], options: Options) -> None:
        self.models = model_lines(pool.for_subtasks())
        self.manuals = manual_lines(tools)
        self.instruction = options.instruction
        self.context_sharing = options.context
        self.texts = state_texts(options, pool.for_subtasks(), tools)
        self.shell = options.agent == "mini-swe"
        if self.shell:
            self.manuals = say(PROMPTS, "shell")

    def decide(
        self, state: State, ask: Ask, mistake: str, last_chance: bool
    ) -> Decision:
        """y_t ~ pi_theta(. | s_t). Raises ModelMistake."""
        offered = replace(state, tools=(), capabilities={}) if self.shell else state
        delegation = delegation_schema(offered)
        schema = ("decision", decision_schema(delegation, offered, last_chance))
        prompt = self.prompt(state, mistake, last_chance)
        reply = ask(prompt, self.texts.schema(schema) if self.texts else schema)
        y_t = parse_decision(reply.text, offered, reply.cut, last_chance)
        if isinstance(y_t, Delegate):
            return self.equipped(y_t, state)
        return y_t

    def prompt(
        self, state: State, mistake: str = "", last_chance: bool = False
    ) -> Messages:
        """s_t as the main agent reads it. It depends on the arguments and the options alone."""
        if self.texts:
            return self.texts.messages(state, mistake, last_chance)
        step = say(PROMPTS, "next")
        system = render(
            "aorchestra/system.md",
            self.instruction,
            models=self.models,
            tools=self.manuals,
        )
        user = render(
            "aorchestra/user.md",
            question=state.task.question,
            media=media_lines(state) + repo_line(state.task.repo),
            history=reported(history_lines(state.history)),
            now=status_lines(state, step, mistake, last_chance),
        )
        return as_messages(system, user)

    def equipped(self, y_t: Delegate, state: State) -> Delegate:
        """The sub-task with the context and the executor that the options name."""
        (u,) = y_t.subtasks
        if self.context_sharing == "none":
            u = replace(u, context="")
        elif self.context_sharing == "full":
            u = replace(u, context=reported(history_lines(state.history)))
        if self.shell:
            u = replace(u, tools=())
        return replace(y_t, subtasks=(u,))
