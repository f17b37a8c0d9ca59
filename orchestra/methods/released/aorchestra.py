"""AOrchestra's prompted main agent (FoundationAgents/AOrchestra), as its runner for GAIA drives it,
on the branch that the clone has checked out. What o1.py says of the released code holds here, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from orchestra.kernel.vocabulary import (
    ConfigError,
    Evidence,
    Result,
    State,
    SubTask,
    Task,
)
from orchestra.methods.released import o1
from orchestra.methods.released.clone import OfClone, unmarked
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
        names = [m.name for m in task.media]
        row = {"Question": task.question, "file_name": "".join(names)}
        return row, self.files, self.paths(task)

    def remember(
        self, history: tuple[Evidence, ...], u: SubTask, z: Result
    ) -> tuple[Evidence, ...]:
        """Without a report, the summary is what the last tool showed, for the fix branches. The
        last step used none: there it is a forced report.
        """
        if z.error:
            shown = [unmarked(step) for step in z.trace[-2:-1]]
            z = replace(z, summary="".join(shown))
        return super().remember(history, u, z)

    def history(self, history: Sequence[Evidence]) -> list[Any]:
        rows = []
        for h in history:
            result = self.result(h)
            kept = result.get("whole") or [self.params(h), result]
            rows.append([h.round, *kept])
        return rows

    def params(self, h: Evidence) -> Row:
        """The params of a delegation: the model has the name that the prompt gave it."""
        model = f"model_{self.pool.names.index(h.backend) + 1}"
        return {"task_instruction": h.instruction, "model": model}

    def subtasks(self, state: State, did: Row) -> tuple[SubTask, ...]:
        result = did["result"]
        if not str(result.get("error")).startswith(ASKED):
            result = o1.whole(did)
        return (self.subtask(str(state.round), result, state),)
