"""The reward of vanilla GRPO: whether the task ends with the right answer.

It is 1 if the answer of a MiniGAIA task comes out right when the expert continues after the
decision, else 0.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

from orchestra.evaluation.scores import matches
from orchestra.kernel.vocabulary import Complete, Decision
from orchestra.minigaia.world import ROUNDS, World
from orchestra.training.examples import Example
from orchestra.training.reading import readings
from orchestra.training.rewards import Completion, Scores
from orchestra.training.world import decided, expert, world_at


class Outcome:
    """The Reward `outcome`."""

    def score(
        self, example: Example, completions: Sequence[Completion]
    ) -> list[Scores]:
        """Raises KeyError, TypeError or ValueError for an example that is not of MiniGAIA."""
        world = world_at(example)
        return [_scores(world, r.decision) for r in readings(example, completions)]


def _scores(world: World, decision: Decision | None) -> Scores:
    if decision is None:
        return Scores(0.0, {"outcome": 0.0}, valid=False)
    right = float(solved_from(world, decision))
    return Scores(right, {"outcome": right}, valid=True)


def solved_from(world: World, decision: Decision) -> bool:
    """Whether the task ends with the right answer if the expert takes over after `decision`."""
    if isinstance(decision, Complete):
        return matches(decision.answer, world.mini.answer, world.mini.task.question)
    after = copy.deepcopy(world)
    after.carry_out(decision)
    while not after.answer_found() and after.round < ROUNDS:
        after.carry_out(decided(expert(after), after))
    return after.answer_found()
