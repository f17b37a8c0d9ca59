"""ToolOrchestra's prompted mode: any model orchestrates numbered workers by JSON actions. It comes
from a popular port of ToolOrchestra (arXiv 2511.21689), as a reference point for strong models.

    --method orchestra.methods.toolorchestra_prompted:Prompted

Differences from the port
1. The workers are the backends of the pool, in its order, and one that searches the web if the run
   has a search tool. A worker makes one call (CoT), or searches; it reads the problem above its
   input.
2. After 6 turns the main agent is asked once more, for the final answer alone. After the second
   unusable reply of a turn, worker 1 answers with all results so far: list the strongest first.
3. Files, which the port does not have, are read in the first turn, and all workers get their text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from orchestra.kernel import vocabulary as v
from orchestra.kernel.folder import Options
from orchestra.kernel.method import Ask, Method
from orchestra.kernel.prompts import as_messages, capped, explained, quoted_whole, say
from orchestra.kernel.tool import SEARCH, Tool
from orchestra.methods import reasoning
from orchestra.methods.experts import read_file
from orchestra.methods.files_as_text import files_found, read_files_first
from orchestra.methods.main_agent import answer_in
from orchestra.methods.replies import TEXT, closed_object, const, find_action

PROMPTS = "toolorchestra_prompted/messages"
CALL = "call_worker"
FINAL = "final_answer"
RESULT_CHARS = 4_000


class Worker(NamedTuple):
    """A numbered worker: the agent that does its sub-tasks, and the backend on which it runs."""

    id: int
    name: str
    description: str
    agent: str
    backend: str


class Prompted(Method):
    """One worker a turn, until the final answer."""

    rounds = 6
    agents = {
        "cot": reasoning.cot,
        "search-loop": reasoning.search,
        "read-file": read_file,
    }

    def __init__(
        self, pool: v.Pool, tools: Mapping[str, Tool], options: Options
    ) -> None:
        super().__init__(pool, tools, options)
        rows = enumerate(pool.backends, 1)
        self.workers = [Worker(n, b.name, _about(b), "cot", b.name) for n, b in rows]
        if SEARCH in tools:
            about = say(PROMPTS, "search_worker")
            id = len(self.workers) + 1
            self.workers.append(
                Worker(id, "web-search", about, "search-loop", pool.main)
            )

    def decide(
        self, state: v.State, ask: Ask, mistake: str, last_chance: bool
    ) -> v.Decision:
        """Raises ModelMistake for the first unusable reply of a turn."""
        files = None if last_chance else read_files_first(state)
        if files is not None:
            return files
        reply = ask(self.prompt(state, mistake, last_chance), _schema(last_chance))
        try:
            return self.read(reply, state, last_chance)
        except v.ModelMistake as error:
            if mistake == "":  # the first attempt
                raise
            u = self.subtask(
                state, self.workers[0], state.task.question, gathered(state)
            )
            why = explained(error)
            return v.Delegate((u,), whole_graph=True, answers=True, fallback=why)

    def prompt(self, state: v.State, mistake: str, last_chance: bool) -> v.Messages:
        """The workers, the problem, the results so far, and what to do next."""
        rows = [say(PROMPTS, "worker", **worker._asdict()) for worker in self.workers]
        step = say(PROMPTS, "last")
        if not last_chance:
            step = say(PROMPTS, "next", turn=state.round, turns=state.rounds)
        if mistake:
            step = say(PROMPTS, "mistake", mistake=mistake) + "\n\n" + step
        about = {
            "problem": state.task.question,
            "context": gathered(state) or "-",
            "next": step,
        }
        system = say(PROMPTS, "system", workers="\n".join(rows))
        return as_messages(system, say(PROMPTS, "user", **about))

    def read(self, reply: v.Reply, state: v.State, last_chance: bool) -> v.Decision:
        """y_t from a reply. On the last chance only an answer counts. Raises ModelMistake."""
        action = find_action(reply.text, reply.cut)
        name, params = action["action"], action.get("params")
        fields = params if isinstance(params, dict) else action
        if name == FINAL:
            return v.Complete(answer_in(fields))
        if name != CALL or last_chance:
            known = FINAL if last_chance else f"{CALL}, {FINAL}"
            raise v.ModelMistake("bad_action", action=repr(name)[:80], known=known)
        given = fields.get("worker_id")
        by_id = {str(worker.id): worker for worker in self.workers}
        worker = None if isinstance(given, bool) else by_id.get(str(given).strip())
        if worker is None:
            known = ", ".join(by_id)
            raise v.ModelMistake(
                "unknown_worker", PROMPTS, given=repr(given)[:80], known=known
            )
        text = str(fields.get("input") or "").strip()
        if not text:
            raise v.ModelMistake("empty_input", PROMPTS)
        return v.Delegate((self.subtask(state, worker, text, files_found(state)),))

    def subtask(
        self, state: v.State, worker: Worker, text: str, context: str
    ) -> v.SubTask:
        id = f"worker{state.round}"
        return v.SubTask(id, text, context, worker.backend, (), agent=worker.agent)


def _about(backend: v.Backend) -> str:
    price = backend.price_usd_per_mtok
    text = (
        say(PROMPTS, "price", input=price.input, output=price.output) if price else ""
    )
    return say(PROMPTS, "model", price=text)


def _schema(last_chance: bool) -> v.Schema:
    final = closed_object({"action": const(FINAL), "answer": TEXT})
    call = {"action": const(CALL), "worker_id": {"type": "integer"}, "input": TEXT}
    return "action", final if last_chance else {"anyOf": [closed_object(call), final]}


def gathered(state: v.State) -> str:
    """The text of the files, and the results of the workers in their order."""
    results = [_result(h) for h in state.history if h.id.startswith("worker")]
    return "\n\n".join(block for block in (files_found(state), *results) if block)


def _result(h: v.Evidence) -> str:
    found = h.summary or h.answer
    output = quoted_whole(capped(found, RESULT_CHARS))
    if not found:
        output = say(PROMPTS, "failed", error=h.error)
    about = {"turn": h.round, "name": h.backend, "input": h.instruction}
    return say(PROMPTS, "result", **about, output=output)
