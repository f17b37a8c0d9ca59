"""What each seam must return. The user's Python may return anything; a value that does not fit ends
the run with one line that says where it came from and what is needed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import get_args

from orchestra.matching import Placed
from orchestra.seams import Scores
from orchestra.vocabulary import (
    Backend,
    Complete,
    ConfigError,
    Decision,
    Delegate,
    Evidence,
    Result,
    Status,
    SubTask,
)

ROUNDING = 1e-9  # relative, of a sum of shares


def decision(value: object, flag: str) -> Decision:
    """y_t. Raises ConfigError."""
    if isinstance(value, Complete) and isinstance(value.answer, str):
        return value
    if isinstance(value, Delegate):
        for u in value.subtasks:
            if not isinstance(u, SubTask):
                raise _misfit(flag, "decide delegates", u, "a SubTask")
        return value
    raise _misfit(flag, "decide returned", value, "Delegate(...) or Complete(answer)")


def result(value: object, flag: str) -> Result:
    """z. Raises ConfigError."""
    if not isinstance(value, Result):
        raise _misfit(flag, "run returned", value, "a Result")
    statuses = get_args(Status)
    if value.status not in statuses:
        raise _misfit(
            flag, "run returned the status", value.status, ", ".join(statuses)
        )
    for text in (value.answer, value.summary, value.error):
        if not isinstance(text, str):
            raise _misfit(flag, "a text of the Result is", text, "a str")
    return value


def history(value: object, flag: str) -> tuple[Evidence, ...]:
    """H_{t+1}. Raises ConfigError."""
    entries: list[Evidence] = []
    for entry in value if isinstance(value, list | tuple) else [value]:
        if not isinstance(entry, Evidence):
            raise _misfit(flag, "remember returned", entry, "a tuple of Evidence")
        entries.append(entry)
    return tuple(entries)


def context(value: object, flag: str) -> str:
    """C_{t+1}. Raises ConfigError."""
    if not isinstance(value, str):
        raise _misfit(flag, "context returned", value, "a str")
    return value


def batch(
    value: object,
    flag: str,
    candidates: Sequence[SubTask],
    pool: Sequence[Backend],
    k_max: int | None,
    budget_usd: float | None,
) -> list[Placed]:
    """U_t: some of the candidates, each once, within K_max and B_t. Raises ConfigError."""
    placed: list[Placed] = []
    for p in value if isinstance(value, list | tuple) else [value]:
        if not isinstance(p, Placed):
            wanted = "a list of Placed(subtask, backend, purse)"
            raise _misfit(flag, "place returned", p, wanted)
        placed.append(p)
    ids = [p.subtask.id for p in placed]
    known = [u.id for u in candidates]
    problem = ""
    if not ids:
        problem = "placed no sub-task; raise BudgetExceeded if none is affordable"
    elif len(set(ids)) < len(ids) or not set(ids) <= set(known):
        problem = (
            f"placed {', '.join(ids)}; the candidates are {', '.join(known)}, each once"
        )
    elif k_max is None and len(ids) < len(known):
        problem = "left out a node of a whole graph (k_max is None)"
    elif k_max is not None and len(ids) > k_max:
        problem = f"placed {len(ids)} sub-tasks, more than k_max={k_max}"
    elif any(p.backend not in pool for p in placed):
        problem = "placed a sub-task on a backend that is not in the pool"
    elif any(p.subtask.tools is None for p in placed):
        problem = "left the tools of a sub-task None; choose them (Eq. 7)"
    elif budget_usd is not None and _shares_usd(placed) > budget_usd * (1 + ROUNDING):
        problem = f"gave away more than the budget of {budget_usd:.6f} USD"
    if problem:
        raise ConfigError(f"{flag}: {problem}")
    return placed


def scores(value: object, flag: str, count: int) -> list[Scores | None]:
    """R of a group of `count` completions. A number is the total of a valid decision without parts.
    Raises ConfigError.
    """
    if not isinstance(value, list | tuple):
        raise _misfit(flag, "score returned", value, "a list of Scores")
    if len(value) != count:
        found = f"{len(value)} scores for {count} completions"
        wanted = "one for each, in order (CONTRIBUTING.md)"
        raise ConfigError(f"{flag}: score returned {found}; it must be {wanted}")
    return [_one_score(entry, flag) for entry in value]


def _one_score(value: object, flag: str) -> Scores | None:
    if value is None:
        return None
    if isinstance(value, Real):
        return Scores(total=_number(value, flag), parts={}, valid=True)
    if not isinstance(value, Scores):
        raise _misfit(flag, "score returned", value, "Scores, a number or None")
    if not isinstance(value.parts, Mapping):
        raise _misfit(flag, "the parts of the Scores are", value.parts, "a dict")
    parts = {name: _number(part, flag) for name, part in value.parts.items()}
    return Scores(_number(value.total, flag), parts, valid=bool(value.valid))


def _number(value: object, flag: str) -> float:
    if not isinstance(value, Real) or not math.isfinite(value):
        raise _misfit(flag, "a score is", value, "a finite number")
    return float(value)


def _shares_usd(placed: Sequence[Placed]) -> float:
    """The sum of all shares; infinite if one has no limit."""
    limits = [p.purse.limit_usd for p in placed]
    return sum(float("inf") if limit is None else limit for limit in limits)


def _misfit(flag: str, what: str, value: object, wanted: str) -> ConfigError:
    shown = " ".join(repr(value).split())[:80]
    return ConfigError(f"{flag}: {what} {shown}; it must be {wanted} (CONTRIBUTING.md)")
