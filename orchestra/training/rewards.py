"""The rewards that the program ships, and the choice of one.

    rubric     Eq. 29 by rule: what the decision would find in the world of MiniGAIA (rubric.py)
    exact      Eq. 29 by a stricter rule, which ranks policies as their success does (exact.py)
    judge      Eq. 29 with the four scores of a language model (judge.py); for recorded runs too
    outcome    vanilla GRPO: 1 if the task's answer comes out right when the expert continues after
               the decision, else 0 (outcome.py)

A reward of your own is FILE.py:NAME or package.module:NAME: the Protocol `Reward` in seams.py.
CONTRIBUTING.md has an example.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from orchestra.runtime.user_code import chosen, fitted, is_spec, source_file
from orchestra.seams import Reward

REWARDS = {  # imported when one is chosen
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


def make(name: str, /, **settings: Any) -> Reward:
    """The reward of a --reward, with its --reward-setting NAME=VALUE as keyword arguments. Raises
    ConfigError for one that does not exist, or other settings than it takes.
    """
    if name in REWARDS:
        shipped: Reward = fitted(REWARDS[name], Reward, f"--reward {name}", **settings)
        return shipped
    own: Reward = chosen(name, REWARDS, Reward, "--reward", **settings)
    return own


def source_files(name: str) -> list[Path]:
    """The files that a reward follows from. A run stores their hash."""
    here = Path(__file__).parent
    files = [here / file for file in RULE]
    if is_spec(name):
        files.append(source_file(name, "--reward"))
    return files
