"""ToolOrchestra's prompted mode (arXiv 2511.21689, as ported): any model over numbered workers.

Differences from the paper / the released code
1. This is the untrained reference point; the paper's setup is orchestrators/toolorchestra.py.
2. `worker_id` is the id that was shown, never a list index; a bool is none.
3. The last turn takes nothing but the answer. The first unusable reply of a turn is told back;
   after the second the strongest worker answers from what was said so far, as a fallback.
4. Files, which the paper has not, are looked at in the first turn, which counts: with --rounds 1
   the orchestrator is not asked, and the strongest worker answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from orchestra.main_agent import Ask
from orchestra.parsing import find_action
from orchestra.pool import Pool, check_prices
from orchestra.prompts import render, say
from orchestra.schemas import TEXT, closed_object, const
from orchestra.vocabulary import (
    Complete,
    ConfigError,
    Decision,
    Delegate,
    Evidence,
    ModelMistake,
    State,
    SubTask,
)
from orchestra.workers import Worker
from orchestrators.delegation import answer_in
from orchestrators.looking import files_found, look_first, looks
from orchestrators.showing import Messages, as_messages

SEARCH_TOOL = "GoogleSearchAction"
MESSAGES = "toolorchestra/messages"


class PromptedToolOrchestra:
    """A numbered worker a turn, or the final answer; the last turn takes nothing else."""

    rounds = 6
    shares_context = False

    def __init__(self, pool: Pool, tools: Sequence[str], budget_usd: float | None) -> None:
        """Raises ConfigError for a pool without a usable worker, or a price that a budget needs."""
        workers = default_workers(pool) if pool.workers is None else pool.workers
        usable = [w for w in workers if w.type == "chat" or SEARCH_TOOL in tools]
        check_prices([pool[w.backend] for w in usable], budget_usd)
        self.workers = {w.id: w for w in usable}
        chats = [w for w in usable if w.type == "chat"]
        if not chats:
            raise ConfigError(
                "--mode prompted: the pool has no usable worker; add a [[worker]] of the type "
                '"chat" to the --backends file'
            )
        self.strongest = max(chats, key=lambda w: pool[w.backend].skills.get("txt", 0.0))

    def render(self, state: State, mistake: str = "", last: bool = False) -> Messages:
        rows = [
            say(MESSAGES, "worker", id=w.id, name=w.name, description=w.description or "-")
            for w in self.workers.values()
        ]
        notice = say(MESSAGES, "mistake", mistake=mistake) if mistake else ""
        notice += say(MESSAGES, "last_turn") if last else ""
        user = render(
            "toolorchestra/prompted_user.md", question=state.task.question, notice=notice,
            said=self.said(state) or "-", round=state.round, rounds=state.rounds,
        )  # fmt: skip
        system = render("toolorchestra/prompted_system.md", workers="\n".join(rows))
        return as_messages(system, user)

    def said(self, state: State) -> str:
        def row(h: Evidence) -> str:
            said = h.answer or say(MESSAGES, "failed", id=h.id, error=h.error)
            return say(MESSAGES, "said", name=h.id, input=h.instruction, text=said)

        seen = {u.id for u in looks(state.task)}
        rows = [row(h) for h in state.history if h.id not in seen]
        return "\n\n".join([text for text in (files_found(state),) if text] + rows)

    def decide(
        self, state: State, ask: Ask, mistake: str = "", last_chance: bool = False
    ) -> Decision:
        """This turn's worker, or the answer. Raises ModelMistake for a first unusable reply."""
        if last_chance:
            return self.fall_back(state, say(MESSAGES, "out_of_turns"))
        if look := look_first(state):
            return look
        last = state.round >= state.rounds
        schema = ("turn", turn_schema(() if last else tuple(self.workers)))
        reply = ask(self.render(state, mistake, last), schema)
        try:
            return self.parse(find_action(reply.text, reply.cut), state, last)
        except ModelMistake as error:
            if not mistake:
                raise
            return self.fall_back(state, str(error))

    def parse(self, row: dict[str, Any], state: State, last: bool) -> Decision:
        fields = row["params"] if isinstance(row.get("params"), dict) else row
        if row["action"] == "final_answer":
            return Complete(answer_in(fields))
        known = "final_answer" if last else "call_worker, final_answer"
        if row["action"] != "call_worker" or last:
            action = repr(row["action"])[:80]
            raise ModelMistake(say("mistakes", "bad_action", action=action, known=known))
        id, told = fields.get("worker_id"), fields.get("input")
        if type(id) is not int or id not in self.workers:
            ids = ", ".join(map(str, self.workers))
            raise ModelMistake(say(MESSAGES, "unknown_worker", id=repr(id)[:80], known=ids))
        if not isinstance(told, str) or not told.strip():
            raise ModelMistake(say(MESSAGES, "empty_input"))
        return Delegate((self.call(self.workers[id], told, state),))

    def call(self, w: Worker, text: str, state: State) -> SubTask:
        style = "worker" if w.type == "chat" else "search-worker"
        return SubTask(f"{w.name} (turn {state.round})", text, "", w.backend, (), agent=style)

    def fall_back(self, state: State, why: str) -> Delegate:
        said = self.said(state) or "-"
        text = say(MESSAGES, "fall_back", question=state.task.question, said=said)
        return Delegate((self.call(self.strongest, text, state),), drain=True, fallback=why)


def default_workers(pool: Pool) -> tuple[Worker, ...]:
    """Every backend, in the order of the pool, and the search tool."""
    chats = [Worker(n, name, "chat", name) for n, name in enumerate(pool.names, 1)]
    searches = say(MESSAGES, "searches")
    return *chats, Worker(len(chats) + 1, "web search", "search", pool.main, searches)


def turn_schema(workers: Sequence[int]) -> dict[str, Any]:
    """The JSON schema of a turn; without workers only the answer is left."""
    final = closed_object({"action": const("final_answer"), "answer": TEXT})
    worker_id = {"type": "integer", "enum": list(workers)}
    call = closed_object({"action": const("call_worker"), "worker_id": worker_id, "input": TEXT})
    return {"anyOf": [call, final]} if workers else final
