"""train_da_grpo.py with a reward that even a random model earns some of: for tests in a process of
their own. Several runs are parted by `--`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from itertools import groupby

from training.examples import Example
from training.rewards import REWARDS, Scores


def variety() -> object:
    """The share of letters that a completion has."""

    def reward(
        example: Example, completions: list[str], cut: Sequence[bool] = ()
    ) -> list[Scores | None]:
        shares = [len(set(text) & set("etaoinshrdlu")) / 12 for text in completions]
        return [Scores(share, {"variety": share}, share > 0, False) for share in shares]

    return reward


def silence() -> object:
    """No score at all, as of a judge that refuses everything."""
    return lambda example, completions, cut=(): [None] * len(completions)


MORE = {"variety": variety, "silence": silence}

if __name__ == "__main__":
    import train_da_grpo
    from training.options import parse

    REWARDS.update(MORE)  # type: ignore[arg-type]
    runs = [list(part) for dashes, part in groupby(sys.argv[1:], "--".__eq__) if not dashes]
    codes = [train_da_grpo.main(parse(flags)) for flags in runs]
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(max(codes))
