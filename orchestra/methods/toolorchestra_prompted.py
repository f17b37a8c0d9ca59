"""ToolOrchestra's prompted mode: any model orchestrates numbered workers by JSON actions. It comes
from a popular port of ToolOrchestra (arXiv 2511.21689), as a reference point for strong models.

    --method orchestra.methods.toolorchestra_prompted:Prompted

The paper's own mode is toolorchestra.py; this one is not in METHODS, and so not in --compare all.

Differences from the port
1. The workers are the backends of the pool, in its order, and one that searches the web if the run
   has a search tool. They are not described in a file of their own.
2. A worker is an agent that makes one call (CoT), or that searches; it reads the problem above its
   input.
3. After 6 turns the main agent is asked once more, for the final answer alone.
4. After the second unusable reply of a turn, worker 1 answers with all results so far. List the
   strongest backend first.
5. Files, which the port does not have, are read in the first turn, and all workers get their text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from orchestra.methods.decision import answer_in
from orchestra.methods.files_as_text import files_found, read_files_first
from orchestra.runtime.options import Options
from orchestra.runtime.parsing import find_action
from orchestra.runtime.pool import Pool
from orchestra.runtime.prompts import (
    as_messages,
    capped,
    explained,
    quoted_whole,
    say,
    without_marks,
)
from orchestra.runtime.reply_schema import TEXT, closed_object, const
from orchestra.runtime.texts import Texts
from orchestra.seams import Ask, Messages, Schema
from orchestra.toolkit import SEARCH, Tool
from orchestra.vocabulary import (
    Backend,
    Complete,
    Decision,
    Delegate,
    Evidence,
    ModelMistake,
    State,
    SubTask,
)

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


def workers_of(pool: Pool, tools: Mapping[str, Tool]) -> list[Worker]:
    """One for each backend, and one that searches."""
    workers = []
    for id, backend in enumerate(pool.for_subtasks(), 1):
        worker = Worker(id, backend.name, _description(backend), "cot", backend.name)
        workers.append(worker)
    if SEARCH in tools:
        about = say(PROMPTS, "search_worker")
        id = len(workers) + 1
        workers.append(Worker(id, "web-search", about, "search-loop", pool.main))
    return workers


def _description(backend: Backend) -> str:
    price = backend.price_usd_per_mtok
    text = ""
    if price is not None:
        text = say(PROMPTS, "price", input=price.input, output=price.output)
    return say(PROMPTS, "model", price=text)


# ---- what the model reads ------------------------------------------------------------------------


def render_state(
    state: State, workers: Sequence[Worker], mistake: str, last_chance: bool
) -> Messages:
    """The workers, the problem, the results so far, and what to do next."""
    rows = [say(PROMPTS, "worker", **worker._asdict()) for worker in workers]
    step = say(PROMPTS, "last")
    if not last_chance:
        step = say(PROMPTS, "next", turn=state.round, turns=state.rounds)
    if mistake:
        step = say(PROMPTS, "mistake", mistake=mistake) + "\n\n" + step
    user = say(
        PROMPTS,
        "user",
        problem=state.task.question,
        context=gathered(state) or "-",
        next=step,
    )
    return as_messages(say(PROMPTS, "system", workers="\n".join(rows)), user)


def render_in(
    texts: Texts,
    state: State,
    workers: Sequence[Worker],
    mistake: str,
    last_chance: bool,
) -> Messages:
    """The same in the user's texts."""
    turn = min(state.round, state.rounds)  # a last chance is no further turn
    results = [result_row(h) for h in state.history if h.id.startswith("worker")]
    blocks = [files_found(state), texts.rows("results", results)]
    values = {
        "problem": state.task.question,
        "workers": texts.rows("workers", [worker._asdict() for worker in workers]),
        "context": "\n\n".join(block for block in blocks if block),
        "turn": turn,
        "turns": state.rounds,
        "left": state.rounds - turn,
    }
    notices = []
    if mistake:
        default = say(PROMPTS, "mistake", mistake=mistake)
        notices.append(texts.piece("mistake", default, mistake=mistake))
    if last_chance:
        notices.append(texts.piece("last_chance", say(PROMPTS, "last")))
    return texts.messages("main", values, "\n\n".join(filter(None, notices)))


def result_row(h: Evidence) -> Mapping[str, object]:
    """What a worker was asked and what it found; the `kind` of its row is its status."""
    return {
        "turn": h.round,
        "name": h.backend,
        "input": h.instruction,
        "output": without_marks(h.summary or h.answer),
        "error": h.error,
        "kind": h.status,
    }


def gathered(state: State) -> str:
    """The text of the files, and the results of the workers in their order."""
    blocks = [files_found(state)]
    blocks += [_result(h) for h in state.history if h.id.startswith("worker")]
    return "\n\n".join(block for block in blocks if block)


def _result(h: Evidence) -> str:
    found = h.summary or h.answer
    output = quoted_whole(capped(found, RESULT_CHARS))
    if not found:
        output = say(PROMPTS, "failed", error=h.error)
    return say(
        PROMPTS,
        "result",
        turn=h.round,
        name=h.backend,
        input=h.instruction,
        output=output,
    )


def reply_schema(last_chance: bool) -> dict[str, Any]:
    final = closed_object({"action": const(FINAL), "answer": TEXT})
    if last_chance:
        return final
    call = {"action": const(CALL), "worker_id": {"type": "integer"}, "input": TEXT}
    return {"anyOf": [closed_object(call), final]}


# ---- what the model may reply --------------------------------------------------------------------


class WorkerCall(NamedTuple):
    worker: Worker
    input: str


def read_action(
    reply: str, workers: Sequence[Worker], cut: bool = False, last_chance: bool = False
) -> WorkerCall | Complete:
    """Raises ModelMistake. On the last chance only an answer counts."""
    action = find_action(reply, cut)
    params = action.get("params")
    fields = params if isinstance(params, dict) else action
    name = action["action"]
    if name == FINAL:
        return Complete(answer_in(fields))
    if name != CALL or last_chance:
        known = FINAL if last_chance else f"{CALL}, {FINAL}"
        raise ModelMistake("bad_action", action=repr(name)[:80], known=known)
    worker = _worker(fields.get("worker_id"), workers)
    text = str(fields.get("input") or "").strip()
    if not text:
        raise ModelMistake("empty_input", PROMPTS)
    return WorkerCall(worker, text)


def _worker(given: object, workers: Sequence[Worker]) -> Worker:
    """The worker with this id, which is never a place in a list. true is not an id."""
    by_id = {str(worker.id): worker for worker in workers}
    is_id = isinstance(given, int | str) and not isinstance(given, bool)
    worker = by_id.get(str(given).strip()) if is_id else None
    if worker is None:
        known = ", ".join(by_id)
        raise ModelMistake(
            "unknown_worker", PROMPTS, given=repr(given)[:80], known=known
        )
    return worker


# ---- the decision --------------------------------------------------------------------------------


class Prompted:
    """One worker a turn, until the final answer."""

    rounds = 6
    shares_context = False

    def __init__(self, pool: Pool, tools: Mapping[str, Tool], options: Options) -> None:
        self.workers = workers_of(pool, tools)
        self.texts = Texts(options.texts) if options.texts else None

    def decide(
        self, state: State, ask: Ask, mistake: str, last_chance: bool
    ) -> Decision:
        """Raises ModelMistake for the first unusable reply of a turn."""
        files = None if last_chance else read_files_first(state)
        if files is not None:
            return files
        schema: Schema = ("action", reply_schema(last_chance))
        about = state, self.workers, mistake, last_chance
        if self.texts:
            wanted = self.texts.schema("main", schema)
            reply = ask(render_in(self.texts, *about), wanted)
        else:
            reply = ask(render_state(*about), schema)
        try:
            action = read_action(reply.text, self.workers, reply.cut, last_chance)
        except ModelMistake as error:
            if mistake == "":  # the first attempt
                raise
            return self.strongest_answer(state, explained(error))
        if isinstance(action, Complete):
            return action
        return Delegate((self.subtask(state, action, files_found(state)),))

    def subtask(self, state: State, call: WorkerCall, context: str) -> SubTask:
        return SubTask(
            id=f"worker{state.round}",
            instruction=call.input,
            context=context,
            backend=call.worker.backend,
            tools=(),
            agent=call.worker.agent,
        )

    def strongest_answer(self, state: State, why: str) -> Delegate:
        """Worker 1 answers the problem with all results, as a fallback."""
        call = WorkerCall(self.workers[0], state.task.question)
        u = self.subtask(state, call, gathered(state))
        return Delegate((u,), whole_graph=True, answers=True, fallback=why)
