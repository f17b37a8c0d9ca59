"""ToolOrchestra (arXiv 2511.21689): one tool call a turn, as Orchestrator-8B was trained: three
tools, each by one of its slots, with their prices and latencies.

Differences from the paper / the released code
1. Slots map to the pool's backends by a table the user can edit ([expert_model_mapping]); the
   prices the model reads are those it was trained with, what is counted is what was paid.
2. enhance_reasoning's code runs behind this program's wall and its output comes back; search asks
   this program's search tool. A popular port runs neither.
3. The context has a block a kind, each with its own cap: no kind ever erases another.
4. The first unusable reply of a turn is told back; after the second the strongest answer slot
   answers, WITH the context so far. That answer counts as a fallback, and so does one out of turns.
   A slot whose backend has failed to answer is passed over as long as there is another.
5. Files, which the paper has not, are looked at in the first turn; the context holds their text.
   That turn counts: with --rounds 1 the orchestrator is not asked, and the strongest slot answers.
6. Of several calls in one reply the first usable one is carried out; the others are not told back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestra.main_agent import Ask
from orchestra.pool import Pool
from orchestra.prompts import render, say
from orchestra.schemas import closed_object
from orchestra.vocabulary import Decision, Delegate, ModelMistake, State, SubTask
from orchestra.workers import EXPERT_SLOTS
from orchestrators.looking import files_found, look_first
from orchestrators.showing import Messages, as_messages
from orchestrators.tool_calls import read_call

CAP_CHARS = {"search": 16_000, "enhance_reasoning": 16_000, "answer": 2_000}  # of each kind
MESSAGES = "toolorchestra/messages"


# ---- what the model reads ------------------------------------------------------------------------


def render_state(state: State, mistake: str = "") -> Messages:
    """`Problem: ...`, the context, the question for a tool: the words of the training."""
    notice = "\n\n" + say(MESSAGES, "mistake", mistake=mistake) if mistake else ""
    context = gathered(state) + notice
    user = render("toolorchestra/user.md", problem=state.task.question, context=context)
    return as_messages(say(MESSAGES, "system"), user)


def gathered(state: State) -> str:
    """The context: files, documents, reasoning, and answers that failed; the newest are kept."""
    blocks = [files_found(state)]
    for kind in CAP_CHARS:
        found = [h for h in state.history if kind_of(h.id) == kind]
        texts = [h.answer or say(MESSAGES, "failed", id=h.id, error=h.error) for h in found]
        rows = [say(MESSAGES, f"{kind}_row", n=n, text=text) for n, text in enumerate(texts, 1)]
        while len("\n".join(rows)) > CAP_CHARS[kind] and len(rows) > 1:
            del rows[0]
        body = "\n".join(rows)[: CAP_CHARS[kind]]
        blocks.append(say(MESSAGES, f"{kind}_block", rows=body) if rows else "")
    return "\n\n".join(block for block in blocks if block)


def kind_of(id: str) -> str:
    """The tool of a sub-task: "search" of "search2"."""
    return id.rstrip("0123456789")


def tool_schemas() -> list[dict[str, Any]]:
    """The three tools of the training; each slot with its price and latency."""
    return [_tool_schema(name, slots) for name, slots in EXPERT_SLOTS.items()]


def _tool_schema(name: str, slots: Mapping[str, tuple[float, float, float]]) -> dict[str, Any]:
    rows = [
        say(MESSAGES, "slot", slot=slot, into=f"{into:g}", out=f"{out:g}", latency=f"{latency:g}")
        for slot, (into, out, latency) in slots.items()
    ]
    text = say(MESSAGES, "slots", rows="\n".join(rows))
    model = {"type": "string", "description": text, "enum": list(slots)}
    parameters = closed_object({"model": model})
    function = {"name": name, "description": say(MESSAGES, name), "parameters": parameters}
    return {"type": "function", "function": function}


# ---- the decision --------------------------------------------------------------------------------


class ToolOrchestra:
    """One tool call a turn; `answer` ends the run."""

    rounds = 8  # the paper: 50
    shares_context = False

    def __init__(self, pool: Pool) -> None:
        self.pool, self.tools = pool, tool_schemas()

    def decide(
        self, state: State, ask: Ask, mistake: str = "", last_chance: bool = False
    ) -> Decision:
        """The expert of this turn. Raises ModelMistake for a turn's first reply without a call."""
        if last_chance:
            return self.expert(
                state, "answer", self.strongest(state), say(MESSAGES, "out_of_turns")
            )
        if look := look_first(state):
            return look
        reply = ask(render_state(state, mistake), tools=self.tools)
        try:
            return self.expert(state, *read_call(reply.text, EXPERT_SLOTS, reply.cut))
        except ModelMistake as error:
            if not mistake:
                raise
            return self.expert(state, "answer", self.strongest(state), str(error))

    def strongest(self, state: State) -> str:
        """The first answer slot whose backend has not failed to answer; the first of all at last:
        an answer that came has ended the run.
        """
        slots = EXPERT_SLOTS["answer"]
        failed = {h.backend for h in state.history if kind_of(h.id) == "answer"}
        return next((s for s in slots if self.pool.expert(s) not in failed), next(iter(slots)))

    def expert(self, state: State, name: str, slot: str, fallback: str = "") -> Delegate:
        number = 1 + sum(kind_of(h.id) == name for h in state.history)
        backend = self.pool.expert(slot)
        u = SubTask(f"{name}{number}", slot, gathered(state), backend, (), agent=name)
        return Delegate((u,), drain=name == "answer", fallback=fallback)
