"""Versions of an instruction, compared by success and cost. A version is on the Pareto front if no
other one is as right and as cheap.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from orchestra.kernel.prompts import say

PROMPTS = "optimize/messages"
COLUMNS = "k", "success", "cost_usd", "kept", "why", "change"


@dataclass
class Version:
    """I_k, what it changes, tau_k as text, Perf(tau_k) from 0 to 1, Cost(tau_k) in USD a task, and
    whether it is kept and why.
    """

    k: int
    instruction: str = ""  # "": the rewrite was refused
    change: str = ""
    records: str = ""  # "": it was not measured
    success: float = float("nan")
    cost_usd: float = float("nan")
    kept: str = "refused"
    why: str = ""

    def covers(self, other: Version) -> bool:
        """At least as right and at most as expensive."""
        return self.success >= other.success and self.cost_usd <= other.cost_usd

    def row(self) -> str:
        """As a line of JSON, which the optimizer model reads."""
        return json.dumps({name: vars(self)[name] for name in COLUMNS})


def front(versions: Sequence[Version]) -> list[Version]:
    """The Pareto front, the version with the most right answers first. Sets `kept` and `why` of all
    versions that were measured; of two equal ones the first is kept.
    """
    measured = [v for v in versions if v.records]
    for v in measured:
        better = [w for w in measured if _beats(w, v)]
        v.kept = "no" if better else "yes"
        v.why = say(PROMPTS, "new")
        if better:
            v.why = say(PROMPTS, "beaten", k=better[0].k)
    kept = [v for v in measured if v.kept == "yes"]
    return sorted(kept, key=lambda v: -v.success)


def _beats(w: Version, v: Version) -> bool:
    """Whether w is as right and as cheap as v, and better or earlier."""
    return w.covers(v) and (w.k < v.k or not v.covers(w))
