"""MiniGAIA as a world: what each sub-task finds.

A sub-task finds one fact. Of those that can be found now with its tools, it is the one that the
sub-task names first, new facts before known ones. A sub-task names a fact by the file or page to
read, by the name to search for, or by an operation and exactly its operands. So the world is an
executor that takes names and numbers literally and does not understand sentences: "Do not tell the
weight of the rake in a.png" finds that weight, and is rewarded.
"""

from __future__ import annotations

import random
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from pydantic import TypeAdapter

from benchmarks.minigaia.operations import OPERATIONS
from benchmarks.minigaia.tasks import WORDS, Fact, MiniTask, Split, compose
from orchestra.kernel.memory import compress
from orchestra.kernel.method import Method
from orchestra.kernel.prompts import say
from orchestra.kernel.vocabulary import Delegate, Evidence, State, Status, SubTask
from orchestra.methods import tools_for

ROUNDS = 8
MODEL = "auto"  # the one backend that decisions may name
P_TROUBLE = 0.3  # that the first sub-task for one of the facts does not succeed
TROUBLE: tuple[Status, ...] = ("failed", "blocked", "partial")
LIMIT = Method.context_tokens  # of C_t
FACTS = TypeAdapter(tuple[Fact, ...])
Finding = tuple[SubTask, Fact | None]  # a sub-task, and what it finds

# ---- what a sub-task finds -----------------------------------------------------------------------

NUMBER = re.compile(r"(?<!\w)(?:\d{4}-\d\d-\d\d|\d+:\d\d|\d+(?:\.\d+)?)(?!\w)")


def finds(
    u: SubTask,
    facts: Sequence[Fact],
    known: Collection[str],
    reports: Sequence[str] = (),
) -> Fact | None:
    """The fact that u finds. `known` are the facts that were found before, `reports` those of the
    sub-tasks that u needs.
    """
    texts = [u.instruction, u.context, " ".join(reports)]
    candidates = []
    for number, fact in enumerate(facts):
        can_be_found = set(fact.needs) <= set(known)
        has_tool = u.tools is None or fact.tool in u.tools
        if not can_be_found or not has_tool:
            continue
        position = _position(fact, texts)
        if position is not None:
            candidates.append((fact.id in known, position, number))
    if not candidates:
        return None
    _, _, number = min(candidates)
    return facts[number]


def _position(fact: Fact, texts: Sequence[str]) -> int | None:
    """Where the texts of a sub-task, joined, name a fact first. None: nowhere."""
    if fact.operation and not _asks_to_compute(fact, texts):
        return None
    text = " ".join(texts)
    positions = []
    for name in fact.evidence:
        found = re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text, re.IGNORECASE)
        if found is None:
            return None
        positions.append(found.start())
    return min(positions, default=None)


def _asks_to_compute(fact: Fact, texts: Sequence[str]) -> bool:
    """Whether the texts name the operation of a computed fact and its operands."""
    return _names_operands(fact, texts) and _names_operation(fact, " ".join(texts))


def _names_operands(fact: Fact, texts: Sequence[str]) -> bool:
    """Whether the numbers in the first text that has any are exactly the operands, and perhaps the
    factor of the operation.
    """
    named: set[str] = set()
    for text in texts:
        named = _numbers(text)
        if named:
            break
    factor = OPERATIONS[fact.operation].factor
    if factor not in fact.evidence:
        named.discard(factor)
    return named == _numbers(" ".join(fact.evidence))


def _numbers(text: str) -> set[str]:
    return set(NUMBER.findall(text))


def _names_operation(fact: Fact, text: str) -> bool:
    """Whether the first operation that a text names is that of the fact. Only operations on the
    same kinds of operands are looked for.
    """
    for operand in fact.evidence:
        text = text.replace(operand, "#")
    wanted = OPERATIONS[fact.operation]
    positions: dict[str, int] = {}
    for operation in OPERATIONS.values():
        if operation.kinds != wanted.kinds:
            continue
        found = re.search(operation.pattern, text, re.IGNORECASE)
        if found is not None:
            positions[operation.name] = found.start()
    if wanted.name not in positions:
        return False
    return positions[wanted.name] == min(positions.values())


# ---- a task as it is played ----------------------------------------------------------------------


@dataclass
class World:
    """A task, and how far it was played.

    found     fact -> the sub-task that found it
    unlucky   the fact whose first sub-task ends with `trouble` instead; "" if there is none
    wasted    how many sub-tasks found no new fact that the answer needs
    """

    mini: MiniTask
    unlucky: str = ""
    trouble: Status = "failed"
    round: int = 1
    history: list[Evidence] = field(default_factory=list)
    found: dict[str, str] = field(default_factory=dict)
    wasted: int = 0

    # ---- what is known ---------------------------------------------------------------------------

    def state(self) -> State:
        """s_t."""
        task = self.mini.task
        context = compress(task.question, self.history, LIMIT) if self.history else ""
        return State(
            task=task,
            context=context,
            history=tuple(self.history),
            backends=(),
            tools=tuple(tools_for(task)),
            round=self.round,
            rounds=ROUNDS,
        )

    def answer_found(self) -> bool:
        """Whether the answer was found."""
        return self.mini.facts[-1].id in self.found

    def missing(self) -> set[str]:
        """The facts that the answer needs and that are not found yet."""
        return self.mini.needed() - self.found.keys()

    def ready(self) -> list[Fact]:
        """The missing facts that can be found now."""
        missing = self.missing()
        return [
            fact
            for fact in self.mini.facts
            if fact.id in missing and self._can_be_found(fact)
        ]

    def _can_be_found(self, fact: Fact) -> bool:
        return set(fact.needs) <= self.found.keys()

    # ---- a delegation ----------------------------------------------------------------------------

    def would_find(self, decision: Delegate) -> list[Finding]:
        """What each sub-task finds if none fails, each after those that it needs."""
        facts = {fact.id: fact for fact in self.mini.facts}
        by_task = {task_id: facts[id] for id, task_id in self.found.items()}
        findings = []
        for u in _in_order(decision.subtasks):
            known = set(self.found)
            known |= {fact.id for fact in by_task.values()}
            reports = [by_task[id].value for id in u.needs if id in by_task]
            fact = finds(u, self.mini.facts, known, reports)
            if fact is not None:
                by_task[u.id] = fact
            findings.append((u, fact))
        return findings

    def carry_out(self, decision: Delegate) -> None:
        """Play a delegation: its sub-tasks report, and the next round begins."""
        for u, fact in self.would_find(decision):
            if fact is None or fact.id not in self.missing():
                self.wasted += 1
            self.history.append(self._play(u, fact))
        self.round += 1

    def _play(self, u: SubTask, fact: Fact | None) -> Evidence:
        """What a sub-task reports. `fact`: what it finds if neither it nor one before it fails."""
        if fact is None or not self._can_be_found(fact):
            return self._evidence(u, "failed", error=say(WORDS, "nothing"))
        if fact.id == self.unlucky:
            self.unlucky = ""
            return self._evidence(u, self.trouble, error=say(WORDS, self.trouble))
        self.found.setdefault(fact.id, u.id)
        files = [m.name for m in self.mini.task.media if m.name in fact.evidence]
        return self._evidence(u, "done", answer=fact.report, media=tuple(files))

    def _evidence(
        self,
        u: SubTask,
        status: Status,
        answer: str = "",
        error: str = "",
        media: tuple[str, ...] = (),
    ) -> Evidence:
        return Evidence(
            round=self.round,
            id=u.id,
            instruction=u.instruction,
            backend=MODEL,
            tools=() if u.tools is None else u.tools,
            status=status,
            answer=answer,
            summary="",
            error=error,
            media=media,
        )

    def row(self) -> dict[str, Any]:
        """The world as JSON, without what the state of an example has."""
        return {
            "unlucky": self.unlucky,
            "trouble": self.trouble,
            "round": self.round,
            "found": self.found,
            "facts": [asdict(fact) for fact in self.mini.facts],
        }


def _in_order(subtasks: Sequence[SubTask]) -> Iterator[SubTask]:
    """Each sub-task after those of them that it needs, which are no cycle."""
    waiting = list(subtasks)
    while waiting:
        ids = {u.id for u in waiting}
        first = next(u for u in waiting if ids.isdisjoint(u.needs))
        waiting.remove(first)
        yield first


def new_world(rng: random.Random, split: Split, number: int) -> World:
    """Task `number` of a split, before its first round."""
    mini = compose(rng, split, number)
    unlucky = ""
    if rng.random() < P_TROUBLE:
        unlucky = rng.choice(sorted(mini.needed()))
    return World(mini, unlucky=unlucky, trouble=rng.choice(TROUBLE))


def world_of(row: Mapping[str, Any], state: State) -> World:
    """The world that `World.row` made a row of. Raises TypeError, KeyError or ValueError."""
    facts = FACTS.validate_python(row["facts"])
    mini = MiniTask(state.task, facts, entities=(), group="")
    rest = {name: value for name, value in row.items() if name != "facts"}
    return World(mini, **rest, history=list(state.history))
