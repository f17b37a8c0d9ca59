"""y_t, Eq. 3: the main agent asked, its mistakes told back to it, its calls paid and on record."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, Protocol

from orchestra import trajectory
from orchestra.backends import Chat, Message, Schema
from orchestra.money import Ledger, Purse, add_usd
from orchestra.pool import Pool
from orchestra.replies import Reply
from orchestra.trajectory import Recorder
from orchestra.vocabulary import BudgetExceeded, Decision, EndpointError, ModelMistake, State

ATTEMPTS = 3  # a decision that can not be used is told back this often in one round


class Ask(Protocol):
    """One call of the main agent: a schema of the answer, or functions that it may call."""

    def __call__(
        self,
        messages: list[Message],
        schema: Schema | None = None,
        logprobs: bool = False,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> Reply: ...


class Orchestrator(Protocol):
    """pi_theta of Eq. 3. `rounds` is how many decisions the paper's main agent has."""

    rounds: int
    shares_context: bool  # whether sub-agents get C_t beside the context written for them

    def decide(
        self, state: State, ask: Ask, mistake: str = "", last_chance: bool = False
    ) -> Decision:
        """y_t for s_t, by way of `ask`, one call of the main agent.

        `mistake`: what was wrong with the reply before. `last_chance`: only an answer will do.
        Raises ModelMistake for a reply that is no decision.
        """


class MainAgent:
    """The orchestrator of a run at work, on the run's tape and money."""

    def __init__(
        self, orchestrator: Orchestrator, pool: Pool, chat: Chat, ledger: Ledger, recorder: Recorder
    ) -> None:
        self.orchestrator, self.chat, self.ledger = orchestrator, chat, ledger
        self.backend, self.recorder = pool[pool.main], recorder

    def decide(
        self, state: State, use: Callable[[Decision], None], last_chance: bool = False
    ) -> Decision:
        """y_t, once `use` has taken it; a mistake, of the reply or met in its use, is told back.

        Raises the last one of ATTEMPTS, BudgetExceeded or EndpointError.
        """
        mistake = ""
        for attempt in range(1, ATTEMPTS + 1):
            replies: list[Reply] = []
            note = partial(self._note, state, attempt, replies, time.monotonic())
            try:
                with self.chat.tape.logical_call(f"r{state.round}", "main", f"a{attempt}"):
                    ask = partial(self._ask, replies)
                    decision = self.orchestrator.decide(state, ask, mistake, last_chance)  # Eq. 3
                use(decision)
            except ModelMistake as error:
                mistake = str(error)
                note(mistake=mistake)
            except (BudgetExceeded, EndpointError) as error:
                if replies:  # Eq. 22: one was paid for, and the second ask failed
                    note(mistake=str(error))
                raise
            else:
                note(decision=trajectory.decision_content(decision))
                return decision
        raise ModelMistake(mistake)

    def _ask(
        self,
        replies: list[Reply],
        messages: list[Message],
        schema: Schema | None = None,
        logprobs: bool = False,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> Reply:
        """One call, paid from B_t."""
        purse = Purse(self.ledger.budget_usd)
        replies.append(self.chat(self.backend, messages, purse, schema, logprobs, tools))
        self.ledger.book(purse)
        return replies[-1]

    def _note(
        self, state: State, attempt: int, replies: list[Reply], started: float, **outcome: Any
    ) -> None:
        """One attempt in the trajectory: s_t, the reply, the decision or the mistake."""
        self.recorder.emit(
            "decision",
            (state.round, 0, attempt),
            {"latency_s": time.monotonic() - started},
            state={k: v for k, v in asdict(state).items() if k != "task"},
            reply=replies[-1].text if replies else "",
            cost_usd=add_usd(*(r.cost_usd for r in replies)),
            **outcome,
        )
