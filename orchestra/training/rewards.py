"""What a reward is, the rewards that the program ships, and the choice of one.

    rubric     Eq. 29 by rule: what the decision would find in the world of MiniGAIA (rubric.py)
    exact      Eq. 29 by a stricter rule, which pays nothing for what does not help (exact.py)
    judge      Eq. 29 with the four scores of a language model (judge.py); for recorded runs too
    outcome    vanilla GRPO: 1 if the task's answer comes out right when the expert continues after
               the decision, else 0 (outcome.py)

A reward of your own is FILE.py:NAME or package.module:NAME: a Reward, or its method as a function.
CONTRIBUTING.md has an example.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol

from orchestra.command.names import load, source_file
from orchestra.kernel.vocabulary import ConfigError

REWARDS: dict[str, Any] = {  # imported when one is chosen
    "rubric": "orchestra.training.rubric:Rubric",
    "exact": "orchestra.training.exact:Exact",
    "judge": "orchestra.training.judge:Judge",
    "outcome": "orchestra.training.outcome:Outcome",
}
RULE = (  # the files that the shipped rewards follow from
    "../minigaia/operations.py",
    "../minigaia/shapes.py",
    "../minigaia/tasks.py",
    "../minigaia/world.py",
    "../evaluation/scores.py",
    "world.py",
    "reading.py",
    "rubric.py",
    "exact.py",
    "outcome.py",
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
    """R of Eq. 29, for a group of completions in one state."""

    def score(
        self, example: Any, completions: Sequence[Completion]
    ) -> Sequence[Scores | float | None]:
        """One for each completion, in order. A number is the total of a valid decision, without
        parts; None drops the sample. `example`: the state and the expert's decision (examples/).
        """


# ---- the choice ----------------------------------------------------------------------------------


def make(name: str, /, **settings: Any) -> Reward:
    """The reward of a --reward, with its --reward-setting NAME=VALUE as keyword arguments. Raises
    ConfigError for one that does not exist, or other settings than it takes.
    """
    flag = f"--reward {name}"
    spec = REWARDS.get(name, name)
    if isinstance(spec, str) and ":" not in spec:
        raise ConfigError(f"{flag}: needs one of {', '.join(REWARDS)}, or FILE.py:NAME")
    found: Any = load(spec, flag) if isinstance(spec, str) else spec
    if inspect.isclass(found):
        try:
            inspect.signature(found).bind(**settings)
        except TypeError as error:
            wanted = (
                f"the settings {', '.join(settings)}" if settings else "no arguments"
            )
            raise ConfigError(f"{flag}: must take {wanted} ({error})") from None
        found = found(**settings)
    elif settings:
        names = ", ".join(settings)
        raise ConfigError(f"{flag}: is not a class, so it takes no settings ({names})")
    elif inspect.isroutine(found):
        found = SimpleNamespace(score=found)
    if not hasattr(found, "score"):
        raise ConfigError(
            f"{flag}: is not a function or a class with score; see CONTRIBUTING.md"
        )
    reward: Reward = found
    return reward


def source_files(name: str) -> list[Path]:
    """The files that a reward follows from. A run stores their hash."""
    here = Path(__file__).parent
    files = [here / file for file in RULE]
    if ":" in name:
        files.append(source_file(name, "--reward"))
    return files


# ---- what it returns -----------------------------------------------------------------------------


def read_scores(value: object, flag: str, count: int) -> list[Scores | None]:
    """R of a group of `count` completions, from what a reward returned: a wrong number must not be
    learned. Raises ConfigError.
    """
    if not isinstance(value, list | tuple):
        raise _misfit(flag, "score returned", value, "a list of Scores")
    if len(value) != count:
        found = f"{len(value)} scores for {count} completions"
        raise ConfigError(
            f"{flag}: score returned {found}; it must be one for each, in order"
        )
    return [_one_score(entry, flag) for entry in value]


def _one_score(value: object, flag: str) -> Scores | None:
    if value is None:
        return None
    if isinstance(value, Real):
        return Scores(total=_number(value, flag), parts={}, valid=True)
    if not isinstance(value, Scores):
        raise _misfit(flag, "score returned", value, "Scores, a number or None")
    parts = {name: _number(part, flag) for name, part in value.parts.items()}
    return Scores(_number(value.total, flag), parts, valid=bool(value.valid))


def _number(value: object, flag: str) -> float:
    if not isinstance(value, Real) or not math.isfinite(value):
        raise _misfit(flag, "a score is", value, "a finite number")
    return float(value)


def _misfit(flag: str, what: str, value: object, wanted: str) -> ConfigError:
    shown = " ".join(repr(value).split())[:80]
    return ConfigError(
        f"{flag}: {what} {shown}; it must be {wanted}; see CONTRIBUTING.md"
    )
