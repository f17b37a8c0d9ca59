"""A main agent that was trained on MiniGAIA, at work.

    orchestra-min "..." --method orchestra/training/agent.py:Trained

It was trained on the short prompt of world.py, and on replies without a schema. So it gets that
prompt and no schema here. An unusable reply is not shown to it, since that prompt has no words for
it. For the same reason, a tool that cannot open the file of its sub-task is no mistake here: the
sub-task fails, and the next prompt shows that. Its sub-agents read their instruction alone.
"""

from __future__ import annotations

from dataclasses import replace

from orchestra.kernel.method import Ask, Method
from orchestra.kernel.vocabulary import Decision, State
from orchestra.minigaia.world import ROUNDS
from orchestra.training.reading import parse_decision
from orchestra.training.world import prompt


class Trained(Method):
    """pi_theta(y_t | s_t), Eq. 3, with the adapter that the endpoint serves."""

    rounds = ROUNDS

    def decide(
        self, state: State, ask: Ask, mistake: str, last_chance: bool
    ) -> Decision:
        """y_t ~ pi_theta(. | s_t). Raises ModelMistake."""
        reply = ask(list(prompt(state)))  # Eq. 3
        unchecked = replace(state, capabilities={})
        return parse_decision(reply.text, unchecked, reply.cut, last_chance)
