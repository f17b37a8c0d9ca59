"""Eq. 29, the reward of a decision: r = sum of alpha_k r_k over four parts.

    format     the reply is one JSON object with an action and its params
    action     the program can carry the decision out
    tool       the tools that are given are those that are needed
    decision   how much the decision contributes to the answer

The paper's reward is `judge`, with the four scores of a language model (judge.py). A reward of your
own is FILE.py:NAME or package.module:NAME: a Reward, or its method as a function.
docs/contributing.md has an example, and benchmarks/minigaia/reward.py another.

Differences of format and action from App. B.4: here they say what the program would do
1. A missing "params" costs `format` alone: the program reads the fields next to "action".
2. An unknown tool or backend costs `action`: the program would refuse the decision.
3. Completing before anything was seen of a task with files costs `action`.
4. An incomplete reply, cut at its limit, costs `action`: the program would ask again.
5. A tool that cannot open the file of its sub-task costs nothing here: a state does not say what
   the tools can do. The program would refuse the decision.
"""

from __future__ import annotations

import inspect
import json
import math
import re
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Protocol

from pydantic import ConfigDict, FiniteFloat, TypeAdapter, ValidationError

from orchestra.command.names import load, one_line
from orchestra.kernel.placing import Graph, refine
from orchestra.kernel.vocabulary import (
    ConfigError,
    Decision,
    Delegate,
    EndpointError,
    ModelMistake,
    Reply,
    State,
    SubTask,
)
from orchestra.methods import main_agent
from orchestra.methods.orchestra_o1 import read_delegation
from orchestra.methods.replies import MAX_CHARS
from orchestra.training.examples import Example, state_of

if TYPE_CHECKING:
    from torch import Tensor

    from orchestra.training.rollouts import Group

WEIGHTS = {"format": 0.1, "action": 0.1, "tool": 0.2, "decision": 0.6}  # alpha, Eq. 29
AROUND = re.compile(  # thinking before the object, and a fence around it
    r"(?:<think(?:ing)?>.*?</think(?:ing)?>)?\s*(?:```(?:json)?\s*\n(.*)```|(.*))", re.S
)
WANTED = (
    "it must be a list with Scores, a finite number or None for each completion, in "
    "order; see docs/contributing.md"
)


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

    total: FiniteFloat
    parts: Mapping[str, FiniteFloat]
    valid: bool


SCORES = TypeAdapter(
    list[Scores | FiniteFloat | None], config=ConfigDict(revalidate_instances="always")
)


class Reward(Protocol):
    """R of Eq. 29, for a group of completions in one state.

    With an attribute `parallel`, so many groups are scored at the same time, as by the judge.
    """

    def score(
        self, example: Any, completions: Sequence[Completion]
    ) -> Sequence[Scores | float | None]:
        """One for each completion, in order. A number is the total of a valid decision, without
        parts; None drops the sample. `example`: the state and the expert's decision (examples.py).
        """


def weighted(
    parts: Mapping[str, float], weights: Mapping[str, float] = WEIGHTS
) -> float:
    """r of Eq. 29, in [0, 1], of parts in [0, 1]."""
    r = sum(alpha * parts[name] for name, alpha in weights.items())  # Eq. 29
    return min(1.0, r)  # the sum of floats may be a little more


# ---- the decision in a completion ----------------------------------------------------------------


@dataclass(frozen=True)
class Reading:
    """What `text` says. `format`: it is one JSON object with an action and its params, and nothing
    else but thinking before it and a fence around it. `decision` None: the program could not carry
    it out.
    """

    text: str
    format: bool
    decision: Decision | None


def readings(example: Example, completions: Sequence[Completion]) -> list[Reading]:
    """Completions as they would be read in the state of an example. Raises KeyError, TypeError or
    ValueError for an example that has no state.
    """
    state = state_of(example.meta["state"])
    return [read_decision(c.text, state, c.cut) for c in completions]


def read_decision(text: str, state: State, cut: bool = False) -> Reading:
    """`cut`: the text stopped at its length limit; only a complete decision in it counts. No text
    makes this raise.
    """
    decision: Decision | None = None
    try:
        decision = parse_decision(text, state, cut)
        if isinstance(decision, Delegate):
            _check(decision, state)
    except ModelMistake:
        decision = None
    return Reading(text, _is_plain(text), decision)


def parse_decision(
    text: str, state: State, cut: bool = False, last_chance: bool = False
) -> Decision:
    """y_t as Orchestra-o1 reads a reply, but a task with files cannot be completed before anything
    was seen of it. Raises ModelMistake.
    """
    may_complete = not main_agent.nothing_seen(state)
    reply = Reply(text, cut=cut)
    return main_agent.read_decision(
        read_delegation, reply, state, last_chance, may_complete
    )


def _check(decision: Delegate, state: State) -> None:
    """Raises ModelMistake for sub-tasks that do not fit the graph G_t, or that come too late."""
    if state.round > state.rounds:
        raise ModelMistake("last_chance", "delegation")
    subtasks = {h.id: SubTask(h.id, h.instruction) for h in state.history}
    for id, needs in state.waiting.items():
        subtasks[id] = SubTask(id, instruction="", needs=needs)
    # Evidence in place of results: their status is all that counts
    ended: Any = {h.id: h for h in state.history if h.id not in state.waiting}
    refine(Graph(subtasks, ended), decision)


def _is_plain(text: str) -> bool:
    """The `format` of a Reading."""
    found = AROUND.fullmatch(text[:MAX_CHARS].strip())
    if found is None:
        return False
    fenced, bare = found.groups()
    try:
        value = json.loads(bare if fenced is None else fenced)
    except (ValueError, RecursionError):
        return False
    if not isinstance(value, dict):
        return False
    action, params = value.get("action"), value.get("params")
    return isinstance(action, str) and isinstance(params, dict)


# ---- the choice ----------------------------------------------------------------------------------


SHIPPED = {"judge": "orchestra.training.judge:Judge"}


def make(name: str, /, **settings: Any) -> Reward:
    """The reward of a --reward, with its --reward-setting NAME=VALUE as keyword arguments. Raises
    ConfigError for one that does not exist, or other settings than it takes.
    """
    flag = f"--reward {name}"
    if name not in SHIPPED and ":" not in name:
        raise ConfigError(f"{flag}: needs judge, FILE.py:NAME or package.module:NAME")
    found = load(SHIPPED.get(name, name), flag)
    if inspect.isclass(found):
        found = called(f"{flag}: cannot be made", found, **settings)
    elif callable(found):
        found = SimpleNamespace(score=partial(found, **settings))
    if not hasattr(found, "score"):
        wanted = "a function or a class with score; see docs/contributing.md"
        raise ConfigError(f"{flag}: is not {wanted}")
    reward: Reward = found
    return reward


def called(what: str, function: Callable[..., Any], *given: Any, **more: Any) -> Any:
    """What a user's function returns. Raises ConfigError for its errors, with the line of code."""
    try:
        return function(*given, **more)
    except (ConfigError, EndpointError):
        raise
    except Exception as error:
        raised = traceback.extract_tb(error.__traceback__)[-1]
        why = f"{one_line(error)} ({raised.filename}:{raised.lineno})"
        raise ConfigError(f"{what}: {why}") from error


# ---- a step's rewards ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Scored:
    """The rewards of P groups of G completions. None, in `rewards` NaN, is a dropped completion."""

    examples: Sequence[Example]
    scores: list[list[Scores | None]]
    rewards: Tensor  # (P, G): the totals of the scores


@dataclass
class Scorer:
    """Eq. 29 for whole steps, checked. `name` is the --reward that made `reward`."""

    name: str
    reward: Reward

    def __call__(self, examples: Sequence[Example], groups: Sequence[Group]) -> Scored:
        """Raises ConfigError if the reward does not return one score for each completion."""
        import torch

        completions = [list(map(Completion, g.texts, g.cut)) for g in groups]
        with ThreadPoolExecutor(getattr(self.reward, "parallel", 1)) as pool:
            scores = list(pool.map(self.score, examples, completions))
        totals = [[math.nan if s is None else s.total for s in row] for row in scores]
        return Scored(examples, scores, torch.tensor(totals, dtype=torch.float64))

    def score(
        self, example: Example, completions: Sequence[Completion]
    ) -> list[Scores | None]:
        """R of a group. Raises ConfigError for an error of the user's code; ours is a bug."""
        score: Callable[..., Any] = self.reward.score
        if self.name in SHIPPED:
            return list(score(example, completions))
        where = f"--reward {self.name}: example {example.id}"
        value = called(where, score, example, completions)
        return checked_scores(value, where, len(completions))

    def check(self, examples: Sequence[Example]) -> None:
        """Raises ConfigError, before a model is loaded, for an example that a shipped reward cannot
        score. A reward of the user's own is tried once, on the reference of the first example.
        """
        if self.name not in SHIPPED:
            reference = json.dumps(examples[0].reference, ensure_ascii=False)
            self.score(examples[0], [Completion(reference)])
            return
        for example in examples:
            try:
                self.reward.score(example, [])
            except (KeyError, TypeError, AttributeError, ValueError):
                why = f"--reward {self.name} cannot score it: it has no state of a run"
                raise ConfigError(f"example {example.id}: {why}") from None


def checked_scores(value: Any, where: str, count: int) -> list[Scores | None]:
    """What a reward of the user's returned for `count` completions. Raises ConfigError."""
    try:
        found = SCORES.validate_python(value)
    except ValidationError as error:
        problem = error.errors()[0]
        shown = " ".join(str(problem["input"]).split())[:80]
        raise ConfigError(f"{where}: returned {shown}; {WANTED}") from None
    if len(found) != count:
        raise ConfigError(
            f"{where}: returned {len(found)} scores for {count}; {WANTED}"
        )
    return [Scores(s, {}, valid=True) if isinstance(s, float) else s for s in found]
