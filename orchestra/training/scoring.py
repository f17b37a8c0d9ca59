"""Eq. 29 for the groups of a step: the reward is called, and what it returns is checked."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from orchestra.kernel.vocabulary import ConfigError
from orchestra.training.examples import Example
from orchestra.training.rewards import REWARDS, Completion, Reward, Scores, read_scores
from orchestra.training.rollouts import Group


@dataclass(frozen=True)
class Scored:
    """The rewards of P groups of G completions. None, in `rewards` NaN, is a dropped completion."""

    examples: Sequence[Example]
    scores: list[list[Scores | None]]
    rewards: Tensor  # (P, G): the totals of the scores


class Scorer:
    """Eq. 29 for whole steps, checked. `name` is the --reward that made `reward`.

    A reward may have a method `score_groups(examples, groups)` next to `score`. It then gets all
    groups of a step in one call. The judge has it, to ask about all of them in parallel.
    """

    def __init__(self, name: str, reward: Reward) -> None:
        self.name = name
        self.flag = f"--reward {name}"
        self.reward = reward

    def __call__(self, examples: Sequence[Example], groups: Sequence[Group]) -> Scored:
        """Raises ConfigError if the reward does not return one score for each completion."""
        completions = [list(map(Completion, g.texts, g.cut)) for g in groups]
        scores = self.scores(examples, completions)
        totals = [
            [math.nan if s is None else s.total for s in group] for group in scores
        ]
        rewards = torch.tensor(totals, dtype=torch.float64)  # (P, G)
        return Scored(examples, scores, rewards)

    def scores(
        self, examples: Sequence[Example], groups: Sequence[Sequence[Completion]]
    ) -> list[list[Scores | None]]:
        """The scores of the completions in each example's state. Raises ConfigError."""
        try:
            values = self._returned(examples, groups)
        except OSError as error:  # such as of requests; else it reads like a full disk
            raise RuntimeError(f"{self.flag}: failed") from error
        return [
            read_scores(value, self.flag, len(group))
            for value, group in zip(values, groups, strict=True)
        ]

    def _returned(
        self, examples: Sequence[Example], groups: Sequence[Sequence[Completion]]
    ) -> Sequence[object]:
        """What the reward returned for each group. Raises ConfigError."""
        score_groups = getattr(self.reward, "score_groups", None)
        if score_groups is None:
            return list(map(self.reward.score, examples, groups))
        return _of_groups(score_groups(examples, groups), self.flag, len(groups))

    def check(self, examples: Sequence[Example]) -> None:
        """Raises ConfigError, before a model is loaded, for an example that a shipped reward cannot
        score. A reward of the user's own is tried once, on the reference of the first example.
        """
        if self.name not in REWARDS:
            first = examples[0]
            reference = json.dumps(first.reference, ensure_ascii=False)
            self.scores([first], [[Completion(reference)]])
            return
        for example in examples:
            try:
                self.reward.score(example, [])
            except (KeyError, TypeError, AttributeError, ValueError):
                other = "--reward judge scores recorded runs"
                if self.name == "judge":
                    other = "it has no state, so it is for --stage sft"
                why = f"{self.flag} cannot score it; {other}"
                raise ConfigError(f"example {example.id}: {why}") from None


def _of_groups(value: object, flag: str, count: int) -> Sequence[object]:
    """What `score_groups` returned for `count` groups. Raises ConfigError if it is not a list with
    an entry for each.
    """
    if isinstance(value, list | tuple) and len(value) == count:
        return value
    found = type(value).__name__
    if isinstance(value, list | tuple):
        found = f"{len(value)} lists"
    wanted = "a list of scores for each, in order (CONTRIBUTING.md)"
    problem = f"score_groups returned {found} for {count} groups"
    raise ConfigError(f"{flag}: {problem}; it must be {wanted}")
