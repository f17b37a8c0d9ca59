"""ToolOrchestra (arXiv 2511.21689): the main agent makes one tool call a turn, as Orchestrator-8B
was trained to. There are three tools. Each has several slots, which are experts with an ability, a
price and a latency, and the call names one of them.

Differences from the paper / the released code
1. A table of the pool file maps slots to backends ([expert_model_mapping]). The model reads the
   abilities, price and latency of a slot that it was trained with, in our words; costs are those
   that were paid.
2. The code of enhance_reasoning runs in this program's sandbox, and the model reads its output;
   search uses this program's search tool. A popular port runs neither.
3. The context has one block per kind, each with its own limit, so that no kind erases another.
   The newest result is whole, and what is left of the limit goes to the older ones. A search that
   failed is not a document.
4. After the first unusable reply of a turn the model reads the error; after the second, and after
   the last turn, the strongest answer slot answers with the context so far, as a fallback. As in
   the training, the model is not told that a turn is the last. A slot whose backend has failed to
   answer is skipped if there is another.
5. Files, which the paper does not have, are read in the first turn; the context has their text.
   This turn counts: with --rounds 1 the strongest slot answers at once.
6. If a reply has several calls, the first usable one is made.
7. The user's preference (the option prefer) comes after the problem, as in the training, with its
   weights P; the training's preferences are sentences without numbers. Experts do not read it.
8. 8 turns, as in a popular port, because small models repeat themselves and every turn is paid;
   the paper has 50 (--rounds 50).
9. The tools have no `query`, but models give one: the expert reads it below the problem.
10. Calls are also read in the markup of other chat templates (calls.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any, NamedTuple

from orchestra.kernel.folder import Options
from orchestra.kernel.method import Ask, Method, share
from orchestra.kernel.prompts import as_messages, explained, render, say
from orchestra.kernel.tool import Tool
from orchestra.kernel.vocabulary import (
    ConfigError,
    Decision,
    Delegate,
    Messages,
    ModelMistake,
    Pool,
    State,
    SubTask,
)
from orchestra.methods import experts
from orchestra.methods.files_as_text import read_files_first
from orchestra.methods.replies import TEXT, actions
from orchestra.methods.toolorchestra_context import gathered, kind_of

PROMPTS = "toolorchestra/messages"
TOOL_PROMPTS = "toolorchestra/tools"
# Of each tool, the strongest first, as prompts/toolorchestra/tools.md describes them
SLOTS = {
    "enhance_reasoning": ("reasoner-1", "reasoner-2", "reasoner-3"),
    "answer": (
        "answer-1",
        "answer-2",
        "answer-3",
        "answer-4",
        "answer-math-1",
        "answer-math-2",
    ),
    "search": ("search-1", "search-2", "search-3"),
}
MEASURES = ("outcome", "cost", "latency", *SLOTS)  # what a user may prefer


# ---- what the model reads ------------------------------------------------------------------------


def render_state(state: State, preference: str = "", mistake: str = "") -> Messages:
    """`Problem: ...`, the context, and the request for a tool call, as in the training."""
    notice = "\n\n" + say(PROMPTS, "mistake", mistake=mistake) if mistake else ""
    user = render(
        "toolorchestra/user.md",
        problem=state.task.question,
        preference=preference,
        context=gathered(state) + notice,
    )
    return as_messages(say(PROMPTS, "system"), user)


def preferred(weights: Mapping[str, float]) -> str:
    """The user's preference P, as text after the problem."""
    if not weights:
        return ""
    wishes = [
        say(PROMPTS, f"prefer_{name}", weight=f"{w:g}") for name, w in weights.items()
    ]
    return "\n" + say(PROMPTS, "preference", wishes=", ".join(wishes))


def tool_schema(name: str) -> dict[str, Any]:
    """One of the three tools, with the keys of the training: only its text lists the slots."""
    model = {"description": say(TOOL_PROMPTS, f"{name}_model"), **TEXT}
    parameters = {
        "properties": {"model": model},
        "required": ["model"],
        "title": "parameters",
        "type": "object",
    }
    function = {
        "name": name,
        "description": say(TOOL_PROMPTS, name),
        "parameters": parameters,
    }
    return {"type": "function", "function": function}


# ---- what the model may reply --------------------------------------------------------------------


class ToolCall(NamedTuple):
    """A call of the main agent. `query`: what it asks the expert for, if it says so."""

    tool: str
    slot: str
    query: str = ""


def read_call(reply: str, cut: bool = False) -> ToolCall:
    """The first usable call. `arguments` may be a JSON string, even encoded twice; the closing tag
    may be missing; thinking and prose may surround it; it may be markup (calls.py).

    Raises ModelMistake for the first call, or if the reply was `cut` off.

    >>> read_call('<tool_call>{"name": "search", "arguments": {"model": "search-1"}}')
    ToolCall(tool='search', slot='search-1', query='')
    """
    try:
        calls = actions(reply, cut)
    except ModelMistake as mistake:
        if mistake.rule in ("cut", "open"):
            raise
        raise ModelMistake("no_call", PROMPTS, start=mistake.values["start"]) from None
    mistakes = []
    for call in calls:
        try:
            return _tool_call(call)
        except ModelMistake as mistake:
            mistakes.append(mistake)
    raise mistakes[0]


def _tool_call(call: Mapping[str, Any]) -> ToolCall:
    name = str(call["action"]).strip()
    if name not in SLOTS:
        known = ", ".join(SLOTS)
        raise ModelMistake("unknown_function", PROMPTS, name=name[:80], known=known)
    arguments = {} if call.get("params") is None else call["params"]
    if not isinstance(arguments, dict):
        given = repr(arguments)[:80]
        raise ModelMistake("broken_arguments", PROMPTS, name=name, given=given)
    slot = str(arguments.get("model")).strip()
    if slot not in SLOTS[name]:
        known = ", ".join(SLOTS[name])
        raise ModelMistake(
            "unknown_slot", PROMPTS, name=name, slot=slot[:80], known=known
        )
    query = arguments.get("query")
    return ToolCall(name, slot, query.strip() if isinstance(query, str) else "")


# ---- the decision --------------------------------------------------------------------------------


def weights(*names: str) -> Callable[[Any], dict[str, float]]:
    """A table of shares, or its spelling, as in cost=0.5,latency=0.2."""

    def read(value: Any) -> dict[str, float]:
        rows = value
        if isinstance(value, str):
            pairs = (row.partition("=") for row in value.split(","))
            rows = {name.strip(): weight for name, _, weight in pairs}
        if not isinstance(rows, Mapping):
            raise ValueError(f"{value!r}: needs NAME=WEIGHT,...")
        for name in rows:
            if name not in names:
                raise ValueError(f"{name!r}: one of {', '.join(names)}")
        return {name: share(weight) for name, weight in rows.items()}

    return read


class ToolOrchestra(Method):
    """One expert a turn; `answer` ends the run."""

    rounds = 8  # the paper: 50
    options = {"prefer": weights(*MEASURES)}
    agents = {
        "read-file": experts.read_file,
        "enhance_reasoning": experts.enhance_reasoning,
        "answer": experts.answer,
        "search": experts.search,
    }

    def __init__(self, pool: Pool, tools: Mapping[str, Tool], options: Options) -> None:
        """Raises ConfigError for an unknown slot of [expert_model_mapping]."""
        super().__init__(pool, tools, options)
        self.pool = pool
        self.preference = preferred(self.own.get("prefer", {}))
        self.tools = [tool_schema(name) for name in SLOTS]
        slots = list(chain(*SLOTS.values()))
        unknown = sorted(set(pool.experts) - set(slots))
        if unknown:
            known = ", ".join(slots)
            raise ConfigError(
                f"expert_model_mapping: unknown slot {unknown[0]!r}; one of {known}"
            )

    def decide(
        self, state: State, ask: Ask, mistake: str, last_chance: bool
    ) -> Decision:
        """The expert of this turn. Raises ModelMistake for the first unusable reply of a turn."""
        if last_chance:
            return self.strongest_answer(state, say(PROMPTS, "last_chance"))
        files = read_files_first(state)
        if files is not None:
            return files
        reply = ask(render_state(state, self.preference, mistake), tools=self.tools)
        try:
            return self.expert(state, read_call(reply.text, reply.cut))
        except ModelMistake as error:
            if mistake == "":  # the first attempt
                raise
            return self.strongest_answer(state, explained(error))

    def strongest_answer(self, state: State, why: str) -> Delegate:
        """The first answer slot whose backend has not failed to answer, as a fallback."""
        failed = {h.backend for h in state.history if kind_of(h.id) == "answer"}
        slots = SLOTS["answer"]
        slot = next(
            (slot for slot in slots if self.backend_of(slot) not in failed), slots[0]
        )
        return self.expert(state, ToolCall("answer", slot), why)

    def expert(self, state: State, call: ToolCall, fallback: str = "") -> Delegate:
        """The sub-task of a tool call. `fallback`: why the program made the call."""
        before = [h for h in state.history if kind_of(h.id) == call.tool]
        is_answer = call.tool == "answer"
        u = SubTask(
            id=f"{call.tool}{len(before) + 1}",
            instruction=f"{call.slot}: {call.query}" if call.query else call.slot,
            context=gathered(state),
            backend=self.backend_of(call.slot),
            tools=(),
            agent=call.tool,
        )
        return Delegate(
            (u,), whole_graph=is_answer, answers=is_answer, fallback=fallback
        )

    def backend_of(self, slot: str) -> str:
        """The backend of a slot: as mapped; else slot n has the n-th of the pool, or the last."""
        if slot in self.pool.experts:
            return self.pool.experts[slot]
        names = self.pool.names
        return names[min(int(slot[-1]), len(names)) - 1]
