"""ToolOrchestra (arXiv 2511.21689): one tool call a turn, as Orchestrator-8B was trained: three
tools, each by one of its slots, with their prices and latencies.

Differences from the paper / the released code
1. A table of the pool file maps slots to backends ([expert_model_mapping]). The model reads the
   abilities, price and latency of a slot that it was trained with, in our words; costs are those
   that were paid.
2. The code of enhance_reasoning runs in this program's sandbox, and the model reads its output;
   search uses this program's search tool. A popular port runs neither.
3. The context has one block per kind, each with its own limit, so that no kind erases another.
4. After the first unusable reply of a turn the model reads the error; after the second, and after
   the last turn, the strongest answer slot answers with the context so far, as a fallback. As in
   the training, the model is not told that a turn is the last. A slot whose backend has failed to
   answer is skipped if there is another.
5. Files, which the paper does not have, are read in the first turn; the context has their text.
   This turn counts: with --rounds 1 the strongest slot answers at once.
6. If a reply has several calls, the first usable one is made.
7. The user's preference (--prefer) comes after the problem, as in the training, with its weights P;
   the training's preferences are sentences without numbers. Experts do not read it.
8. 8 turns, as in a popular port; the paper has 50 (--rounds 50).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestra.methods.state_prompt import files_found, read_files_first
from orchestra.runtime.options import Options, Preference
from orchestra.runtime.parsing import actions
from orchestra.runtime.pool import Pool
from orchestra.runtime.prompts import as_messages, explained, render, say
from orchestra.runtime.reply_schema import TEXT
from orchestra.seams import Ask, Messages
from orchestra.toolkit import Tool
from orchestra.vocabulary import (
    ConfigError,
    Decision,
    Delegate,
    ModelMistake,
    State,
    SubTask,
)

SLOTS = {  # of each tool, the strongest first, as prompts/toolorchestra/tools.md describes them
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
CAP_CHARS = {
    "search": 16_000,
    "enhance_reasoning": 16_000,
    "answer": 2_000,
}  # of each kind
MESSAGES = "toolorchestra/messages"
TOOLS = "toolorchestra/tools"


# ---- what the model reads ------------------------------------------------------------------------


def render_state(state: State, preference: str = "", mistake: str = "") -> Messages:
    """`Problem: ...`, the context, and the request for a tool call, as in the training."""
    notice = "\n\n" + say(MESSAGES, "mistake", mistake=mistake) if mistake else ""
    about = {"problem": state.task.question, "context": gathered(state) + notice}
    user = render("toolorchestra/user.md", preference=preference, **about)
    return as_messages(say(MESSAGES, "system"), user)


def preferred(weights: Preference) -> str:
    """The user's preference P, as text after the problem."""
    wishes = [
        say(MESSAGES, f"prefer_{name}", weight=f"{p:g}") for name, p in weights.items()
    ]
    return (
        "\n" + say(MESSAGES, "preference", wishes=", ".join(wishes)) if wishes else ""
    )


def gathered(state: State) -> str:
    """The context: files, documents, reasoning, and answers that failed; the newest are kept."""
    blocks = [files_found(state)]
    for kind in CAP_CHARS:
        found = [h for h in state.history if kind_of(h.id) == kind]
        texts = [
            h.answer or say(MESSAGES, "failed", id=h.id, error=h.error) for h in found
        ]
        rows = [
            say(MESSAGES, f"{kind}_row", n=n, text=text)
            for n, text in enumerate(texts, 1)
        ]
        while len("\n\n".join(rows)) > CAP_CHARS[kind] and len(rows) > 1:
            del rows[0]
        body = "\n\n".join(rows)[: CAP_CHARS[kind]]
        blocks.append(say(MESSAGES, f"{kind}_block", rows=body) if rows else "")
    return "\n\n".join(block for block in blocks if block)


def kind_of(id: str) -> str:
    """The tool of a sub-task: "search" of "search2"."""
    return id.rstrip("0123456789")


def tool_schema(name: str) -> dict[str, Any]:
    """One of the three tools, with the keys of the training: only its text lists the slots."""
    model = {"description": say(TOOLS, f"{name}_model"), **TEXT}
    keys = {"properties": {"model": model}, "required": ["model"]}
    parameters = {**keys, "title": "parameters", "type": "object"}
    function = {"name": name, "description": say(TOOLS, name), "parameters": parameters}
    return {"type": "function", "function": function}


# ---- what the model may reply --------------------------------------------------------------------


def read_call(reply: str, cut: bool = False) -> tuple[str, str]:
    """(tool, slot) of the first usable call. `arguments` may be a JSON string, even encoded twice;
    the closing tag may be missing; thinking and prose may surround it.

    Raises ModelMistake for the first call, or if the reply was `cut` off.

    >>> read_call('<tool_call>{"name": "search", "arguments": {"model": "search-1"}}')
    ('search', 'search-1')
    """
    try:
        calls = actions(reply, cut)
    except ModelMistake as mistake:
        if mistake.rule == "cut":
            raise
        raise ModelMistake("no_call", MESSAGES, start=mistake.values["start"]) from None
    mistakes = []
    for call in calls:
        try:
            return _tool_and_slot(call)
        except ModelMistake as mistake:
            mistakes.append(mistake)
    raise mistakes[0]


def _tool_and_slot(call: Mapping[str, Any]) -> tuple[str, str]:
    name, arguments = str(call["action"]).strip(), call.get("params")
    if name not in SLOTS:
        raise ModelMistake(
            "unknown_function", MESSAGES, name=name[:80], known=", ".join(SLOTS)
        )
    if arguments is not None and not isinstance(arguments, dict):
        raise ModelMistake(
            "broken_arguments", MESSAGES, name=name, given=repr(arguments)[:80]
        )
    slot = str(arguments.get("model") if arguments else None).strip()
    if slot not in SLOTS[name]:
        known = ", ".join(SLOTS[name])
        raise ModelMistake(
            "unknown_slot", MESSAGES, name=name, slot=slot[:80], known=known
        )
    return name, slot


# ---- the decision --------------------------------------------------------------------------------


class ToolOrchestra:
    """One expert a turn; `answer` ends the run."""

    rounds = 8  # the paper: 50
    shares_context = False

    def __init__(self, pool: Pool, tools: Mapping[str, Tool], options: Options) -> None:
        """Raises ConfigError for an unknown slot of [expert_model_mapping]."""
        self.pool, self.preference = pool, preferred(options.prefer)
        self.tools = [tool_schema(name) for name in SLOTS]
        known = [slot for slots in SLOTS.values() for slot in slots]
        if unknown := sorted(set(pool.experts) - set(known)):
            raise ConfigError(
                f"expert_model_mapping: unknown slot {unknown[0]!r}; one of {', '.join(known)}"
            )

    def decide(
        self, state: State, ask: Ask, mistake: str, last_chance: bool
    ) -> Decision:
        """The expert of this turn. Raises ModelMistake for the first unusable reply of a turn."""
        if last_chance:
            return self.strongest_answer(state, say(MESSAGES, "last_chance"))
        if files := read_files_first(state):
            return files
        try:
            prompt = render_state(state, self.preference, mistake)
            reply = ask(prompt, tools=self.tools)
            return self.expert(state, *read_call(reply.text, reply.cut))
        except ModelMistake as error:
            if not mistake:
                raise
            return self.strongest_answer(state, explained(error))

    def strongest_answer(self, state: State, why: str) -> Delegate:
        """The first answer slot whose backend has not failed to answer, as a fallback."""
        slots = SLOTS["answer"]
        failed = {h.backend for h in state.history if kind_of(h.id) == "answer"}
        able = (slot for slot in slots if self.backend_of(slot) not in failed)
        return self.expert(state, "answer", next(able, slots[0]), why)

    def expert(
        self, state: State, name: str, slot: str, fallback: str = ""
    ) -> Delegate:
        number = 1 + sum(kind_of(h.id) == name for h in state.history)
        backend = self.backend_of(slot)
        u = SubTask(f"{name}{number}", slot, gathered(state), backend, (), agent=name)
        answers = name == "answer"
        return Delegate((u,), whole_graph=answers, answers=answers, fallback=fallback)

    def backend_of(self, slot: str) -> str:
        """The backend of a slot: as mapped; else slot n has the n-th of the pool, or the last."""
        names = self.pool.names
        return self.pool.experts.get(slot) or names[min(int(slot[-1]), len(names)) - 1]
