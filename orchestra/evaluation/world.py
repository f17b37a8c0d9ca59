"""--world: MiniGAIA's world plays the sub-agents, and only the main agent is a model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Any

from annotated_types import MinLen

from orchestra.agents import SubAgents
from orchestra.agents.job import Job, Style
from orchestra.matching import Placed
from orchestra.runtime.pool import Checked
from orchestra.training.tasks import Fact, MiniTask
from orchestra.training.world import World
from orchestra.vocabulary import ConfigError, Delegate, Result, Step, SubTask

NOT_IN_IT = ("toolorchestra", "mas-orchestra", "react")  # they delegate otherwise


class _Facts(Checked):
    facts: Annotated[tuple[Fact, ...], MinLen(1)]


def check(method: str, asked: Iterable[Any]) -> None:
    """Raises ConfigError if the world cannot play the sub-agents for these questions."""
    if method in NOT_IN_IT:
        raise ConfigError(
            f"--world: {method} delegates otherwise; use orchestra-o1 or aorchestra"
        )
    for q in asked:
        try:
            _Facts(facts=q.facts)
        except ConfigError as error:
            raise ConfigError(
                f"--world: question {q.id} needs MiniGAIA's facts: {error}"
            ) from None


class WorldAgents(SubAgents):
    """The sub-agents of a run whose options have `facts`: training/world.py decides what a sub-task
    finds. It depends on the decisions alone and is computed again in a replay or resume, so the
    tape has only the calls of the main agent. Raises ConfigError if `facts` are not MiniGAIA's.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        facts = _Facts(facts=self.options.facts).facts
        self.world = World(MiniTask(self.task, facts, (), ""))

    def execute(
        self, t: int, placed: Sequence[Placed], shared_context: str = ""
    ) -> list[Result]:
        self.world.carry_out(Delegate(tuple(p.subtask for p in placed)))
        return super().execute(t, placed, shared_context)

    def style(self, u: SubTask) -> Style:
        return self._found

    def _found(self, job: Job) -> Result:
        """What the world found for a sub-task that was carried out."""
        h = next(h for h in reversed(self.world.history) if h.id == job.u.id)
        opened = tuple(Step("read", {"file": name}, "", h.answer) for name in h.media)
        return Result(h.status, h.answer, h.summary, error=h.error, trace=opened)
