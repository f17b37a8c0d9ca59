"""The main agent: what an orchestrator is, and how it calls its model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from orchestra.vocabulary import Decision, Reply, State

ATTEMPTS = 3  # to get a usable decision in one round

Messages = list[dict[str, Any]]
Schema = tuple[str, Mapping[str, Any]]  # its name and the JSON schema of the answer


class Ask(Protocol):
    """One call of the main agent. `schema`: of its reply; `tools`: functions that it may call."""

    def __call__(
        self,
        messages: Messages,
        schema: Schema | None = None,
        logprobs: bool = False,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> Reply: ...


@runtime_checkable
class Orchestrator(Protocol):
    """pi_theta of Eq. 3, one class per paper. `rounds`: how many decisions the paper allows.
    `shares_context`: sub-agents get C_t next to the context written for them.
    """

    rounds: int
    shares_context: bool

    def decide(
        self, state: State, ask: Ask, mistake: str, last_chance: bool
    ) -> Decision:
        """y_t for s_t. `mistake`: the error of the previous reply, for the prompt. `last_chance`:
        no round follows. Raises ModelMistake.
        """
