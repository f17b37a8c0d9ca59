"""Eq. 29: the rubric reward, r = sum of alpha_k r_k over four parts.

    format     the reply is one JSON object with an action and its params
    action     the program can carry the decision out
    tool       the tools that are given are those that are needed
    decision   how much the decision contributes to the answer

Here they follow by rule from what the decision would find in the world of MiniGAIA. In judge.py a
language model gives them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from orchestra.evaluation.scores import matches
from orchestra.kernel.vocabulary import Complete, Decision
from orchestra.minigaia.tasks import Fact
from orchestra.minigaia.world import Finding, World
from orchestra.training.examples import Example
from orchestra.training.reading import Reading, readings
from orchestra.training.rewards import Completion, Scores
from orchestra.training.world import world_at

# alpha of Eq. 29
WEIGHTS = {"format": 0.1, "action": 0.1, "tool": 0.2, "decision": 0.6}
UNNEEDED = 1 / 3  # both parts of a delegation after the answer was found: 1 of 3 points


class Rubric:
    """The Reward `rubric`."""

    def score(
        self, example: Example, completions: Sequence[Completion]
    ) -> list[Scores]:
        """Raises KeyError, TypeError or ValueError for an example that is not of MiniGAIA."""
        world = world_at(example)
        return [rubric_scores(world, r) for r in readings(example, completions)]


def rubric_scores(world: World, reading: Reading) -> Scores:
    """r and its parts, by rule."""
    is_valid = reading.decision is not None
    parts = {"format": float(reading.format), "action": float(is_valid)}
    parts |= rubric_parts(world, reading.decision)
    return Scores(weighted(parts), parts, is_valid)


def weighted(
    parts: Mapping[str, float], weights: Mapping[str, float] = WEIGHTS
) -> float:
    """r of Eq. 29, in [0, 1], of parts in [0, 1]."""
    r = sum(alpha * parts[name] for name, alpha in weights.items())  # Eq. 29
    return min(1.0, r)  # the sum of floats may be a little more


# ---- two parts by rule ---------------------------------------------------------------------------


def rubric_parts(world: World, decision: Decision | None) -> dict[str, float]:
    """`tool` and `decision`, each in [0, 1]. None: the program could not carry it out."""
    if decision is None:
        return {"tool": 0.0, "decision": 0.0}
    if isinstance(decision, Complete):
        return _completion_parts(world, decision)
    findings = world.would_find(decision)
    if world.answer_found():
        share = _unneeded(findings)
        return {"tool": share, "decision": share}
    return {
        "tool": _tool_overlap(world, findings),
        "decision": _progress(world, findings),
    }


def _completion_parts(world: World, decision: Complete) -> dict[str, float]:
    """A right answer earns all. A wrong one earns `tool` if it was time to complete."""
    right = matches(decision.answer, world.mini.answer, world.mini.task.question)
    in_time = right or world.answer_found()
    return {"tool": float(in_time), "decision": float(right)}


def _unneeded(findings: Sequence[Finding]) -> float:
    """What a delegation after the answer was found earns: the less, the more sub-tasks it has."""
    found = sum(fact is not None for _, fact in findings)
    return UNNEEDED * found / _count(findings) ** 2


def _progress(world: World, findings: Sequence[Finding]) -> float:
    """Recall times precision. Recall: which part of the missing facts that can be found now this
    delegation finds. Precision: which part of its sub-tasks finds a missing fact; two that find the
    same one count once.
    """
    new = _new_facts(world, findings)
    ready = world.ready()
    recall = sum(fact.id in new for fact in ready) / len(ready)
    return recall * len(new) / _count(findings)


def _tool_overlap(world: World, findings: Sequence[Finding]) -> float:
    """Of the tools that are needed or given, the share that is both. A sub-task that names no tools
    has those that are needed.
    """
    new = _new_facts(world, findings)
    needed = {fact.tool for fact in (*world.ready(), *new.values())}
    given: set[str] = set()
    for u, _ in findings:
        given |= needed if u.tools is None else set(u.tools)
    return len(needed & given) / len(needed | given)


def _new_facts(world: World, findings: Sequence[Finding]) -> dict[str, Fact]:
    """The missing facts that a delegation finds, by id."""
    missing = world.missing()
    facts = [fact for _, fact in findings if fact is not None]
    return {fact.id: fact for fact in facts if fact.id in missing}


def _count(findings: Sequence[Finding]) -> int:
    """The number of sub-tasks as a divisor: a delegation may have none."""
    return max(1, len(findings))
