"""ToolOrchestra (arXiv 2511.21689): one tool call a turn, as Orchestrator-8B was trained: three
tools, each by one of its slots, with their prices and latencies.

Differences from the paper / the released code
1. Slots map to the pool's backends by a table the user can edit ([expert_model_mapping]). The
   prices the model reads are those it was trained with; what is counted is what was paid.
2. enhance_reasoning's code runs in this program's sandbox and its output comes back; search uses
   this program's search tool. A popular port runs neither.
3. The context has one block per kind, each with its own cap: no kind ever erases another.
4. The first unusable reply of a turn is shown back; after the second the strongest answer slot
   answers, WITH the context so far. That answer counts as a fallback, and so does one out of turns.
   A slot whose backend has failed to answer is passed over as long as there is another.
5. Files, which the paper does not have, are read in the first turn; the context has their text.
   That turn counts: with --rounds 1 the strongest slot answers at once.
6. Of several calls in one reply the first usable one is carried out.
7. `--mode prompted` is the untrained reference point: any model over numbered workers, which are
   the pool's backends and the search tool. Its last turn accepts only an answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestra.main_agent import Ask, Messages
from orchestra.vocabulary import (
    Complete,
    ConfigError,
    Decision,
    Delegate,
    ModelMistake,
    State,
    SubTask,
)
from orchestrators.decision import answer_in, read_call
from orchestrators.state_prompt import as_messages, files_found, read_files_first
from runtime.options import Options
from runtime.parsing import TEXT, closed_object, const, find_action, one_of
from runtime.pool import Pool
from runtime.prompts import render, say, told
from tools import Tool

SLOTS: dict[str, dict[str, tuple[float, float, float]]] = {  # $/M in, $/M out, latency in s
    "enhance_reasoning": {
        "reasoner-1": (1.25, 10.0, 31.0),
        "reasoner-2": (0.25, 2.0, 25.0),
        "reasoner-3": (0.8, 0.8, 9.0),
    },
    "answer": {
        "answer-1": (1.25, 10.0, 96.0),
        "answer-2": (0.25, 2.0, 27.0),
        "answer-3": (0.9, 0.9, 15.0),
        "answer-4": (0.8, 0.8, 11.0),
        "answer-math-1": (0.9, 0.9, 13.0),
        "answer-math-2": (0.2, 0.2, 9.0),
    },
    "search": {
        "search-1": (1.25, 10.0, 22.0),
        "search-2": (0.25, 2.0, 16.0),
        "search-3": (0.8, 0.8, 8.0),
    },
}
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


def tool_schema(name: str, slots: Mapping[str, tuple[float, float, float]]) -> dict[str, Any]:
    """One of the three tools of the training; each slot with its price and latency."""
    rows = [
        say(MESSAGES, "slot", slot=slot, into=f"{into:g}", out=f"{out:g}", latency=f"{latency:g}")
        for slot, (into, out, latency) in slots.items()
    ]
    text = say(MESSAGES, "slots", rows="\n".join(rows))
    parameters = closed_object({"model": {**one_of(slots), "description": text}})
    function = {"name": name, "description": say(MESSAGES, name), "parameters": parameters}
    return {"type": "function", "function": function}


# ---- the decision --------------------------------------------------------------------------------


class ToolOrchestra:
    """One expert a turn; `answer` ends the run."""

    shares_context = False

    def __init__(self, pool: Pool, tools: Mapping[str, Tool], options: Options) -> None:
        """Raises ConfigError for an unknown slot of [expert_model_mapping]."""
        self.pool, self.prompted = pool, options.mode == "prompted"
        self.rounds = 6 if self.prompted else 8  # the paper: 50
        self.tools = [tool_schema(name, slots) for name, slots in SLOTS.items()]
        known = [slot for slots in SLOTS.values() for slot in slots]
        if unknown := sorted(set(pool.experts) - set(known)):
            raise ConfigError(
                f"expert_model_mapping: unknown slot {unknown[0]!r}; one of {', '.join(known)}"
            )

    def decide(
        self, state: State, ask: Ask, mistake: str = "", last_chance: bool = False
    ) -> Decision:
        """This turn's expert. Raises ModelMistake for a turn's first unusable reply."""
        if last_chance:
            return self.strongest_answer(state, say(MESSAGES, "out_of_turns"))
        if files := read_files_first(state):
            return files
        try:
            if self.prompted:
                return self.numbered_worker(state, ask, mistake)
            reply = ask(render_state(state, mistake), tools=self.tools)
            return self.expert(state, *read_call(reply.text, SLOTS, reply.cut))
        except ModelMistake as error:
            if not mistake:
                raise
            return self.strongest_answer(state, told(error))

    def strongest_answer(self, state: State, why: str) -> Delegate:
        """The first answer slot whose backend has not failed to answer, as a fallback."""
        slots = SLOTS["answer"]
        failed = {h.backend for h in state.history if kind_of(h.id) == "answer"}
        able = (slot for slot in slots if self.backend_of(slot) not in failed)
        return self.expert(state, "answer", next(able, next(iter(slots))), why)

    def expert(self, state: State, name: str, slot: str, fallback: str = "") -> Delegate:
        number = 1 + sum(kind_of(h.id) == name for h in state.history)
        context = self.conversation(state) if self.prompted else gathered(state)
        backend = self.backend_of(slot)
        u = SubTask(f"{name}{number}", slot, context, backend, (), agent=name)
        return Delegate((u,), drain=name == "answer", fallback=fallback)

    def backend_of(self, slot: str) -> str:
        """Unmapped, slot n is the n-th backend of the pool, or its last."""
        names = self.pool.names
        return self.pool.experts.get(slot) or names[min(int(slot[-1]), len(names)) - 1]

    # ---- --mode prompted: numbered workers -------------------------------------------------------

    def numbered_worker(self, state: State, ask: Ask, mistake: str) -> Decision:
        """A worker, or the final answer; in the last turn, only that."""
        last, search = state.round >= state.rounds, len(self.pool.names) + 1
        names = {**dict(enumerate(self.pool.names, 1)), search: "web search"}
        about = {n: say(MESSAGES, "searches") if n == search else "-" for n in names}
        rows = [say(MESSAGES, "worker", id=n, name=names[n], description=about[n]) for n in names]
        notice = say(MESSAGES, "mistake", mistake=mistake) if mistake else ""
        notice += say(MESSAGES, "last_turn") if last else ""
        user = render(
            "toolorchestra/prompted_user.md", question=state.task.question, notice=notice,
            conversation=self.conversation(state) or "-", round=state.round, rounds=state.rounds,
        )  # fmt: skip
        system = render("toolorchestra/prompted_system.md", workers="\n".join(rows))
        ids = {"type": "integer", "enum": list(names)}
        call = closed_object({"action": const("call_worker"), "worker_id": ids, "input": TEXT})
        final = closed_object({"action": const("final_answer"), "answer": TEXT})
        schema = final if last else {"anyOf": [call, final]}
        reply = ask(as_messages(system, user), ("turn", schema))
        row = find_action(reply.text, reply.cut)
        fields = row["params"] if isinstance(row.get("params"), dict) else row
        if row["action"] == "final_answer":
            return Complete(answer_in(fields))
        if row["action"] != "call_worker" or last:
            known = "final_answer" if last else "call_worker, final_answer"
            raise ModelMistake("bad_action", action=repr(row["action"])[:80], known=known)
        id, text = fields.get("worker_id"), fields.get("input")
        if type(id) is not int or id not in names:  # a bool is not an id
            known = ", ".join(map(str, names))
            raise ModelMistake("unknown_worker", MESSAGES, id=repr(id)[:80], known=known)
        if not isinstance(text, str) or not text.strip():
            raise ModelMistake("empty_input", MESSAGES)
        style, backend = (
            ("search-worker", self.pool.main) if id == search else ("worker", names[id])
        )
        return Delegate(
            (SubTask(f"{names[id]} (turn {state.round})", text, "", backend, (), agent=style),)
        )

    def conversation(self, state: State) -> str:
        """What the workers were told and answered, behind the files."""
        rows = [
            say(
                MESSAGES, "worker_answer", name=h.id, input=h.instruction,
                text=h.answer or say(MESSAGES, "failed", id=h.id, error=h.error),
            )
            for h in state.history
            if not h.id.startswith("file:")
        ]  # fmt: skip
        return "\n\n".join(part for part in (files_found(state), *rows) if part)
