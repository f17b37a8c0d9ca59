"""The world of MiniGAIA as a sub-agent. With it, only the main agent is a model.

    orchestra-min evaluate run --data fixtures/minigaia/questions.json --world ...

What a sub-task finds follows from its words and from the findings of earlier rounds, so it does not
depend on the timing of threads. Each finding is recorded, so a replay needs no facts.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Any

from annotated_types import MinLen
from typing_extensions import TypedDict

from orchestra.agents.job import Job
from orchestra.minigaia.operations import OPERATIONS
from orchestra.minigaia.tasks import WORDS, Fact
from orchestra.minigaia.world import finds
from orchestra.runtime.pool import Checked, Invalid
from orchestra.runtime.prompts import say
from orchestra.runtime.user_code import is_spec
from orchestra.vocabulary import ConfigError, Result, Step

METHODS = ("orchestra-o1", "aorchestra")  # the others ship sub-agents of their own


class Facts(Checked):
    """The facts of a question. Raises ConfigError if they are not MiniGAIA's."""

    facts: Annotated[tuple[Fact, ...], MinLen(1)]

    def model_post_init(self, _: Any) -> None:
        for fact in self.facts:
            if fact.operation and fact.operation not in OPERATIONS:
                raise Invalid(("facts", fact.id), f"no operation {fact.operation!r}")


class Report(TypedDict):
    """What a sub-task finds, as it is on the tape. `fact` is an id, or "" if it finds none."""

    fact: str
    report: str
    files: list[str]


class WorldAgent:
    """A SubAgent for one run. `facts` are those of its question, the answer last; a replay needs
    none.
    """

    def __init__(self, facts: Sequence[Any] = ()) -> None:
        self.facts = Facts(facts=facts).facts if facts else ()
        self._found: dict[str, tuple[int, str]] = {}  # sub-task -> its round and fact
        self._lock = threading.Lock()

    def run(self, job: Job) -> Result:
        """Raises ConfigError if something must be found and the facts are not known."""
        request = {"instruction": job.u.instruction, "context": job.u.context}
        with job.env.tape.call(job.next_place):
            find = partial(self._find, job)
            found: Report = job.env.local("world", request, find, Report)
        if not found["fact"]:
            error = say(WORDS, "nothing")
            return job.result("failed", answer="", summary="", error=error)
        with self._lock:
            self._found[job.u.id] = (job.place.round, found["fact"])
        for name in found["files"]:
            step = Step(
                action="read",
                params={"file": name},
                memory="",
                observation=found["report"],
            )
            job.note(step)
        z = job.result("done", found["report"], "")
        return replace(
            z, steps=0
        )  # no model took one; the prompts of training have none

    def _find(self, job: Job) -> Report:
        """What the sub-task of a job finds. Raises ConfigError without facts."""
        if not self.facts:
            raise ConfigError("the world has no facts; use: evaluate run --world")
        values = {fact.id: fact.value for fact in self.facts}
        earlier = self._found_before(job.place.round)
        reports = [values[earlier[id]] for id in job.u.needs if id in earlier]
        fact = finds(job.u, self.facts, known=set(earlier.values()), reports=reports)
        if fact is None:
            return {"fact": "", "report": "", "files": []}
        files = [m.name for m in job.task.media if m.name in fact.evidence]
        return {"fact": fact.id, "report": fact.report, "files": files}

    def _found_before(self, round: int) -> dict[str, str]:
        """The sub-tasks that found a fact in earlier rounds, and which one."""
        with self._lock:
            found = dict(self._found)
        return {id: fact for id, (when, fact) in found.items() if when < round}


def check(method: str, questions: Iterable[Any]) -> None:
    """Raises ConfigError if the world cannot play the sub-agents for these questions."""
    if method not in METHODS and not is_spec(method):
        known = " or ".join(METHODS)
        raise ConfigError(f"--world: {method} delegates otherwise; use {known}")
    for q in questions:
        try:
            Facts(facts=q.facts)
        except ConfigError as error:
            problem = f"needs MiniGAIA's facts: {error}"
            raise ConfigError(f"--world: question {q.id} {problem}") from None
