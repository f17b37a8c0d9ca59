"""A method is one paper's way to run the loop: who decides, which sub-tasks run now, where and for
what, and what is remembered. Only `decide` must be written; the rest is Orchestra-o1's.

    class Mine(Method):
        def decide(self, state, ask, mistake, last_chance):
            return Complete(ask(as_messages("Answer.", state.task.question)).text)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from orchestra.kernel import memory, placing
from orchestra.kernel.folder import Options
from orchestra.kernel.job import Agent
from orchestra.kernel.tool import Tool
from orchestra.kernel.vocabulary import (
    Backend,
    ConfigError,
    Decision,
    Evidence,
    Pool,
    Reply,
    Result,
    State,
    SubTask,
    Task,
)

# (messages, schema=None, logprobs=False, tools=(), temperature=None) -> Reply: a call of the main
# agent's model, as in Chat. `schema` is a pair: (name, JSON schema).
Ask = Callable[..., Reply]


class Method:
    """`rounds`: how many decisions the paper allows. `context_tokens`: L_ctx of Eq. 20. `agents`:
    its sub-agents by name, besides the shipped ones or in place of them. `options`: its own
    options, each with a function that returns the value meant, or raises ValueError.

    A method must depend on its arguments alone: a replay calls it again.
    """

    rounds = 10
    context_tokens = 6000
    agents: Mapping[str, Agent] = {}
    options: Mapping[str, Callable[[Any], Any]] = {}

    def __init__(self, pool: Pool, tools: Mapping[str, Tool], options: Options) -> None:
        """Raises ConfigError for a value that one of its own options cannot have."""
        self.own: dict[str, Any] = {}
        for name, read in self.options.items():
            value = options.more.get(name)
            if value is not None:
                try:
                    self.own[name] = read(value)
                except ValueError as error:
                    raise ConfigError(f"option {name}: {error}") from None

    def accept(self, task: Task) -> None:
        """Raises ConfigError for a task that this method cannot do, before anything is paid."""

    def decide(
        self, state: State, ask: Ask, mistake: str, last_chance: bool
    ) -> Decision:
        """y_t for s_t, Eq. 3. `mistake`: the error of the reply before, for the prompt.
        `last_chance`: no round follows. Raises ModelMistake.
        """
        raise NotImplementedError(f"{type(self).__name__} has no decide")

    def also_read(self, task: Task, context: str) -> list[str]:
        """What each sub-agent reads after the context written for it. `context` is C_t."""
        return []

    def place(
        self,
        candidates: Sequence[SubTask],
        task: Task,
        pool: Sequence[Backend],
        tools: placing.Capabilities,
        k_max: int | None,
        budget_usd: float | None,
    ) -> list[placing.Placed]:
        """U_t, Eq. 5-12. `k_max` None: all candidates. Raises BudgetExceeded."""
        return placing.place(candidates, task, pool, tools, k_max, budget_usd)

    def remember(
        self, history: tuple[Evidence, ...], u: SubTask, z: Result
    ) -> tuple[Evidence, ...]:
        """H_{t+1} after one more result, Eq. 19."""
        return (*history, memory.summarize(u, z))

    def context(self, question: str, history: Sequence[Evidence], limit: int) -> str:
        """C_{t+1}, of at most `limit` tokens, Eq. 20."""
        return memory.compress(question, history, limit)


# ---- functions for Method.options: each reads the text or the JSON value of an option ------------


def share(value: Any) -> float:
    """A number from 0 to 1. Raises ValueError."""
    number = float(value) if isinstance(value, str | int | float) else -1.0
    if not 0 <= number <= 1:
        raise ValueError(f"{value!r} is not a number from 0 to 1")
    return number


def one_of_these(*names: str) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        if value not in names:
            raise ValueError(f"{value!r}: one of {', '.join(names)}")
        return str(value)

    return read
