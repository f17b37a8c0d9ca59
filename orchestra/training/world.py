"""MiniGAIA as a world: what sub-tasks find, what a decision is worth, and what the expert decides.

    python -m orchestra.training.world --n 2000 --seed 0 --out data/minigaia

writes decision examples.

A sub-task finds one fact: of those that can be found now with its tools, the one that it names
first, new ones before known ones. It names a fact by the file or page to read, by the name to
search for, or by an operation and exactly its operands. So the world is an executor that takes
names and numbers literally and does not understand sentences: "Do not tell the weight of the rake
in a.png" finds that weight, and is rewarded. The expert delegates all that the answer needs and
that can be found now, and completes when the answer is found.
"""

from __future__ import annotations

import copy
import json
import random
import re
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import count, islice
from pathlib import Path
from typing import Any, Literal

from orchestra.evaluation.scores import matches
from orchestra.memory import compress
from orchestra.methods.orchestra_o1 import OrchestraO1, parse_decision
from orchestra.runtime.command_line import OneLineParser, ended
from orchestra.runtime.options import Options
from orchestra.runtime.pool import Pool
from orchestra.runtime.prompts import WORDING, say
from orchestra.runtime.tape import adapter
from orchestra.tools.shipped import tools_for
from orchestra.training.examples import Example, state_row, write
from orchestra.training.tasks import OPERATIONS, WORDS, Fact, MiniTask, Split, compose
from orchestra.vocabulary import (
    Complete,
    Decision,
    Delegate,
    Evidence,
    State,
    Status,
    SubTask,
)

Style = Literal["brief", "full"]
PART: dict[Split, float] = {
    "train": 0.7,
    "valid": 0.1,
    "held_out": 0.2,
}  # of the examples
ROUNDS = 8
MODEL = "auto"  # the one backend that decisions may name
POOL = Pool.model_validate(
    {"backend": [{"name": MODEL, "model": "", "base_url": "http://none"}]}
)
P_TROUBLE = 0.3  # that the first sub-task for one of the facts does not succeed
TROUBLE: tuple[Status, ...] = ("failed", "blocked", "partial")
UNNEEDED = 1 / 3  # both parts of a delegation after the answer was found: 1 of 3 points

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


# ---- what a decision is worth --------------------------------------------------------------------


def rubric_parts(world: World, decision: Decision | None) -> dict[str, float]:
    """Two parts of Eq. 29, each in [0, 1]. `decision`, of a delegation: the share of what is ready
    that it finds, times the share of its sub-tasks that find something new which the answer needs.
    `tool`: of the tools that are needed or given, the share that is both; a sub-task that names no
    tools has those that are needed. A delegation after the answer was found earns little of both.
    """
    if decision is None:
        return {"tool": 0.0, "decision": 0.0}
    if isinstance(decision, Complete):
        right = matches(decision.answer, world.mini.answer, world.mini.task.question)
        return {"tool": float(right or world.answer_found()), "decision": float(right)}
    done = world.would_find(decision)
    count, known = max(1, len(done)), world.found.keys()
    if world.answer_found():
        share = UNNEEDED * sum(fact is not None for _, fact in done) / count**2
        return {"tool": share, "decision": share}
    new = {f.id: f for _, f in done if f and f.id in world.mini.needed() - known}
    ready = world.ready()
    wanted = {f.tool for f in (*ready, *new.values())}
    given = {tool for u, _ in done for tool in (wanted if u.tools is None else u.tools)}
    progress = sum(f.id in new for f in ready) / len(ready) * len(new) / count
    return {"tool": len(wanted & given) / len(wanted | given), "decision": progress}


def solved_from(world: World, decision: Decision) -> bool:
    """Whether the task ends with the right answer if the expert takes over after `decision`."""
    if isinstance(decision, Complete):
        return matches(decision.answer, world.mini.answer, world.mini.task.question)
    after = copy.deepcopy(world)
    after.carry_out(decision)
    while not after.answer_found() and after.round < ROUNDS:
        after.carry_out(decided(expert(after), after))
    return after.answer_found()


# ---- the expert ----------------------------------------------------------------------------------


def expert(world: World, style: Style = "brief") -> dict[str, Any]:
    """y*_t as JSON; for the short prompt, without optional keys."""
    if world.answer_found():
        why = say(WORDS, "why_complete", id=world.found[world.mini.facts[-1].id])
        return {
            "action": "complete",
            "reasoning": why,
            "params": {"answer": world.mini.answer},
        }
    rest = {} if style == "brief" else {"context": "", "model": MODEL}
    tried = {h.instruction: h.id for h in world.history if h.status != "done"}
    rows, why = [], ""
    for fact in world.ready():
        told = fact.instruction
        if told in tried:
            why += say(WORDS, "why_again", id=tried[told]) + " "
            told = say(WORDS, "again", instruction=told)
        rows.append({"task_instruction": told, **rest, "tools": [fact.tool]})
    why += say(WORDS, "why_delegate", count=len(rows))
    return {"action": "delegate_task", "reasoning": why, "params": {"tasks": rows}}


def decided(decision: Mapping[str, Any], world: World) -> Any:
    """The expert's JSON as a Decision."""
    return parse_decision(json.dumps(decision), world.state())


def prompt(state: State, style: Style = "brief") -> tuple[dict[str, str], ...]:
    """s_t in the words of the real main agent, or in the few of prompts/training/brief.md."""
    if style == "full":
        return tuple(OrchestraO1(POOL, tools_for(state.task), Options()).prompt(state))
    nothing, found = say("training/brief", "nothing"), []
    for h in state.history:
        about = {"id": h.id, "status": h.status, "instruction": h.instruction}
        found.append(
            say("training/brief", "found", **about, outcome=h.answer or h.error)
        )
    files = ", ".join(m.name for m in state.task.media) or nothing
    values = {"question": state.task.question, "files": files, "rounds": state.rounds}
    values |= {"found": "\n".join(found) or nothing, "round": state.round}
    system = {"role": "system", "content": say("training/brief", "system")}
    return system, {"role": "user", "content": say("training/brief", "user", **values)}


def example(world: World, split: Split, number: int, style: Style = "brief") -> Example:
    """The expert's decision in the state that a task is in."""
    state = world.state()
    meta = {"split": split, "answer": world.mini.answer, "state": state_row(state)}
    meta |= {"entities": list(world.mini.entities), "world": world.row()}
    id = f"{split}-{number:05}-r{state.round}"
    messages, reference = prompt(state, style), expert(world, style)
    return Example(
        id=id, messages=messages, reference=reference, meta=copy.deepcopy(meta)
    )


def examples(split: Split, seed: int, style: Style = "brief") -> Iterator[Example]:
    """The expert's decisions in task after task, without end; the same for the same seed."""
    for n in count():
        world = new_world(random.Random(f"minigaia {seed} {split} {n}"), split, n)
        while not world.answer_found():
            yield (made := example(world, split, n, style))
            world.carry_out(decided(made.reference, world))
        yield example(world, split, n, style)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write train.jsonl, valid.jsonl and held_out.jsonl. Returns the exit code."""
    parser = OneLineParser(
        prog="python -m orchestra.training.world",
        description="Decision examples of MiniGAIA.",
    )
    parser.add_argument(
        "--n", type=int, default=2000, help="decisions, in all three files"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--prompt", choices=("brief", "full"), default="brief")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")

    def work() -> None:
        a = parser.parse_args(arguments)
        if a.n < 10:
            parser.error(f"--n {a.n}: too few for three files; give 10 or more")
        for split, part in PART.items():
            rows = list(islice(examples(split, a.seed, a.prompt), round(a.n * part)))
            write(a.out / f"{split}.jsonl", rows)
            print(f"{a.out / split}.jsonl: {len(rows)} decisions")

    return ended("training.world", work)


if __name__ == "__main__":
    sys.exit(main())
