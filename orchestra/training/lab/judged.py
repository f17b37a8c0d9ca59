"""Decisions for a reader to judge: drawn from players of all qualities, told in words, and kept
with the reader's scores in a file.

A row of the file has where its decision was made (a task and the decisions before it), so the rules
score the same decision, and the text that the reader saw, so that a changed world is noticed.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from orchestra.contracts import adapter
from orchestra.minigaia.world import World
from orchestra.runtime.jsonl import read as read_lines
from orchestra.runtime.run_folder import write_whole
from orchestra.seams import Completion
from orchestra.training.examples import Example
from orchestra.training.lab.demonstrators import PLAYERS, NewPlanner
from orchestra.training.lab.language import Game
from orchestra.training.lab.play import carry_out
from orchestra.training.lab.slips import slips
from orchestra.training.lab.tasks import new_task
from orchestra.training.reading import read_decision
from orchestra.training.world import example, expert
from orchestra.vocabulary import ConfigError

DRAWN: Mapping[str, tuple[NewPlanner, int]] = {  # who decides, and how many decisions
    "expert": (PLAYERS["expert"], 15),
    "demonstrator": (PLAYERS["demonstrator"], 35),
    "random": (PLAYERS["random"], 50),
    "rule_reads_all": (PLAYERS["rule_reads_all"], 10),
    "rule_last_step": (PLAYERS["rule_last_step"], 10),
    "slips": (slips, 80),
}
Levels = tuple[int, int, int, int]  # format, action: 0 or 1; tool, decision: 0 to 3


@dataclass(frozen=True)
class Judged:
    """A decision in the compact language, and its scores by the words of each rule: none before it
    was read. `text` is what the reader saw.
    """

    number: int
    task: int
    before: tuple[str, ...]
    decision: str
    text: str
    scores: Mapping[str, Levels]

    def game(self) -> Game:
        """The state that the decision was made in."""
        game = Game(task(self.task))
        for earlier in self.before:
            carry_out(game, earlier)
        return game

    def example(self) -> Example:
        """This state with the expert's decision, as rewards and judges know states."""
        return example(self.game().world, "valid", self.task)

    def completion(self) -> Completion:
        """The decision as JSON; a text outside of the language as it is."""
        return Completion(self.game().expand(self.decision) or self.decision)


def task(number: int) -> World:
    """A task that no arm trains on, plays or is validated with."""
    return new_task(random.Random(f"lab judged {number}"), held_out=False)


# ---- drawing -------------------------------------------------------------------------------------


def drawn() -> list[Judged]:
    """200 decisions, one of a task each, in an order that does not tell who decided."""
    rows = list(_of_all_players())
    random.Random("lab judged").shuffle(rows)
    return [replace(row, number=n) for n, row in enumerate(rows, 1)]


def _of_all_players() -> Iterator[Judged]:
    number = 0
    for new, count in DRAWN.values():
        for _ in range(count):
            number += 1
            yield _one_of(number, new)


def _one_of(number: int, new: NewPlanner) -> Judged:
    """One decision of a game, any of them."""
    rng = random.Random(f"lab judged player {number}")
    planner = new(rng)
    game = Game(task(number))
    decisions: list[str] = []
    texts: list[str] = []
    end = None
    while end is None:
        decisions.append(planner(game))
        texts.append(told(game, decisions[-1]))
        end = carry_out(game, decisions[-1])
    k = rng.randrange(len(decisions))
    return Judged(0, number, tuple(decisions[:k]), decisions[k], texts[k], scores={})


# ---- in words ------------------------------------------------------------------------------------


def told(game: Game, decision: str) -> str:
    """A decision and its state in words: what the reader sees. No rule has a part in it."""
    world = game.world
    lines = [
        f"Question: {world.mini.task.question}",
        f"Right answer: {world.mini.answer}",
    ]
    for h in world.history:
        tools = ", ".join(h.tools)
        report = f"{h.status}: {h.answer or h.error}"
        lines.append(f"Round {h.round}: {h.instruction} [{tools}] {report}")
    lines.append(f"Expert: {_in_words(expert(world))}")
    lines.append(f"To judge, in round {world.round}: {_to_judge(game, decision)}")
    return "\n".join(lines)


def _to_judge(game: Game, decision: str) -> str:
    """A decision, and as for the judge, whether the program could use it."""
    text = game.expand(decision)
    if not text:
        return f"not a decision: {decision}"
    words = _in_words(json.loads(text))
    if read_decision(text, game.world.state()).decision is None:
        return f"{words} (the program could not use it)"
    return words


def _in_words(decision: Mapping[str, Any]) -> str:
    params = decision["params"]
    if decision["action"] == "complete":
        return f"complete with {params['answer']!r}"
    parts = []
    for n, subtask in enumerate(params["tasks"], 1):
        tools = ", ".join(subtask["tools"])
        parts.append(f"({n}) {subtask['task_instruction']} [{tools}]")
    return "delegate " + " ".join(parts)


# ---- the file ------------------------------------------------------------------------------------


def write(file: Path, rows: Sequence[Judged]) -> None:
    """Write the rows, one a line."""
    lines = [json.dumps(asdict(row), ensure_ascii=False) + "\n" for row in rows]
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, "".join(lines))


def read(file: Path) -> list[Judged]:
    """The rows of a file. Raises ConfigError for one that is not a row, or whose text is no longer
    what its decision and state say.
    """
    rows = []
    for number, line in enumerate(read_lines(file), 1):
        try:
            row = adapter(Judged).validate_python(line)
        except ValueError:
            raise ConfigError(f"{file}, line {number}: is not a decision") from None
        if told(row.game(), row.decision) != row.text:
            why = "the world has changed since it was read; draw and read again"
            raise ConfigError(f"{file}, line {number}: {why}")
        rows.append(row)
    return rows
