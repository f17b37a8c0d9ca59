"""y_t, Eq. 3: one decision of the main agent. A mistake is shown to it, and it may try again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from orchestra.vocabulary import (
    BudgetExceeded,
    Decision,
    EndpointError,
    ModelMistake,
    Reply,
    State,
)

ATTEMPTS = 3  # an unusable decision is shown back this often in one round

Messages = list[dict[str, Any]]
Schema = tuple[str, Mapping[str, Any]]  # its name and the JSON schema of the answer


class Ask(Protocol):
    """One call of the main agent. `schema`: of its answer; `tools`: functions that it may call."""

    def __call__(
        self,
        messages: Messages,
        schema: Schema | None = None,
        logprobs: bool = False,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> Reply: ...


class Orchestrator(Protocol):
    """pi_theta of Eq. 3, one class per paper. `rounds`: how many decisions the paper allows.
    `shares_context`: sub-agents get C_t beside the context written for them.
    """

    rounds: int
    shares_context: bool

    def decide(self, state: State, ask: Ask, mistake: str, last_chance: bool) -> Decision:
        """y_t for s_t. `mistake`: what was wrong with the reply before, as the model is told it.
        `last_chance`: only an answer is accepted. Raises ModelMistake.
        """


class Note(Protocol):
    """Records one attempt: its number, its replies, and `decision` or `mistake`."""

    def __call__(self, attempt: int, replies: Sequence[Reply], **outcome: Any) -> None: ...


def decide(
    orchestrator: Orchestrator,
    state: State,
    asking: Callable[[int, list[Reply]], Ask],
    accept: Callable[[Decision], None],
    told: Callable[[ModelMistake], str],
    note: Note,
    last_chance: bool = False,
) -> Decision:
    """y_t, once `accept` has taken it. `asking(attempt, replies)` makes the paid calls of one
    attempt and adds each reply to the list; `told` renders a mistake for the model.

    Raises the last ModelMistake of ATTEMPTS, BudgetExceeded or EndpointError.
    """
    mistake = ""
    for attempt in range(1, ATTEMPTS + 1):
        replies: list[Reply] = []
        try:
            y_t = orchestrator.decide(
                state, asking(attempt, replies), mistake, last_chance
            )  # Eq. 3
            accept(y_t)
        except ModelMistake as error:
            mistake = told(error)
            note(attempt, replies, mistake=mistake)
            if attempt == ATTEMPTS:
                raise
        except (BudgetExceeded, EndpointError) as error:
            if replies:  # Eq. 22 asks twice: the first reply was paid for
                note(attempt, replies, mistake=str(error))
            raise
        else:
            note(attempt, replies, decision=y_t)
            return y_t
    raise AssertionError("not reached")
