"""The reward of a decision in MiniGAIA, by rule: it pays nothing for what does not help.

    python train_da_grpo.py --reward benchmarks.minigaia.reward:Exact ...

The parts of Eq. 29 compare the sub-tasks with what the expert would delegate:

    decision   recall x precision. A sub-task counts if it finds a missing fact, and if, for a
               computed fact, it names the operation and its operands in one of its wordings (in any
               order if that does not matter, as in a sum). To complete is worth 1 with the right
               answer once that was found, and 0 before
    tool       as `decision`, and the sub-task has the tool of the fact and no other

A wrong or early end, a delegation after the answer was found, and sub-tasks that find nothing new
earn 0.1 in all.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.minigaia.examples import world_at
from benchmarks.minigaia.operations import ANY_ORDER
from benchmarks.minigaia.tasks import WORDS, Fact
from benchmarks.minigaia.world import World
from orchestra.evaluation.scores import matches
from orchestra.kernel.prompts import say
from orchestra.kernel.vocabulary import Complete, Decision, SubTask
from orchestra.training.examples import Example
from orchestra.training.rewards import (
    Completion,
    Reading,
    Scores,
    readings,
    weighted,
)

WEIGHTS = {"format": 0.05, "action": 0.05, "tool": 0.2, "decision": 0.7}  # alpha


class Exact:
    """The Reward."""

    def score(
        self, example: Example, completions: Sequence[Completion]
    ) -> list[Scores]:
        """Raises ConfigError for an example that is not of MiniGAIA."""
        world = world_at(example)
        return [exact_scores(world, r) for r in readings(example, completions)]


def exact_scores(world: World, reading: Reading) -> Scores:
    """r and its parts."""
    is_valid = reading.decision is not None
    tool = decision = 0.0
    if reading.decision is not None:
        tool, decision = tool_and_decision(world, reading.decision)
    parts = {"format": float(reading.format), "action": float(is_valid)}
    parts |= {"tool": tool, "decision": decision}
    return Scores(weighted(parts, WEIGHTS), parts, is_valid)


def tool_and_decision(world: World, decision: Decision) -> tuple[float, float]:
    """Two parts, each in [0, 1]."""
    found = world.answer_found()
    if isinstance(decision, Complete):
        task = world.mini.task
        is_right = matches(decision.answer, world.mini.answer, task.question)
        in_time = float(found and is_right)
        return in_time, in_time
    if found:
        return 0.0, 0.0
    findings = world.would_find(decision)
    exact = [(u, f) for u, f in findings if f is not None and is_exact(u, f)]
    one_tool = [(u, f) for u, f in exact if u.tools in (None, (f.tool,))]
    tool = progress(world, [f for _, f in one_tool], len(findings))
    return tool, progress(world, [f for _, f in exact], len(findings))


def progress(world: World, found: Sequence[Fact], count: int) -> float:
    """Recall x precision of `count` sub-tasks, which find these facts. Recall: which part of the
    missing facts that can be found now they find. Precision: which part of the sub-tasks finds a
    missing fact; two that find the same one count once.
    """
    missing = world.missing()
    new = {fact.id for fact in found if fact.id in missing}
    ready = world.ready()
    recall = sum(fact.id in new for fact in ready) / len(ready)
    return recall * len(new) / max(1, count)


def is_exact(u: SubTask, fact: Fact) -> bool:
    """Whether a sub-task asks for a computed fact in one of the wordings of its operation."""
    if not fact.operation:
        return True
    orders = [fact.evidence]
    if fact.operation in ANY_ORDER:
        orders.append(fact.evidence[::-1])
    text = f"{u.instruction} {u.context}".lower()
    for evidence in orders:
        operands = dict(zip("ab", evidence, strict=False))
        wordings = say(WORDS, fact.operation, **operands).splitlines()
        if any(wording.lower() in text for wording in wordings):
            return True
    return False
