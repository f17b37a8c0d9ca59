"""AOrchestra (arXiv 2602.03786): the main agent writes one 4-tuple (Instruction, Context, Tools,
Model) a turn, or completes.

Differences from the paper / the released code
1. Context sharing is an option, as in the paper's ablation: `curated` (what the main agent writes),
   `none`, or `full` (the whole history). Every sub-agent reads at least its instruction.
2. Sub-agents are exchangeable: the ReAct loop of Orchestra-o1, or a mini-SWE agent at a shell.
3. Several tasks in one decision are a mistake that is told back, not cut down to the first.
4. `complete` is refused while a task with media has no evidence at all.
5. The learning of the main prompt (OPTIMIZE) is not here; the prompts lie in prompts/aorchestra.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from orchestra.main_agent import Ask
from orchestra.prompts import render, say
from orchestra.schemas import closed_object
from orchestra.vocabulary import Backend, Decision, Delegate, Evidence, ModelMistake, State
from orchestrators.delegation import (
    as_subtask,
    decision_schema_of,
    read_decision,
    read_tasks,
    task_schema,
)
from orchestrators.showing import Messages, as_messages, media_lines, model_lines, now
from tools import Tool

MESSAGES = "aorchestra/messages"


# ---- what the model reads ------------------------------------------------------------------------


def render_state(
    state: State, models: str, tools: str, mistake: str = "", last_chance: bool = False
) -> Messages:
    """s_t as the main agent sees it: a pure function, so a recorded prompt can be rebuilt."""
    user = render(
        "aorchestra/user.md",
        question=state.task.question,
        media=media_lines(state),
        history=history_lines(state.history) or say("delegation", "nothing_found"),
        now=now(state, say(MESSAGES, "next"), mistake, last_chance),
    )
    return as_messages(render("aorchestra/system.md", models=models, tools=tools), user)


def history_lines(history: Sequence[Evidence]) -> str:
    """The observations o_1 ... o_t whole: what was asked of whom, and what came back."""
    return "\n\n".join(
        say(
            MESSAGES,
            "observation",
            round=h.round,
            instruction=h.instruction,
            model=h.backend,
            tools=", ".join(h.tools) or "-",
            status=h.status,
            answer=h.answer or "-",
            summary=h.summary or h.error or "-",
        )
        for h in history
    )


# ---- what the model may say ----------------------------------------------------------------------


def decision_schema(
    backends: Sequence[str], tools: Sequence[str], last_chance: bool = False
) -> dict[str, Any]:
    """The JSON schema of y_t."""
    task = task_schema(backends, tools)
    return decision_schema_of(closed_object(task), last_chance)


def parse_decision(
    reply: str, state: State, cut: bool = False, last_chance: bool = False
) -> Decision:
    """y_t from any reply. Raises ModelMistake with the words the model is told."""
    return read_decision(reply, state, cut, last_chance, _delegate)


def _delegate(params: dict[str, Any], reasoning: str, state: State) -> Delegate:
    tasks = params.get("tasks")
    if tasks is None or isinstance(tasks, dict):
        tasks = [tasks or params]  # flat in params, as in the paper, or one object
    if not isinstance(tasks, list) or len(tasks) != 1:
        count = len(tasks) if isinstance(tasks, list) else 0
        raise ModelMistake(say(MESSAGES, "one_subtask", count=count))
    u = as_subtask(read_tasks(tasks)[0], f"t{state.round}", state)
    return Delegate((replace(u, needs=()),), reasoning)


# ---- the decision --------------------------------------------------------------------------------


class AOrchestra:
    """pi_theta(a_t | s_t). `context`: curated, none or full; `sub_agent`: react or mini-swe."""

    rounds = 10
    shares_context = False

    def __init__(
        self, backends: Sequence[Backend], tools: Mapping[str, Tool], context: str, sub_agent: str
    ) -> None:
        self.models = model_lines(backends)
        self.manuals = "\n\n".join(t.manual for t in tools.values())
        if sub_agent == "mini-swe":
            self.manuals = say(MESSAGES, "shell")
        self.context, self.sub_agent = context, sub_agent

    def render(self, state: State, mistake: str = "", last_chance: bool = False) -> Messages:
        return render_state(state, self.models, self.manuals, mistake, last_chance)

    def decide(
        self, state: State, ask: Ask, mistake: str = "", last_chance: bool = False
    ) -> Decision:
        """y_t ~ pi_theta(. | s_t). Raises ModelMistake for a reply that is no decision."""
        tools = () if self.sub_agent == "mini-swe" else state.tools
        schema = decision_schema(state.backends, tools, last_chance)
        prompt = self.render(state, mistake, last_chance)
        reply = ask(prompt, ("decision", schema))
        offered = replace(state, tools=tools)
        decision = parse_decision(reply.text, offered, reply.cut, last_chance)
        return self.equipped(decision, state) if isinstance(decision, Delegate) else decision

    def equipped(self, decision: Delegate, state: State) -> Delegate:
        """The sub-task with the context and the executor that the options ask for."""
        (u,) = decision.subtasks
        shared = {"curated": u.context, "none": "", "full": history_lines(state.history)}
        tools = () if self.sub_agent == "mini-swe" else u.tools
        u = replace(u, context=shared[self.context], tools=tools, agent=self.sub_agent)
        return replace(decision, subtasks=(u,))
