"""Decision examples of MiniGAIA: what the expert decides in the states of a task.

    python -m benchmarks.minigaia.examples --n 2000 --seed 0 --out data/minigaia

writes them. The expert delegates all that the answer needs and that can be found now, and completes
when the answer is found. world.py says what a sub-task finds, reward.py what any other
decision is worth. The prompts are those of Orchestra-o1, so a model that was trained on them is at
work as its main agent.
"""

from __future__ import annotations

import copy
import json
import random
import sys
from collections.abc import Iterator, Sequence
from itertools import count, islice
from pathlib import Path
from typing import Any

from benchmarks.minigaia.tasks import WORDS, Split
from benchmarks.minigaia.world import MODEL, World, new_world, world_of
from orchestra.command.flags import OneLineParser
from orchestra.command.programs import run_program
from orchestra.kernel.folder import Options
from orchestra.kernel.prompts import say
from orchestra.kernel.vocabulary import Backend, ConfigError, Pool
from orchestra.methods import tools_for
from orchestra.methods.orchestra_o1 import OrchestraO1
from orchestra.training.examples import Example, state_of, state_row, write
from orchestra.training.rewards import parse_decision

SHARE: dict[Split, float] = {"train": 0.7, "valid": 0.1, "held_out": 0.2}
POOL = Pool((Backend(MODEL, model="", base_url="http://none"),), main=MODEL)


# ---- the expert ----------------------------------------------------------------------------------


def expert(world: World) -> dict[str, Any]:
    """y*_t as JSON."""
    if world.answer_found():
        found_by = world.found[world.mini.facts[-1].id]
        return {
            "action": "complete",
            "reasoning": say(WORDS, "why_complete", id=found_by),
            "params": {"answer": world.mini.answer},
        }
    failed = {h.instruction: h.id for h in world.history if h.status != "done"}
    tasks = []
    reasons = []
    for fact in world.ready():
        instruction = fact.instruction
        if instruction in failed:
            reasons.append(say(WORDS, "why_again", id=failed[instruction]))
            instruction = say(WORDS, "again", instruction=instruction)
        task = {"task_instruction": instruction, "context": "", "model": MODEL}
        tasks.append({**task, "tools": [fact.tool]})
    reasons.append(say(WORDS, "why_delegate", count=len(tasks)))
    return {
        "action": "delegate_task",
        "reasoning": " ".join(reasons),
        "params": {"tasks": tasks},
    }


# ---- the examples --------------------------------------------------------------------------------


def example(world: World, split: Split, number: int) -> Example:
    """The decision of the expert in the state that a task is in."""
    state = world.state()
    agent = OrchestraO1(POOL, tools_for(state.task), Options())
    meta = {
        "split": split,
        "answer": world.mini.answer,
        "state": state_row(state),
        "entities": list(world.mini.entities),
        "world": copy.deepcopy(world.row()),  # the world goes on
    }
    return Example(
        id=f"{split}-{number:05}-r{state.round}",
        messages=agent.prompt(state, mistake="", last_chance=False),
        reference=expert(world),
        meta=meta,
    )


def world_at(example: Example) -> World:
    """The world that an example was made in. Raises ConfigError if there is none."""
    try:
        return world_of(example.meta["world"], state_of(example.meta["state"]))
    except (KeyError, TypeError, ValueError):
        raise ConfigError(f"example {example.id} is not one of MiniGAIA") from None


def examples(split: Split, seed: int) -> Iterator[Example]:
    """The decisions of the expert in task after task, without end; the same for the same seed."""
    for n in count():
        rng = random.Random(f"minigaia {seed} {split} {n}")
        world = new_world(rng, split, n)
        while not world.answer_found():
            made = example(world, split, n)
            yield made
            reply = json.dumps(made.reference)
            delegation: Any = parse_decision(reply, world.state())
            world.carry_out(delegation)
        yield example(world, split, n)


# ---- the command ---------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Write train.jsonl, valid.jsonl and held_out.jsonl. Returns the exit code."""
    parser = OneLineParser(
        prog="python -m benchmarks.minigaia.examples",
        description="Decision examples of MiniGAIA.",
    )
    flag = parser.add_argument
    flag("--n", type=int, default=2000, help="decisions, in all three files")
    flag("--seed", type=int, default=0)
    flag("--out", type=Path, required=True, metavar="DIR")

    def work() -> None:
        flags = parser.parse_args(arguments)
        for split, share in SHARE.items():
            drawn = examples(split, flags.seed)
            rows = list(islice(drawn, round(flags.n * share)))
            file = flags.out / f"{split}.jsonl"
            write(file, rows)
            print(f"{file}: {len(rows)} decisions")

    return run_program("benchmarks.minigaia.examples", work)


if __name__ == "__main__":
    sys.exit(main())
