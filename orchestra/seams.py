"""The seams: one Protocol for each idea that a fork can swap while it keeps the rest.

    seam           what it decides                             flag          the paper's
    Orchestrator   the next decision                           --method      Eq. 3
    SubAgent       how one sub-task is done                    --agent       Eq. 13
    Memory         what is kept, and what the next prompt has  --memory      Eq. 19-20
    Scheduler      which sub-tasks run now, where, for what    --scheduler   Eq. 5-12
    Reward         how good a sampled decision is              --reward      Eq. 29 (training)

A tool is a typed function (toolkit.py). Each flag takes FILE.py:NAME or package.module:NAME. NAME
is a class with the methods below; for a seam with one method it may also be a function. An instance
is made once a run, without arguments; only an orchestrator gets (pool, tools, options), and a
reward each --reward-setting NAME=VALUE as a keyword argument.
CONTRIBUTING.md has a working example of each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from orchestra.matching import Placed
from orchestra.vocabulary import (
    Backend,
    Decision,
    Evidence,
    Reply,
    Result,
    State,
    Status,
    Step,
    SubTask,
    Task,
)

Messages = list[dict[str, Any]]  # of a chat: role and content
Schema = tuple[str, Mapping[str, Any]]  # its name and the JSON schema of the answer


# ---- the main agent ------------------------------------------------------------------------------


class Ask(Protocol):
    """One call of the main agent's model, recorded and paid from the budget.

    `schema` is that of its reply, `tools` are functions that it may call.
    """

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
        """y_t for s_t. `mistake`: the error of the previous reply, for the prompt; `state.refused`
        has the actions that should not be offered again. `last_chance`: no round follows. Raises
        ModelMistake.
        """


# ---- sub-agents ----------------------------------------------------------------------------------


class ToolDescription(Protocol):
    """A tool as a sub-agent sees it: toolkit.py. `job.use` calls it."""

    @property
    def name(self) -> str: ...

    @property
    def manual(self) -> str:
        """What a model reads of it: name, purpose and parameters."""

    @property
    def inputs(self) -> Mapping[str, Any]:
        """The JSON schema of its parameters."""


class Job(Protocol):
    """One sub-task u as its sub-agent sees it: agents/job.py. A sub-agent reaches models and tools
    through it alone, so everything is recorded, paid for and shown.

    `u` has the instruction, the context (what earlier sub-tasks found) and, in `u.tools`, the names
    of the tools that were assigned to it. Each call of `ask` and `use` adds a step to `trace`, so
    trace[-1].observation is the newest reply or observation, and trace[-1].failed says whether it
    is an error.

    Set `answer` as soon as there is one. If a later call raises, and the sub-agent does not catch
    it, that answer is reported as partial. Without an answer, a summary of the trace is. If no step
    has shown anything, the sub-task has failed.
    """

    u: SubTask
    steps: int  # --steps: the most that a sub-agent should take; calls beyond it are not refused
    trace: list[Step]  # the steps so far
    answer: str  # the answer so far; "" without one
    cut: bool  # the newest reply of `ask` hit its length limit

    @property
    def task(self) -> Task:
        """x = (q, M): the whole question and the files."""

    @property
    def assigned(self) -> Sequence[ToolDescription]:
        """The tools of `u.tools`, described for a prompt."""

    @property
    def tools(self) -> Mapping[str, ToolDescription]:
        """All tools of the run by name. `use` may call each, also one that is not assigned."""

    def ask(self, what: str, prompt: str, later: int = 0) -> str:
        """The reply of the sub-task's model to one message. `what` names the step.

        Call it from the thread of `run` alone: `ask_all` makes parallel calls. `later` is the
        number of calls that follow. Under --budget, their part of what is left is
        kept for them; with 0, this call may spend all of it. Raises EndpointError or
        BudgetExceeded.
        """

    def ask_all(
        self, prompts: Sequence[tuple[str, str]], later: int = 0
    ) -> list[Reply | None]:
        """Parallel calls, each (what, prompt); the replies in the same order, None for a failed
        call. Two or more are sampled at temperature 0.5. Raises the first failure if all failed.
        """

    def use(self, name: str, /, **params: Any) -> str:
        """The observation of a tool. A failure does not raise: its message is the observation, and
        trace[-1].failed is True. A missing tool and wrong parameters are such failures, too.
        """

    def result(
        self, status: Status, answer: str, summary: str, error: str = ""
    ) -> Result:
        """z of Eq. 14, with what the calls have cost and with the trace of this job.

        Status "done" and "partial" let the sub-tasks that need this one start; "blocked" and
        "failed" do not. `summary` is what the main agent reads besides the answer, and `error` the
        reason for any status but "done".
        """


@runtime_checkable
class SubAgent(Protocol):
    """zeta of Eq. 13: does one sub-task. Called in a thread of its own.

    An EndpointError, BudgetExceeded, ModelMistake or ToolError that `run` raises ends this sub-task
    alone, with the reason. Any other exception is a bug, and ends the run with its traceback.
    """

    def run(self, job: Job) -> Result: ...


# ---- memory --------------------------------------------------------------------------------------


@runtime_checkable
class Memory(Protocol):
    """H_t and C_t. Must depend on its arguments alone: a replay calls it again."""

    def remember(
        self, history: tuple[Evidence, ...], subtask: SubTask, result: Result
    ) -> tuple[Evidence, ...]:
        """H_{t+1} of Eq. 19, after one more result."""

    def context(self, question: str, history: tuple[Evidence, ...], limit: int) -> str:
        """C_{t+1} of Eq. 20: what prompts say of the history, in at most `limit` tokens."""


# ---- the scheduler -------------------------------------------------------------------------------


@runtime_checkable
class Scheduler(Protocol):
    """Eq. 5-12: chooses a batch, and the backend, the tools and the share of each sub-task. Must
    depend on its arguments alone.
    """

    def place(
        self,
        candidates: Sequence[SubTask],
        task: Task,
        pool: Sequence[Backend],
        tools: Mapping[str, frozenset[str]],
        k_max: int | None,
        budget_usd: float | None,
    ) -> Sequence[Placed]:
        """U_t: at least one of the ready sub-tasks. `tools` are the capabilities psi(g) by tool.
        `k_max` None: all candidates, since they are a whole graph. `budget_usd` None: no limit.

        Raises BudgetExceeded if no candidate is affordable.
        """


# ---- the reward ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Completion:
    """A sampled decision as text. `cut`: it stopped at its length limit."""

    text: str
    cut: bool = False


@dataclass(frozen=True)
class Scores:
    """The reward of one completion and its parts, which the metrics show. Those that the program
    ships are in [0, 1]. `valid`: the program could carry the decision out.
    """

    total: float
    parts: Mapping[str, float]
    valid: bool


@runtime_checkable
class Reward(Protocol):
    """R of Eq. 29, for a group of completions in one state."""

    def score(
        self, example: Any, completions: Sequence[Completion]
    ) -> Sequence[Scores | float | None]:
        """One for each completion, in order. A number is the total of a valid decision, without
        parts; None drops the sample. `example`: the state and the expert's decision
        (training/examples/).
        """
