"""MiniGAIA: omnimodal tasks whose graph and answer are known, and an expert's decisions on them.

    python -m training.minigaia --n 2000 --seed 0 --out data/minigaia

The expert delegates whatever can be done now, in parallel: a sub-task for each file and page that
nobody has read, then the searches and the calculation that what was found allows; what did not
succeed, again; and it completes once the answer is there. No model runs: what sub-agents report is
drawn with the task, trouble included. Every round of a task is an example. `held_out` has templates
and names that `train` does not have; `valid` has the templates of `train` with other names.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, islice
from pathlib import Path
from typing import Any, Literal

from orchestra.memory import compress, tokens
from orchestra.vocabulary import Backend, ConfigError, Evidence, Price, State, Status
from orchestrators.orchestra_o1 import render_state
from orchestrators.state_prompt import model_lines
from runtime.prompts import WORDING, say
from tools import tools_for
from training.examples import Example, state_row, write
from training.templates import TEMPLATES, Fact, MiniTask, Split, draw

Style = Literal["brief", "full"]
PART: dict[Split, float] = {"train": 0.7, "valid": 0.1, "held_out": 0.2}  # of the examples
ROUNDS = 10
P_TROUBLE = 0.35  # that one sub-task of a task does not succeed at first
TROUBLE: dict[Status, str] = {
    "failed": "trouble_slow",
    "blocked": "trouble_tool",
    "partial": "trouble_part",
}
BACKENDS = (  # of the full prompt; no one is asked
    Backend(
        "small", "", "", skills={"txt": 0.5, "img": 0.5, "aud": 0.5},
        price_usd_per_mtok=Price(0.1, 0.4),
    ),
    Backend(
        "large", "", "", skills={"txt": 0.9, "img": 0.9, "aud": 0.9, "vid": 0.8},
        price_usd_per_mtok=Price(2, 8),
    ),
)  # fmt: skip


# ---- the expert ----------------------------------------------------------------------------------


@dataclass
class Play:
    """A task as it is played. `found`: fact -> the sub-task that found it; `tried`: fact -> the one
    that did not.
    """

    mini: MiniTask
    rng: random.Random
    history: list[Evidence] = field(default_factory=list)
    found: dict[str, str] = field(default_factory=dict)
    tried: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        able = [f.id for f in self.mini.facts if f.needs or f.value in self._used()]
        self.unlucky = self.rng.choice(able) if self.rng.random() < P_TROUBLE else ""
        self.status = self.rng.choice(list(TROUBLE))

    def _used(self) -> set[str]:
        """The values that the answer comes from: trouble with what only distracts tells nothing."""
        facts = {f.id: f for f in self.mini.facts}
        needed = {need for f in facts.values() for need in f.needs} | {self.mini.facts[-1].id}
        return {facts[id].value for id in needed}

    def state(self, round: int) -> State:
        task = self.mini.task
        context = compress(task.question, self.history, WORDING) if self.history else ""
        may_name = tuple(b.name for b in BACKENDS), tuple(tools_for(task))
        return State(task, context, tuple(self.history), *may_name, round, ROUNDS)

    def can_run(self) -> list[Fact]:
        """The ready set of the task's graph: what is not found and needs nothing that is not."""
        open_ = [f for f in self.mini.facts if f.id not in self.found]
        return [f for f in open_ if self.found.keys() >= set(f.needs)]

    def instruction(self, fact: Fact) -> str:
        if fact.id in self.tried:
            return say("training/minigaia", "again", instruction=fact.instruction)
        return fact.instruction

    def carry_out(self, round: int, facts: Sequence[Fact]) -> None:
        """What the sub-agents report; the unlucky one does not succeed the first time."""
        for fact in facts:
            id, asked = f"t{len(self.history) + 1}", self.instruction(fact)
            executor = BACKENDS[0].name, (fact.tool,)
            seen = (fact.file,) if fact.file else ()
            done = Evidence(round, id, asked, *executor, "done", fact.report, "", media=seen)
            if fact.id == self.unlucky and fact.id not in self.tried:
                self.tried[fact.id] = id
                error = say("training/minigaia", TROUBLE[self.status])
                done = replace(done, status=self.status, answer="", error=error, media=())
            else:
                self.found[fact.id] = id
            self.history.append(done)


def decisions(mini: MiniTask, rng: random.Random) -> Iterator[tuple[State, list[Fact], Play]]:
    """s_t of each round with what the expert delegates in it: nothing in the last, it completes."""
    play = Play(mini, rng)
    for round in count(1):
        facts = [] if mini.facts[-1].id in play.found else play.can_run()
        yield play.state(round), facts, play
        if not facts:
            return
        play.carry_out(round, facts)


def reference(facts: Sequence[Fact], play: Play, style: Style) -> dict[str, Any]:
    """y*_t as JSON. The short prompt asks for no key that may be absent."""
    if not facts:
        why = say("training/minigaia", "why_complete", id=play.found[play.mini.facts[-1].id])
        return {"action": "complete", "reasoning": why, "params": {"answer": play.mini.answer}}
    rest = {} if style == "brief" else {"context": "", "model": "auto"}
    rows = [{"task_instruction": play.instruction(f), **rest, "tools": [f.tool]} for f in facts]
    return {"action": "delegate_task", "reasoning": _why(facts, play), "params": {"tasks": rows}}


def _why(facts: Sequence[Fact], play: Play) -> str:
    new = Counter(f.kind for f in facts if f.id not in play.tried)
    tried = [play.tried[f.id] for f in facts if f.id in play.tried]
    again = [say("training/minigaia", "why_again", id=id) for id in tried]
    said = [say("training/minigaia", f"why_{kind}", count=n) for kind, n in new.items()]
    return " ".join([*again, *said])


# ---- what the main agent reads -------------------------------------------------------------------


def prompt(state: State, style: Style) -> tuple[dict[str, str], ...]:
    """s_t in the words of the real main agent, or in the few of prompts/training/brief.md."""
    if style == "full":
        manuals = "\n\n".join(t.manual for t in tools_for(state.task).values())
        return tuple(render_state(state, model_lines(BACKENDS), manuals))
    found = [
        say("training/brief", "found", id=h.id, status=h.status, instruction=h.instruction,
            outcome=h.answer or h.error)
        for h in state.history
    ]  # fmt: skip
    user = say(
        "training/brief",
        "user",
        question=state.task.question,
        files=", ".join(m.name for m in state.task.media) or say("training/brief", "nothing"),
        found="\n".join(found) or say("training/brief", "nothing"),
        round=state.round,
        rounds=state.rounds,
    )
    system = {"role": "system", "content": say("training/brief", "system")}
    return system, {"role": "user", "content": user}


def examples(split: Split, seed: int, style: Style) -> Iterator[Example]:
    """The examples of a split, without end; the same for the same seed on every machine."""
    templates = [t for t in TEMPLATES if t.seen == (split != "held_out")]
    for n in count():
        rng = random.Random(f"minigaia {seed} {split} {n}")
        mini = draw(templates[n % len(templates)], rng, split)
        for state, facts, play in decisions(mini, rng):
            kinds = {"again" if f.id in play.tried else f.kind for f in facts} or {"complete"}
            meta = {
                "level": mini.template.level,
                "template": mini.template.name,
                "split": split,
                "kind": "+".join(sorted(kinds)),
                "answer": mini.answer,
                "entities": list(mini.entities),
                "evidence": [list(f.evidence) for f in facts],
                "state": state_row(state),
            }
            id = f"{split}-{n:05}-r{state.round}"
            yield Example(id, prompt(state, style), reference(facts, play, style), meta)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write train.jsonl, valid.jsonl and held_out.jsonl. Returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m training.minigaia",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--n", type=int, default=2000, help="decisions, in all three files")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--prompt", choices=("brief", "full"), default="brief")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    a = parser.parse_args(arguments)
    try:
        if a.n < 10:
            raise ConfigError(f"--n {a.n}: is too few for three files; give 10 or more")
        for split, part in PART.items():
            rows = list(islice(examples(split, a.seed, a.prompt), round(a.n * part)))
            write(a.out / f"{split}.jsonl", rows)
            print(_summary(split, rows))
    except ConfigError as error:
        print(f"training.minigaia: {error}", file=sys.stderr)
        return 2
    return 0


def _summary(split: Split, rows: Sequence[Example]) -> str:
    kinds = Counter(e.meta["kind"] for e in rows)
    listed = ", ".join(f"{kind} {n}" for kind, n in kinds.most_common())
    longest = max(tokens("".join(m["content"] for m in e.messages)) for e in rows)
    answer = max(tokens(json.dumps(e.reference)) for e in rows)
    sizes = f"the longest prompt about {longest} tokens, decision {answer}"
    return f"{split}: {len(rows)} decisions ({listed}); {sizes}"


if __name__ == "__main__":
    sys.exit(main())
