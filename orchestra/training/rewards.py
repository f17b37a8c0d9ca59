"""Eq. 29, the reward of a decision: r = sum of alpha_k r_k over four parts.

    format     the reply is one JSON object with an action and its params
    action     the program can carry the decision out
    tool       the tools that are given are those that are needed
    decision   how much the decision contributes to the answer

The rewards that the program ships:

    rubric     by rule: what the decision would find in the world of MiniGAIA
    exact      by a stricter rule, which pays nothing for what does not help
    judge      with the four scores of a language model (judge.py); for recorded runs too
    outcome    vanilla GRPO: 1 if the task's answer comes out right when the expert continues after
               the decision, else 0

The rubric gives partial credit that reinforcement learning learns to collect without solving
anything: for a tool that finds nothing, for an operation that happens to match a number, for going
on. `exact` gives none. It compares the sub-tasks with what the expert would delegate:

    decision   recall x precision. A sub-task counts if it finds a missing fact, and if, for a
               computed fact, it names the operation and its operands in one of its wordings (in any
               order if that does not matter, as in a sum). To complete is worth 1 with the right
               answer once that was found, and 0 before
    tool       as `decision`, and the sub-task has the tool of the fact and no other

A wrong or early end, a delegation after the answer was found, and sub-tasks that find nothing new
earn 0.1 in all.

A reward of your own is FILE.py:NAME or package.module:NAME: a Reward, or its method as a function.
CONTRIBUTING.md has an example.

Differences of format and action from App. B.4: here they say what the program would do
1. A missing "params" costs `format` alone: the program reads the fields next to "action".
2. An unknown tool or backend costs `action`: the program would refuse the decision.
3. Completing before anything was seen of a task with files costs `action`, as in small_models.py.
4. An incomplete reply, cut at its limit, costs `action`: the program would ask again.
5. A tool that cannot open the file of its sub-task costs nothing here: a state does not say what
   the tools can do. The program would refuse the decision.
"""

from __future__ import annotations

import copy
import inspect
import json
import math
import re
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from numbers import Real
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Protocol

from orchestra.command.names import load, one_line, source_file
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
from orchestra.minigaia.world import ROUNDS, Finding, World
from orchestra.training.examples import Example, state_of
from orchestra.training.world import decided, expert, parse_decision, world_at

if TYPE_CHECKING:
    from torch import Tensor

    from orchestra.training.rollouts import Group

WEIGHTS = {"format": 0.1, "action": 0.1, "tool": 0.2, "decision": 0.6}  # alpha, Eq. 29
EXACT_WEIGHTS = {"format": 0.05, "action": 0.05, "tool": 0.2, "decision": 0.7}
UNNEEDED = 1 / 3  # both parts of a delegation after the answer was found: 1 of 3 points
AROUND = re.compile(  # thinking before the object, and a fence around it
    r"(?:<think(?:ing)?>.*?</think(?:ing)?>)?\s*(?:```(?:json)?\s*\n(.*)```|(.*))", re.S
)
RULE = (  # the files that the shipped rewards follow from
    "../minigaia/operations.py",
    "../minigaia/shapes.py",
    "../minigaia/tasks.py",
    "../minigaia/world.py",
    "../evaluation/scores.py",
    "world.py",
    "rewards.py",
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

    total: float
    parts: Mapping[str, float]
    valid: bool


class Reward(Protocol):
    """R of Eq. 29, for a group of completions in one state.

    It may have a method `score_groups(examples, groups)` too. It then gets all groups of a step in
    one call. The judge has it, to ask about all of them in parallel.
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


class Rubric:
    """The Reward `rubric`."""

    weights: Mapping[str, float] = WEIGHTS

    def score(
        self, example: Example, completions: Sequence[Completion]
    ) -> list[Scores]:
        """Raises KeyError, TypeError or ValueError for an example that is not of MiniGAIA."""
        world = world_at(example)
        return [self.scores(world, r) for r in readings(example, completions)]

    def scores(self, world: World, reading: Reading) -> Scores:
        """r and its parts."""
        is_valid = reading.decision is not None
        tool = decision = 0.0
        if reading.decision is not None:
            tool, decision = self.tool_and_decision(world, reading.decision)
        parts = {"format": float(reading.format), "action": float(is_valid)}
        parts |= {"tool": tool, "decision": decision}
        return Scores(weighted(parts, self.weights), parts, is_valid)

    def tool_and_decision(
        self, world: World, decision: Decision
    ) -> tuple[float, float]:
        """Two parts, each in [0, 1]. A right answer earns both. A wrong one earns `tool` if it was
        time to complete. After the answer was found, a delegation earns the less, the more
        sub-tasks it has.
        """
        if isinstance(decision, Complete):
            right = is_right(world, decision)
            return float(right or world.answer_found()), float(right)
        findings = world.would_find(decision)
        if world.answer_found():
            found = sum(fact is not None for _, fact in findings)
            share = UNNEEDED * found / max(1, len(findings)) ** 2
            return share, share
        return tool_overlap(world, findings), progress(world, findings, len(findings))


class Exact(Rubric):
    """The Reward `exact`."""

    weights = EXACT_WEIGHTS

    def tool_and_decision(
        self, world: World, decision: Decision
    ) -> tuple[float, float]:
        found = world.answer_found()
        if isinstance(decision, Complete):
            in_time = float(found and is_right(world, decision))
            return in_time, in_time
        if found:
            return 0.0, 0.0
        findings = world.would_find(decision)
        exact = [(u, f) for u, f in findings if f is not None and is_exact(u, f)]
        one_tool = [(u, f) for u, f in exact if u.tools in (None, (f.tool,))]
        count = len(findings)
        return progress(world, one_tool, count), progress(world, exact, count)


class Outcome(Rubric):
    """The Reward `outcome`."""

    def scores(self, world: World, reading: Reading) -> Scores:
        if reading.decision is None:
            return Scores(0.0, {"outcome": 0.0}, valid=False)
        right = float(solved_from(world, reading.decision))
        return Scores(right, {"outcome": right}, valid=True)


def is_right(world: World, decision: Complete) -> bool:
    return matches(decision.answer, world.mini.answer, world.mini.task.question)


def solved_from(world: World, decision: Decision) -> bool:
    """Whether the task ends with the right answer if the expert takes over after `decision`."""
    if isinstance(decision, Complete):
        return is_right(world, decision)
    after = copy.deepcopy(world)
    after.carry_out(decision)
    while not after.answer_found() and after.round < ROUNDS:
        after.carry_out(decided(expert(after), after))
    return after.answer_found()


def progress(world: World, findings: Sequence[Finding], count: int) -> float:
    """Recall x precision of `count` sub-tasks, of which these findings count. Recall: which part of
    the missing facts that can be found now they find. Precision: which part of the sub-tasks finds
    a missing fact; two that find the same one count once.
    """
    new = new_facts(world, findings)
    ready = world.ready()
    recall = sum(fact.id in new for fact in ready) / len(ready)
    return recall * len(new) / max(1, count)


def tool_overlap(world: World, findings: Sequence[Finding]) -> float:
    """Of the tools that are needed or given, the share that is both. A sub-task that names no tools
    has those that are needed.
    """
    new = new_facts(world, findings)
    needed = {fact.tool for fact in (*world.ready(), *new.values())}
    given: set[str] = set()
    for u, _ in findings:
        given |= needed if u.tools is None else set(u.tools)
    return len(needed & given) / len(needed | given)


def new_facts(world: World, findings: Sequence[Finding]) -> dict[str, Fact]:
    """The missing facts that a delegation finds, by id."""
    missing = world.missing()
    facts = [fact for _, fact in findings if fact is not None]
    return {fact.id: fact for fact in facts if fact.id in missing}


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


REWARDS: dict[str, Any] = {
    "rubric": Rubric,
    "exact": Exact,
    "judge": "orchestra.training.judge:Judge",  # imported when it is chosen
    "outcome": Outcome,
}


def make(name: str, /, **settings: Any) -> Reward:
    """The reward of a --reward, with its --reward-setting NAME=VALUE as keyword arguments. Raises
    ConfigError for one that does not exist, or other settings than it takes.
    """
    flag = f"--reward {name}"
    found = REWARDS.get(name, name)
    if isinstance(found, str):
        if ":" not in found:
            known = ", ".join(REWARDS)
            raise ConfigError(f"{flag}: needs one of {known}, or FILE.py:NAME")
        found = load(found, flag)
    names = ", ".join(settings)
    if inspect.isclass(found):
        try:
            inspect.signature(found).bind(**settings)
        except TypeError as error:
            wanted = f"the settings {names}" if settings else "no arguments"
            raise ConfigError(f"{flag}: must take {wanted} ({error})") from None
        found = called(name, "cannot be made", partial(found, **settings))
    elif settings:
        raise ConfigError(f"{flag}: is not a class, so it takes no settings ({names})")
    elif inspect.isroutine(found):
        found = SimpleNamespace(score=found)
    if not hasattr(found, "score"):
        wanted = "a function or a class with score; see CONTRIBUTING.md"
        raise ConfigError(f"{flag}: is not {wanted}")
    reward: Reward = found
    return reward


def called(name: str, where: str, function: Callable[..., Any], *given: Any) -> Any:
    """What a function of the reward `name` returns. Raises ConfigError for an error in one of the
    user's own, with the line of code that raised it. An error in a shipped one is a bug.
    """
    try:
        return function(*given)
    except (ConfigError, EndpointError):
        raise
    except Exception as error:
        if name in REWARDS:
            raise
        raised = traceback.extract_tb(error.__traceback__)[-1]
        why = f"{one_line(error)} ({raised.filename}:{raised.lineno})"
        raise ConfigError(f"--reward {name}: {where}: {why}") from error


def source_files(name: str) -> list[Path]:
    """The files that a reward follows from. A run stores their hash."""
    files = [Path(__file__).parent / file for file in RULE]
    return [*files, source_file(name, "--reward")] if ":" in name else files


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
        scores = self.scores(examples, completions)
        totals = [[math.nan if s is None else s.total for s in row] for row in scores]
        return Scored(examples, scores, torch.tensor(totals, dtype=torch.float64))

    def scores(
        self, examples: Sequence[Example], groups: Sequence[Sequence[Completion]]
    ) -> list[list[Scores | None]]:
        """The scores of the completions in each example's state. Raises ConfigError."""
        flag = f"--reward {self.name}"
        score_groups = getattr(self.reward, "score_groups", None)
        values: Sequence[Any]
        if score_groups is None:
            score = self.reward.score
            values = [
                called(self.name, f"example {example.id}", score, example, group)
                for example, group in zip(examples, groups, strict=True)
            ]
        else:
            where = f"{len(examples)} examples, the first {examples[0].id}"
            value = called(self.name, where, score_groups, examples, groups)
            values = listed(value, f"{flag}: score_groups", len(groups), "groups")
        sizes = map(len, groups)
        return [read_scores(v, flag, n) for v, n in zip(values, sizes, strict=True)]

    def check(self, examples: Sequence[Example]) -> None:
        """Raises ConfigError, before a model is loaded, for an example that a shipped reward cannot
        score. A reward of the user's own is tried once, on the reference of the first example.
        """
        if self.name not in REWARDS:
            reference = json.dumps(examples[0].reference, ensure_ascii=False)
            self.scores(examples[:1], [[Completion(reference)]])
            return
        other = "--reward judge scores recorded runs"
        if self.name == "judge":
            other = "it has no state, so it is for --stage sft"
        for example in examples:
            try:
                self.reward.score(example, [])
            except (KeyError, TypeError, AttributeError, ValueError):
                why = f"--reward {self.name} cannot score it; {other}"
                raise ConfigError(f"example {example.id}: {why}") from None


def read_scores(value: object, flag: str, count: int) -> list[Scores | None]:
    """R of a group of `count` completions, from what a reward returned: a wrong number must not be
    learned. Raises ConfigError.
    """
    found = listed(value, f"{flag}: score", count, "completions")
    return [_one_score(entry, flag) for entry in found]


def listed(value: Any, what: str, count: int, of: str) -> Sequence[Any]:
    """A list with an entry for each of `count` groups or completions. Raises ConfigError."""
    if isinstance(value, list | tuple):
        if len(value) == count:
            return value
        value = f"{len(value)} entries"
    wanted = f"a list with one entry for each of {count} {of}, in order"
    raise _misfit(f"{what} returned", value, wanted)


def _one_score(value: object, flag: str) -> Scores | None:
    if value is None:
        return None
    if isinstance(value, Real):
        value = Scores(total=value, parts={}, valid=True)  # type: ignore[arg-type]
    if not isinstance(value, Scores):
        raise _misfit(f"{flag}: score returned", value, "Scores, a number or None")
    numbers: tuple[object, ...] = (value.total, *value.parts.values())
    for number in numbers:
        if not isinstance(number, Real) or not math.isfinite(number):
            raise _misfit(f"{flag}: a score is", number, "a finite number")
    parts = {name: float(part) for name, part in value.parts.items()}
    return Scores(float(value.total), parts, bool(value.valid))


def _misfit(what: str, value: object, wanted: str) -> ConfigError:
    shown = " ".join(str(value).split())[:80]
    return ConfigError(f"{what} {shown}; it must be {wanted}; see CONTRIBUTING.md")
