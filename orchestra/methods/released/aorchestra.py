"""AOrchestra's prompted main agent (FoundationAgents/AOrchestra), as its runner for GAIA drives it,
on the branch that the clone has checked out. What o1.py says of the released code holds here, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from orchestra.kernel.vocabulary import ConfigError, Evidence, State, SubTask, Task
from orchestra.methods.released import o1
from orchestra.methods.released.clone import OfClone
from orchestra.methods.released.o1 import ASKED, Row


class Released(o1.Released):
    """The prompt has the option `files`, a folder, before the name of the task's file."""

    repository = "https://github.com/FoundationAgents/AOrchestra"
    file = "aorchestra/main_agent.py"
    options = {**OfClone.options, "files": str}
    package = "aorchestra"

    def row(self, task: Task) -> tuple[Row, str, list[str]]:
        """A row of GAIA, which has one file or none. Raises ConfigError."""
        if len(task.media) > 1:
            raise ConfigError(
                "AOrchestra's prompt for GAIA has one file; leave the others out"
            )
        row = {"Question": task.question, "file_name": ""}
        for m in task.media:
            row["file_name"] = m.name
        return row, self.files, self.paths(task)

    def history(self, history: Sequence[Evidence]) -> list[Any]:
        rows = []
        for h in history:
            result = self.result(h)
            kept = result["whole"] if "whole" in result else [self.params(h), result]
            rows.append([h.round, *kept])
        return rows

    def params(self, h: Evidence) -> Row:
        """The params of a delegation: the model has the name that the prompt gave it."""
        number = self.pool.names.index(h.backend) + 1
        return {"task_instruction": h.instruction, "model": f"model_{number}"}

    def subtasks(self, state: State, did: Row) -> tuple[SubTask, ...]:
        result = did["result"]
        if not str(result.get("error")).startswith(ASKED):
            result = o1.whole(did)
        return (self.subtask(str(state.round), result, state),)
