"""Decision examples of MiniGAIA: what a decision is worth, and what the expert decides.

    python -m orchestra.training.world --n 2000 --seed 0 --out data/minigaia

writes them. The expert delegates all that the answer needs and that can be found now, and completes
when the answer is found. minigaia/world.py says what a sub-task finds.
"""

from __future__ import annotations

import copy
import json
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import count, islice
from pathlib import Path
from typing import Any, Literal

from orchestra.evaluation.scores import matches
from orchestra.methods.orchestra_o1 import OrchestraO1, parse_decision
from orchestra.minigaia.tasks import WORDS, Split
from orchestra.minigaia.world import MODEL, ROUNDS, World, new_world
from orchestra.runtime.command_line import OneLineParser, ended
from orchestra.runtime.options import Options
from orchestra.runtime.pool import Pool
from orchestra.runtime.prompts import say
from orchestra.tools.shipped import tools_for
from orchestra.training.examples import Example, state_row, write
from orchestra.vocabulary import (
    Complete,
    Decision,
    State,
)

Style = Literal["brief", "full"]
PART: dict[Split, float] = {
    "train": 0.7,
    "valid": 0.1,
    "held_out": 0.2,
}  # of the examples
POOL = Pool.model_validate(
    {"backend": [{"name": MODEL, "model": "", "base_url": "http://none"}]}
)
UNNEEDED = 1 / 3  # both parts of a delegation after the answer was found: 1 of 3 points

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
