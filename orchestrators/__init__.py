"""One file per paper: each is `decide(state, ask, ...) -> Decision`; everything else is shared."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from orchestra.backends import Message, Reply
from orchestra.pool import Pool
from orchestra.run_folder import Options
from orchestra.vocabulary import Decision, State
from tools import Tool

Ask = Callable[
    [list[Message], tuple[str, Mapping[str, Any]], bool], Reply
]  # (messages, (name, schema), logprobs)


class Orchestrator(Protocol):
    """pi_theta of Eq. 3."""

    shares_context: bool  # whether sub-agents get C_t beside the context written for them

    def decide(
        self, state: State, ask: Ask, mistake: str = "", last_chance: bool = False
    ) -> Decision:
        """y_t for s_t, by way of `ask`, one call of the main agent.

        `mistake`: what was wrong with the reply before. `last_chance`: only an answer will do.
        Raises ModelMistake for a reply that is no decision.
        """


def make(options: Options, pool: Pool, tools: Mapping[str, Tool]) -> Orchestrator:
    """The orchestrator of a --method."""
    from orchestrators.orchestra_o1 import OrchestraO1

    methods = {"orchestra-o1": OrchestraO1}
    return methods[options.method](pool.backends, tools, options.stop_threshold)
