"""Orchestra-o1-8B: the main agent of zfkarl/Orchestra-o1, as its runner for OmniGAIA drives it.

The clone's own classes do it (inside/main_agent.py).

Differences from the released code
1. A reply that its reader cannot read ends the task there. Here the same prompt is sent again, at
   most twice. After the last round it decides nothing, and neither does this.
2. It has each trace summarised by one more call. Here its text for a failed summary is sent.
3. Sub-agents are other models and read this program's prompts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from orchestra.kernel.folder import Options
from orchestra.kernel.method import Ask
from orchestra.kernel.tool import Tool
from orchestra.kernel.vocabulary import (
    Complete,
    Decision,
    Delegate,
    Evidence,
    Pool,
    State,
    SubTask,
    Task,
)
from orchestra.methods.released.clone import REFUSED, OfClone, lost, refused

ASKED = "asked"  # begins the error of one that it does
Row = Mapping[str, Any]


def read_rows(value: Any) -> tuple[Path, list[Row]]:
    """The folder of a metadata file of OmniGAIA, JSON or JSONL, and its rows. Raises ValueError."""
    path = Path(value)
    try:
        text = path.read_text("utf-8")
        if not text.lstrip().startswith("["):
            lines = filter(str.strip, text.split("\n"))
            text = "[" + ",\n".join(lines) + "]"
        rows = json.loads(text)
        for row in rows:
            for m in row.get("omni_modal_input", ()):
                Path(m.get("path", ""))
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise ValueError(
            f"{path} cannot be read ({error}). It must have a JSON object for each "
            "question, whose omni_modal_input, if any, is a list of objects"
        ) from None
    return path.resolve().parent, rows


def whole(did: Row) -> Row:
    """A delegation that starts nothing, as the history keeps it."""
    return {"whole": [did["params"], did["result"]]}


def bare(tool: str) -> str:
    """A tool's name as the released sub-agent compares it: GoogleSearchAction is google_search."""
    return tool.lower().replace("_", "").removesuffix("action")


class Released(OfClone):
    """The option `data` is a metadata file of OmniGAIA, which has the row of the question, with its
    media next to it. Without it, a row is made of the question and its files, whose names follow
    the option `files`, a folder.
    """

    rounds = 10
    agents = {REFUSED: refused}
    repository = "https://github.com/zfkarl/Orchestra-o1"
    file = "orchestra_o1/main_agent.py"
    options = {**OfClone.options, "data": read_rows, "files": str}
    package = "orchestra_o1"

    def __init__(self, pool: Pool, tools: Mapping[str, Tool], options: Options) -> None:
        super().__init__(pool, tools, options)
        self.files: str = self.own.get("files", "")
        self.check(self.turn, State(Task("?"), "", (), (), (), 1, 1))

    def decide(
        self, state: State, ask: Ask, mistake: str, last_chance: bool
    ) -> Decision:
        """What the released code does with the reply; at the last chance, nothing."""
        if last_chance:
            return lost(state)
        prompt, _ = self.turn(state)
        reply = ask([{"role": "user", "content": prompt}])
        _, did = self.turn(state, reply.text)
        if did["action"] == "complete":
            return Complete(str(did["params"].get("answer") or ""))
        if "result" not in did:  # an unknown action
            return lost(state)
        return Delegate(self.subtasks(state, did))

    def accept(self, task: Task) -> None:
        self.row(task)

    def turn(self, state: State, reply: str | None = None) -> Any:
        """The prompt, and what the clone does with a reply. Raises ModelMistake."""
        row, folder, files = self.row(state.task)
        given = {
            "package": self.package,
            "row": row,
            "folder": folder,
            "files": files,
            "models": [b.model for b in self.pool.backends],
            "steps": self.steps,
            "history": self.history(state.history),
            "round": state.round,
            "rounds": state.rounds,
            "reply": reply,
        }
        return self.clone.call("main_agent:turn", given)

    def row(self, task: Task) -> tuple[Row, str, list[str]]:
        """OmniGAIA's row of a task, the folder of its media, and those that exist."""
        folder, rows = self.own.get("data", (Path(), []))
        for row in rows:
            if row.get("question") == task.question:
                media = row.get("omni_modal_input", ())
                paths = [folder / m.get("path", "") for m in media]
                return row, str(folder), [str(path) for path in paths if path.exists()]
        media = [{"type": m.modality, "id": m.name, "path": m.name} for m in task.media]
        row = {"question": task.question, "omni_modal_input": media}
        return row, self.files, self.paths(task)

    def paths(self, task: Task) -> list[str]:
        return [str(Path(self.files, m.name)) for m in task.media]

    def history(self, history: Sequence[Evidence]) -> list[Any]:
        """The attempt, params and result of each delegation, as the clone keeps them."""
        rows = []
        for number, of_round in groupby(history, lambda h: h.round):
            results = [self.result(h) for h in of_round]
            kept = results[0].get("whole") or [{}, {"subtask_results": results}]
            rows.append([number, *kept])
        return rows

    def result(self, h: Evidence) -> dict[str, Any]:
        """What the clone's delegation returns for a sub-task."""
        if h.id.startswith(REFUSED):
            return dict(json.loads(h.instruction))
        task = {"task_instruction": h.instruction}
        if h.error and h.steps < self.steps:
            return {**task, "error": h.error}
        models = {b.name: b.model for b in self.pool.backends}
        ran = {"model": models.get(h.backend, h.backend), "steps_taken": h.steps}
        report = {"result": h.answer, "status": h.status, "summary": h.summary}
        return {**task, **ran, "finish_result": report, "timed_out": h.error}

    def subtasks(self, state: State, did: Row) -> tuple[SubTask, ...]:
        """The sub-tasks that the released code starts, and those that it refuses."""
        rows = enumerate(did["result"]["subtask_results"] or [whole(did)], 1)
        return tuple(self.subtask(f"{state.round}_{n}", row, state) for n, row in rows)

    def subtask(self, number: str, result: Any, state: State) -> SubTask:
        """A sub-task that was asked for in place of a run, or that is refused."""
        mark, _, asked = str(result.get("error")).partition(" ")
        if mark != ASKED:
            return SubTask(f"{REFUSED}{number}", json.dumps(result), agent=REFUSED)
        model, instruction, context, tools = json.loads(asked)
        names = {bare(name) for name in tools or state.tools}
        backend = next(b.name for b in self.pool.backends if b.model == model)
        assigned = tuple(name for name in state.tools if bare(name) in names)
        return SubTask(f"t{number}", instruction, context, backend, assigned)
