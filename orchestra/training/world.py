"""Decision examples of MiniGAIA: what the expert decides in the states of a task.

    python -m orchestra.training.world --n 2000 --seed 0 --out data/minigaia

writes them. The expert delegates all that the answer needs and that can be found now, and completes
when the answer is found. minigaia/world.py says what a sub-task finds, rewards.py what any other
decision is worth. A main agent that was trained on them is at work with

    orchestra-min "..." --method orchestra/training/world.py:Trained
"""

from __future__ import annotations

import copy
import json
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count, islice
from pathlib import Path
from typing import Any, Literal

from orchestra.command.flags import OneLineParser
from orchestra.command.programs import run_program
from orchestra.kernel.folder import Options
from orchestra.kernel.method import Ask, Method
from orchestra.kernel.prompts import as_messages, say
from orchestra.kernel.vocabulary import Backend, Decision, Evidence, Pool, Reply, State
from orchestra.methods import tools_for
from orchestra.methods.main_agent import nothing_seen, read_decision
from orchestra.methods.orchestra_o1 import OrchestraO1, read_delegation
from orchestra.minigaia.tasks import WORDS, Split
from orchestra.minigaia.world import MODEL, ROUNDS, World, new_world, world_of
from orchestra.training.examples import Example, state_of, state_row, write

Style = Literal["brief", "full"]
BRIEF = "training/brief"
# Of the examples
SHARE: dict[Split, float] = {"train": 0.7, "valid": 0.1, "held_out": 0.2}
POOL = Pool((Backend(MODEL, model="", base_url="http://none"),), main=MODEL)


# ---- the expert ----------------------------------------------------------------------------------


def expert(world: World, style: Style = "brief") -> dict[str, Any]:
    """y*_t as JSON; for the short prompt, without optional keys."""
    if world.answer_found():
        found_by = world.found[world.mini.facts[-1].id]
        return {
            "action": "complete",
            "reasoning": say(WORDS, "why_complete", id=found_by),
            "params": {"answer": world.mini.answer},
        }
    optional = {} if style == "brief" else {"context": "", "model": MODEL}
    failed = {h.instruction: h.id for h in world.history if h.status != "done"}
    tasks = []
    reasons = []
    for fact in world.ready():
        instruction = fact.instruction
        if instruction in failed:
            reasons.append(say(WORDS, "why_again", id=failed[instruction]))
            instruction = say(WORDS, "again", instruction=instruction)
        task = {"task_instruction": instruction, **optional, "tools": [fact.tool]}
        tasks.append(task)
    reasons.append(say(WORDS, "why_delegate", count=len(tasks)))
    return {
        "action": "delegate_task",
        "reasoning": " ".join(reasons),
        "params": {"tasks": tasks},
    }


def decided(decision: Mapping[str, Any], world: World) -> Any:
    """The JSON of the expert as a Decision."""
    return parse_decision(json.dumps(decision), world.state())


def parse_decision(
    text: str, state: State, cut: bool = False, last_chance: bool = False
) -> Decision:
    """y_t as Orchestra-o1 reads a reply, but a task with files cannot be completed before anything
    was seen of it. Raises ModelMistake.
    """
    may_complete = not nothing_seen(state)
    reply = Reply(text, cut=cut)
    return read_decision(read_delegation, reply, state, last_chance, may_complete)


# ---- the prompt ----------------------------------------------------------------------------------


def prompt(state: State, style: Style = "brief") -> tuple[dict[str, str], ...]:
    """s_t in the words of the real main agent, or in the few of prompts/training/brief.md."""
    if style == "full":
        agent = OrchestraO1(POOL, tools_for(state.task), Options())
        return tuple(agent.prompt(state, mistake="", last_chance=False))
    nothing = say(BRIEF, "nothing")
    files = ", ".join(m.name for m in state.task.media)
    found = "\n".join(map(_found_line, state.history))
    user = say(
        BRIEF,
        "user",
        question=state.task.question,
        files=files or nothing,
        found=found or nothing,
        round=state.round,
        rounds=state.rounds,
    )
    return tuple(as_messages(say(BRIEF, "system"), user))


def _found_line(h: Evidence) -> str:
    """An entry of the history, for the short prompt."""
    return say(
        BRIEF,
        "found",
        id=h.id,
        status=h.status,
        instruction=h.instruction,
        outcome=h.answer or h.error,
    )


# ---- a trained main agent ------------------------------------------------------------------------


class Trained(Method):
    """pi_theta(y_t | s_t), Eq. 3, with the adapter that the endpoint serves.

    It was trained on the short prompt, and on replies without a schema. So it gets that prompt and
    no schema here. An unusable reply is not shown to it, since that prompt has no words for it. For
    the same reason, a tool that cannot open the file of its sub-task is no mistake here: the
    sub-task fails, and the next prompt shows that. Its sub-agents read their instruction alone.
    """

    rounds = ROUNDS

    def decide(
        self, state: State, ask: Ask, mistake: str, last_chance: bool
    ) -> Decision:
        """y_t ~ pi_theta(. | s_t). Raises ModelMistake."""
        reply = ask(list(prompt(state)))  # Eq. 3
        unchecked = replace(state, capabilities={})
        return parse_decision(reply.text, unchecked, reply.cut, last_chance)


# ---- the examples --------------------------------------------------------------------------------


def example(world: World, split: Split, number: int, style: Style = "brief") -> Example:
    """The decision of the expert in the state that a task is in."""
    state = world.state()
    meta = {
        "split": split,
        "answer": world.mini.answer,
        "state": state_row(state),
        "entities": list(world.mini.entities),
        "world": copy.deepcopy(world.row()),  # the world goes on
    }
    return Example(
        id=f"{split}-{number:05}-r{state.round}",
        messages=prompt(state, style),
        reference=expert(world, style),
        meta=meta,
    )


def world_at(example: Example) -> World:
    """The world that an example was made in. Raises KeyError, TypeError or ValueError if there is
    none.
    """
    return world_of(example.meta["world"], state_of(example.meta["state"]))


def examples(split: Split, seed: int, style: Style = "brief") -> Iterator[Example]:
    """The decisions of the expert in task after task, without end; the same for the same seed."""
    for n in count():
        rng = random.Random(f"minigaia {seed} {split} {n}")
        world = new_world(rng, split, n)
        while not world.answer_found():
            made = example(world, split, n, style)
            yield made
            world.carry_out(decided(made.reference, world))
        yield example(world, split, n, style)


# ---- the command ---------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Write train.jsonl, valid.jsonl and held_out.jsonl. Returns the exit code."""
    parser = OneLineParser(
        prog="python -m orchestra.training.world",
        description="Decision examples of MiniGAIA.",
    )
    flag = parser.add_argument
    flag("--n", type=int, default=2000, help="decisions, in all three files")
    flag("--seed", type=int, default=0)
    flag("--prompt", choices=("brief", "full"), default="brief")
    flag("--out", type=Path, required=True, metavar="DIR")

    def work() -> None:
        flags = parser.parse_args(arguments)
        if flags.n < 10:
            parser.error(f"--n {flags.n}: too few for three files; give 10 or more")
        for split, share in SHARE.items():
            drawn = examples(split, flags.seed, flags.prompt)
            rows = list(islice(drawn, round(flags.n * share)))
            file = flags.out / f"{split}.jsonl"
            write(file, rows)
            print(f"{file}: {len(rows)} decisions")

    return run_program("training.world", work)


if __name__ == "__main__":
    sys.exit(main())
