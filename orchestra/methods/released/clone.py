"""A clone of a released repository, whose code writes the prompts and reads the replies.

    clone = Clone(Path("Orchestra-o1"))
    clone.call("main_agent:turn", given)      # a function of inside/main_agent.py

The function runs in a process of its own (inside/process.py), in the sandbox for the code of
models: it has no network, and the clone is read-only. What it returns depends on `given` and the
clone alone, and where it is an error also on the version of pydantic. So a replay needs the same
clone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

from orchestra.kernel import placing
from orchestra.kernel.folder import Options
from orchestra.kernel.job import Job
from orchestra.kernel.method import Method
from orchestra.kernel.prompts import say, without_marks
from orchestra.kernel.tool import Tool
from orchestra.kernel.vocabulary import (
    Backend,
    ConfigError,
    Delegate,
    Evidence,
    ModelMistake,
    Pool,
    Result,
    State,
    Step,
    SubTask,
    Task,
    ToolError,
)

REFUSED = "refused"  # the agent of a sub-task that the released code does not start
LOST = "lost"  # begins the id of a sub-task that stands for a round without any
TIMEOUT_S = 60
ERROR_CHARS = 500
MAX_OUTPUT_BYTES = 32 << 20
MARKED = re.compile(r"(?s)<data ([0-9a-f]{8,64})>\n(.*)\n</data \1>")
INSIDE = Path(__file__).with_name("inside")


class Clone:
    """The repository at `path`. Its code runs in the sandbox alone: run.json names the path."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.printed = lru_cache(64)(self._printed)

    def call(self, name: str, given: Mapping[str, Any]) -> Any:
        """What the function FILE:NAME returns. Raises ModelMistake for an error of the clone."""
        file, _, function = name.partition(":")
        asked = {"source": source_of(file), "function": function, "given": given}
        row = json.loads(self.printed(json.dumps(asked)))
        if "error" in row:
            raise ModelMistake("released", error=row["error"][:ERROR_CHARS])
        return row["value"]

    def _printed(self, stdin: str) -> str:
        """The last line that the process prints."""
        sandbox = import_module("orchestra.tools.sandbox")
        ran = sandbox.confined(
            sandbox.python(source_of("process")),
            stdin.encode(),
            TIMEOUT_S,
            sandbox.Mounts(media=self.path.resolve()),
            MAX_OUTPUT_BYTES,
        )
        last = ran.output.decode("utf-8", "replace").rstrip().rpartition("\n")[2]
        is_row = last.startswith("{")
        return last if is_row else json.dumps({"error": last or ran.ended})


def source_of(file: str) -> str:
    return (INSIDE / f"{file}.py").read_text(encoding="utf-8")


class OfClone(Method):
    """A method that asks a clone, whose path is the option `clone`. `repository` is where it comes
    from, `file` one that it has. The main agent's model does no sub-task if the pool has another.
    """

    needs_sandbox = True
    repository = ""
    file = ""
    options: Mapping[str, Callable[[Any], Any]] = {"clone": Path}

    def __init__(self, pool: Pool, tools: Mapping[str, Tool], options: Options) -> None:
        """Raises ConfigError."""
        super().__init__(pool, tools, options)
        others = [b for b in pool.backends if b.name != pool.main]
        self.pool = replace(pool, backends=tuple(others) or pool.backends)
        self.steps = options.steps
        path = self.own.get("clone", Path()).absolute()
        if not (path / self.file).is_file():
            raise ConfigError(
                f"--option clone=PATH needs a clone of {self.repository}: {path} has no "
                f"{self.file}; for a replay, put the clone there again"
            )
        trouble = import_module("orchestra.tools.sandbox").trouble()
        if trouble:
            raise ConfigError(
                f"a clone needs bubblewrap, which does not work here ({trouble}): apt "
                "install bubblewrap; --unsafe-code does not replace it here"
            )
        self.clone = Clone(path)

    def accept(self, task: Task) -> None:
        if task.media:
            raise ConfigError(
                f"the prompts of {self.repository} have no files; leave them out"
            )

    def place(
        self,
        candidates: Sequence[SubTask],
        task: Task,
        pool: Sequence[Backend],
        *rest: Any,
        **named: Any,
    ) -> list[placing.Placed]:
        return super().place(candidates, task, self.pool.backends, *rest, **named)

    def remember(
        self, history: tuple[Evidence, ...], u: SubTask, z: Result
    ) -> tuple[Evidence, ...]:
        return history if u.id.startswith(LOST) else super().remember(history, u, z)

    def check(self, prompt: Callable[[Any], Any], example: Any) -> None:
        """Raises ConfigError if the clone cannot write a prompt."""
        try:
            prompt(example)
        except ModelMistake as mistake:
            raise ConfigError(
                f"--option clone=PATH: {self.clone.path}: its code does not run "
                f"({mistake.values['error']}); docs/released-models.md names a commit "
                "that does"
            ) from None


def refused(job: Job) -> Result:
    """Fails at once."""
    raise ToolError(f"the released code starts no sub-agent: {job.u.instruction}")


def lost(state: State) -> Delegate:
    """A round in which the released code starts nothing, and which its history does not have."""
    u = SubTask(f"{LOST}{state.round}", "the round is lost", agent=REFUSED)
    return Delegate((u,))


def unmarked(step: Step) -> str:
    """What a tool has shown; "" if a program has printed nothing."""
    text = step.observation
    if text == say("notes", "code_silent"):
        return ""
    marked = MARKED.fullmatch(text)
    return marked[2] if marked else without_marks(text)
