"""Eq. 29 as a rule that ranks: the sub-tasks against those of the reference decision, exactly.

The rubric (rubric.py) gives partial credit that reinforcement learning learns to collect without
solving anything: for a tool that finds nothing, for an operation that happens to match a number,
for going on. This rule gives none:

    format     0.05   the reply is one JSON object with an action and its params
    action     0.05   the program can carry the decision out
    tool       0.2    as `decision`, and the sub-task has the tool of the fact and no other
    decision   0.7    recall x precision of the sub-tasks against those of the reference decision.
                      A sub-task counts if it finds a missing fact, and if, for a computed fact, it
                      names the operation and its operands in one of its wordings (in any order
                      if that does not matter, as in a sum). To complete is worth 1 with the right
                      answer once that was found, and 0 before

A wrong or early end, a delegation after the answer was found, and sub-tasks that find nothing new
earn 0.1 in all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from orchestra.evaluation.scores import matches
from orchestra.kernel.prompts import say
from orchestra.kernel.vocabulary import Complete, Decision, SubTask
from orchestra.minigaia.operations import ANY_ORDER
from orchestra.minigaia.tasks import WORDS, Fact
from orchestra.minigaia.world import Finding, World
from orchestra.training.examples import Example
from orchestra.training.reading import Reading, readings
from orchestra.training.rewards import Completion, Scores
from orchestra.training.rubric import weighted
from orchestra.training.world import world_at

WEIGHTS = {"format": 0.05, "action": 0.05, "tool": 0.2, "decision": 0.7}  # Eq. 29
Counts = Callable[
    [SubTask, Fact], bool
]  # whether a sub-task counts as finding the fact


class Exact:
    """The Reward `exact`."""

    def score(
        self, example: Example, completions: Sequence[Completion]
    ) -> list[Scores]:
        """Raises KeyError, TypeError or ValueError for an example that is not of MiniGAIA."""
        world = world_at(example)
        known: dict[Completion, Scores] = {}  # a group often has equal completions
        for completion in set(completions):
            (reading,) = readings(example, [completion])
            known[completion] = exact_scores(world, reading)
        return [known[completion] for completion in completions]


def exact_scores(world: World, reading: Reading) -> Scores:
    """r and its parts, by rule."""
    is_valid = reading.decision is not None
    parts = {"format": float(reading.format), "action": float(is_valid)}
    parts |= exact_parts(world, reading.decision)
    return Scores(weighted(parts, WEIGHTS), parts, is_valid)


def exact_parts(world: World, decision: Decision | None) -> Mapping[str, float]:
    """`tool` and `decision`, each in [0, 1]. None: the program could not carry it out."""
    if decision is None:
        return {"tool": 0.0, "decision": 0.0}
    if isinstance(decision, Complete):
        right = matches(decision.answer, world.mini.answer, world.mini.task.question)
        in_time = float(right and world.answer_found())
        return {"tool": in_time, "decision": in_time}
    if world.answer_found():
        return {"tool": 0.0, "decision": 0.0}
    findings = world.would_find(decision)
    return {
        "tool": _overlap(
            world, findings, lambda u, f: _is_exact(u, f) and _one_tool(u, f)
        ),
        "decision": _overlap(world, findings, _is_exact),
    }


def _overlap(world: World, findings: Sequence[Finding], counts: Counts) -> float:
    """Recall x precision. Recall: which part of the missing facts that can be found now the
    delegation finds. Precision: which part of its sub-tasks finds a missing fact; two that find the
    same one count once.
    """
    missing = world.missing()
    new = set()
    for u, fact in findings:
        if fact is not None and fact.id in missing and counts(u, fact):
            new.add(fact.id)
    ready = world.ready()
    recall = sum(fact.id in new for fact in ready) / len(ready)
    return recall * len(new) / max(1, len(findings))


def _one_tool(u: SubTask, fact: Fact) -> bool:
    return u.tools is None or u.tools == (fact.tool,)


def _is_exact(u: SubTask, fact: Fact) -> bool:
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
