"""A main agent that was trained on MiniGAIA, at work.

    orchestra-min "..." --method orchestra/training/agent.py:Trained

It was trained on the short prompt of world.py, and on replies without a schema. So it gets that
prompt and no schema here. An unusable reply is not shown to it, since that prompt has no words for
it. For the same reason, a tool that cannot open the file of its sub-task is no mistake here: the
sub-task fails, and the next prompt shows that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from orchestra.methods.orchestra_o1 import parse_decision
from orchestra.minigaia.world import ROUNDS
from orchestra.runtime.options import Options
from orchestra.runtime.pool import Pool
from orchestra.seams import Ask
from orchestra.toolkit import Tool
from orchestra.training.world import prompt
from orchestra.vocabulary import Decision, State


class Trained:
    """pi_theta(y_t | s_t), Eq. 3, with the adapter that the endpoint serves."""

    rounds = ROUNDS
    shares_context = False  # the world's sub-agents read their instruction alone

    def __init__(self, pool: Pool, tools: Mapping[str, Tool], options: Options) -> None:
        """The prompt mentions none of them."""

    def decide(
        self, state: State, ask: Ask, mistake: str, last_chance: bool
    ) -> Decision:
        """y_t ~ pi_theta(. | s_t). Raises ModelMistake."""
        reply = ask(list(prompt(state)))  # Eq. 3
        unchecked = replace(state, capabilities={})
        return parse_decision(reply.text, unchecked, reply.cut, last_chance)
