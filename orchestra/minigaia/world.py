"""MiniGAIA as a world: what each sub-task finds.

A sub-task finds one fact: of those that can be found now with its tools, the one that it names
first, new ones before known ones. It names a fact by the file or page to read, by the name to
search for, or by an operation and exactly its operands. So the world is an executor that takes
names and numbers literally and does not understand sentences: "Do not tell the weight of the rake
in a.png" finds that weight, and is rewarded.
"""

from __future__ import annotations

import random
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from orchestra.memory import compress
from orchestra.minigaia.tasks import OPERATIONS, WORDS, Fact, MiniTask, Split, compose
from orchestra.runtime.prompts import WORDING, say
from orchestra.runtime.tape import adapter
from orchestra.tools.shipped import tools_for
from orchestra.vocabulary import Delegate, Evidence, State, Status, SubTask

ROUNDS = 8
MODEL = "auto"  # the one backend that decisions may name
P_TROUBLE = 0.3  # that the first sub-task for one of the facts does not succeed
TROUBLE: tuple[Status, ...] = ("failed", "blocked", "partial")

# ---- what a sub-task finds -----------------------------------------------------------------------

NUMBER = re.compile(r"(?<!\w)(?:\d{4}-\d\d-\d\d|\d+:\d\d|\d+(?:\.\d+)?)(?!\w)")


def finds(
    u: SubTask,
    facts: Sequence[Fact],
    known: Collection[str],
    reports: Sequence[str] = (),
) -> Fact | None:
    """The fact that u finds. `known`: the facts found before; `reports`: of the sub-tasks that u
    needs.
    """
    told = [u.instruction, u.context, " ".join(reports)]
    places = [
        (fact.id in known, place, n)
        for n, fact in enumerate(facts)
        if set(fact.needs) <= set(known)
        and (u.tools is None or fact.tool in u.tools)
        and (place := _position(fact, told)) is not None
    ]
    return facts[min(places)[-1]] if places else None


def _position(fact: Fact, told: Sequence[str]) -> int | None:
    """Where the text names a fact first; None: nowhere."""
    text = " ".join(told)
    if fact.operation:
        numbers = next(
            (n for part in told if (n := set(NUMBER.findall(part)))), set[str]()
        )
        numbers -= {OPERATIONS[fact.operation].factor} - set(fact.evidence)
        if numbers != set(
            NUMBER.findall(" ".join(fact.evidence))
        ) or not _names_operation(fact, text):
            return None
    places = [
        re.search(rf"(?<!\w){re.escape(e)}(?!\w)", text, re.I) for e in fact.evidence
    ]
    return min(place.start() for place in places if place) if all(places) else None


def _names_operation(fact: Fact, text: str) -> bool:
    """Whether the first operation that a text names, of those with such operands, is the fact's."""
    for operand in fact.evidence:
        text = text.replace(operand, "#")
    alike = [
        o for o in OPERATIONS.values() if o.kinds == OPERATIONS[fact.operation].kinds
    ]
    found = {
        o.name: m.start() for o in alike if (m := re.search(o.pattern, text, re.I))
    }
    return fact.operation in found and found[fact.operation] == min(found.values())


# ---- a task as it is played ----------------------------------------------------------------------


@dataclass
class World:
    """`found`: fact -> the sub-task that found it. The first sub-task for the fact `unlucky`
    ends with `trouble` instead. `wasted`: sub-tasks that found no new fact that the answer needs.
    """

    mini: MiniTask
    unlucky: str = ""
    trouble: Status = "failed"
    round: int = 1
    history: list[Evidence] = field(default_factory=list)
    found: dict[str, str] = field(default_factory=dict)
    wasted: int = 0

    def state(self) -> State:
        """s_t."""
        task = self.mini.task
        context = compress(task.question, self.history, WORDING) if self.history else ""
        tools = tuple(tools_for(task))
        return State(task, context, tuple(self.history), (), tools, self.round, ROUNDS)

    def answer_found(self) -> bool:
        """Whether the answer was found."""
        return self.mini.facts[-1].id in self.found

    def ready(self) -> list[Fact]:
        """The facts that the answer needs, are not found yet, and can be found now."""
        wanted = self.mini.needed() - self.found.keys()
        return [
            f
            for f in self.mini.facts
            if f.id in wanted and self.found.keys() >= set(f.needs)
        ]

    def would_find(self, decision: Delegate) -> list[tuple[SubTask, Fact | None]]:
        """What each sub-task finds if none fails, each after those that it needs."""
        facts = {f.id: f for f in self.mini.facts}
        by_task = {id: facts[fact] for fact, id in self.found.items()}
        done: list[tuple[SubTask, Fact | None]] = []
        waiting, own = list(decision.subtasks), {u.id for u in decision.subtasks}
        while waiting:
            u = next(u for u in waiting if not own & set(u.needs))
            waiting.remove(u)
            own.discard(u.id)
            reports = [by_task[id].value for id in u.needs if id in by_task]
            known = self.found.keys() | {f.id for f in by_task.values()}
            fact = finds(u, self.mini.facts, known, reports)
            by_task |= {u.id: fact} if fact else {}
            done.append((u, fact))
        return done

    def carry_out(self, decision: Delegate) -> None:
        """Play a delegation: its sub-tasks report, and the next round begins."""
        for u, fact in self.would_find(decision):
            self.wasted += (
                not fact or fact.id not in self.mini.needed() - self.found.keys()
            )
            report: tuple[Any, ...]  # status, answer, summary, error, files
            if fact is None or not set(fact.needs) <= self.found.keys():
                report = ("failed", "", "", say(WORDS, "nothing"))
            elif fact.id == self.unlucky:
                self.unlucky, report = (
                    "",
                    (self.trouble, "", "", say(WORDS, self.trouble)),
                )
            else:
                self.found.setdefault(fact.id, u.id)
                files = tuple(
                    m.name for m in self.mini.task.media if m.name in fact.evidence
                )
                report = ("done", fact.report, "", "", files)
            about = (self.round, u.id, u.instruction, MODEL, u.tools or ())
            self.history.append(Evidence(*about, *report))
        self.round += 1

    def row(self) -> dict[str, Any]:
        """The world as JSON, without what the state of an example has."""
        kept = {k: getattr(self, k) for k in ("unlucky", "trouble", "round", "found")}
        return {**kept, "facts": [asdict(fact) for fact in self.mini.facts]}


def new_world(rng: random.Random, split: Split, number: int) -> World:
    mini = compose(rng, split, number)
    unlucky = rng.choice(sorted(mini.needed())) if rng.random() < P_TROUBLE else ""
    return World(mini, unlucky, rng.choice(TROUBLE))


def world_of(row: Mapping[str, Any], state: State) -> World:
    """The world that `World.row` made a row of. Raises TypeError, KeyError or ValueError."""
    facts = adapter(tuple[Fact, ...]).validate_python(row["facts"])
    rest = {k: v for k, v in row.items() if k != "facts"}
    return World(
        MiniTask(state.task, facts, (), ""), **rest, history=list(state.history)
    )
