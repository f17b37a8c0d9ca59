"""Eq. 29, the reward of a decision: r = sum of alpha_k r_k over four parts.

    format     the reply is one JSON object with an action and its params
    action     the program can carry the decision out
    tool       the tools that are given are those that are needed
    decision   how much the decision contributes to the answer

The rewards that the program ships:

    exact      by rule, for MiniGAIA. It pays nothing for what does not help
    judge      with the four scores of a language model (judge.py); for recorded runs too

`exact` compares the sub-tasks with what the expert would delegate:

    decision   recall x precision. A sub-task counts if it finds a missing fact, and if, for a
               computed fact, it names the operation and its operands in one of its wordings (in any
               order if that does not matter, as in a sum). To complete is worth 1 with the right
               answer once that was found, and 0 before
    tool       as `decision`, and the sub-task has the tool of the fact and no other

A wrong or early end, a delegation after the answer was found, and sub-tasks that find nothing new
earn 0.1 in all.

A reward of your own is FILE.py:NAME or package.module:NAME: a Reward, or its method as a function.
docs/contributing.md has an example.

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
from orchestra.evaluation.scores import matches
from orchestra.kernel.placing import Graph, refine
from orchestra.kernel.prompts import say
from orchestra.kernel.vocabulary import (
    Complete,
    ConfigError,
    Decision,
    Delegate,
    EndpointError,
    ModelMistake,
    State,
    SubTask,
)
from orchestra.methods.replies import MAX_CHARS
from orchestra.minigaia.operations import ANY_ORDER
from orchestra.minigaia.tasks import WORDS, Fact
from orchestra.minigaia.world import World
from orchestra.training.examples import Example, state_of
from orchestra.training.world import parse_decision, world_at

if TYPE_CHECKING:
    from torch import Tensor

    from orchestra.training.rollouts import Group

WEIGHTS = {"format": 0.1, "action": 0.1, "tool": 0.2, "decision": 0.6}  # alpha, Eq. 29
EXACT_WEIGHTS = {"format": 0.05, "action": 0.05, "tool": 0.2, "decision": 0.7}
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


# ---- by rule -------------------------------------------------------------------------------------


class Exact:
    """The Reward `exact`."""

    def score(
        self, example: Example, completions: Sequence[Completion]
    ) -> list[Scores]:
        """Raises KeyError, TypeError or ValueError for an example that is not of MiniGAIA."""
        world = world_at(example)
        return [exact_scores(world, r) for r in readings(example, completions)]


def exact_scores(world: World, reading: Reading) -> Scores:
    """r and its parts."""
    is_valid = reading.decision is not None
    tool = decision = 0.0
    if reading.decision is not None:
        tool, decision = tool_and_decision(world, reading.decision)
    parts = {"format": float(reading.format), "action": float(is_valid)}
    parts |= {"tool": tool, "decision": decision}
    return Scores(weighted(parts, EXACT_WEIGHTS), parts, is_valid)


def tool_and_decision(world: World, decision: Decision) -> tuple[float, float]:
    """Two parts, each in [0, 1]."""
    found = world.answer_found()
    if isinstance(decision, Complete):
        task = world.mini.task
        is_right = matches(decision.answer, world.mini.answer, task.question)
        in_time = float(found and is_right)
        return in_time, in_time
    if found:
        return 0.0, 0.0
    findings = world.would_find(decision)
    exact = [(u, f) for u, f in findings if f is not None and is_exact(u, f)]
    one_tool = [(u, f) for u, f in exact if u.tools in (None, (f.tool,))]
    tool = progress(world, [f for _, f in one_tool], len(findings))
    return tool, progress(world, [f for _, f in exact], len(findings))


def progress(world: World, found: Sequence[Fact], count: int) -> float:
    """Recall x precision of `count` sub-tasks, which find these facts. Recall: which part of the
    missing facts that can be found now they find. Precision: which part of the sub-tasks finds a
    missing fact; two that find the same one count once.
    """
    missing = world.missing()
    new = {fact.id for fact in found if fact.id in missing}
    ready = world.ready()
    recall = sum(fact.id in new for fact in ready) / len(ready)
    return recall * len(new) / max(1, count)


def is_exact(u: SubTask, fact: Fact) -> bool:
    """Whether a sub-task asks for a computed fact in one of the wordings of its operation."""
    if not fact.operation:
        return True
    orders = [fact.evidence]
    if fact.operation in ANY_ORDER:
        orders.append(fact.evidence[::-1])
    text = f"{u.instruction} {u.context}".lower()
    for evidence in orders:
        operands = dict(zip("ab", evidence, strict=False))
        wordings = say(WORDS, fact.operation, **operands).splitlines()
        if any(wording.lower() in text for wording in wordings):
            return True
    return False


# ---- the choice ----------------------------------------------------------------------------------


SHIPPED = {
    "exact": "orchestra.training.rewards:Exact",
    "judge": "orchestra.training.judge:Judge",
}


def make(name: str, /, **settings: Any) -> Reward:
    """The reward of a --reward, with its --reward-setting NAME=VALUE as keyword arguments. Raises
    ConfigError for one that does not exist, or other settings than it takes.
    """
    flag = f"--reward {name}"
    if name not in SHIPPED and ":" not in name:
        raise ConfigError(f"{flag}: needs one of {', '.join(SHIPPED)}, or FILE.py:NAME")
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
                needs = "exact needs one of MiniGAIA, judge one of a run or of MiniGAIA"
                why = f"--reward {self.name} cannot score it; {needs}"
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
