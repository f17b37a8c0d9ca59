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
from typing import Any

from pydantic import ValidationError

from orchestra.kernel.depends import anew
from orchestra.kernel.job import Job
from orchestra.kernel.prompts import say
from orchestra.kernel.vocabulary import ConfigError, Result, Step
from orchestra.minigaia.operations import OPERATIONS
from orchestra.minigaia.tasks import WORDS, Fact
from orchestra.minigaia.world import FACTS, finds

METHODS = ("orchestra-o1", "aorchestra")  # the others ship sub-agents of their own
Row = dict[str, Any]


def read_facts(rows: Sequence[Any]) -> tuple[Fact, ...]:
    """The facts of a question. Raises ConfigError if they are not MiniGAIA's."""
    try:
        facts = FACTS.validate_python(list(rows))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ConfigError(f"fact {where}: {first['msg']}") from None
    if not facts:
        raise ConfigError("it has no facts")
    for fact in facts:
        if fact.operation and fact.operation not in OPERATIONS:
            raise ConfigError(f"fact {fact.id}: no operation {fact.operation!r}")
    return facts


class WorldAgent:
    """An Agent for one run. `facts` are those of its question, the answer last; a replay needs
    none.
    """

    def __init__(self, facts: Sequence[Any] = ()) -> None:
        self.facts = read_facts(facts) if facts else ()
        self._found: dict[str, tuple[int, str]] = {}  # sub-task -> its round and fact
        self._lock = threading.Lock()

    def __call__(self, job: Job) -> Result:
        """Raises ConfigError if something must be found and the facts are not known."""
        request = {"instruction": job.u.instruction, "context": job.u.context}
        with job.env.tape.call(job.next_place):
            # It depends on the facts, and on what was found before.
            env = replace(job.env, depends_on=anew)
            found = env.local("world", request, partial(self._find, job))
        if not found["fact"]:
            return job.result("failed", "", "", error=say(WORDS, "nothing"))
        with self._lock:
            self._found[job.u.id] = (job.place.round, found["fact"])
        for name in found["files"]:
            job.note(
                Step("read", {"file": name}, memory="", observation=found["report"])
            )
        return job.result("done", found["report"], "")

    def _find(self, job: Job) -> Row:
        """What the sub-task of a job finds: the id of a fact, "" if none; its report; the files
        that were read. Raises ConfigError without facts.
        """
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


def world(job: Job) -> Result:
    """The world without facts, as --agent orchestra.minigaia.agent:world: it replays a run."""
    return WorldAgent()(job)


def check(method: str, questions: Iterable[Any]) -> None:
    """Raises ConfigError if the world cannot play the sub-agents for these questions."""
    if method not in METHODS and ":" not in method:
        known = " or ".join(METHODS)
        raise ConfigError(f"--world: {method} delegates otherwise; use {known}")
    for q in questions:
        try:
            read_facts(q.facts)
        except ConfigError as error:
            raise ConfigError(
                f"--world: question {q.id} needs MiniGAIA's facts: {error}"
            ) from None
