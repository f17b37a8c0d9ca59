"""The policy of the laboratory as an orchestrator of the program, on real files.

    python -m orchestra.training.lab.serve fixtures/lab/models/da-1 --port 8210
    orchestra-min "..." --method orchestra.training.lab.agent:Trained --backends POOL.toml ...

A decision is one call of the served model: the state in the compact language (language.py), and the
reply in it. So it is recorded as any other call, and a replay needs no model and no torch. Learned
are the order and choice of sub-tasks, what to try again, and when to complete. Not learned are the
parser of the question (questions.py) and the sub-agents (reader.py).

Expert and Demonstrator decide by the rules of demonstrators.py in place of a model, to compare.
Disturbed and DisturbedDemonstrator play with the trouble of the laboratory's games.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

from orchestra.kernel.method import Ask, Method
from orchestra.kernel.vocabulary import (
    Complete,
    Decision,
    Delegate,
    ModelMistake,
    Reply,
    State,
)
from orchestra.minigaia.tasks import MiniTask
from orchestra.minigaia.world import ROUNDS, World
from orchestra.training.lab import reader
from orchestra.training.lab.demonstrators import Planner, imperfect, perfect
from orchestra.training.lab.language import STATUS, UNKNOWN, Game
from orchestra.training.lab.questions import facts_of, with_answers
from orchestra.training.reading import parse_decision

READER = "orchestra.training.lab.reader:run"  # their names in a recorded run
BREAKS_OFF = "orchestra.training.lab.reader:breaks_off"


class Trained(Method):
    """pi_theta(y_t | s_t), Eq. 3, as the laboratory trained it."""

    rounds = ROUNDS
    agents = {READER: reader.run, BREAKS_OFF: reader.breaks_off}
    trouble = False

    def decide(
        self, state: State, ask: Ask, mistake: str, last_chance: bool
    ) -> Decision:
        """y_t. Raises ModelMistake, and ConfigError for a question of an unknown form. The language
        has no words for a mistake, so the model is not told of it.
        """
        game = game_of(state)
        reply = self.reply(game, ask)
        y_t = decision(game, reply, state, last_chance)
        return disturbed(y_t, game, state) if self.trouble else y_t

    def reply(self, game: Game, ask: Ask) -> Reply:
        """The decision in the compact language."""
        return ask([{"role": "user", "content": game.prompt()}])


class Disturbed(Trained):
    """The same with the trouble of the laboratory's games: in every question, the first sub-task
    for one of the facts fails. It may succeed when it is tried again.
    """

    trouble = True


class Expert(Trained):
    """Decides by a rule, without a model: what is missing and can be found, then the answer."""

    planner: Planner = staticmethod(perfect)

    def reply(self, game: Game, ask: Ask) -> Reply:
        return Reply(self.planner(game))


class Demonstrator(Expert):
    """The imperfect demonstrator, in the games in which it has its habits."""

    planner = staticmethod(imperfect)


class DisturbedDemonstrator(Demonstrator):
    """The same with trouble, as Disturbed has it."""

    trouble = True


# ---- the state -----------------------------------------------------------------------------------


def game_of(state: State) -> Game:
    """s_t as the policy reads it: the parsed question, and how its sub-tasks ended. The id of a
    sub-task begins with that of its fact. Raises ConfigError.
    """
    facts = facts_of(state.task)
    answers: dict[str, str] = {}
    for h in state.history:
        if h.answer:
            answers[_fact_id(h.id)] = h.answer
    mini = MiniTask(state.task, tuple(with_answers(facts, answers)), (), group="")
    found = {fact.id: fact.id for fact in facts if fact.id in answers}
    game = Game(World(mini, round=state.round, found=found))
    for h in state.history:
        slot = game.slots.get(_fact_id(h.id))
        if slot is not None:
            game.seen += [slot, STATUS[h.status]]
    return game


def _fact_id(subtask_id: str) -> str:
    return subtask_id.partition("-")[0]


# ---- the decision --------------------------------------------------------------------------------


def decision(game: Game, reply: Reply, state: State, last_chance: bool) -> Decision:
    """The decision that a reply in the compact language stands for. Raises ModelMistake."""
    text = reply.text.strip()
    expanded = game.expand(text)
    if not expanded:
        raise ModelMistake(f"This is not a decision: {text[:80]!r}")
    # A tool that cannot open the file is no mistake here: its sub-task fails, as in the laboratory.
    unchecked = replace(state, capabilities={})
    y_t = parse_decision(expanded, unchecked, reply.cut, last_chance)
    if isinstance(y_t, Complete) and y_t.answer == UNKNOWN:
        raise ModelMistake(f"The value of this slot is not known: {text!r}")
    if isinstance(y_t, Delegate):
        return _for_readers(game, text, y_t)
    return y_t


def _for_readers(game: Game, text: str, y_t: Delegate) -> Delegate:
    """The delegation with the reader as sub-agent, and with the ids of facts."""
    taken: Counter[str] = Counter()
    subtasks = []
    for slot, u in zip(game.meant(text), y_t.subtasks, strict=True):
        id = game.of_slot[slot].id if slot in game.of_slot else "other"
        taken[id] += 1
        again = f"-{taken[id]}" if taken[id] > 1 else ""
        subtasks.append(replace(u, id=f"{id}{again}", agent=READER))
    return replace(y_t, subtasks=tuple(subtasks))


def disturbed(y_t: Decision, game: Game, state: State) -> Decision:
    """The decision, but the first sub-task for the question's unlucky fact breaks off."""
    unlucky = unlucky_fact(game)
    tried = any(_fact_id(h.id) == unlucky for h in state.history)
    if isinstance(y_t, Complete) or tried:
        return y_t
    subtasks = []
    for u in y_t.subtasks:
        agent = BREAKS_OFF if u.id == unlucky else u.agent
        subtasks.append(replace(u, agent=agent))
    return replace(y_t, subtasks=tuple(subtasks))


def unlucky_fact(game: Game) -> str:
    """One fact of a question, drawn with the question as seed."""
    mini = game.world.mini
    return random.Random(mini.task.question).choice([fact.id for fact in mini.facts])
